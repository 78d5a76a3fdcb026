package localpg

import (
	"context"
	"database/sql"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/lib/pq"
)

// envRole makes the test binary play a program that uses this package, to be killed from outside.
const envRole = "LOCALPG_TEST_ROLE"

func TestMain(m *testing.M) {
	if role := os.Getenv(envRole); role != "" {
		os.Exit(play(role))
	}
	os.Exit(Main(m))
}

// play starts a server, says "ready" and its pid, waits for a word on stdin, and ends as the role says.
func play(role string) int {
	s, err := Start(context.Background(), Options{})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Println("ready", s.Pid())
	_, _ = io.ReadAll(os.Stdin)
	switch role {
	case "panic":
		panic("as a program with a bug does")
	case "stop":
		if err := s.Stop(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	return 0
}

// openDir is a folder that the account of the server may enter, unlike t.TempDir.
func openDir(t *testing.T) string {
	t.Helper()
	acc := serverAccount()
	base, err := usableTemp(tempDirs(acc), acc)
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp(base, "localpg-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// testLauncher is what Start uses, with a folder of its own for the server's directory.
func testLauncher(t *testing.T) launcher {
	t.Helper()
	acc := serverAccount()
	return launcher{search: defaultSearch(acc), account: acc, temp: []string{openDir(t)}, port: freePort}
}

func startTest(t *testing.T, l launcher, opt Options) *Server {
	t.Helper()
	s, err := l.start(t.Context(), opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func open(t *testing.T, dsn string) *sql.DB {
	t.Helper()
	connector, err := pq.NewConnector(dsn)
	if err != nil {
		t.Fatal(err)
	}
	db := sql.OpenDB(connector)
	t.Cleanup(func() { _ = db.Close() })
	return db
}

func query(t *testing.T, dsn, statement string) string {
	t.Helper()
	var out string
	if err := open(t, dsn).QueryRowContext(t.Context(), statement).Scan(&out); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
	return out
}

// running are the processes that name the folder on their command line: initdb, postmaster and watchdog of the servers
// in it.
func running(t *testing.T, dir string) []string {
	t.Helper()
	var found []string
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err == nil && strings.Contains(string(text), dir) {
			found = append(found, strings.ReplaceAll(string(text), "\x00", " "))
		}
	}
	if files == nil {
		out, err := exec.CommandContext(t.Context(), "ps", "-A", "-ww", "-o", "command=").Output()
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(out)) {
			if strings.Contains(line, dir) {
				found = append(found, line)
			}
		}
	}
	return found
}

func empty(t *testing.T, dir string) bool {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	return len(entries) == 0
}

func nothingLeft(t *testing.T, dir string) {
	t.Helper()
	if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
		t.Errorf("left in the folder: %v %v", entries, err)
	}
	if left := running(t, dir); len(left) > 0 {
		t.Errorf("left running: %q", left)
	}
}

// script writes an executable shell script.
func script(t *testing.T, dir, name, text string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+text+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
}

// fakeServer is a bin folder whose postgres knows only its version.
func fakeServer(t *testing.T, dir string, version string) {
	t.Helper()
	script(t, dir, "postgres", "echo 'postgres (PostgreSQL) "+version+"'")
	script(t, dir, "initdb", "exit 1")
}

// realBin is the folder of the server the other tests run on.
func realBin(t *testing.T) string {
	t.Helper()
	acc := serverAccount()
	bin, err := defaultSearch(acc).find(t.Context(), acc)
	if err != nil {
		t.Fatal(err)
	}
	return bin
}

func number(t *testing.T, text string) int {
	t.Helper()
	n, err := strconv.Atoi(strings.TrimSpace(text))
	if err != nil {
		t.Fatal(err)
	}
	return n
}
