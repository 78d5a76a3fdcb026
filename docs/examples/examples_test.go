// Package examples_test runs the examples as their readers do: as processes, with the reconciler, and through kills.
package examples_test

import (
	"bytes"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/jmoiron/sqlx"

	"github.com/callreceipt/reconciler/internal/eventually"
	"github.com/callreceipt/reconciler/internal/localpg"
	"github.com/callreceipt/reconciler/internal/testdb"
)

func TestMain(m *testing.M) { os.Exit(localpg.Main(m)) }

// stage is the two databases, and the programs around them.
type stage struct {
	t                *testing.T
	bin              string // the folder with the programs and reconciler.yaml
	orders, payments *sqlx.DB
	ordersURL        string
	paymentsURL      string
	address          string // of the downstream
}

// newStage does what the README says before the programs are started.
func newStage(t *testing.T) *stage {
	t.Helper()
	s := &stage{t: t, bin: t.TempDir(), address: freeAddress(t)}
	s.ordersURL, s.paymentsURL = localpg.NewDatabase(t, localpg.Migration{}), localpg.NewDatabase(t, localpg.Migration{})
	s.orders, s.payments = testdb.Open(t, s.ordersURL), testdb.Open(t, s.paymentsURL)
	build := exec.CommandContext(t.Context(), "go", "build", "-o", s.bin, "./downstream", "./orchestrator", "../../cmd/reconciler")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	s.reconciler(s.ordersURL, "migrate", "up")
	s.reconciler(s.paymentsURL, "migrate", "up", "--for", "downstream")
	return s
}

// reconciler runs a command to its end. Exit code 3 says that a pass was partly done, such as while the downstream is away.
func (s *stage) reconciler(database string, args ...string) {
	s.t.Helper()
	p := s.start("reconciler", args, []string{"RECONCILER_DATABASE_URL=" + database})
	<-p.over
	if code := p.cmd.ProcessState.ExitCode(); code != 0 && code != 3 {
		s.t.Fatalf("reconciler %v: exit code %d", args, code)
	}
}

func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}

// process is a running program. It does not outlive its test.
type process struct {
	t    *testing.T
	name string
	cmd  *exec.Cmd
	over chan struct{} // closed when it has ended

	mu  sync.Mutex
	log bytes.Buffer
}

func (p *process) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.log.Write(b)
}

// start runs a program in its folder, with these variables in its environment.
func (s *stage) start(name string, args, env []string) *process {
	s.t.Helper()
	p := &process{t: s.t, name: name, over: make(chan struct{})}
	p.cmd = exec.CommandContext(s.t.Context(), filepath.Join(s.bin, name), args...)
	p.cmd.Dir, p.cmd.Env, p.cmd.Stdout, p.cmd.Stderr = s.bin, env, p, p
	if err := p.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	go func() {
		_ = p.cmd.Wait() // its outcome is in ProcessState
		close(p.over)
	}()
	watchdog := s.watch(p)
	s.t.Cleanup(func() {
		_ = watchdog.Process.Kill()
		_ = watchdog.Wait() // it was killed
		_ = p.cmd.Process.Kill()
		<-p.over
		if s.t.Failed() {
			s.t.Logf("%s said:\n%s", name, &p.log)
		}
	})
	return p
}

// watch has a shell kill the program when this process dies before its test ends.
func (s *stage) watch(p *process) *exec.Cmd {
	s.t.Helper()
	shell := exec.Command("sh", "-c", `cat; kill -9 "$1"`, "sh", strconv.Itoa(p.cmd.Process.Pid))
	if _, err := shell.StdinPipe(); err != nil { // it closes with us
		s.t.Fatal(err)
	}
	if err := shell.Start(); err != nil {
		s.t.Fatal(err)
	}
	return shell
}

// end sends a signal, waits for the end, and returns the exit code; -1 is that of a killed process.
func (p *process) end(sig syscall.Signal) int {
	_ = p.cmd.Process.Signal(sig)
	<-p.over
	return p.cmd.ProcessState.ExitCode()
}

func (s *stage) startDownstream() *process {
	s.t.Helper()
	p := s.start("downstream", nil, []string{"DATABASE_URL=" + s.paymentsURL, "LISTEN=" + s.address})
	eventually.True(s.t, "the downstream listens", func() bool {
		conn, err := net.Dial("tcp", s.address)
		if err == nil {
			_ = conn.Close()
		}
		return err == nil
	})
	return p
}

func (s *stage) startOrchestrator() *process {
	s.t.Helper()
	p := s.start("orchestrator", nil, []string{"DATABASE_URL=" + s.ordersURL, "PAYMENTS_URL=http://" + s.address})
	s.until(s.orders, "table orders is there", `SELECT to_regclass('orders') IS NOT NULL`)
	return p
}

// place puts orders into the orchestrator's table. Every tenth is one that the downstream refuses.
func (s *stage) place(from, to int) {
	s.t.Helper()
	_, err := s.orders.Exec(`
		INSERT INTO orders (id, amount) SELECT 'ORD-' || n, CASE WHEN n % 10 = 0 THEN 9999999 ELSE 100 + n END FROM generate_series($1::int, $2::int) n`, from, to)
	if err != nil {
		s.t.Fatal(err)
	}
}

func one[T any](s *stage, db *sqlx.DB, query string) (v T) {
	s.t.Helper()
	if err := db.Get(&v, query); err != nil {
		s.t.Fatalf("%s: %v", query, err)
	}
	return v
}

func (s *stage) until(db *sqlx.DB, what, query string) {
	s.t.Helper()
	eventually.True(s.t, what, func() bool { return one[bool](s, db, query) })
}

// inTheMiddle runs f while charges are under way and none of them can end.
func (s *stage) inTheMiddle(f func()) {
	s.t.Helper()
	tx := s.payments.MustBegin()
	defer func() { _ = tx.Rollback() }()
	tx.MustExec(`LOCK TABLE payments IN SHARE MODE`)
	s.until(s.payments, "charges are under way", `
		SELECT count(*) >= 3 FROM pg_locks WHERE relation = 'payments'::regclass AND NOT granted`)
	f()
}

// reconcile makes passes until no order is open.
func (s *stage) reconcile() {
	s.t.Helper()
	config := strings.ReplaceAll(configuration(s.t), "http://127.0.0.1:9402", "http://"+s.address)
	if err := os.WriteFile(filepath.Join(s.bin, "reconciler.yaml"), []byte(config), 0o600); err != nil {
		s.t.Fatal(err)
	}
	eventually.True(s.t, "every order is finished", func() bool {
		s.reconciler(s.ordersURL, "run")
		return one[bool](s, s.orders, `SELECT bool_and(state IN ('paid', 'declined')) FROM orders`)
	})
}

// configuration is the one that the README of the examples shows.
func configuration(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(text), "cat > reconciler.yaml <<'EOF'\n")
	config, _, found := strings.Cut(after, "\nEOF\n")
	if !found {
		t.Fatal("README.md has no reconciler.yaml between <<'EOF' and EOF")
	}
	return config
}

func TestEveryOrderIsChargedOnceOrRefusedThroughKillsOfBothSides(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	downstream, orchestrator := s.startDownstream(), s.startOrchestrator()
	s.place(1, 30)
	s.until(s.payments, "some orders are paid", `SELECT count(*) >= 10 FROM payments`)

	s.place(31, 60)
	s.inTheMiddle(func() { downstream.end(syscall.SIGKILL) })
	s.until(s.orders, "the caller has noticed", `SELECT count(*) > 0 FROM orders WHERE state = 'waiting'`)
	downstream = s.startDownstream()

	s.place(61, 90)
	s.inTheMiddle(func() { orchestrator.end(syscall.SIGKILL) })
	if left := one[int](s, s.orders, `SELECT count(*) FROM orders WHERE state = 'sending'`); left == 0 {
		t.Error("the orchestrator was killed while nothing was being sent")
	}
	orchestrator = s.startOrchestrator()
	s.reconcile()

	for name, p := range map[string]*process{"downstream": downstream, "orchestrator": orchestrator} {
		if code := p.end(syscall.SIGTERM); code != 0 {
			t.Errorf("%s: exit code %d after SIGTERM", name, code)
		}
	}
	type count struct{ query, want string }
	for db, counts := range map[*sqlx.DB][]count{
		s.orders: {
			{`SELECT string_agg(state || ' ' || n, ', ') FROM (SELECT state, count(*) n FROM orders GROUP BY state ORDER BY state DESC) s`, "paid 81, declined 9"},
			{`SELECT count(*)::text FROM orders WHERE (state = 'declined') <> (amount = 9999999) OR call_id <> id || '-0001' OR receipt->>'callId' <> call_id`, "0"},
			{`SELECT count(*)::text FROM reconciler.pending_confirmations WHERE status NOT IN ('SUCCESS', 'FAILED')`, "0"},
			{`SELECT (count(*) > 0)::text FROM reconciler.pending_confirmations`, "true"},
		},
		s.payments: {
			{`SELECT count(*) || ' of ' || count(DISTINCT biz_id) FROM payments`, "81 of 81"},
			{`SELECT count(*)::text FROM idempotency.keys WHERE status = 'PROCESSING'`, "0"},
		},
	} {
		for _, c := range counts {
			if got := one[string](s, db, c.query); got != c.want {
				t.Errorf("%s: %s, want %s", c.query, got, c.want)
			}
		}
	}
}
