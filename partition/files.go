package partition

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

const (
	tempSuffix = ".tmp"
	// maxEscaped bounds the part of a file's name that comes from one name of the database, so that all of it stays below 200 bytes.
	maxEscaped = 90
)

// escape makes a file name's part of a name from the database: letters, digits and _ stay, every other byte is - and two hex digits.
// No two names give the same; of one that is too long the end is a hash, after two dashes.
func escape(name string) string {
	var b strings.Builder
	for i := range len(name) {
		c := name[i]
		if c == '_' || '0' <= c && c <= '9' || 'A' <= c && c <= 'Z' || 'a' <= c && c <= 'z' {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "-%02X", c)
		}
	}
	if b.Len() <= maxEscaped {
		return b.String()
	}
	sum := sha256.Sum256([]byte(name))
	return b.String()[:maxEscaped-18] + "--" + hex.EncodeToString(sum[:8])
}

// boundInName is a bound of a partition as it stands in file names: 20240501T000000Z, min, max, infinity, -infinity.
func boundInName(bound string) string {
	switch bound {
	case "MINVALUE":
		return "min"
	case "MAXVALUE":
		return "max"
	case "infinity", "-infinity":
		return bound
	}
	return escape(strings.NewReplacer("-", "", ":", "", " ", "").Replace(bound))
}

// makeDir makes a directory, and those above it, that are still there after a crash.
func makeDir(dir string) error {
	err := os.Mkdir(dir, 0o750)
	switch {
	case err == nil:
		return syncDir(filepath.Dir(dir))
	case errors.Is(err, fs.ErrNotExist) && filepath.Dir(dir) != dir:
		if err := makeDir(filepath.Dir(dir)); err != nil {
			return err
		}
		return makeDir(dir)
	case errors.Is(err, fs.ErrExist):
		// A killed run may have made it. Who may not read what is above it has not.
		if err := syncDir(filepath.Dir(dir)); !errors.Is(err, fs.ErrPermission) {
			return err
		}
		return nil
	}
	return err
}

// syncDir returns when the names in a directory are safe on disk.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// syncFile returns when a file that somebody else wrote is safe on disk.
func syncFile(path string) error { return syncDir(path) }

// createTemp makes a file that nobody takes for a finished one: prefix, a random part, .tmp.
func createTemp(prefix string) (*os.File, error) {
	return os.OpenFile(prefix+strings.ToLower(rand.Text()[:8])+tempSuffix, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o640)
}

// removeTemps removes what killed runs have left under a prefix.
func removeTemps(prefix string) error {
	dir, name := filepath.Split(prefix)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), name) && strings.HasSuffix(e.Name(), tempSuffix) {
			if err := os.Remove(filepath.Join(dir, e.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
	}
	return nil
}

// rename gives a file another name, and fails with fs.ErrExist where that is taken: os.Rename would replace what is there. It returns
// when that is safe on disk.
func rename(from, to string) error {
	if err := os.Link(from, to); err != nil {
		return err
	}
	if err := os.Remove(from); err != nil {
		return err
	}
	return syncDir(filepath.Dir(to))
}

// setAside renames a file that has the name of another, and tells its new name.
func setAside(path string) (string, error) {
	for n := 1; ; n++ {
		aside := fmt.Sprintf("%s.damaged-%d", path, n)
		if err := rename(path, aside); !errors.Is(err, fs.ErrExist) {
			return aside, err
		}
	}
}
