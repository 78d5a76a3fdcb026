package localpg

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// mirror is a repository with one archive: two scripts that hand over to the machine's own server, in the layout of
// the real archives.
type mirror struct {
	*httptest.Server
	jar       []byte
	sum       string
	downloads atomic.Int32
}

func newMirror(t *testing.T) *mirror {
	t.Helper()
	bin := realBin(t)
	m := &mirror{}
	m.jar, m.sum = archive(t, map[string]string{
		// The library takes pg_ctl for the sign that it has unpacked before.
		"bin/pg_ctl":   "#!/bin/sh\nexit 1\n",
		"bin/initdb":   "#!/bin/sh\nexec " + bin + "/initdb \"$@\"\n",
		"bin/postgres": "#!/bin/sh\nexec " + bin + "/postgres \"$@\"\n",
	})
	m.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case !strings.Contains(r.URL.Path, "/"+string(fetchVersion)+"/"):
			http.NotFound(w, r)
		case strings.HasSuffix(r.URL.Path, ".jar"):
			m.downloads.Add(1)
			_, _ = w.Write(m.jar)
		case strings.HasSuffix(r.URL.Path, ".jar.sha256"):
			_, _ = w.Write([]byte(m.sum))
		}
	}))
	t.Cleanup(m.Close)
	return m
}

func TestAFetchedServerRunsAndIsFetchedOnce(t *testing.T) {
	t.Parallel()
	m := newMirror(t)
	l := testLauncher(t)
	l.search = nowhere(t)
	l.search.repository = m.URL
	cache := l.search.caches[0]
	if err := os.MkdirAll(filepath.Join(cache, fetchTemp+"of-a-killed-process"), 0o755); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			bin, err := l.search.find(t.Context(), l.account)
			if want := filepath.Join(cache, string(fetchVersion), "bin"); bin != want || err != nil {
				t.Errorf("found %q %v, want %q", bin, err, want)
			}
		})
	}
	wg.Wait()
	s := startTest(t, l, Options{})
	query(t, s.DSN(""), "SELECT 1")
	if n := m.downloads.Load(); n != 1 {
		t.Errorf("downloaded %d times", n)
	}
	if got, _ := filepath.Glob(filepath.Join(cache, "*")); len(got) != 2 {
		t.Errorf("beside the version and the lock there is more in the cache: %v", got)
	}
}

func TestAnArchiveWithAnotherChecksumIsNotUsed(t *testing.T) {
	t.Parallel()
	m := newMirror(t)
	m.sum = strings.Repeat("0", 64)
	s := nowhere(t)
	s.repository = m.URL
	_, err := s.find(t.Context(), serverAccount())
	if err == nil || !strings.Contains(err.Error(), "downloaded checksums do not match") {
		t.Errorf("error: %v", err)
	}
	if got, _ := filepath.Glob(filepath.Join(s.caches[0], "*")); len(got) != 1 {
		t.Errorf("beside the lock there is more in the cache: %v", got)
	}
}

func TestAFetchCanBeGivenUp(t *testing.T) {
	t.Parallel()
	asked, release := make(chan struct{}), make(chan struct{})
	silent := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		close(asked)
		<-release
	}))
	defer silent.Close()
	defer close(release)
	s := nowhere(t)
	s.repository = silent.URL
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error)
	go func() {
		_, err := s.find(ctx, serverAccount())
		done <- err
	}()
	<-asked
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("error: %v", err)
	}
}

// The library forgets its log file in TMPDIR. Not parallel, because of the variable.
func TestAFetchLeavesNothingInTheTemporaryFolder(t *testing.T) {
	m := newMirror(t)
	s := nowhere(t)
	s.repository = m.URL
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	t.Setenv(envRepository, m.URL)
	if got := defaultSearch(account{}).repository; got != m.URL {
		t.Errorf("the mirror of the environment is %q", got)
	}
	if _, err := s.find(t.Context(), serverAccount()); err != nil {
		t.Fatal(err)
	}
	if !empty(t, temp) {
		t.Error("there is something in TMPDIR")
	}
}
