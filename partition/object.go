package partition

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"

	"github.com/klauspost/compress/zstd"
)

const (
	// window bounds how far back a match reaches, and with it the memory of both ends. It is what zstd -3 uses.
	window = 2 << 20
	// maxWindow is what every decoder should have at least, says RFC 8878.
	maxWindow = 8 << 20
	// buffer is the piece in which files are read and written.
	buffer = 256 << 10
)

// content is what an object holds.
type content struct {
	rows     int64
	digest   string
	rawBytes int64 // of the lines, each with its newline
	bytes    int64 // of the file
	sha256   string
}

// objectWriter writes lines as one zstd frame.
type objectWriter struct {
	file   *os.File
	sum    hash.Hash // of the file
	out    *bufio.Writer
	zstd   *zstd.Encoder
	digest digest
	raw    int64
}

func newObjectWriter(file *os.File) (*objectWriter, error) {
	w := &objectWriter{file: file, sum: sha256.New()}
	w.out = bufio.NewWriterSize(io.MultiWriter(file, w.sum), buffer)
	var err error
	// Without the last option an object without rows would be an empty file, which a crash may leave too.
	w.zstd, err = zstd.NewWriter(w.out, zstd.WithEncoderLevel(zstd.SpeedDefault), zstd.WithWindowSize(window),
		zstd.WithEncoderConcurrency(1), zstd.WithZeroFrames(true))
	return w, err
}

var newline = []byte{'\n'}

// line adds one line, which comes without its newline.
func (w *objectWriter) line(line []byte) error {
	sum := sha256.Sum256(line)
	w.digest.addSum(sum[:])
	w.raw += int64(len(line)) + 1
	if _, err := w.zstd.Write(line); err != nil {
		return err
	}
	_, err := w.zstd.Write(newline)
	return err
}

// finish writes what is left, and returns when the file is safe on disk.
func (w *objectWriter) finish() (content, error) {
	if err := w.zstd.Close(); err != nil {
		return content{}, err
	}
	if err := w.out.Flush(); err != nil {
		return content{}, err
	}
	if err := w.file.Sync(); err != nil {
		return content{}, err
	}
	size, err := w.file.Seek(0, io.SeekCurrent)
	if err != nil {
		return content{}, err
	}
	return content{
		rows: w.digest.rows, digest: w.digest.String(), rawBytes: w.raw, bytes: size, sha256: hex.EncodeToString(w.sum.Sum(nil)),
	}, nil
}

// readObject reads an object in constant memory and returns what it holds. It fails if the frame is damaged or incomplete, if a line is
// not of these columns, or if there is more than maxRaw bytes of lines. each gets the lines in pieces, without their newlines: it may be
// nil, and must not keep a piece. Errors do not name the file.
func readObject(ctx context.Context, path string, cols []Column, maxRaw int64, each func(piece []byte, end bool) error) (content, error) {
	f, err := openRegular(path)
	if err != nil {
		return content{}, err
	}
	defer func() { _ = f.Close() }() // nothing was written
	in := &measured{ctx: ctx, r: f, sum: sha256.New()}
	z, err := zstd.NewReader(in, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxWindow))
	if err != nil {
		return content{}, err
	}
	defer z.Close()

	var d digest
	var raw int64
	lines, shape, sum := bufio.NewReaderSize(z, buffer), newShape(cols), sha256.New()
	for {
		piece, err := lines.ReadSlice('\n')
		end := err == nil
		raw += int64(len(piece))
		switch {
		case raw > maxRaw:
			return content{}, fmt.Errorf("has more than the %d bytes of lines that it should have", maxRaw)
		case errors.Is(err, io.EOF) && in.bytes == 0:
			return content{}, errors.New("is empty")
		case errors.Is(err, io.EOF) && len(piece) == 0 && shape.complete():
			return content{rows: d.rows, digest: d.String(), rawBytes: raw, bytes: in.bytes, sha256: hex.EncodeToString(in.sum.Sum(nil))}, nil
		case errors.Is(err, io.EOF):
			return content{}, fmt.Errorf("line %d is not complete", d.rows+1)
		case err != nil && !errors.Is(err, bufio.ErrBufferFull):
			return content{}, fmt.Errorf("cannot be read after line %d: %w", d.rows, err)
		}
		if !shape.write(piece) || end && !shape.complete() {
			return content{}, fmt.Errorf("line %d is no JSON object of the columns in the manifest", d.rows+1)
		}
		if end {
			piece = piece[:len(piece)-1]
		}
		sum.Write(piece)
		if each != nil {
			if err := each(piece, end); err != nil {
				return content{}, err
			}
		}
		if end {
			var buf [sha256.Size]byte
			d.addSum(sum.Sum(buf[:0]))
			sum.Reset()
		}
	}
}

// measured counts and hashes what is read, and ends with its context.
type measured struct {
	ctx   context.Context // io.Reader has no place for it
	r     io.Reader
	sum   hash.Hash
	bytes int64
}

func (m *measured) Read(p []byte) (int, error) {
	if err := m.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := m.r.Read(p)
	m.sum.Write(p[:n])
	m.bytes += int64(n)
	return n, err
}
