package migrations_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/jmoiron/sqlx"
	"github.com/lib/pq"

	"github.com/callreceipt/reconciler/internal/database"
	"github.com/callreceipt/reconciler/internal/testdb"
	"github.com/callreceipt/reconciler/migrations"
)

func TestTheNewsOfACallNeverGoBack(t *testing.T) {
	t.Parallel()
	db := testdb.New(t, migrations.Downstream)
	type news struct {
		status  string
		attempt int
	}
	var all []news
	for _, status := range []string{"SUCCESS", "FAILED", "PROCESSING"} {
		all = append(all, news{status, 1}, news{status, 2})
	}
	// replaces: SUCCESS stays, a later attempt outweighs an earlier one, and a final status PROCESSING.
	replaces := func(old, latest news) bool {
		later := latest.attempt > old.attempt
		switch old.status {
		case "SUCCESS":
			return later && latest.status == "SUCCESS"
		case "FAILED":
			return later
		}
		return later || latest.attempt == old.attempt && latest.status != "PROCESSING"
	}
	keep := func(call string, n news) (kept bool) {
		t.Helper()
		err := db.Get(&kept, `SELECT idempotency.keep_receipt($1, 'B', 'o', 'k', $2, '1', $3, now())`, call, n.status, n.attempt)
		if err != nil {
			t.Errorf("%v: %v", n, err)
		}
		return kept
	}
	for i, first := range all {
		for j, second := range all {
			call := fmt.Sprint(i, "-", j)
			if !keep(call, first) {
				t.Errorf("%v was not kept", first)
			}
			want := second
			if !replaces(first, second) {
				want = first
			}
			if kept := keep(call, second); kept != (want == second && second != first) {
				t.Errorf("%v, then %v: kept: %t", first, second, kept)
			}
			var got news
			if err := db.QueryRow(`SELECT status, attempt FROM idempotency.receipts WHERE call_id = $1`, call).Scan(&got.status, &got.attempt); err != nil || got != want {
				t.Errorf("%v, then %v: %v, want %v, %v", first, second, got, want, err)
			}
		}
	}
}

func TestACallIDBelongsToOneIntent(t *testing.T) {
	t.Parallel()
	db := testdb.New(t, migrations.Downstream)
	send().settled(t, db, "SUCCESS", `1`)
	send(intent("B2")).settled(t, db, "SUCCESS", `2`)
	send(intent("B3")).settled(t, db, "PROCESSING", ``)
	another := func(biz string) arrival { return send(intent(biz), of("B1-0001", 2)) }
	for name, a := range map[string]arrival{"settled": another("B2"), "processing": another("B3")} {
		_, err := a.arrive(db)
		refused(t, name, err, "23505")
		if e := pq.As(err); e != nil && e.Constraint != "call_of_one_intent" {
			t.Errorf("%s: constraint %q", name, e.Constraint)
		}
	}
	err := database.InTx(t.Context(), db, func(tx *sqlx.Tx) error {
		s, err := another("B4").arrive(tx)
		return errors.Join(err, another("B4").settle(tx, s.CreatedAt, "SUCCESS", `4`))
	})
	refused(t, "new", err, "23505")
	send(intent("B4")).settled(t, db, "SUCCESS", `4`) // nothing is left of the refused one
}

func TestSuccessIsFinal(t *testing.T) {
	t.Parallel()
	db := testdb.New(t, migrations.Downstream)
	send().settled(t, db, "SUCCESS", `1`)
	for _, statement := range []string{
		`UPDATE idempotency.keys SET status = 'FAILED'`,
		`UPDATE idempotency.keys SET result = '2'`,
		`UPDATE idempotency.keys SET status = 'PROCESSING', completed_at = NULL`,
		`UPDATE idempotency.receipts SET status = 'FAILED'`,
		`UPDATE idempotency.receipts SET result = '2'`,
		`UPDATE idempotency.receipts SET result = NULL`,
	} {
		_, err := db.Exec(statement)
		refused(t, statement, err, "23000")
	}
}

func TestOnlyWhatAStrictReaderReadsIsKept(t *testing.T) {
	t.Parallel()
	db := testdb.New(t, migrations.Downstream)
	for _, processed := range []string{"infinity", "-infinity", "1999-12-31 23:59:59+00", "10000-01-01 00:00+00", "0044-03-15 BC"} {
		_, err := db.Exec(`SELECT idempotency.keep_receipt('c', 'b', 'o', 'k', 'SUCCESS', NULL, 1, $1)`, processed)
		refused(t, "processed at "+processed, err, "23514")
	}
}
