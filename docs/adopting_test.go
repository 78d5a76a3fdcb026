package docs_test

import (
	"database/sql"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jmoiron/sqlx"
	"github.com/lib/pq"

	"github.com/callreceipt/reconciler/internal/database"
	"github.com/callreceipt/reconciler/internal/localpg"
	"github.com/callreceipt/reconciler/internal/testdb"
	"github.com/callreceipt/reconciler/migrations"
)

const adopting = "adopting.md"

// The statements of adopting.md, each by a mark that no other one has.
const (
	storeCallID  = "UPDATE orders"
	readVerdicts = "reconciler.pending_confirmations"
	ownTable     = "CREATE TABLE IF NOT EXISTS payments"
	arrive       = "idempotency.arrive("
	business     = "INSERT INTO payments"
	settle       = "idempotency.settle("
	readReceipt  = "WHERE call_id = $1;"
	savepoint    = "SAVEPOINT effect;\n"
	undo         = "ROLLBACK TO SAVEPOINT"
	complete     = "idempotency.complete("
	unfinished   = "FROM idempotency.keys"
	queryByBiz   = "'bizIds'"
	queryByCall  = "'callIds'"
	outboxOn     = "ENABLE TRIGGER"
	outboxFill   = "INSERT INTO idempotency.receipt_outbox"
	outboxRead   = "refused IS NULL"
	outboxKeep   = "idempotency.keep_receipt("
	outboxDelete = "DELETE FROM"
	outboxRefuse = "SET refused"
	partitions   = "idempotency.ensure_partitions();"
	raise        = "INSERT INTO idempotency.watermarks"
	rights       = "CREATE ROLE payment_service"
	otherRights  = "CREATE ROLE receipt_query"
)

func guide(t *testing.T, mark string) string {
	t.Helper()
	return block(t, adopting, "sql", mark)
}

func TestNoStatementOfTheGuideIsLeftOut(t *testing.T) {
	t.Parallel()
	known := map[string]bool{}
	for _, mark := range []string{
		storeCallID, readVerdicts, ownTable, arrive, business, settle, readReceipt, savepoint, undo, complete, unfinished, queryByBiz, queryByCall,
		outboxOn, outboxFill, outboxRead, outboxKeep, outboxDelete, outboxRefuse, partitions, raise, rights, otherRights,
	} {
		known[guide(t, mark)] = true
	}
	all := blocks(t, adopting, "sql")
	for _, statement := range all {
		if !known[statement] {
			t.Errorf("no test runs this:\n%s", statement)
		}
	}
	if fences := strings.Count(text(t, adopting), "```sql"); fences != len(all) || fences != len(known) {
		t.Errorf("%d statements, %d of them found, %d different", fences, len(all), len(known))
	}
}

// newDownstream is a database of a business, with the guard and the table of the guide in it.
func newDownstream(t *testing.T) *sqlx.DB {
	t.Helper()
	db := testdb.New(t, migrations.Downstream)
	db.MustExec(guide(t, ownTable))
	return db
}

// call is a call of the guide as it arrives.
type call struct {
	id, biz, operation, key string
	attempt                 int
	issuedAt                string
	body                    string
}

func newCall(id, biz string, attempt int, body string) call {
	return call{id: id, biz: biz, operation: "charge", key: biz + ":charge", attempt: attempt, issuedAt: "2026-05-01T10:00:00.123456Z", body: body}
}

// arrival is what statement arrive returns.
type arrival struct {
	Outcome     string  `db:"outcome"`
	CreatedAt   *string `db:"created_at"`
	RequestHash []byte  `db:"request_hash"`
}

func (c call) arrive(t *testing.T, q sqlx.QueryerContext) (a arrival, err error) {
	t.Helper()
	return a, sqlx.GetContext(t.Context(), q, &a, guide(t, arrive), c.body, c.key, c.biz, c.operation, c.id, c.attempt, c.issuedAt)
}

func (c call) settle(t *testing.T, e sqlx.ExecerContext, a arrival, status string, result any) error {
	t.Helper()
	_, err := e.ExecContext(t.Context(), guide(t, settle), c.key, c.biz, c.operation, c.id, c.attempt, c.issuedAt, a.RequestHash, a.CreatedAt, status, result)
	return err
}

func (c call) receipt(t *testing.T, q sqlx.QueryerContext) (receipt string, err error) {
	t.Helper()
	return receipt, sqlx.GetContext(t.Context(), q, &receipt, guide(t, readReceipt), c.id)
}

// errRefused is a business refusal that shows only after something was written.
var errRefused = errors.New("refused")

// serve goes the five steps of the guide. fail, if set, ends the business statement.
func (c call) serve(t *testing.T, db database.Beginner, fail error) (outcome, receipt string, err error) {
	t.Helper()
	err = database.InTx(t.Context(), db, func(tx *sqlx.Tx) error {
		a, err := c.arrive(t, tx)
		if outcome = a.Outcome; err != nil {
			return err
		}
		if outcome == "EXECUTE" {
			status, result := "SUCCESS", ""
			tx.MustExec(guide(t, savepoint))
			if err := tx.GetContext(t.Context(), &result, guide(t, business), c.biz, 1999); err != nil {
				return err
			}
			if errors.Is(fail, errRefused) {
				tx.MustExec(guide(t, undo))
				status, result = "FAILED", `{"code": "no_funds"}`
			} else if fail != nil {
				return fail
			}
			if err := c.settle(t, tx, a, status, result); err != nil {
				return err
			}
		}
		if outcome == "EXECUTE" || outcome == "REPEAT" || outcome == "PROCESSING" {
			receipt, err = c.receipt(t, tx)
		}
		return err
	})
	return outcome, receipt, err
}

// rows is one text for each row of a query.
func rows(t *testing.T, db *sqlx.DB, query string, args ...any) []string {
	t.Helper()
	found := []string{}
	if err := db.SelectContext(t.Context(), &found, query, args...); err != nil {
		t.Fatalf("%v in %s", err, query)
	}
	return found
}

func TestTheStepsOfTheGuideExecuteAnIntentOnce(t *testing.T) {
	t.Parallel()
	db := newDownstream(t)
	in := func(biz, operation string) call {
		c := newCall("ORD-1-0001", biz, 1, `{"amount": 1999}`)
		c.operation = operation
		return c
	}
	stored := rows(t, db, `SELECT ('{"amount":1.999e3,"rate":1.50,"callId":"ORD-1-0001","attempt":2,"note":"a\u00e4<"}'::jsonb)::text`)[0]
	for _, step := range []struct {
		name string
		call
		fail    error
		outcome string
		result  string
	}{
		{"a deadlock leaves nothing", newCall("ORD-1-0001", "ORD-1", 1, `{"amount": 1999}`), &pq.Error{Code: "40P01"}, "EXECUTE", ""},
		{"the first arrival executes", newCall("ORD-1-0001", "ORD-1", 1, `{"amount": 1.999E+3, "note": "aä<", "rate": 1.50, "attempt": 1}`), nil, "EXECUTE", "SUCCESS ch_2 1"},
		{"a repeat from a jsonb column gets its result", newCall("ORD-1-0001", "ORD-1", 2, stored), nil, "REPEAT", "SUCCESS ch_2 2"},
		{"so does another callId", newCall("ORD-1-0002", "ORD-1", 1, `{"amount": 1999, "note": "aä<", "rate": 1.50}`), nil, "REPEAT", "SUCCESS ch_2 1"},
		{"another payload does not", newCall("ORD-1-0001", "ORD-1", 3, `{"amount": 2000, "note": "aä<", "rate": 1.50}`), nil, "OTHER_PAYLOAD", ""},
		{"another operation under the key does not", in("ORD-1", "refund"), nil, "OTHER_PAYLOAD", ""},
		{"a refusal is a result", newCall("ORD-2-0001", "ORD-2", 1, `{"amount": 1}`), errRefused, "EXECUTE", "FAILED no_funds 1"},
		{"and is remembered", newCall("ORD-2-0001", "ORD-2", 2, `{"amount": 1}`), nil, "REPEAT", "FAILED no_funds 2"},
	} {
		outcome, receipt, err := step.serve(t, db, step.fail)
		if step.fail != nil && !errors.Is(step.fail, errRefused) {
			if !errors.Is(err, step.fail) {
				t.Fatalf("%s: %v", step.name, err)
			}
		} else if err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		result := ""
		if receipt != "" {
			wellFormed(t, `{"receipts":[`+receipt+`]}`, step.biz)
			result = rows(t, db, `SELECT concat_ws(' ', r->>'status', r->'result'->>'ref', r->'result'->>'code', r->>'attempt') FROM (SELECT $1::json r) s`, receipt)[0]
		}
		if outcome != step.outcome || result != step.result {
			t.Errorf("%s: %s %q, want %s %q", step.name, outcome, result, step.outcome, step.result)
		}
	}
	if diff := cmp.Diff([]string{"2 ORD-1"}, rows(t, db, `SELECT id || ' ' || biz_id FROM payments`)); diff != "" {
		t.Errorf("payments: %s", diff)
	}
}

func TestACallThatIsTooNewOrTooOldIsRefused(t *testing.T) {
	t.Parallel()
	db := newDownstream(t)
	late := newCall("ORD-1-0001", "ORD-1", 1, `{}`)
	late.issuedAt = "2999-01-01T00:00:00Z"
	if outcome, _, err := late.serve(t, db, nil); err != nil || outcome != "IN_FUTURE" {
		t.Errorf("%s %v", outcome, err)
	}
	for _, watermark := range []string{"2026-06-01Z", "2020-01-01Z"} { // the second one does not lower the first
		db.MustExec(guide(t, raise), watermark)
	}
	if outcome, _, err := newCall("ORD-1-0001", "ORD-1", 1, `{}`).serve(t, db, nil); err != nil || outcome != "EXPIRED" {
		t.Errorf("%s %v", outcome, err)
	}
	if left := rows(t, db, `SELECT 'payment' FROM payments UNION ALL SELECT 'receipt' FROM idempotency.receipts UNION ALL SELECT 'claim' FROM idempotency.claims`); len(left) > 0 {
		t.Errorf("refused, and %v are left", left)
	}
}

func TestTheOptionsOfTheGuideAreTaken(t *testing.T) {
	t.Parallel()
	db := newDownstream(t)
	c := newCall("ORD-1-0001", "ORD-1", 1, `{}`)
	arriveAnew := strings.Replace(guide(t, arrive), "h.request_hash)", "h.request_hash, rerun_failed => true, wait_ms => 200)", 1)
	settleLong := strings.Replace(guide(t, settle), "$10::json)", "$10::json, remember => interval '720 hours')", 1)
	for _, status := range []string{"FAILED", "SUCCESS"} {
		err := database.InTx(t.Context(), db, func(tx *sqlx.Tx) error {
			var a arrival
			if err := tx.GetContext(t.Context(), &a, arriveAnew, c.body, c.key, c.biz, c.operation, c.id, c.attempt, c.issuedAt); err != nil {
				return err
			}
			if a.Outcome != "EXECUTE" {
				t.Errorf("%s, to be settled %s", a.Outcome, status)
			}
			_, err := tx.ExecContext(t.Context(), settleLong, c.key, c.biz, c.operation, c.id, c.attempt, c.issuedAt, a.RequestHash, a.CreatedAt, status, nil)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		c.attempt++
	}
	got := rows(t, db, `SELECT concat_ws(' ', status, attempt, expires_at = created_at + interval '720 hours') FROM idempotency.keys ORDER BY created_at`)
	if diff := cmp.Diff([]string{"FAILED 1 t", "SUCCESS 2 t"}, got); diff != "" {
		t.Error(diff)
	}
}

func TestTheCallerStoresACallIdOnceAndReadsTheVerdict(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	db.MustExec(`CREATE TABLE orders (id text PRIMARY KEY, state text NOT NULL DEFAULT 'new', call_id text, issued_at timestamptz)`)
	db.MustExec(`INSERT INTO orders VALUES ('ORD-1')`)
	var callID, issuedAt string
	if err := db.QueryRowContext(t.Context(), guide(t, storeCallID), "ORD-1").Scan(&callID, &issuedAt); err != nil || callID != "ORD-1-0001" {
		t.Fatalf("%q %v", callID, err)
	}
	if err := db.QueryRowContext(t.Context(), guide(t, storeCallID), "ORD-1").Scan(&callID, &issuedAt); !errors.Is(err, sql.ErrNoRows) {
		t.Errorf("a second callId was stored: %v", err)
	}
	for _, status := range []string{"PENDING", "RETRY", "SUCCESS", "FAILED", "MANUAL"} {
		park(t, db, status, "payment.charge", status, 1, "")
	}
	var verdicts []struct {
		CallID  string         `db:"call_id"`
		Status  string         `db:"status"`
		Reason  sql.NullString `db:"reason"`
		Receipt []byte         `db:"receipt"`
	}
	asked := pq.Array([]string{"PENDING", "RETRY", "SUCCESS", "MANUAL"})
	if err := db.SelectContext(t.Context(), &verdicts, guide(t, readVerdicts), asked); err != nil || len(verdicts) != 2 {
		t.Errorf("%v %v", verdicts, err)
	}
}

func TestTheMigrationCanBeAppliedByAnyTool(t *testing.T) {
	t.Parallel()
	db := testdb.Open(t, localpg.NewDatabase(t, localpg.Migration{}))
	db.MustExec(`CREATE SCHEMA idempotency`)
	db.MustExec(text(t, "../migrations/idempotency/00001_idempotency.sql"))
	db.MustExec(guide(t, ownTable))
	if outcome, _, err := newCall("ORD-1-0001", "ORD-1", 1, `{}`).serve(t, db, nil); err != nil || outcome != "EXECUTE" {
		t.Errorf("%s %v", outcome, err)
	}
	db.MustExec(`DO $$ DECLARE p regclass; BEGIN
		FOR p IN SELECT inhrelid::regclass FROM pg_inherits WHERE inhparent = 'idempotency.keys'::regclass LOOP EXECUTE 'DROP TABLE ' || p; END LOOP; END $$`)
	if made := rows(t, db, guide(t, partitions)); !cmp.Equal(made, []string{"16"}) {
		t.Errorf("%v partitions were made, want yesterday, today and 14 days", made)
	}
}
