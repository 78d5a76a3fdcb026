package migrations_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/lib/pq"

	"github.com/callreceipt/reconciler/internal/database"
	"github.com/callreceipt/reconciler/internal/testdb"
	"github.com/callreceipt/reconciler/migrations"
)

// arrival is what a program in any language passes to idempotency.arrive.
type arrival struct {
	key, biz, operation, call string
	attempt                   int
	issued                    string // an interval from now
	hash                      []byte
	rerun                     bool
	wait                      int // ms
}

// send is the first send of the first call of an order, changed.
func send(change ...func(*arrival)) arrival {
	a := arrival{
		key: "B1:charge", biz: "B1", operation: "charge", call: "B1-0001", attempt: 1, issued: "0", hash: make([]byte, 32), wait: 60_000,
	}
	for _, c := range change {
		c(&a)
	}
	return a
}

func of(call string, attempt int) func(*arrival) {
	return func(a *arrival) { a.call, a.attempt = call, attempt }
}

func intent(biz string) func(*arrival) {
	return func(a *arrival) { a.key, a.biz, a.call = biz+":charge", biz, biz+"-0001" }
}

func rerun(a *arrival) { a.rerun = true }

// said is what arrive returns.
type said struct {
	Outcome     string
	CreatedAt   time.Time      `db:"created_at"`
	Status      sql.NullString // these four with REPEAT alone
	Result      sql.NullString
	Attempt     sql.NullInt64 `db:"answered_attempt"`
	ProcessedAt sql.NullTime  `db:"processed_at"`
}

// String is the outcome, and with REPEAT the receipt.
func (s said) String() string {
	if s.Outcome != "REPEAT" {
		return s.Outcome
	}
	return fmt.Sprintf("REPEAT %s %s of attempt %d", s.Status.String, s.Result.String, s.Attempt.Int64)
}

func (a arrival) arrive(q sqlx.Queryer) (s said, err error) {
	err = sqlx.Get(q, &s, `
		SELECT outcome, coalesce(created_at, 'epoch') AS created_at, status, result, answered_attempt, processed_at
		FROM idempotency.arrive($1, $2, $3, $4, $5, clock_timestamp() + $6::interval, $7, $8, $9)`,
		a.key, a.biz, a.operation, a.call, a.attempt, a.issued, a.hash, a.rerun, a.wait)
	return s, err
}

func (a arrival) settle(q sqlx.Execer, created time.Time, status, result string) error {
	_, err := q.Exec(`SELECT idempotency.settle($1, $2, $3, $4, $5, clock_timestamp() + $6::interval, $7, $8, $9, nullif($10, '')::json)`,
		a.key, a.biz, a.operation, a.call, a.attempt, a.issued, a.hash, created, status, result)
	return err
}

// settled executes the call in a transaction of its own and returns what arrive said.
func (a arrival) settled(t testing.TB, db *sqlx.DB, status, result string) (s said) {
	t.Helper()
	err := database.InTx(t.Context(), db, func(tx *sqlx.Tx) (err error) {
		if s, err = a.arrive(tx); err != nil || s.Outcome != "EXECUTE" {
			return errors.Join(err, fmt.Errorf("arrive says %s", s))
		}
		return a.settle(tx, s.CreatedAt, status, result)
	})
	if err != nil {
		t.Fatalf("%+v: %v", a, err)
	}
	return s
}

// is fails unless the call is answered so, in a transaction of its own.
func (a arrival) is(t testing.TB, db *sqlx.DB, want string) said {
	t.Helper()
	var s said
	err := database.InTx(t.Context(), db, func(tx *sqlx.Tx) (err error) {
		s, err = a.arrive(tx)
		return err
	})
	if err != nil || s.String() != want {
		t.Errorf("%s attempt %d: %s, %v; want %s", a.call, a.attempt, s, err, want)
	}
	return s
}

// refused fails unless the statement ended with this SQLSTATE.
func refused(t testing.TB, what string, err error, state string) {
	t.Helper()
	if e := pq.As(err); e == nil || string(e.Code) != state {
		t.Errorf("%s: %v; want SQLSTATE %s", what, err, state)
	}
}

// receipts is the table of receipts in one line.
func receipts(t testing.TB, db *sqlx.DB) string {
	t.Helper()
	var lines []string
	if err := db.Select(&lines, `SELECT concat_ws(' ', call_id, status, result, attempt) FROM idempotency.receipts ORDER BY call_id`); err != nil {
		t.Fatal(err)
	}
	return strings.Join(lines, ", ")
}

func TestARepeatGetsTheFirstResultToTheLetter(t *testing.T) {
	t.Parallel()
	db := testdb.New(t, migrations.Downstream)
	const result = `{"b": 1,  "a":2.50, "a":"\u0000"}`
	send().settled(t, db, "SUCCESS", result)
	first := send().is(t, db, "REPEAT SUCCESS "+result+" of attempt 1")
	second := send(of("B1-0001", 2)).is(t, db, "REPEAT SUCCESS "+result+" of attempt 2")
	send().is(t, db, "REPEAT SUCCESS "+result+" of attempt 2") // a receipt speaks of the latest attempt it answers
	send(of("B1-0002", 1)).is(t, db, "REPEAT SUCCESS "+result+" of attempt 1")
	if first.ProcessedAt != second.ProcessedAt || first.CreatedAt != second.CreatedAt {
		t.Errorf("%+v and %+v", first, second)
	}
	if got, want := receipts(t, db), "B1-0001 SUCCESS "+result+" 2, B1-0002 SUCCESS "+result+" 1"; got != want {
		t.Errorf("receipts: %s, want %s", got, want)
	}
}

func TestAFailedResultIsARepeatToo(t *testing.T) {
	t.Parallel()
	db := testdb.New(t, migrations.Downstream)
	send().settled(t, db, "FAILED", `"no funds"`)
	send().is(t, db, `REPEAT FAILED "no funds" of attempt 1`)
	send(of("B1-0001", 3)).is(t, db, `REPEAT FAILED "no funds" of attempt 3`)
	send(intent("B2")).settled(t, db, "SUCCESS", "")
	send(intent("B2")).is(t, db, `REPEAT SUCCESS  of attempt 1`) // no result is a result
}

func TestWhoDeclaredItExecutesAFailedKeyAnewButNoSendTwice(t *testing.T) {
	t.Parallel()
	db := testdb.New(t, migrations.Downstream)
	send(rerun).settled(t, db, "FAILED", `1`)
	send(rerun).is(t, db, "REPEAT FAILED 1 of attempt 1")
	send(rerun, of("B1-0001", 2)).settled(t, db, "FAILED", `2`)
	send(rerun, of("B1-0002", 1)).settled(t, db, "FAILED", `3`)
	// Late duplicates of what was answered already, while another call holds the key.
	send(rerun, of("B1-0001", 1)).is(t, db, "REPEAT FAILED 2 of attempt 2")
	send(rerun, of("B1-0001", 2)).is(t, db, "REPEAT FAILED 2 of attempt 2")
	send(rerun, of("B1-0001", 3)).settled(t, db, "SUCCESS", `4`)
	send(rerun, of("B1-0003", 1)).is(t, db, "REPEAT SUCCESS 4 of attempt 1") // SUCCESS is executed anew by nobody
	send(rerun, of("B1-0002", 2)).is(t, db, "REPEAT SUCCESS 4 of attempt 2")
	if got := receipts(t, db); got != "B1-0001 SUCCESS 4 3, B1-0002 SUCCESS 4 2, B1-0003 SUCCESS 4 1" {
		t.Errorf("receipts: %s", got)
	}
}

func TestWhatIsProcessingIsSaidToAllOfItsCallsAndTheEndAsWell(t *testing.T) {
	t.Parallel()
	db := testdb.New(t, migrations.Downstream)
	for _, status := range []string{"SUCCESS", "FAILED"} {
		begun := send(intent(status)).settled(t, db, "PROCESSING", "")
		for _, call := range []arrival{send(intent(status)), send(intent(status), of(status+"-0001", 2)), send(intent(status), of(status+"-0002", 1))} {
			call.is(t, db, "PROCESSING")
			send(intent(status), rerun, of(call.call, call.attempt)).is(t, db, "PROCESSING")
		}
		ended := complete(t, db, send(intent(status)), begun.CreatedAt, status, `{"ref": 1}`)
		if len(ended) != 1 {
			t.Fatalf("%s: it was not theirs to end: %v", status, ended)
		}
		send(intent(status)).is(t, db, "REPEAT "+status+` {"ref": 1} of attempt 2`)
		send(intent(status), of(status+"-0002", 1)).is(t, db, "REPEAT "+status+` {"ref": 1} of attempt 1`)
		if again := complete(t, db, send(intent(status)), begun.CreatedAt, status, `{"ref": 1}`); len(again) != 1 || !again[0].Equal(ended[0]) {
			t.Errorf("%s: told again it was %v, first %v", status, again, ended)
		}
	}
}

// complete returns the instants that idempotency.complete returned.
func complete(t testing.TB, db *sqlx.DB, a arrival, created time.Time, status, result string) (ended []time.Time) {
	t.Helper()
	err := database.InTx(t.Context(), db, func(tx *sqlx.Tx) error {
		return tx.Select(&ended, `SELECT idempotency.complete($1, $2, $3, $4, $5, $6)`, a.key, created, a.call, a.attempt, status, result)
	})
	if err != nil {
		t.Fatal(err)
	}
	return ended
}

func TestOnlyWhoBeganMayEnd(t *testing.T) {
	t.Parallel()
	db := testdb.New(t, migrations.Downstream)
	begun := send(rerun).settled(t, db, "PROCESSING", "")
	for name, other := range map[string]arrival{
		"another call": send(of("B1-0002", 1)), "another attempt": send(of("B1-0001", 2)), "another key": send(intent("B2")),
	} {
		if ended := complete(t, db, other, begun.CreatedAt, "SUCCESS", `1`); len(ended) != 0 {
			t.Errorf("%s ended it at %v", name, ended)
		}
	}
	if ended := complete(t, db, send(), begun.CreatedAt.Add(time.Millisecond), "SUCCESS", `1`); len(ended) != 0 {
		t.Errorf("another instant ended it at %v", ended)
	}
	complete(t, db, send(), begun.CreatedAt, "FAILED", `"given up"`)
	send(rerun, of("B1-0002", 1)).settled(t, db, "PROCESSING", "")
	// The one given up for dead comes back.
	if ended := complete(t, db, send(), begun.CreatedAt, "SUCCESS", `"late"`); len(ended) != 0 {
		t.Errorf("who was given up ended it at %v", ended)
	}
	if got := receipts(t, db); got != `B1-0001 FAILED "given up" 1, B1-0002 PROCESSING 1` {
		t.Errorf("receipts: %s", got)
	}
	err := database.InTx(t.Context(), db, func(tx *sqlx.Tx) error {
		_, err := tx.Exec(`SELECT idempotency.complete('B1:charge', $1, 'B1-0002', 1, 'PROCESSING', NULL)`, begun.CreatedAt)
		return err
	})
	refused(t, "an end that is none", err, "23514")
}

func TestAnotherPayloadUnderTheSameKeyIsRefused(t *testing.T) {
	t.Parallel()
	db := testdb.New(t, migrations.Downstream)
	send().settled(t, db, "SUCCESS", `1`)
	send(func(a *arrival) { a.hash = []byte{1} }).is(t, db, "OTHER_PAYLOAD")
	send(func(a *arrival) { a.biz = "B2" }).is(t, db, "OTHER_PAYLOAD")
	send(func(a *arrival) { a.operation = "refund" }).is(t, db, "OTHER_PAYLOAD")
	send(func(a *arrival) { a.hash = nil }).is(t, db, "REPEAT SUCCESS 1 of attempt 1") // null is not compared
	send(intent("B2"), func(a *arrival) { a.hash = nil }).settled(t, db, "SUCCESS", `2`)
	send(intent("B2")).is(t, db, "REPEAT SUCCESS 2 of attempt 1")
	if got := receipts(t, db); got != "B1-0001 SUCCESS 1 1, B2-0001 SUCCESS 2 1" {
		t.Errorf("receipts: %s", got)
	}
}

func TestACallFromTheFutureIsTurnedAway(t *testing.T) {
	t.Parallel()
	db := testdb.New(t, migrations.Downstream)
	for issued, want := range map[string]string{"5 min 10 s": "IN_FUTURE", "1 year": "IN_FUTURE", "4 min 50 s": "EXECUTE", "-1 year": "EXECUTE"} {
		send(intent(issued), func(a *arrival) { a.issued = issued }).is(t, db, want)
	}
	_, err := db.Exec(`SELECT idempotency.arrive('k', 'b', 'o', 'c', 1, NULL, NULL)`)
	refused(t, "no issued_at", err, "22004")
	var infinite string
	if err := db.Get(&infinite, `SELECT outcome FROM idempotency.arrive('k', 'b', 'o', 'c', 1, 'infinity', NULL)`); err != nil || infinite != "IN_FUTURE" {
		t.Errorf("infinity: %s, %v", infinite, err)
	}
}

func TestBelowTheWatermarkNothingIsExecuted(t *testing.T) {
	t.Parallel()
	db := testdb.New(t, migrations.Downstream)
	send().settled(t, db, "SUCCESS", `1`)
	db.MustExec(`INSERT INTO idempotency.watermarks VALUES ('another.table', 'infinity'), ('idempotency.keys', now() - interval '1 day')`)
	issued := func(before string) func(*arrival) { return func(a *arrival) { a.issued = before } }
	send(intent("B2"), issued("-25 hours")).is(t, db, "EXPIRED")
	send(intent("B2"), issued("-23 hours")).is(t, db, "EXECUTE") // it left no claim
	send(issued("-25 hours")).is(t, db, "REPEAT SUCCESS 1 of attempt 1")
}

// Archiving raises the watermark, drops the partition, and then deletes its claims. An arrival between any of these fails closed.
func TestAnArchivedKeyIsNeverExecutedAgain(t *testing.T) {
	t.Parallel()
	db := testdb.New(t, migrations.Downstream)
	created := send().settled(t, db, "SUCCESS", `1`).CreatedAt
	late := send(of("B1-0001", 2), func(a *arrival) { a.issued = "-1 min" })
	db.MustExec(`INSERT INTO idempotency.watermarks VALUES ('idempotency.keys', clock_timestamp())`)
	late.is(t, db, "REPEAT SUCCESS 1 of attempt 2")
	partition := "idempotency.keys_" + created.UTC().Format("20060102")
	db.MustExec(`ALTER TABLE idempotency.keys DETACH PARTITION ` + partition)
	late.is(t, db, "EXPIRED")
	db.MustExec(`DROP TABLE ` + partition)
	late.is(t, db, "EXPIRED")
	db.MustExec(`DELETE FROM idempotency.claims`)
	late.is(t, db, "EXPIRED")
}

func TestSettleNeedsAnArrivalThatSaidExecute(t *testing.T) {
	t.Parallel()
	db := testdb.New(t, migrations.Downstream)
	settle := func(a arrival, created time.Time) error {
		return database.InTx(context.Background(), db, func(tx *sqlx.Tx) error { return a.settle(tx, created, "SUCCESS", `2`) })
	}
	refused(t, "without an arrival", settle(send(), time.Now()), "23000")
	created := send().settled(t, db, "SUCCESS", `1`).CreatedAt
	refused(t, "after a repeat", settle(send(), created), "23000")
	refused(t, "at another instant", settle(send(), created.Add(time.Millisecond)), "23000")
	refused(t, "of another key", settle(send(intent("B2")), created), "23000")
	created = send(intent("B3")).settled(t, db, "PROCESSING", ``).CreatedAt
	refused(t, "while it is processing", settle(send(intent("B3"), of("B3-0002", 1)), created), "23000")
	created = send(intent("B4")).settled(t, db, "FAILED", `1`).CreatedAt
	refused(t, "of a send that has its receipt", settle(send(intent("B4")), created), "23000")
	if got := receipts(t, db); got != "B1-0001 SUCCESS 1 1, B3-0001 PROCESSING 1, B4-0001 FAILED 1 1" {
		t.Errorf("receipts: %s", got)
	}
}

// JavaScript and others keep milliseconds.
func TestSettleTakesTheInstantBackAlsoFromALanguageThatKeepsMilliseconds(t *testing.T) {
	t.Parallel()
	db := testdb.New(t, migrations.Downstream)
	for i := range 20 {
		a := send(intent(fmt.Sprint("B", i)))
		if created := a.settled(t, db, "SUCCESS", `1`).CreatedAt; !created.Equal(created.Truncate(time.Millisecond)) {
			t.Fatalf("created at %s", created.Format(time.RFC3339Nano))
		}
	}
}

func TestBrokenValuesAreRefused(t *testing.T) {
	t.Parallel()
	db := testdb.New(t, migrations.Downstream)
	long := func(n int) string { return strings.Repeat("k", n) }
	for name, change := range map[string]func(*arrival){
		"an empty key":               func(a *arrival) { a.key = "" },
		"a key too long":             func(a *arrival) { a.key = long(1501) },
		"an empty bizId":             func(a *arrival) { a.biz = "" },
		"a bizId too long":           func(a *arrival) { a.biz = long(1001) },
		"an empty operation":         func(a *arrival) { a.operation = "" },
		"an operation too long":      func(a *arrival) { a.operation = long(201) },
		"an empty callId":            func(a *arrival) { a.call = "" },
		"a callId too long":          func(a *arrival) { a.call = long(201) },
		"a callId with a line feed":  func(a *arrival) { a.call = "B1\n1" },
		"a callId with a C1 control": func(a *arrival) { a.call = "B1\u00851" },
		"attempt 0":                  func(a *arrival) { a.attempt = 0 },
	} {
		err := database.InTx(t.Context(), db, func(tx *sqlx.Tx) error {
			s, err := send(change).arrive(tx)
			return errors.Join(err, send(change).settle(tx, s.CreatedAt, "SUCCESS", `1`))
		})
		refused(t, name, err, "23514")
	}
	err := database.InTx(t.Context(), db, func(tx *sqlx.Tx) error {
		s, err := send().arrive(tx)
		return errors.Join(err, send().settle(tx, s.CreatedAt, "DONE", `1`))
	})
	refused(t, "an unknown status", err, "23514")
}
