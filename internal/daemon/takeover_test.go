package daemon

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/callreceipt/reconciler/internal/eventually"
	"github.com/callreceipt/reconciler/internal/task"
	"github.com/callreceipt/reconciler/internal/testdb"
)

// replica is a scheduler with one job, whose work is done under a real lease and is on record.
type replica struct {
	*Scheduler
	*watch
	name   string
	db     *sqlx.DB
	begins chan struct{} // told when its work begins
	after  func(error)   // called when it has given the lease back, or was turned away
}

// newReplica makes a replica with a pool of its own. Its job is overdue at the start and then has no tick within a day.
func newReplica(t *testing.T, dsn, name string, work func(ctx context.Context) error) *replica {
	t.Helper()
	r := &replica{name: name, db: testdb.Open(t, dsn), watch: newWatch(), begins: make(chan struct{}, 10), after: func(error) {}}
	log := slog.New(slog.DiscardHandler)
	recorded := func(ctx context.Context) error {
		id, err := task.Start(ctx, r.db, "reconcile", "T", name, nil)
		if err != nil {
			return err
		}
		r.begins <- struct{}{}
		if err := work(ctx); err != nil {
			return err
		}
		return task.Finish(ctx, r.db, id, task.Success, nil, nil)
	}
	var err error
	r.Scheduler, err = New(Config{Log: log, Jobs: []Job{{
		Task: "reconcile", Subject: "T", Schedule: once(time.Now().Add(24 * time.Hour)), Watch: r.watch,
		Last: func(ctx context.Context) (*task.Run, error) { return task.Latest(ctx, r.db, "reconcile", "T") },
		Run: r.around(func(ctx context.Context) (task.Outcome, error) {
			err := task.Hold(ctx, r.db, log, "reconcile:T", name, recorded)
			r.after(err)
			if held, ok := errors.AsType[*task.HeldError](err); ok {
				held.ExpiresIn = 0 // the test does not wait for 15 s
			}
			if err != nil {
				return task.Failed, err
			}
			return task.Success, nil
		}),
	}}})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// serve runs the replica until the test ends.
func (r *replica) serve(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		r.Run(ctx)
	}()
	t.Cleanup(func() { cancel(); <-ended })
}

// turnedAway waits until the replica stands by.
func (r *replica) turnedAway(t *testing.T) {
	t.Helper()
	eventually.True(t, r.name+" found the lease held", func() bool { return r.count("skipped after") > 0 })
}

func untilTheEnd(ctx context.Context) error {
	<-ctx.Done()
	return context.Cause(ctx)
}

func atOnce(context.Context) error { return nil }

func TestAReplicaThatIsCutOffFromTheDatabaseIsReplacedAtOnce(t *testing.T) {
	t.Parallel()
	dsn := testdb.URL(t)
	db := testdb.Open(t, dsn)
	doomed, heir := newReplica(t, dsn, "doomed", untilTheEnd), newReplica(t, dsn, "heir", atOnce)
	doomed.serve(t)
	<-doomed.begins
	heir.serve(t)
	heir.turnedAway(t)
	if err := doomed.db.Close(); err != nil { // it gets no other connection
		t.Fatal(err)
	}
	if _, err := db.Exec(`SELECT pg_terminate_backend(backend_pid, 60000) FROM reconciler.leases`); err != nil {
		t.Fatal(err)
	}
	eventually.True(t, "the heir has done the work", func() bool { return heir.count("success") == 1 })
	if heir.count("lease_held") > 0 || len(heir.begins) != 1 {
		t.Errorf("the heir: %q", heir.all())
	}
}

func TestAReplicaWhoseLeaseIsTakenStandsByInItsTurn(t *testing.T) {
	t.Parallel()
	dsn := testdb.URL(t)
	db := testdb.Open(t, dsn)
	turned := make(chan struct{}, 10)
	first := newReplica(t, dsn, "first", untilTheEnd)
	first.after = func(err error) {
		if _, held := errors.AsType[*task.HeldError](err); held {
			turned <- struct{}{}
		}
	}
	second := newReplica(t, dsn, "second", func(context.Context) error {
		<-turned
		return nil
	})
	first.serve(t)
	<-first.begins
	second.serve(t)
	second.turnedAway(t)
	eventually.True(t, "the second one has the lease", func() bool {
		// The first one goes on renewing until it sees that somebody else has it.
		db.MustExec(`UPDATE reconciler.leases SET expires_at = clock_timestamp() - interval '1 second' WHERE holder = 'first'`)
		return len(second.begins) == 1
	})
	eventually.True(t, "the second one has done the work", func() bool { return second.count("success") == 1 })
	eventually.True(t, "the first one knows", func() bool { return first.count("skipped lease_held") == 1 })
	if second.count("lease_held") > 0 || len(second.begins) != 1 || first.count("failed after") != 1 || len(first.begins) != 0 {
		t.Errorf("the first one: %q\nthe second one: %q", first.all(), second.all())
	}
}

func TestTwoReplicasDoTheWorkOfATickOnce(t *testing.T) {
	t.Parallel()
	dsn := testdb.URL(t)
	turned, done := make(chan struct{}), make(chan struct{})
	work := func(context.Context) error {
		<-turned // it takes until the other one is turned away
		return nil
	}
	both := []*replica{newReplica(t, dsn, "first", work), newReplica(t, dsn, "second", work)}
	for _, r := range both {
		r.after = func(err error) {
			if err == nil {
				done <- struct{}{}
				return
			}
			turned <- struct{}{}
			<-done
		}
	}
	for tick := 1; tick <= 3; tick++ {
		for _, r := range both {
			if tick == 1 {
				r.serve(t)
			} else {
				go r.entries[0].tick.Run()
			}
		}
		eventually.True(t, "both are through with the tick", func() bool {
			return both[0].count("success")+both[0].count("lease_held") == tick && both[1].count("success")+both[1].count("lease_held") == tick
		})
		if worked := len(both[0].begins) + len(both[1].begins); worked != tick {
			t.Fatalf("after %d ticks the work was done %d times\n%q\n%q", tick, worked, both[0].all(), both[1].all())
		}
	}
}
