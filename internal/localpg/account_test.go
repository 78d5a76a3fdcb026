package localpg

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestAFolderClosedToTheServersAccountIsPassedOver(t *testing.T) {
	t.Parallel()
	dir := openDir(t)
	below := filepath.Join(dir, "closed", "below")
	if err := os.MkdirAll(below, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Dir(below), 0o700); err != nil {
		t.Fatal(err)
	}
	stranger := account{other: true, uid: 4711, gid: 4711}
	missing := filepath.Join(dir, "missing")
	if got, err := usableTemp([]string{missing, below, dir}, stranger); got != dir || err != nil {
		t.Errorf("used %q %v, want %q", got, err, dir)
	}
	_, err := usableTemp([]string{missing, below}, stranger)
	if err == nil || !strings.Contains(err.Error(), "user 4711 may not enter "+filepath.Dir(below)+" (mode 0700)") ||
		!strings.Contains(err.Error(), missing) || !strings.Contains(err.Error(), "TMPDIR") {
		t.Errorf("error: %v", err)
	}
	if got, err := usableTemp([]string{below}, account{}); got != below || err != nil {
		t.Errorf("for ourselves: %q %v", got, err)
	}
}

func TestTheCacheIsWhereTheServersAccountCanReachIt(t *testing.T) {
	t.Parallel()
	dir := openDir(t)
	home := filepath.Join(dir, "home")
	if err := os.Mkdir(home, 0o700); err != nil {
		t.Fatal(err)
	}
	stranger := account{other: true, uid: 4711, gid: 4711}
	second := filepath.Join(dir, "var", "cache")
	got, err := usableCache([]string{filepath.Join(home, "cache"), second}, stranger)
	if got != second || err != nil || !empty(t, home) {
		t.Errorf("used %q %v, want %q and nothing in %s", got, err, second, home)
	}
	if got, err := usableCache([]string{filepath.Join(home, "cache"), second}, account{}); got != filepath.Join(home, "cache") || err != nil {
		t.Errorf("for ourselves: %q %v", got, err)
	}
	if _, err := usableCache([]string{filepath.Join(home, "other")}, stranger); err == nil || !strings.Contains(err.Error(), home) {
		t.Errorf("error: %v", err)
	}
}

func TestOnlyRootHandsTheServerToAnotherAccount(t *testing.T) {
	t.Parallel()
	if a := serverAccount(); a.other != (os.Geteuid() == 0) || a.other && a.uid == 0 {
		t.Errorf("as user %d: %+v", os.Geteuid(), a)
	}
}

func TestTheServerSeesNoneOfTheCallersPGVariablesAndLocales(t *testing.T) {
	t.Parallel()
	got := serverEnv([]string{"PGDATA=/x", "PGPORT=1", "LANG=de_DE.UTF-8", "LC_MESSAGES=de_DE.UTF-8", "TZ=Asia/Tokyo", "PATH=/bin"})
	if want := "TZ=Asia/Tokyo PATH=/bin LC_ALL=C"; strings.Join(got, " ") != want {
		t.Errorf("environment %q, want %q", got, want)
	}
}
