package localpg

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"hash/crc32"
	"maps"
	"slices"
	"testing"
)

// archive packs executable files as the real repository does: a tar.xz in a zip, and the checksum of the zip.
func archive(t *testing.T, files map[string]string) (jar []byte, sum string) {
	t.Helper()
	var packed bytes.Buffer
	tw := tar.NewWriter(&packed)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if err := tw.WriteHeader(&tar.Header{Name: name, Mode: 0o755, Size: int64(len(files[name]))}); err != nil {
			t.Fatal(err)
		}
		if _, err := tw.Write([]byte(files[name])); err != nil {
			t.Fatal(err)
		}
	}
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	zw := zip.NewWriter(&out)
	w, err := zw.Create("postgres-test.txz")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(storedXZ(packed.Bytes())); err != nil {
		t.Fatal(err)
	}
	if err := zw.Close(); err != nil {
		t.Fatal(err)
	}
	digest := sha256.Sum256(out.Bytes())
	return out.Bytes(), hex.EncodeToString(digest[:])
}

// storedXZ wraps data as an xz file of one block without compression. Go and its libraries only read the format, which
// the document "The .xz File Format" describes.
func storedXZ(data []byte) []byte {
	crc := func(b []byte) []byte { return binary.LittleEndian.AppendUint32(nil, crc32.ChecksumIEEE(b)) }
	pad := func(b []byte) []byte { return append(b, make([]byte, -len(b)&3)...) }
	flags := []byte{0, 1} // the check of each block is a CRC32

	header := []byte{2, 0, 0x21, 1, 0, 0, 0, 0} // 12 bytes in all, one filter: LZMA2 with a dictionary of 4 KiB
	block := append(header, crc(header)...)
	for first, rest := true, data; len(rest) > 0; first = false {
		n := min(len(rest), 1<<16)
		control := byte(2)
		if first {
			control = 1 // resets the dictionary
		}
		block = append(block, control, byte((n-1)>>8), byte(n-1))
		block, rest = append(block, rest[:n]...), rest[n:]
	}
	block = append(block, 0)
	unpadded := len(block) + 4
	block = append(pad(block), crc(data)...)

	index := []byte{0, 1}
	index = binary.AppendUvarint(index, uint64(unpadded))
	index = binary.AppendUvarint(index, uint64(len(data)))
	index = pad(index)
	index = append(index, crc(index)...)

	footer := append(binary.LittleEndian.AppendUint32(nil, uint32(len(index)/4-1)), flags...)
	return slices.Concat([]byte("\xfd7zXZ\x00"), flags, crc(flags), block, index, crc(footer), footer, []byte("YZ"))
}
