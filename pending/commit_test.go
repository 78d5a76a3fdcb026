package pending_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jmoiron/sqlx"

	"github.com/callreceipt/reconciler/internal/database"
	"github.com/callreceipt/reconciler/internal/eventually"
	"github.com/callreceipt/reconciler/internal/pgproxy"
	"github.com/callreceipt/reconciler/internal/testdb"
	"github.com/callreceipt/reconciler/pending"
)

// parkThree parks three calls and returns the changes that settle them.
func parkThree(t testing.TB, db *sqlx.DB) []pending.Change {
	t.Helper()
	var changes []pending.Change
	for i := range 3 {
		id := fmt.Sprint("C", i)
		park(t, db, id)
		changes = append(changes, success(read(t, db, id)[0]))
	}
	return changes
}

// checkWrittenOnce looks at the three calls after Apply.
func checkWrittenOnce(t *testing.T, db *sqlx.DB, written map[string]bool, err error) {
	t.Helper()
	if diff := cmp.Diff(map[string]bool{"C0": true, "C1": true, "C2": true}, written); diff != "" || err != nil {
		t.Errorf("reported as written: %v %s", err, diff)
	}
	for _, c := range read(t, db, "C0", "C1", "C2") {
		if n := events(t, db, c.CallID); c.Status != pending.StatusSuccess || c.Version != 1 || n != 1 {
			t.Errorf("%s is %s in version %d with %d ledger rows", c.CallID, c.Status, c.Version, n)
		}
	}
}

type applied struct {
	written map[string]bool
	err     error
}

func applyInBackground(t testing.TB, db *sqlx.DB, changes []pending.Change) <-chan applied {
	done := make(chan applied, 1)
	go func() {
		written, err := pending.NewStore(db).Apply(t.Context(), changes)
		done <- applied{written, err}
	}()
	return done
}

func within(t testing.TB, done <-chan applied) applied {
	t.Helper()
	select {
	case got := <-done:
		return got
	case <-time.After(time.Minute):
		t.Fatal("waited in vain for the writer")
		return applied{}
	}
}

func TestACommitWhoseAnswerIsLostIsReportedAsItWentAndDoneOnce(t *testing.T) {
	t.Parallel()
	arrived, lost := pgproxy.Fate{Arrives: true}, pgproxy.Fate{}
	for name, fates := range map[string][]pgproxy.Fate{
		"it arrived":                            {arrived},
		"it never arrived":                      {lost},
		"it never arrived, twice":               {lost, lost},
		"it never arrived, and then it arrived": {lost, arrived},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dsn := testdb.URL(t)
			db := testdb.Open(t, dsn)
			changes := parkThree(t, db)
			written, err := pending.NewStore(testdb.Open(t, pgproxy.URL(t, dsn, fates...))).Apply(t.Context(), changes)
			checkWrittenOnce(t, db, written, err)
		})
	}
}

func TestACommitThatArrivesWhileTheNextTryWaitsForItIsReportedAsWritten(t *testing.T) {
	t.Parallel()
	dsn := testdb.URL(t)
	db := testdb.Open(t, dsn)
	changes := parkThree(t, db)
	late := make(chan struct{})
	proxied := testdb.Open(t, with(t, pgproxy.URL(t, dsn, pgproxy.Fate{Arrives: true, Late: late}), "application_name", "again"))
	done := applyInBackground(t, proxied, changes)
	func() {
		defer close(late)
		eventually.True(t, "the second try waits for the first", func() bool {
			return value[bool](t, db, `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE application_name = 'again' AND wait_event_type = 'Lock')`)
		})
	}()
	got := within(t, done)
	checkWrittenOnce(t, db, got.written, got.err)
}

func TestAConnectionThatBreaksAtEveryCommitIsAnErrorAndNotALostRace(t *testing.T) {
	t.Parallel()
	dsn := testdb.URL(t)
	db := testdb.Open(t, dsn)
	changes := parkThree(t, db)
	written, err := pending.NewStore(testdb.Open(t, pgproxy.URL(t, dsn, make([]pgproxy.Fate, 10)...))).Apply(t.Context(), changes)
	if !errors.Is(err, database.ErrCommitUnknown) || len(written) != 0 {
		t.Errorf("%v %v", written, err)
	}
	if n := value[int](t, db, `SELECT count(*) FROM reconciler.pending_confirmations WHERE version > 0`); n != 0 {
		t.Errorf("%d rows were written", n)
	}
}

func TestARetryWhoseCommitIsUnknownIsNotHandedOut(t *testing.T) {
	t.Parallel()
	for name, arrives := range map[string]bool{"it arrived": true, "it never arrived": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dsn := testdb.URL(t)
			db := testdb.Open(t, dsn)
			park(t, db, "C1", "status='RETRY'")
			proxied := testdb.Open(t, pgproxy.URL(t, dsn, pgproxy.Fate{Arrives: arrives}))
			taken, err := pending.TakeRetries(t.Context(), proxied, tool, 1)
			if !errors.Is(err, database.ErrCommitUnknown) || len(taken) != 0 {
				t.Errorf("%v %v", taken, err)
			}
			want := map[bool]int{true: 1, false: 0}[arrives]
			if n := events(t, db, "C1"); n != want {
				t.Errorf("%d sends are on record, want %d", n, want)
			}
		})
	}
}

func TestTheReconcilersOwnSendIsMadeExactlyWhenItIsOnRecord(t *testing.T) {
	t.Parallel()
	for name, arrives := range map[string]bool{"it arrived": true, "it never arrived": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dsn := testdb.URL(t)
			db := testdb.Open(t, dsn)
			park(t, db, "C1", "status='RETRY'", "request='{}'")
			proxied := testdb.Open(t, pgproxy.URL(t, dsn, pgproxy.Fate{Arrives: arrives}))
			r, err := pending.NewStore(proxied).TakeRetry(t.Context(), tool, "", pending.Spacing{})
			if (r != nil) != arrives || errors.Is(err, database.ErrCommitUnknown) == arrives || (events(t, db, "C1") == 1) != arrives {
				t.Errorf("%+v %v with %d sends on record", r, err, events(t, db, "C1"))
			}
		})
	}
}
