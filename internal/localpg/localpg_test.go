package localpg

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/callreceipt/reconciler/internal/eventually"
)

func TestAServerRunsUntilStopAndLeavesNothing(t *testing.T) {
	t.Parallel()
	l := testLauncher(t)
	s := startTest(t, l, Options{})
	if got := query(t, s.DSN(""), "SELECT current_database()"); got != "postgres" {
		t.Errorf("the maintenance database is %q", got)
	}
	pid := s.Pid()
	if err := syscall.Kill(pid, 0); err != nil {
		t.Errorf("postmaster %d: %v", pid, err)
	}
	// A connection is still open, as in a program that ends early.
	for range 2 {
		if err := s.Stop(); err != nil {
			t.Fatal(err)
		}
	}
	if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("postmaster %d after Stop: %v", pid, err)
	}
	nothingLeft(t, l.temp[0])
}

func TestAServerIsClosedToOthers(t *testing.T) {
	t.Parallel()
	s := startTest(t, testLauncher(t), Options{})
	wrong := strings.Replace(s.DSN(""), s.password, "guess", 1)
	err := open(t, wrong).PingContext(t.Context())
	if err == nil || !strings.Contains(err.Error(), "password authentication failed") {
		t.Errorf("with another password: %v", err)
	}
	if got := query(t, s.DSN(""), "SELECT rolpassword LIKE 'SCRAM-SHA-256$%' FROM pg_authid WHERE rolname = 'postgres'"); got != "true" {
		t.Errorf("the password is kept as SCRAM: %s", got)
	}
	if got := query(t, s.DSN(""), "SHOW listen_addresses"); got != "127.0.0.1" {
		t.Errorf("listens on %q", got)
	}
	info, err := os.Stat(s.dir)
	if err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("directory: %v %v", info.Mode(), err)
	}
	if _, err := os.Stat(filepath.Join(s.dir, "password")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the password file is still there: %v", err)
	}
}

func TestServersAreOutOfReachOfTheTerminal(t *testing.T) {
	t.Parallel()
	s := startTest(t, testLauncher(t), Options{})
	for name, pid := range map[string]int{"postgres": s.Pid(), "watchdog": s.watchdog.cmd.Process.Pid} {
		if group, err := syscall.Getpgid(pid); err != nil || group != pid {
			t.Errorf("%s %d is in the process group %d (%v), where a Ctrl-C reaches it", name, pid, group, err)
		}
	}
}

func TestTwoServersLiveSideBySide(t *testing.T) {
	t.Parallel()
	l := testLauncher(t)
	var servers [2]*Server
	var wg sync.WaitGroup
	for i := range servers {
		wg.Go(func() {
			var err error
			if servers[i], err = l.start(t.Context(), Options{}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}
	defer servers[1].Stop() //nolint:errcheck // the second call, below, is looked at
	if servers[0].port == servers[1].port {
		t.Errorf("both on port %d", servers[0].port)
	}
	if err := servers[0].Stop(); err != nil {
		t.Error(err)
	}
	query(t, servers[1].DSN(""), "SELECT 1")
	if err := servers[1].Stop(); err != nil {
		t.Error(err)
	}
	nothingLeft(t, l.temp[0])
}

func TestAPortThatWasTakenMeanwhileIsGivenUp(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	taken := listener.Addr().(*net.TCPAddr).Port
	l := testLauncher(t)
	asked := 0
	l.port = func() (int, error) {
		if asked++; asked == 1 {
			return taken, nil
		}
		return freePort()
	}
	s := startTest(t, l, Options{})
	query(t, s.DSN(""), "SELECT 1")
	if asked != 2 || s.port == taken {
		t.Errorf("asked %d times, port %d, taken %d", asked, s.port, taken)
	}
}

func TestSettingsWinOverTheDefaults(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	l := testLauncher(t)
	s := startTest(t, l, Options{Log: &log, Settings: map[string]string{
		"Max_Connections": "23", "application_name": "it's a name", "log_statement": "all",
	}})
	for setting, want := range map[string]string{
		"max_connections": "23", "shared_buffers": "128MB", "application_name": "it's a name",
		"fsync": "off", "synchronous_commit": "on",
	} {
		// lib/pq sends no application_name of its own.
		if got := query(t, s.DSN(""), "SHOW "+setting); got != want {
			t.Errorf("%s is %q, not %q", setting, got, want)
		}
	}
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(log.String(), "SHOW max_connections") {
		t.Errorf("the log went elsewhere: %s", log.String())
	}
}

func TestASettingThatWouldOpenTheServerIsRefused(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"listen_addresses", "Port", "data_directory", "unix_socket_directories"} {
		_, err := launcher{}.start(t.Context(), Options{Settings: map[string]string{name: "x"}})
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestAStartThatGoesWrongTellsTheLogAndLeavesNothing(t *testing.T) {
	t.Parallel()
	l := testLauncher(t)
	_, err := l.start(t.Context(), Options{Settings: map[string]string{"shared_buffers": "plenty"}})
	if err == nil || !strings.Contains(err.Error(), `invalid value for parameter "shared_buffers": "plenty"`) {
		t.Errorf("error: %v", err)
	}
	nothingLeft(t, l.temp[0])
}

func TestAnInitdbThatGoesWrongTellsItsOutput(t *testing.T) {
	t.Parallel()
	l := testLauncher(t)
	l.search.explicit = openDir(t)
	fakeServer(t, l.search.explicit, "16.4")
	script(t, l.search.explicit, "initdb", "echo no space for this; exit 7")
	_, err := l.start(t.Context(), Options{})
	if err == nil || !strings.Contains(err.Error(), "initdb: exit status 7\nno space for this") {
		t.Errorf("error: %v", err)
	}
	nothingLeft(t, l.temp[0])
}

func TestAStartGivenUpInMidInitdbLeavesNothing(t *testing.T) {
	t.Parallel()
	l := testLauncher(t)
	l.search.explicit = slowInitdb(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error)
	go func() {
		_, err := l.start(ctx, Options{})
		done <- err
	}()
	eventually.True(t, "initdb is at work", func() bool { return atWork(t, l.temp[0]) })
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("error: %v", err)
	}
	nothingLeft(t, l.temp[0])
}

func TestAFolderWithALongPathWillDo(t *testing.T) {
	t.Parallel()
	l := testLauncher(t)
	l.temp[0] = filepath.Join(l.temp[0], strings.Repeat("long ", 25), strings.Repeat("path", 25))
	if err := os.MkdirAll(l.temp[0], 0o755); err != nil {
		t.Fatal(err)
	}
	s := startTest(t, l, Options{})
	query(t, s.DSN(""), "SELECT 1")
}
