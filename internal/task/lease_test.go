package task

import (
	"bufio"
	"context"
	"errors"
	"log/slog"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/callreceipt/reconciler/internal/database"
	"github.com/callreceipt/reconciler/internal/eventually"
	"github.com/callreceipt/reconciler/internal/testdb"
)

const freeNow = `SELECT expires_at <= clock_timestamp() FROM reconciler.leases`

// holding runs a holder in the background. It works until its context ends; the channel then has what Hold returned.
func holding(t testing.TB, ctx context.Context, l *lease) (<-chan error, context.Context) {
	t.Helper()
	done, started := make(chan error, 1), make(chan context.Context, 1)
	go func() {
		done <- l.hold(ctx, quiet, func(ctx context.Context) error {
			started <- ctx
			<-ctx.Done()
			return ctx.Err()
		})
	}()
	select {
	case work := <-started:
		return done, work
	case err := <-done:
		t.Fatalf("%s did not get the lease: %v", l.holder, err)
		return nil, nil
	}
}

// within takes what a goroutine of the test has to say.
func within(t testing.TB, done <-chan error) error {
	t.Helper()
	select {
	case err := <-done:
		return err
	case <-time.After(time.Minute):
		t.Fatal("waited in vain for the holder to end")
		return nil
	}
}

func TestASecondHolderIsToldWhoHoldsTheLease(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	err := Hold(t.Context(), db, quiet, "reconcile:T", "first", func(ctx context.Context) error {
		return Hold(ctx, db, quiet, "reconcile:T", "second", func(context.Context) error {
			t.Error("two hold the lease")
			return nil
		})
	})
	held, ok := errors.AsType[*HeldError](err)
	if !ok || held.Holder != "first" || held.Name != "reconcile:T" || held.ExpiresIn <= 0 || held.ExpiresIn > LeaseTTL {
		t.Errorf("%#v", err)
	}
	if want := "lease reconcile:T is held by first for another "; err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("%v, want %q…", err, want)
	}
}

func TestLeasesOfDifferentNamesDoNotMeet(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	worked := false
	err := Hold(t.Context(), db, quiet, "reconcile:T", "first", func(ctx context.Context) error {
		return Hold(ctx, db, quiet, "reconcile:U", "second", func(context.Context) error {
			worked = true
			return nil
		})
	})
	if err != nil || !worked {
		t.Errorf("worked %v, %v", worked, err)
	}
}

func TestTheLeaseIsFreeAsSoonAsTheWorkEnds(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	for name, tt := range map[string]struct {
		work func(cancel context.CancelFunc) error
		want error
	}{
		"well":             {func(context.CancelFunc) error { return nil }, nil},
		"with an error":    {func(context.CancelFunc) error { return broken }, broken},
		"since it had to":  {func(cancel context.CancelFunc) error { cancel(); return context.Canceled }, context.Canceled},
		"well, at the end": {func(cancel context.CancelFunc) error { cancel(); return nil }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := testdb.New(t)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			err := Hold(ctx, db, quiet, "reconcile:T", "first", func(context.Context) error { return tt.work(cancel) })
			if !errors.Is(err, tt.want) || errors.Is(err, ErrLeaseLost) {
				t.Errorf("%v, want %v", err, tt.want)
			}
			if !value[bool](t, db, freeNow) {
				t.Error("the lease is still held")
			}
		})
	}
}

func TestTheLeaseIsFreeAndNotRenewedAfterAPanic(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	l := newLease(t, db, "first", LeaseTTL)
	var work context.Context
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the panic was swallowed")
			}
		}()
		_ = l.hold(t.Context(), quiet, func(ctx context.Context) error {
			work = ctx
			panic("a bug")
		})
	}()
	if !value[bool](t, db, freeNow) || work.Err() == nil || l.conn != nil {
		t.Errorf("free %v, the renewals ended %v, the connection is %v", value[bool](t, db, freeNow), work.Err(), l.conn)
	}
}

func TestTheFenceGrowsWithEveryHolder(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	for want := range int64(4) {
		l := newLease(t, db, "again", LeaseTTL)
		if err := l.hold(t.Context(), quiet, func(context.Context) error { return nil }); err != nil || l.fence != want+1 {
			t.Errorf("fence %d, want %d, %v", l.fence, want+1, err)
		}
	}
}

func TestOfManyWhoWantTheLeaseAtOnceExactlyOneGetsIt(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	for _, round := range []string{"nobody had it before", "the last holder is gone"} {
		leases := make([]*lease, 8)
		for i := range leases {
			leases[i] = newLease(t, db, string(rune('a'+i)), LeaseTTL)
		}
		var won atomic.Int32
		var group sync.WaitGroup
		for _, l := range leases {
			group.Go(func() {
				err := l.tryAcquire(t.Context())
				if _, held := errors.AsType[*HeldError](err); err != nil && !held {
					t.Error(err)
				}
				if err == nil {
					won.Add(1)
				}
			})
		}
		group.Wait()
		if won.Load() != 1 {
			t.Errorf("%s: %d got it", round, won.Load())
		}
		for _, l := range leases {
			l.close()
		}
		db.MustExec(`UPDATE reconciler.leases SET expires_at = clock_timestamp()`)
	}
}

func TestAnExpiredLeaseIsTakenOverAndItsLastHolderCanDoNothingAboutIt(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	first, second := newLease(t, db, "first", LeaseTTL), newLease(t, db, "second", LeaseTTL)
	if err := first.tryAcquire(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, held := errors.AsType[*HeldError](second.tryAcquire(t.Context())); !held {
		t.Fatal("two hold the lease")
	}
	db.MustExec(`UPDATE reconciler.leases SET expires_at = clock_timestamp() - interval '1 second'`)
	if err := second.tryAcquire(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := first.renew(t.Context()); !errors.Is(err, ErrLeaseLost) {
		t.Errorf("renewed all the same: %v", err)
	}
	if err := first.release(t.Context()); err != nil || value[bool](t, db, freeNow) {
		t.Errorf("gave away what another holds, %v", err)
	}
	if got := value[string](t, db, `SELECT holder || ' ' || fence FROM reconciler.leases`); got != "second 2" {
		t.Errorf("held by %s", got)
	}
}

func TestAnExpiredLeaseThatNobodyTookIsRenewed(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	l := newLease(t, db, "first", LeaseTTL)
	if err := l.tryAcquire(t.Context()); err != nil {
		t.Fatal(err)
	}
	db.MustExec(`UPDATE reconciler.leases SET expires_at = clock_timestamp() - interval '1 second'`)
	if err := l.renew(t.Context()); err != nil || value[bool](t, db, freeNow) {
		t.Errorf("%v", err)
	}
}

// killSession ends the server's side of the connection that carries the lease, and waits until it is gone.
func killSession(t testing.TB, db *sqlx.DB) (pid int) {
	t.Helper()
	pid = value[int](t, db, `SELECT backend_pid FROM reconciler.leases`)
	if !value[bool](t, db, `SELECT pg_terminate_backend($1, 60000)`, pid) {
		t.Fatal("the session did not end")
	}
	return pid
}

func TestAHolderWhoseConnectionBreaksGoesOnWithANewOne(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	l := newLease(t, db, "first", 3*time.Second)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done, work := holding(t, ctx, l)
	pid := killSession(t, db)
	eventually.True(t, "the lease is renewed from another session", func() bool {
		return value[bool](t, db, `SELECT backend_pid <> $1 FROM reconciler.leases`, pid)
	})
	if _, held := errors.AsType[*HeldError](newLease(t, db, "second", LeaseTTL).tryAcquire(t.Context())); !held || work.Err() != nil {
		t.Errorf("held %v, the work's context: %v", held, work.Err())
	}
	cancel()
	if err := within(t, done); !errors.Is(err, context.Canceled) || errors.Is(err, ErrLeaseLost) {
		t.Errorf("%v", err)
	}
	if got := value[int](t, db, `SELECT fence FROM reconciler.leases`); got != 1 {
		t.Errorf("fence %d", got)
	}
}

func TestTheVeryNextRenewalHasANewConnection(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	l := newLease(t, db, "first", LeaseTTL)
	if err := l.tryAcquire(t.Context()); err != nil {
		t.Fatal(err)
	}
	pid := killSession(t, db)
	if err := l.renewOnce(t.Context()); err != nil {
		t.Error(err)
	}
	if value[bool](t, db, `SELECT backend_pid = $1 FROM reconciler.leases`, pid) {
		t.Error("the lease names the dead session")
	}
}

func TestAHolderWhoseLeaseIsTakenWhileItsConnectionIsBrokenStops(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	first, second := newLease(t, db, "first", 6*time.Second), newLease(t, db, "second", LeaseTTL)
	done, work := holding(t, t.Context(), first)
	killSession(t, db)
	if err := second.tryAcquire(t.Context()); err != nil {
		t.Fatal(err) // nobody waits for the lease of a dead session to expire
	}
	if err := within(t, done); !errors.Is(err, ErrLeaseLost) || !errors.Is(context.Cause(work), ErrLeaseLost) {
		t.Errorf("%v; the work's context ended with %v", err, context.Cause(work))
	}
	if got := value[string](t, db, `SELECT holder || ' ' || fence FROM reconciler.leases`); got != "second 2" || value[bool](t, db, freeNow) {
		t.Errorf("held by %s", got)
	}
}

func TestAHolderThatRenewsWorksForAsLongAsItLikes(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	l := newLease(t, db, "first", 3*time.Second)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done, work := holding(t, ctx, l)
	first := value[time.Time](t, db, `SELECT expires_at FROM reconciler.leases`)
	eventually.True(t, "the lease has outlived its first term", func() bool {
		return work.Err() != nil || value[bool](t, db, `SELECT expires_at > $1::timestamptz + interval '3.5 seconds' FROM reconciler.leases`, first)
	})
	cancel()
	if err := within(t, done); errors.Is(err, ErrLeaseLost) {
		t.Errorf("%v", err)
	}
}

func TestAHolderThatLetsGoAMomentLaterIsWaitedFor(t *testing.T) {
	t.Parallel()
	dsn := testdb.URL(t)
	db := testdb.Open(t, dsn)
	named, err := url.Parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	q := named.Query()
	q.Set("application_name", "second")
	named.RawQuery = q.Encode()
	first, second := newLease(t, db, "first", LeaseTTL), newLease(t, testdb.Open(t, named.String()), "second", LeaseTTL)
	if err := first.tryAcquire(t.Context()); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- second.acquire(t.Context()) }()
	eventually.True(t, "the second one was turned away once", func() bool {
		return value[bool](t, db, `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE application_name = 'second' AND state = 'idle' AND query = 'ROLLBACK')`)
	})
	if err := first.release(t.Context()); err != nil {
		t.Error(err)
	}
	if err := within(t, done); err != nil || second.fence != 2 {
		t.Errorf("fence %d, %v", second.fence, err)
	}
}

func TestAHolderThatCannotRenewStopsWhenTheLeaseHasRunOut(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	l := newLease(t, db, "first", 600*time.Millisecond)
	done, work := holding(t, t.Context(), l)
	tx := db.MustBegin()
	defer func() { _ = tx.Rollback() }()
	tx.MustExec(`LOCK TABLE reconciler.leases IN EXCLUSIVE MODE`)
	if err := within(t, done); !errors.Is(err, ErrLeaseLost) || !errors.Is(context.Cause(work), ErrLeaseLost) {
		t.Errorf("%v; the work's context ended with %v", err, context.Cause(work))
	}
}

func TestAKilledProcessIsReplacedWithoutWaitingForItsLeaseToExpire(t *testing.T) {
	t.Parallel()
	dsn := testdb.URL(t)
	db := testdb.Open(t, dsn)
	doomed := exec.CommandContext(t.Context(), os.Args[0])
	doomed.Env = append(os.Environ(), envHold+"="+dsn)
	doomed.Stderr = os.Stderr
	out, err := doomed.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := doomed.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if line != "held\n" {
		t.Errorf("it says %q, %v", line, err)
	}
	if err := doomed.Process.Kill(); err != nil {
		t.Error(err)
	}
	_ = doomed.Wait() // it was killed, as it says
	err = Hold(t.Context(), db, quiet, "reconcile:T", "heir", func(context.Context) error { return nil })
	if got := value[string](t, db, `SELECT holder || ' ' || fence FROM reconciler.leases`); err != nil || got != "heir 2" {
		t.Errorf("held by %s, %v", got, err)
	}
}

func TestWithoutADatabaseNobodyWorks(t *testing.T) {
	t.Parallel()
	db := testdb.Open(t, "postgres://x@127.0.0.1:1/x?sslmode=disable")
	err := Hold(t.Context(), db, quiet, "reconcile:T", "first", func(context.Context) error {
		t.Error("it works without a lease")
		return nil
	})
	if _, held := errors.AsType[*HeldError](err); err == nil || held {
		t.Errorf("%v", err)
	}
}

// The driver opens transactions READ WRITE, so the server would let our writes pass; an administrator who takes writes away from
// everybody, before a cut-over for example, means ours too.
func TestADatabaseThatIsReadOnlyByDefaultIsNotWorkedOn(t *testing.T) {
	t.Parallel()
	dsn := testdb.URL(t)
	testdb.Open(t, dsn).MustExec(`DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET default_transaction_read_only = on', current_database()); END $$`)
	db := testdb.Open(t, dsn)
	err := Hold(t.Context(), db, slog.New(slog.DiscardHandler), "reconcile:charge", "a", func(context.Context) error {
		t.Error("it was worked on")
		return nil
	})
	if !errors.Is(err, database.ErrReadOnly) || !database.Unreachable(err) {
		t.Errorf("got %v", err)
	}
	var leases int
	if err := db.Get(&leases, `SELECT count(*) FROM reconciler.leases`); err != nil || leases != 0 {
		t.Errorf("%d leases, %v", leases, err)
	}
}
