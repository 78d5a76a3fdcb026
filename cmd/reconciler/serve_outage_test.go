package main

import (
	"net/url"
	"testing"

	"github.com/callreceipt/reconciler/internal/database"
	"github.com/callreceipt/reconciler/internal/localpg"
	"github.com/callreceipt/reconciler/internal/testdb"
	"github.com/callreceipt/reconciler/migrations"
)

// newClusterScene is a scene on a server of its own. The daemon works there as the role "worker", who owns the database; s.db is
// the superuser.
func newClusterScene(t *testing.T) (*scene, *localpg.Server) {
	t.Helper()
	server, err := localpg.Start(t.Context(), localpg.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Stop(); err != nil {
			t.Error(err)
		}
	})
	admin := testdb.Open(t, server.DSN(""))
	admin.MustExec(`CREATE ROLE worker LOGIN PASSWORD 'worker'`)
	admin.MustExec(`CREATE DATABASE work OWNER worker`)
	u, err := url.Parse(server.DSN("work"))
	if err != nil {
		t.Fatal(err)
	}
	s := newStage(t)
	u.User = url.UserPassword("worker", "worker")
	s.url, s.db, s.downstream = u.String(), testdb.Open(t, server.DSN("work")), newDownstream(t)
	worker, err := database.Open(s.url)
	if err != nil {
		t.Fatal(err)
	}
	defer worker.Close()
	if _, err := migrations.Reconciler.Up(t.Context(), worker.DB); err != nil {
		t.Fatal(err)
	}
	return s, server
}

const (
	restarts = 5
	// mostLines is how many complaints one restart may bring: one for all, and two of each run that it cuts off.
	mostLines = 7
)

func TestServeOutlivesWhateverBecomesOfTheDatabase(t *testing.T) {
	t.Parallel()
	calls := sized(1200, 30_000)
	s, server := newClusterScene(t)
	const pace = "batch_size: 10, concurrency: 2, rate: 20"
	s.configure(s.asking("charge", s.downstream, pace), s.asking("refund", s.downstream, pace))
	s.park("charge", calls/2)
	s.park("refund", calls/2)
	d := s.serve()
	d.ready()

	// It is restarted under load, without a checkpoint.
	for i := range restarts {
		s.untilSome(1 + i*calls/(restarts+1))
		before := len(d.log.troubles())
		if err := server.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
		d.ready()
		if lines := d.log.troubles()[before:]; len(lines) > mostLines {
			t.Errorf("restart %d brought %d complaints: %q", i+1, len(lines), lines)
		}
	}
	s.untilSettled("charge")
	s.untilSettled("refund")
	if wrong := one[int](s, `SELECT count(*) FROM reconciler.pending_confirmations
		WHERE status <> CASE left(biz_id, 1) WHEN 'S' THEN 'SUCCESS' ELSE 'FAILED' END OR version <> 1`); wrong != 0 {
		t.Errorf("%d calls have the wrong verdict, or more than one write", wrong)
	}
	if double := one[int](s, `SELECT count(*) - count(DISTINCT call_id) FROM reconciler.call_events WHERE kind = 'verdict'`); double != 0 {
		t.Errorf("%d verdicts are on record twice", double)
	}
	if got := one[int](s, `SELECT count(*) FROM reconciler.call_events WHERE kind = 'verdict'`); got != calls {
		t.Errorf("%d verdicts are on record of %d calls", got, calls)
	}

	// It takes no connection more.
	s.db.MustExec(`ALTER ROLE worker CONNECTION LIMIT 0`)
	s.db.MustExec(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'worker'`)
	d.notReady("too many connections")
	s.parkOne("charge", "S-crowded")
	s.db.MustExec(`ALTER ROLE worker CONNECTION LIMIT -1`)
	d.ready()
	s.untilSettled("charge")

	// It is made read-only, as before a switch to another server.
	s.db.MustExec(`ALTER SYSTEM SET default_transaction_read_only = on`)
	s.db.MustExec(`SELECT pg_reload_conf()`)
	d.notReady("it is read-only")
	s.db.MustExec(`ALTER SYSTEM RESET default_transaction_read_only`)
	s.db.MustExec(`SELECT pg_reload_conf()`)
	d.ready()
	s.parkOne("charge", "S-written")
	s.untilSettled("charge")
	t.Logf("%d complaints in all: %q", len(d.log.troubles()), d.log.troubles())
}
