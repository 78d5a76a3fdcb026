package localpg

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// nowhere has nothing to be found in it and nobody to fetch from.
func nowhere(t *testing.T) search {
	t.Helper()
	dir := openDir(t)
	return search{
		path:       dir,
		patterns:   []string{filepath.Join(dir, "lib", "*", "bin")},
		caches:     []string{filepath.Join(dir, "cache")},
		repository: "http://127.0.0.1:1",
	}
}

func TestTheHighestSupportedVersionWins(t *testing.T) {
	t.Parallel()
	s := nowhere(t)
	for _, version := range []string{"9.6.24", "14.3", "17beta1", "16.4 (Debian 16.4-1)", "19.1"} {
		fakeServer(t, filepath.Join(s.path, "lib", strings.Fields(version)[0], "bin"), version)
	}
	bin, err := s.find(t.Context(), serverAccount())
	if want := filepath.Join(s.path, "lib", "17beta1", "bin"); bin != want || err != nil {
		t.Errorf("found %q %v, want %q", bin, err, want)
	}
}

func TestPathComesBeforeWhatIsInstalledAndIsFollowedThroughLinks(t *testing.T) {
	t.Parallel()
	s := nowhere(t)
	fakeServer(t, filepath.Join(s.path, "lib", "18", "bin"), "18.1")
	linked := filepath.Join(openDir(t), "bin")
	fakeServer(t, linked, "15.7")
	if err := os.Symlink(filepath.Join(linked, "postgres"), filepath.Join(s.path, "postgres")); err != nil {
		t.Fatal(err)
	}
	bin, err := s.find(t.Context(), serverAccount())
	if bin != linked || err != nil {
		t.Errorf("found %q %v, want %q", bin, err, linked)
	}
}

func TestAnExplicitFolderIsTheOnlyOneLookedAt(t *testing.T) {
	t.Parallel()
	s := nowhere(t)
	fakeServer(t, filepath.Join(s.path, "lib", "18", "bin"), "18.1")
	s.explicit = openDir(t)
	_, err := s.find(t.Context(), serverAccount())
	if err == nil || !strings.Contains(err.Error(), "RECONCILER_PG_BIN="+s.explicit) {
		t.Errorf("an empty folder: %v", err)
	}
	fakeServer(t, s.explicit, "13.21")
	_, err = s.find(t.Context(), serverAccount())
	if err == nil || !strings.Contains(err.Error(), "is PostgreSQL 13, which is not between 14 and 18") {
		t.Errorf("an old server: %v", err)
	}
	fakeServer(t, s.explicit, "14.0")
	if bin, err := s.find(t.Context(), serverAccount()); bin != s.explicit || err != nil {
		t.Errorf("found %q %v", bin, err)
	}
}

func TestWithoutBinariesTheErrorSaysWhereItLookedAndWhatToDo(t *testing.T) {
	t.Parallel()
	s := nowhere(t)
	old := filepath.Join(s.path, "lib", "12", "bin")
	fakeServer(t, old, "12.22")
	clientOnly := filepath.Join(s.path, "lib", "15", "bin")
	script(t, clientOnly, "postgres", "echo postgres")
	l := testLauncher(t)
	l.search = s
	_, err := l.start(t.Context(), Options{})
	if err == nil {
		t.Fatal("a server out of nothing")
	}
	for _, part := range []string{
		"no PostgreSQL 14 to 18", "RECONCILER_PG_BIN", "PATH", s.patterns[0],
		old + "/postgres is PostgreSQL 12", clientOnly + ": no initdb beside postgres",
		"unable to connect to http://127.0.0.1:1",
		"apt-get install postgresql", "dnf install postgresql-server", "brew install postgresql@17",
	} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q is not in the error:\n%v", part, err)
		}
	}
	nothingLeft(t, l.temp[0])
}

func TestOnlyAPostgresIsTakenForOne(t *testing.T) {
	t.Parallel()
	for out, want := range map[string]int{
		"postgres (PostgreSQL) 15.8 (Debian 15.8-0+deb12u1)\n": 15,
		"postgres (PostgreSQL) 18devel\n":                      18,
		"postgres (PostgreSQL) 9.6.24\n":                       9,
		"psql (PostgreSQL) 15.8\n":                             0,
		"postgres (OtherSQL) 15\n":                             0,
		"":                                                     0,
	} {
		if got, err := parseMajor(out); got != want || (err == nil) != (want > 0) {
			t.Errorf("%q is %d %v, want %d", out, got, err, want)
		}
	}
}
