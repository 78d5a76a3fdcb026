package migrations_test

import (
	"context"
	"database/sql"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/callreceipt/reconciler/internal/database"
	"github.com/callreceipt/reconciler/internal/eventually"
	"github.com/callreceipt/reconciler/internal/testdb"
	"github.com/callreceipt/reconciler/migrations"
)

// stricter tells which levels refuse with 40001 what READ COMMITTED waits for.
var stricter = map[sql.IsolationLevel]bool{sql.LevelReadCommitted: false, sql.LevelRepeatableRead: true, sql.LevelSerializable: true}

// atEachLevel runs the test at each isolation level, with a database of its own.
func atEachLevel(t *testing.T, test func(t *testing.T, db *sqlx.DB, level sql.IsolationLevel)) {
	t.Parallel()
	for level := range stricter {
		t.Run(level.String(), func(t *testing.T) {
			t.Parallel()
			test(t, testdb.New(t, migrations.Downstream), level)
		})
	}
}

// session is an open transaction that has its snapshot.
func session(t testing.TB, db *sqlx.DB, level sql.IsolationLevel) *sqlx.Tx {
	t.Helper()
	tx := db.MustBeginTx(t.Context(), &sql.TxOptions{Isolation: level})
	t.Cleanup(func() { _ = tx.Rollback() })
	tx.MustExec(`SELECT FROM idempotency.claims, idempotency.receipts`)
	return tx
}

// result is what one call of a function brought.
type result struct {
	said
	err error
}

// meanwhile starts the arrival and returns once it waits for another session.
func meanwhile(t testing.TB, db *sqlx.DB, tx *sqlx.Tx, a arrival) <-chan result {
	t.Helper()
	done := make(chan result, 1)
	go func() {
		s, err := a.arrive(tx)
		done <- result{s, err}
	}()
	waits(t, db)
	return done
}

func waits(t testing.TB, db *sqlx.DB) {
	t.Helper()
	eventually.True(t, "a session waits for another one", func() (waits bool) {
		err := db.Get(&waits, `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database())`)
		return err == nil && waits
	})
}

// mustSettle executes the call in an open transaction.
func mustSettle(t testing.TB, tx *sqlx.Tx, a arrival, status, result string) {
	t.Helper()
	s, err := a.arrive(tx)
	if err == nil && s.Outcome == "EXECUTE" {
		err = a.settle(tx, s.CreatedAt, status, result)
	}
	if err != nil || s.Outcome != "EXECUTE" {
		t.Fatalf("%s, %v", s, err)
	}
}

func commit(t testing.TB, tx *sqlx.Tx) {
	t.Helper()
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
}

func TestOfTwoArrivalsOneWaitsAndSeesWhatTheOtherDid(t *testing.T) {
	atEachLevel(t, func(t *testing.T, db *sqlx.DB, level sql.IsolationLevel) {
		one, two := session(t, db, level), session(t, db, level)
		mustSettle(t, one, send(), "SUCCESS", `1`)
		waiting := meanwhile(t, db, two, send(of("B1-0001", 2)))
		commit(t, one)
		got := <-waiting
		if stricter[level] {
			refused(t, "the second", got.err, "40001")
		} else if got.err != nil || got.String() != "REPEAT SUCCESS 1 of attempt 2" {
			t.Errorf("the second: %s, %v", got, got.err)
		}
	})
}

func TestOfTwoArrivalsTheSecondExecutesWhenTheFirstRollsBack(t *testing.T) {
	atEachLevel(t, func(t *testing.T, db *sqlx.DB, level sql.IsolationLevel) {
		one, two := session(t, db, level), session(t, db, level)
		mustSettle(t, one, send(), "SUCCESS", `1`)
		waiting := meanwhile(t, db, two, send(of("B1-0001", 2)))
		if err := one.Rollback(); err != nil {
			t.Fatal(err)
		}
		got := <-waiting
		if got.err != nil || got.Outcome != "EXECUTE" {
			t.Fatalf("the second: %s, %v", got, got.err)
		}
		if err := send(of("B1-0001", 2)).settle(two, got.CreatedAt, "SUCCESS", `2`); err != nil {
			t.Fatal(err)
		}
		commit(t, two)
		if got := receipts(t, db); got != "B1-0001 SUCCESS 2 2" {
			t.Errorf("receipts: %s", got)
		}
	})
}

func TestAnArrivalWaitsNoLongerThanItSaid(t *testing.T) {
	atEachLevel(t, func(t *testing.T, db *sqlx.DB, level sql.IsolationLevel) {
		one := session(t, db, level)
		mustSettle(t, one, send(), "SUCCESS", `1`)
		for _, wait := range []int{-1, 0, 1, 30} {
			_, err := send(func(a *arrival) { a.wait = wait }).arrive(session(t, db, level))
			refused(t, fmt.Sprintf("%d ms", wait), err, "55P03")
		}
		commit(t, one)
		send().is(t, db, "REPEAT SUCCESS 1 of attempt 1")
	})
}

func TestAStaleSnapshotNeverExecutes(t *testing.T) {
	atEachLevel(t, func(t *testing.T, db *sqlx.DB, level sql.IsolationLevel) {
		stale := session(t, db, level)
		send().settled(t, db, "SUCCESS", `1`)
		s, err := send().arrive(stale)
		if stricter[level] {
			refused(t, "the stale one", err, "40001")
		} else if err != nil || s.String() != "REPEAT SUCCESS 1 of attempt 1" {
			t.Errorf("the stale one: %s, %v", s, err)
		}
	})
}

func TestAFailedKeyIsExecutedAnewByOneOnly(t *testing.T) {
	atEachLevel(t, func(t *testing.T, db *sqlx.DB, level sql.IsolationLevel) {
		send().settled(t, db, "FAILED", `1`)
		one, two, three := session(t, db, level), session(t, db, level), session(t, db, level)
		mustSettle(t, one, send(rerun, of("B1-0002", 1)), "SUCCESS", `2`)
		waiting := meanwhile(t, db, two, send(rerun, of("B1-0003", 1)))
		if s, err := send(rerun, of("B1-0004", 1), func(a *arrival) { a.wait = 20 }).arrive(three); err == nil {
			t.Errorf("the third did not wait: %s", s)
		}
		commit(t, one)
		got := <-waiting
		if stricter[level] {
			refused(t, "the second", got.err, "40001")
		} else if got.err != nil || got.String() != "REPEAT SUCCESS 2 of attempt 1" {
			t.Errorf("the second: %s, %v", got, got.err)
		}
	})
}

// Two processes may disagree for a while, in a rolling upgrade: one executes failed keys anew, the other, which looked just before, repeats
// the failure.
func TestAnEffectIsNotCommittedUnderAReceiptThatDeniesIt(t *testing.T) {
	atEachLevel(t, func(t *testing.T, db *sqlx.DB, level sql.IsolationLevel) {
		send(of("B1-0009", 1)).settled(t, db, "FAILED", `1`)
		one := session(t, db, level)
		s, err := send(rerun).arrive(one)
		if err != nil || s.Outcome != "EXECUTE" {
			t.Fatalf("%s, %v", s, err)
		}
		db.MustExec(`SELECT idempotency.keep_receipt('B1-0001', 'B1', 'charge', 'B1:charge', 'FAILED', '1', 2, now())`)
		if err := send(rerun).settle(one, s.CreatedAt, "SUCCESS", `2`); err == nil {
			t.Error("it was settled")
		}
	})
}

// A call that arrives while its key is being ended must not stay PROCESSING for ever.
func TestTheEndReachesACallThatArrivesMeanwhile(t *testing.T) {
	atEachLevel(t, func(t *testing.T, db *sqlx.DB, level sql.IsolationLevel) {
		begun := send().settled(t, db, "PROCESSING", ``)
		end := func(tx *sqlx.Tx) error {
			_, err := tx.Exec(`SELECT idempotency.complete('B1:charge', $1, 'B1-0001', 1, 'SUCCESS', '1')`, begun.CreatedAt)
			return err
		}
		arriving, ending := session(t, db, level), session(t, db, level)
		if s, err := send(of("B1-0002", 1)).arrive(arriving); err != nil || s.Outcome != "PROCESSING" {
			t.Fatalf("%s, %v", s, err)
		}
		done := make(chan error, 1)
		go func() { done <- end(ending) }()
		waits(t, db)
		commit(t, arriving)
		err := <-done
		if err == nil {
			err = ending.Commit()
		}
		if stricter[level] {
			refused(t, "the end", err, "40001")
			err = database.InTx(t.Context(), db, end)
		}
		if got := receipts(t, db); err != nil || got != "B1-0001 SUCCESS 1 1, B1-0002 SUCCESS 1 1" {
			t.Errorf("receipts: %s, %v", got, err)
		}
	})
}

func TestACallThatArrivesWhileItsKeyIsEndedSeesTheEnd(t *testing.T) {
	atEachLevel(t, func(t *testing.T, db *sqlx.DB, level sql.IsolationLevel) {
		begun := send().settled(t, db, "PROCESSING", ``)
		ending, arriving := session(t, db, level), session(t, db, level)
		ending.MustExec(`SELECT idempotency.complete('B1:charge', $1, 'B1-0001', 1, 'SUCCESS', '1')`, begun.CreatedAt)
		waiting := meanwhile(t, db, arriving, send(of("B1-0002", 1)))
		commit(t, ending)
		got := <-waiting
		if stricter[level] {
			refused(t, "the arrival", got.err, "40001")
		} else if got.err != nil || got.String() != "REPEAT SUCCESS 1 of attempt 1" {
			t.Errorf("the arrival: %s, %v", got, got.err)
		}
	})
}

func TestManyAtOnceExecuteEachKeyOnce(t *testing.T) {
	atEachLevel(t, func(t *testing.T, db *sqlx.DB, level sql.IsolationLevel) {
		db.MustExec(`CREATE TABLE effects (biz text)`)
		const keys, workers = 5, 8
		var group sync.WaitGroup
		for w := range workers {
			group.Go(func() {
				for k := range keys {
					a := send(intent(fmt.Sprint("B", k)), func(a *arrival) { a.call = fmt.Sprintf("B%d-%d", k, w) })
					if err := execute(t.Context(), db, level, a); err != nil {
						t.Errorf("%s: %v", a.call, err)
					}
				}
			})
		}
		group.Wait()
		var twice, calls int
		if err := db.Get(&twice, `SELECT count(*) - count(DISTINCT biz) FROM effects`); err != nil || twice != 0 {
			t.Errorf("%d effects too many, %v", twice, err)
		}
		if err := db.Get(&calls, `SELECT count(*) FROM idempotency.receipts WHERE status = 'SUCCESS'`); err != nil || calls != keys*workers {
			t.Errorf("%d receipts, want %d, %v", calls, keys*workers, err)
		}
	})
}

// execute is the guard as any language writes it: arrive, the effect, settle; again when the server asks for it.
func execute(ctx context.Context, db *sqlx.DB, level sql.IsolationLevel, a arrival) error {
	for {
		err := func() error {
			tx, err := db.BeginTxx(ctx, &sql.TxOptions{Isolation: level})
			if err != nil {
				return err
			}
			defer func() { _ = tx.Rollback() }()
			s, err := a.arrive(tx)
			if err != nil {
				return err
			}
			if s.Outcome == "EXECUTE" {
				if _, err := tx.Exec(`INSERT INTO effects VALUES ($1)`, a.biz); err != nil {
					return err
				}
				if err := a.settle(tx, s.CreatedAt, "SUCCESS", `1`); err != nil {
					return err
				}
			}
			return tx.Commit()
		}()
		if !database.Busy(err) {
			return err
		}
	}
}

// Whether the effect was committed too nobody can tell. So nothing is executed until a person has looked and deletes the claim.
func TestAnArrivalThatIsCommittedWithoutSettleFailsClosed(t *testing.T) {
	t.Parallel()
	db := testdb.New(t, migrations.Downstream)
	send().is(t, db, "EXECUTE")
	send(of("B1-0001", 2)).is(t, db, "EXPIRED")
	db.MustExec(`DELETE FROM idempotency.claims WHERE key_digest = sha256('B1:charge')`)
	send(of("B1-0001", 3)).settled(t, db, "SUCCESS", `1`)
}

// A claim made in the last instant of a day points into the partition of that day, whatever the time zone of who asks.
func TestAKeyIsUniqueAcrossMidnight(t *testing.T) {
	t.Parallel()
	for _, zone := range []string{"UTC", "Asia/Kolkata", "America/New_York"} {
		t.Run(zone, func(t *testing.T) {
			t.Parallel()
			db := testdb.Open(t, withParameter(t, testdb.URL(t, migrations.Downstream), "TimeZone", zone))
			today := time.Now().UTC().Truncate(24 * time.Hour)
			for i, created := range []time.Time{today.Add(-time.Millisecond), today, today.Add(18*time.Hour + 30*time.Minute), today.Add(-24 * time.Hour)} {
				a := send(intent(fmt.Sprint("B", i)))
				err := database.InTx(t.Context(), db, func(tx *sqlx.Tx) error {
					s, err := a.arrive(tx)
					if err != nil || s.Outcome != "EXECUTE" {
						return fmt.Errorf("%s, %w", s, err)
					}
					tx.MustExec(`UPDATE idempotency.claims SET created_at = $1 WHERE created_at = $2`, created, s.CreatedAt)
					return a.settle(tx, created, "SUCCESS", `1`)
				})
				if err != nil {
					t.Fatalf("%s: %v", created, err)
				}
				if s := a.is(t, db, "REPEAT SUCCESS 1 of attempt 1"); !s.CreatedAt.Equal(created) {
					t.Errorf("created at %s, want %s", s.CreatedAt, created)
				}
				var partition string
				if err := db.Get(&partition, `SELECT tableoid::regclass FROM idempotency.keys WHERE biz_id = $1`, a.biz); err != nil ||
					partition != "idempotency.keys_"+created.Format("20060102") {
					t.Errorf("%s lies in %s, %v", created, partition, err)
				}
			}
		})
	}
}
