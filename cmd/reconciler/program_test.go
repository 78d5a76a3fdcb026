package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/callreceipt/reconciler/internal/testdb"
)

// patience bounds every wait of these tests, on a machine that does much else.
const patience = time.Minute

// scene is a migrated database, a downstream, and a configuration that names both.
type scene struct {
	t          *testing.T
	db         *sqlx.DB
	url        string
	downstream *downstream
	config     string
}

// newScene configures the tools with the given keys of "receipts", such as "batch_size: 50".
func newScene(t *testing.T, receipts string, tools ...string) *scene {
	t.Helper()
	s := newStage(t)
	s.downstream = newDownstream(t)
	text := ""
	for _, tool := range tools {
		text += fmt.Sprintf("  %s:\n    receipts: {url: %q, %s}\n", tool, s.downstream.URL, receipts)
	}
	s.configure(text)
	return s
}

// newStage is a scene without a downstream, and not configured.
func newStage(t *testing.T) *scene {
	t.Helper()
	s := &scene{t: t, url: testdb.URL(t), config: filepath.Join(t.TempDir(), "reconciler.yaml")}
	s.db = testdb.Open(t, s.url)
	return s
}

// configure writes the configuration of these tools, for the runs that start from now on.
func (s *scene) configure(tools ...string) {
	s.t.Helper()
	if err := os.WriteFile(s.config, []byte("tools:\n"+strings.Join(tools, "")), 0o600); err != nil {
		s.t.Fatal(err)
	}
}

// park puts n due calls of a tool into the table; every other one will turn out to have failed.
func (s *scene) park(tool string, n int) {
	s.t.Helper()
	_, err := s.db.Exec(`
		INSERT INTO reconciler.pending_confirmations (call_id, biz_id, tool, operation)
		SELECT biz || '-0001', biz, $1, 'charge'
		FROM (SELECT CASE n % 2 WHEN 0 THEN 'S-' ELSE 'F-' END || $1 || '-' || lpad(n::text, 6, '0') FROM generate_series(1, $2) n) b (biz)`, tool, n)
	if err != nil {
		s.t.Fatal(err)
	}
}

// one reads a single value from the database.
func one[T any](s *scene, query string, args ...any) (v T) {
	s.t.Helper()
	if err := s.db.Get(&v, query, args...); err != nil {
		s.t.Fatalf("%s: %v", query, err)
	}
	return v
}

// settled is the bizIds of all settled calls.
func (s *scene) settled() (bizIDs []string) {
	s.t.Helper()
	if err := s.db.Select(&bizIDs, `SELECT biz_id FROM reconciler.pending_confirmations WHERE status IN ('SUCCESS', 'FAILED') ORDER BY biz_id`); err != nil {
		s.t.Fatal(err)
	}
	return bizIDs
}

// program is reconciler as a process of its own.
type program struct {
	t              *testing.T
	cmd            *exec.Cmd
	stdout, stderr bytes.Buffer  // complete once over is closed
	over           chan struct{} // closed when the process has ended
}

// start runs "reconciler args..." in the scene. The process does not outlive the test.
func (s *scene) start(args ...string) *program {
	s.t.Helper()
	p := &program{t: s.t, cmd: exec.CommandContext(s.t.Context(), "reconciler", args...), over: make(chan struct{})}
	p.cmd.Env = []string{"RECONCILER_DATABASE_URL=" + s.url, "RECONCILER_CONFIG=" + s.config, "GOCOVERDIR=" + os.Getenv("GOCOVERDIR")}
	p.cmd.Stdout, p.cmd.Stderr = &p.stdout, &p.stderr
	if err := p.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	go func() {
		_ = p.cmd.Wait() // its outcome is in ProcessState
		close(p.over)
	}()
	s.t.Cleanup(func() { <-p.over })
	return p
}

func (p *program) signal(sig syscall.Signal) { _ = p.cmd.Process.Signal(sig) } // it may have ended already

// exit waits for the end of the process and returns its code, -1 for one that was killed.
func (p *program) exit() int {
	p.t.Helper()
	await(p.t, p.over, "the end of reconciler")
	return p.cmd.ProcessState.ExitCode()
}

// await receives from a channel.
func await[T any](t *testing.T, c <-chan T, what string) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case <-time.After(patience):
		t.Fatalf("waited %s for %s", patience, what)
	}
	return v
}
