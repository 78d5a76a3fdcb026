package partition

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// format is the version of the archive that is written and read; docs/archive-format.md describes it.
const format = 1

// The endings of the two files of an export. What stands before is the same.
const (
	objectSuffix   = ".jsonl.zst"
	manifestSuffix = ".manifest.json"
)

// maxManifest bounds a manifest, in bytes: 1,600 columns with the longest names take a third of it.
const maxManifest = 2 << 20

// Manifest describes one archive object. It is written when the object is safe on disk: an object without a manifest is not finished.
type Manifest struct {
	Format    int      `json:"format"`
	Table     string   `json:"table"`     // schema.name of the partitioned table
	Database  string   `json:"database"`  // as in Config.Database
	Partition string   `json:"partition"` // schema.name
	OID       uint32   `json:"oid"`       // of the partition when it was exported first
	Bounds    string   `json:"bounds"`    // as SQL: FOR VALUES FROM … TO …
	Lower     string   `json:"lower"`
	Upper     string   `json:"upper"`
	Columns   []Column `json:"columns"`
	Key       []string `json:"key"` // the columns of the partition key
	Rows      int64    `json:"rows"`
	Digest    string   `json:"digest"`
	Object    string   `json:"object"`    // the file, in the directory of the manifest
	Bytes     int64    `json:"bytes"`     // of the file
	RawBytes  int64    `json:"raw_bytes"` // of the lines
	SHA256    string   `json:"sha256"`    // of the file, in hex
	// Min and Max are the least and the greatest value of the first key column, in PostgreSQL's text; nil without rows.
	Min       *string   `json:"min"`
	Max       *string   `json:"max"`
	Server    string    `json:"server"` // its version
	WrittenAt time.Time `json:"written_at"`
}

// digest12 stands in the names of both files, so that other rows have another name.
func digest12(rows int64, digest string) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%d:%s", rows, digest))
	return hex.EncodeToString(sum[:6])
}

// manifestOf is the path of the manifest of an object, and objectOf the reverse.
func manifestOf(object string) string {
	return strings.TrimSuffix(object, objectSuffix) + manifestSuffix
}

func objectOf(manifest string) string {
	return strings.TrimSuffix(manifest, manifestSuffix) + objectSuffix
}

// readManifest reads a manifest that may be damaged, or made to deceive. Its errors do not name the file.
func readManifest(path string) (Manifest, error) {
	f, err := openRegular(path)
	if err != nil {
		return Manifest{}, err
	}
	defer func() { _ = f.Close() }() // nothing was written
	data, err := io.ReadAll(io.LimitReader(f, maxManifest+1))
	if err != nil {
		return Manifest{}, err
	}
	if len(data) > maxManifest {
		return Manifest{}, fmt.Errorf("is larger than %d bytes and so no manifest", maxManifest)
	}
	m, err := parseManifest(data)
	if err != nil {
		return Manifest{}, err
	}
	if want := filepath.Base(objectOf(path)); m.Object != want {
		return Manifest{}, fmt.Errorf("is about the object %q, and its own name about %q", m.Object, want)
	}
	return m, nil
}

func parseManifest(data []byte) (Manifest, error) {
	var version struct {
		Format *int `json:"format"`
	}
	if err := json.Unmarshal(data, &version); err != nil {
		return Manifest{}, fmt.Errorf("is not a JSON manifest: %w", err)
	}
	if version.Format == nil || *version.Format != format {
		return Manifest{}, fmt.Errorf("is not of format %d, which is the only one this version reads", format)
	}
	var m Manifest
	if err := json.Unmarshal(data, &m, json.RejectUnknownMembers(true)); err != nil {
		return Manifest{}, fmt.Errorf("is not a manifest of format %d: %w", format, err)
	}
	if err := m.check(); err != nil {
		return Manifest{}, err
	}
	return m, nil
}

// check reports what cannot be in a manifest that export has written.
func (m Manifest) check() error {
	_, number := new(big.Int).SetString(m.Digest, 10)
	sum, err := hex.DecodeString(m.SHA256)
	switch {
	case m.Table == "" || m.Partition == "":
		return errors.New("names no table or no partition")
	case m.Rows < 0 || m.RawBytes < 0 || m.Bytes <= 0:
		return fmt.Errorf("has impossible sizes: %d rows, %d bytes of lines, %d bytes in the object", m.Rows, m.RawBytes, m.Bytes)
	case !number || len(m.Digest) > 40:
		return fmt.Errorf("has a digest %.100q that is no decimal number", m.Digest)
	case err != nil || len(sum) != sha256.Size:
		return fmt.Errorf("has a sha256 %.100q that is none", m.SHA256)
	case filepath.Base(m.Object) != m.Object || !strings.HasSuffix(m.Object, "."+digest12(m.Rows, m.Digest)+objectSuffix):
		return fmt.Errorf("is about an object %.300q, whose name does not say %d rows with the digest %.100s", m.Object, m.Rows, m.Digest)
	}
	return checkColumns(m.Columns)
}

func checkColumns(cols []Column) error {
	if len(cols) == 0 {
		return errors.New("has no columns")
	}
	seen := map[string]bool{}
	for _, c := range cols {
		switch {
		case c.Name == "" || strings.ContainsRune(c.Name, 0) || seen[c.Name]:
			return fmt.Errorf("has a column %.100q twice, or without a name", c.Name)
		case c.Encoding != EncodingJSON && c.Encoding != EncodingText:
			return fmt.Errorf("has a column %.100q with the unknown encoding %.100q", c.Name, c.Encoding)
		}
		seen[c.Name] = true
	}
	return nil
}

// marshal is the manifest as it is written.
func (m Manifest) marshal() ([]byte, error) {
	var b bytes.Buffer
	err := json.MarshalWrite(&b, m, json.Deterministic(true), jsontext.WithIndent("  "))
	b.WriteByte('\n')
	return b.Bytes(), err
}

// agrees reports whether two manifests describe the same object with the same rows of the same partition. A partition that was restored
// and is archived again has another oid.
func (m Manifest) agrees(o Manifest) bool {
	for _, x := range []*Manifest{&m, &o} {
		x.OID, x.Min, x.Max, x.Server, x.WrittenAt = 0, nil, nil, "", time.Time{}
	}
	a, errA := m.marshal()
	b, errB := o.marshal()
	return errA == nil && errB == nil && bytes.Equal(a, b)
}

// openRegular opens a file to read it. It refuses pipes and devices before it opens them, for opening one may block for ever.
func openRegular(path string) (*os.File, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, errors.New("is not a regular file")
	}
	return os.Open(path)
}
