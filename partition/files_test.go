package partition

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestNamesInFileNamesArePlainShortAndDistinct(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"keys_20240501": "keys_20240501", "Keys": "Keys", "a.b": "a-2Eb", "a-b": "a-2Db", "../x": "-2E-2E-2Fx", "é": "-C3-A9", "a b\n": "a-20b-0A", "": "",
	} {
		if got := escape(name); got != want {
			t.Errorf("%q is %q, not %q", name, got, want)
		}
	}
	seen := map[string]string{}
	name := rapid.OneOf(rapid.String(), rapid.StringOfN(rapid.RuneFrom([]rune("a-.2EéD")), 0, 90, 200))
	rapid.Check(t, func(t *rapid.T) {
		n := name.Draw(t, "name")
		e := escape(n)
		if len(e) > maxEscaped || strings.Trim(e, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-") != "" {
			t.Fatalf("%q is %q", n, e)
		}
		if other, there := seen[e]; there && other != n {
			t.Fatalf("%q and %q are both %q", n, other, e)
		}
		seen[e] = n
	})
}

func TestBoundsInFileNames(t *testing.T) {
	t.Parallel()
	for bound, want := range map[string]string{
		"2024-05-01T00:00:00Z": "20240501T000000Z", "2024-05-01T00:00:00.5Z": "20240501T000000-2E5Z", "0044-03-15T12:00:00Z BC": "00440315T120000ZBC",
		"MINVALUE": "min", "MAXVALUE": "max", "infinity": "infinity", "-infinity": "-infinity", "../x": "-2E-2E-2Fx",
	} {
		if got := boundInName(bound); got != want {
			t.Errorf("%s is %s, not %s", bound, got, want)
		}
	}
}

func TestAFileIsRenamedOnlyToAFreeName(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	from, to := filepath.Join(dir, "from"), filepath.Join(dir, "to")
	rewrite(t, from, []byte("new"))
	rewrite(t, to, []byte("old"))
	if err := rename(from, to); !errors.Is(err, fs.ErrExist) || string(read(t, to)) != "old" || string(read(t, from)) != "new" {
		t.Errorf("%v, and now it is %s", err, read(t, to))
	}
	if err := os.Remove(to); err != nil {
		t.Fatal(err)
	}
	if err := rename(from, to); err != nil || string(read(t, to)) != "new" {
		t.Error(err)
	}
	if _, err := os.Stat(from); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the old name is still there: %v", err)
	}
}
