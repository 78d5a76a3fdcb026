package partition

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// VerifyObject reads an archive object back and compares it with its manifest: that every byte is the one that was written, that the zstd
// frame is whole, that every line is an object of the columns, the number of rows and their digest. It takes constant memory and needs
// no database. Its errors name the file and say what is wrong.
func VerifyObject(manifestPath string) (Manifest, error) {
	return verify(context.Background(), manifestPath)
}

func verify(ctx context.Context, manifestPath string) (Manifest, error) {
	m, err := readManifest(manifestPath)
	if err != nil {
		return Manifest{}, inFile("manifest", manifestPath, err)
	}
	object := objectOf(manifestPath)
	if err := m.verify(ctx, object, nil); err != nil {
		return m, inFile("archive object", object, err)
	}
	return m, nil
}

// verify reads the object and compares it with the manifest. each gets its lines, in pieces, before they are known to be right; see
// readObject.
func (m Manifest) verify(ctx context.Context, object string, each func(piece []byte, end bool) error) error {
	info, err := os.Stat(object)
	if err != nil {
		return err
	}
	if info.Size() != m.Bytes {
		return fmt.Errorf("has %d bytes, its manifest says %d", info.Size(), m.Bytes)
	}
	c, err := readObject(ctx, object, m.Columns, m.RawBytes, each)
	switch {
	case err != nil:
		return err
	case c.sha256 != strings.ToLower(m.SHA256):
		return fmt.Errorf("has the sha256 %s, its manifest says %s", c.sha256, m.SHA256)
	case c.rows != m.Rows || c.digest != m.Digest:
		return fmt.Errorf("has %d rows with the digest %s, its manifest says %d with %s", c.rows, c.digest, m.Rows, m.Digest)
	case c.bytes != m.Bytes || c.rawBytes != m.RawBytes:
		return fmt.Errorf("has %d bytes of lines in %d, its manifest says %d in %d", c.rawBytes, c.bytes, m.RawBytes, m.Bytes)
	}
	return nil
}

// inFile names the file in an error that may do so itself.
func inFile(what, path string, err error) error {
	if _, ok := errors.AsType[*fs.PathError](err); ok {
		return fmt.Errorf("%s: %w", what, err)
	}
	return fmt.Errorf("%s %s: %w", what, path, err)
}

// Verified is what came of the verification of one object.
type Verified struct {
	Path      string `json:"path"` // of the manifest; of the object if it has none
	OK        bool   `json:"ok"`
	Table     string `json:"table"`
	Partition string `json:"partition"`
	Rows      int64  `json:"rows"`
	Bytes     int64  `json:"bytes"`
	Problem   string `json:"problem,omitempty"`
}

// VerifyTree verifies every object below dir, in the order of their paths. An object without a manifest is a problem, and so is a manifest
// without an object; an export that is running may look like that for a moment. What killed exports have left (.tmp), and what was
// renamed because it was damaged, does not count. The error is about the directories, or the end of ctx.
func VerifyTree(ctx context.Context, dir string) ([]Verified, error) {
	var found []Verified
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case strings.HasSuffix(path, manifestSuffix):
			m, err := verify(ctx, path)
			if ctx.Err() != nil {
				return ctx.Err()
			}
			v := Verified{Path: path, OK: err == nil, Table: m.Table, Partition: m.Partition, Rows: m.Rows, Bytes: m.Bytes}
			if err != nil {
				v.Problem = err.Error()
			}
			found = append(found, v)
		case strings.HasSuffix(path, objectSuffix):
			if _, err := os.Lstat(manifestOf(path)); err != nil {
				found = append(found, Verified{Path: path, Problem: inFile("manifest", manifestOf(path), err).Error()})
			}
		}
		return ctx.Err()
	})
	if err != nil {
		return found, fmt.Errorf("verifying the archive: %w", err)
	}
	return found, nil
}
