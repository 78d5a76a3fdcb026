package migrations_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/callreceipt/reconciler/internal/database"
	"github.com/callreceipt/reconciler/internal/testdb"
	"github.com/callreceipt/reconciler/migrations"
)

// withParameter adds a run-time parameter to a database URL.
func withParameter(t testing.TB, dsn, name, text string) string {
	t.Helper()
	u, err := url.Parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	q := u.Query()
	q.Set(name, text)
	u.RawQuery = q.Encode()
	return u.String()
}

// ensure makes partitions ahead and returns how many.
func ensure(t testing.TB, q sqlx.Queryer, days int) (made int) {
	t.Helper()
	if err := sqlx.Get(q, &made, `SELECT idempotency.ensure_partitions($1)`, days); err != nil {
		t.Errorf("ensuring %d days: %v", days, err)
	}
	return made
}

// bounds lists the partitions with their bounds in UTC.
func bounds(t testing.TB, db *sqlx.DB) (all []string) {
	t.Helper()
	err := database.InTx(t.Context(), db, func(tx *sqlx.Tx) error {
		tx.MustExec(`SET LOCAL TimeZone = 'UTC'`)
		return tx.Select(&all, `SELECT c.relname || ' ' || pg_get_expr(c.relpartbound, c.oid)
			FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
			WHERE i.inhparent = 'idempotency.keys'::regclass ORDER BY c.relname`)
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// dayPartition is how the partition of a day (UTC) reads in bounds.
func dayPartition(day time.Time) string {
	return fmt.Sprintf("keys_%s FOR VALUES FROM ('%s 00:00:00+00') TO ('%s 00:00:00+00')", day.Format("20060102"), day.Format("2006-01-02"),
		day.AddDate(0, 0, 1).Format("2006-01-02"))
}

// serverToday is the day (UTC) by the server's clock. A test that fails since it turned says so.
func serverToday(t testing.TB, db *sqlx.DB) time.Time {
	t.Helper()
	ask := func() (day time.Time) {
		if err := db.Get(&day, `SELECT date_trunc('day', clock_timestamp(), 'UTC')`); err != nil {
			t.Fatal(err)
		}
		return day.UTC()
	}
	day := ask()
	t.Cleanup(func() {
		if t.Failed() && !ask().Equal(day) {
			t.Log("midnight (UTC) passed during the test")
		}
	})
	return day
}

func TestPartitionsAreDaysInUTCWhateverTheZone(t *testing.T) {
	t.Parallel()
	dsn := testdb.URL(t, migrations.Downstream)
	db := testdb.Open(t, dsn)
	today := serverToday(t, db)
	// Several callers at once, in any zone, make each partition once.
	var made [6]int
	var group sync.WaitGroup
	for i, zone := range []string{"UTC", "Asia/Kolkata", "America/New_York", "Pacific/Kiritimati", "Pacific/Niue", "Asia/Kolkata"} {
		caller := testdb.Open(t, withParameter(t, dsn, "TimeZone", zone))
		group.Go(func() { made[i] = ensure(t, caller, 29) })
	}
	group.Wait()
	total := 0
	for _, n := range made {
		total += n
	}
	var want []string
	for n := -1; n <= 29; n++ {
		want = append(want, dayPartition(today.AddDate(0, 0, n)))
	}
	if got := bounds(t, db); total != 15 || !slices.Equal(got, want) {
		t.Errorf("%d were made: %s", total, strings.Join(got, "\n"))
	}
	if again := ensure(t, db, 29); again != 0 {
		t.Errorf("the second time %d were made", again)
	}
}

func TestAPartitionOfOtherBoundsInTheWayIsLeftAndTheOthersAreMade(t *testing.T) {
	t.Parallel()
	db := testdb.New(t, migrations.Downstream)
	today := serverToday(t, db)
	day := func(n int) string { return today.AddDate(0, 0, n).Format("20060102") }
	// Under another name it holds parts of two days; under the name of a day it holds that day as it is elsewhere.
	db.MustExec(fmt.Sprintf(`DROP TABLE idempotency.keys_%s, idempotency.keys_%s, idempotency.keys_%s`, day(5), day(6), day(10)))
	db.MustExec(fmt.Sprintf(`CREATE TABLE idempotency.mine PARTITION OF idempotency.keys FOR VALUES FROM ('%s 12:00+00') TO ('%s 12:00+00')`, day(5), day(6)))
	db.MustExec(fmt.Sprintf(`CREATE TABLE idempotency.keys_%s PARTITION OF idempotency.keys FOR VALUES FROM ('%s 00:00+00') TO ('%s 18:30+00')`, day(20), day(20), day(20)))
	if made := ensure(t, db, 21); made != 7 { // 10, 15 to 19, and 21
		t.Errorf("%d were made: %s", made, strings.Join(bounds(t, db), "\n"))
	}
}

func TestInsertsGoOnWhilePartitionsAreMade(t *testing.T) {
	t.Parallel()
	db := testdb.New(t, migrations.Downstream)
	writer, maker := db.MustBegin(), db.MustBegin()
	defer func() { _, _ = writer.Rollback(), maker.Rollback() }()
	mustSettle(t, writer, send(), "SUCCESS", `1`)
	maker.MustExec(`SET LOCAL lock_timeout = '2s'`)
	if made := ensure(t, maker, 20); made != 6 {
		t.Errorf("%d were made", made)
	}
	mustSettle(t, writer, send(intent("B2")), "SUCCESS", `2`)
	commit(t, writer)
	send(intent("B3")).settled(t, db, "SUCCESS", `3`)
	send().is(t, db, "REPEAT SUCCESS 1 of attempt 1")
	commit(t, maker)
}

// locked lists the partitions on which the transaction holds a lock.
func locked(t testing.TB, tx *sqlx.Tx) (partitions []string) {
	t.Helper()
	err := tx.Select(&partitions, `SELECT DISTINCT c.relname FROM pg_locks l JOIN pg_inherits i ON i.inhrelid = l.relation
		JOIN pg_class c ON c.oid = i.inhrelid
		WHERE l.pid = pg_backend_pid() AND i.inhparent = 'idempotency.keys'::regclass ORDER BY 1`)
	if err != nil {
		t.Fatal(err)
	}
	return partitions
}

// A lock on every partition costs time with each call, and makes each call wait for whoever archives an old one. It is tried often,
// since PostgreSQL thinks of another plan after the fifth time.
func TestOneCallLocksOnePartitionOfThirtyOne(t *testing.T) {
	t.Parallel()
	dsn := testdb.URL(t, migrations.Downstream)
	setup := testdb.Open(t, dsn)
	ensure(t, setup, 29)
	db := testdb.Open(t, dsn)
	db.SetMaxOpenConns(1) // one session, one cache of plans
	today := "keys_" + serverToday(t, setup).Format("20060102")
	one := func(what string, do func(tx *sqlx.Tx)) {
		t.Helper()
		tx := db.MustBegin()
		do(tx)
		if got := locked(t, tx); len(got) > 1 || len(got) == 1 && got[0] != today {
			t.Errorf("%s: %d partitions are locked: %v", what, len(got), got)
		}
		commit(t, tx)
	}
	says := func(tx *sqlx.Tx, a arrival, want string) said {
		t.Helper()
		s, err := a.arrive(tx)
		if err != nil || s.Outcome != want {
			t.Errorf("%s, %v; want %s", s, err, want)
		}
		return s
	}
	for i := range 12 {
		a := send(intent(fmt.Sprint("B", i)))
		again := send(intent(a.biz), rerun, of(a.call, 2))
		var s said
		one("executing", func(tx *sqlx.Tx) {
			s = says(tx, a, "EXECUTE")
			if err := a.settle(tx, s.CreatedAt, "PROCESSING", ``); err != nil {
				t.Error(err)
			}
		})
		one("processing", func(tx *sqlx.Tx) { says(tx, a, "PROCESSING") })
		one("ending", func(tx *sqlx.Tx) {
			tx.MustExec(`SELECT idempotency.complete($1, $2, $3, 1, 'FAILED', '1')`, a.key, s.CreatedAt, a.call)
		})
		one("repeating a failure", func(tx *sqlx.Tx) { says(tx, a, "REPEAT") })
		one("executing anew", func(tx *sqlx.Tx) {
			if err := again.settle(tx, says(tx, again, "EXECUTE").CreatedAt, "SUCCESS", `2`); err != nil {
				t.Error(err)
			}
		})
		one("repeating", func(tx *sqlx.Tx) { says(tx, a, "REPEAT") })
	}
}

func TestTheLockTimeoutOfTheSessionIsBackAfterwards(t *testing.T) {
	t.Parallel()
	db := testdb.New(t, migrations.Downstream)
	holder := db.MustBegin()
	defer func() { _ = holder.Rollback() }()
	mustSettle(t, holder, send(), "SUCCESS", `1`)
	for _, own := range []string{"0", "7s"} {
		tx := db.MustBegin()
		tx.MustExec(`SET LOCAL lock_timeout = '` + own + `'`)
		still := func(after string) {
			t.Helper()
			var now string
			if err := tx.Get(&now, `SHOW lock_timeout`); err != nil || now != own {
				t.Errorf("after %s it is %s, want %s, %v", after, now, own, err)
			}
		}
		mustSettle(t, tx, send(intent("B2")), "SUCCESS", `2`)
		still("an execution")
		if _, err := send(intent("B2")).arrive(tx); err != nil {
			t.Error(err)
		}
		still("a repeat")
		tx.MustExec(`SAVEPOINT before`)
		_, err := send(func(a *arrival) { a.wait = 5 }).arrive(tx)
		refused(t, "a key in work", err, "55P03")
		tx.MustExec(`ROLLBACK TO before`)
		still("a time-out")
		_ = tx.Rollback()
	}
}

// grants is what the role of a service needs to execute calls; docs/adopting.md shows it. Those who relay receipts add the last one.
var grants = []string{
	`GRANT USAGE ON SCHEMA idempotency TO shop`,
	`GRANT SELECT, INSERT, UPDATE ON idempotency.keys, idempotency.receipts TO shop`,
	`GRANT SELECT, INSERT, UPDATE, DELETE ON idempotency.claims TO shop`,
	`GRANT SELECT ON idempotency.watermarks TO shop`,
	`GRANT EXECUTE ON FUNCTION idempotency.ensure_partitions(integer) TO shop`,
	`GRANT INSERT ON idempotency.receipt_outbox TO shop`,
}

// role makes a role with the grants, and returns a pool of its sessions.
func role(t testing.TB, dsn string, grants []string) *sqlx.DB {
	t.Helper()
	owner := testdb.Open(t, dsn)
	name := "shop_" + strings.ToLower(rand.Text())
	owner.MustExec(`CREATE ROLE ` + name)
	t.Cleanup(func() { owner.MustExec(`DROP OWNED BY ` + name + `; DROP ROLE ` + name) })
	for _, g := range grants {
		owner.MustExec(strings.TrimSuffix(g, "shop") + name)
	}
	return testdb.Open(t, withParameter(t, dsn, "role", name))
}

// everything does all that a service does, under a bizId of its own.
func everything(db *sqlx.DB, biz string) error {
	return database.InTx(context.Background(), db, func(tx *sqlx.Tx) error {
		var errs []error
		ask := func(a arrival, want string) said {
			s, err := a.arrive(tx)
			if err == nil && s.Outcome != want {
				err = fmt.Errorf("%s, want %s", s, want)
			}
			errs = append(errs, err)
			return s
		}
		a := send(intent(biz))
		begun := ask(a, "EXECUTE")
		errs = append(errs, a.settle(tx, begun.CreatedAt, "PROCESSING", ``))
		ask(send(intent(biz), of(biz+"-0002", 1)), "PROCESSING")
		_, err := tx.Exec(`SELECT idempotency.complete($1, $2, $3, 1, 'FAILED', '1')`, a.key, begun.CreatedAt, a.call)
		errs = append(errs, err)
		again := send(intent(biz), rerun, of(a.call, 2))
		errs = append(errs, again.settle(tx, ask(again, "EXECUTE").CreatedAt, "SUCCESS", `2`))
		ask(a, "REPEAT")
		ask(send(intent(biz+"x"), func(a *arrival) { a.issued = "-2 days" }), "EXPIRED")
		_, err = tx.Exec(`SELECT idempotency.ensure_partitions(16)`)
		return errors.Join(append(errs, err)...)
	})
}

func TestARoleNeedsTheGrantsThatAreDocumentedAndEachOfThem(t *testing.T) {
	t.Parallel()
	dsn := testdb.URL(t, migrations.Downstream)
	owner := testdb.Open(t, dsn)
	owner.MustExec(`INSERT INTO idempotency.watermarks VALUES ('idempotency.keys', now() - interval '1 day')`)
	last := len(grants) - 1
	if err := everything(role(t, dsn, grants[:last]), "B1"); err != nil {
		t.Fatalf("with all but the outbox: %v", err)
	}
	owner.MustExec(`ALTER TABLE idempotency.receipts ENABLE TRIGGER receipt_to_outbox`)
	for i, missing := range grants {
		err := everything(role(t, dsn, slices.Delete(slices.Clone(grants), i, i+1)), fmt.Sprint("B2-", i))
		refused(t, "without "+missing, err, "42501")
	}
	if err := everything(role(t, dsn, grants), "B3"); err != nil {
		t.Errorf("with all: %v", err)
	}
}
