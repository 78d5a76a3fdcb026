package pending_test

import (
	"encoding/json"
	"net/url"
	"os"
	"strings"
	"testing"

	"github.com/jmoiron/sqlx"

	"github.com/callreceipt/reconciler/internal/localpg"
	"github.com/callreceipt/reconciler/pending"
)

func TestMain(m *testing.M) { os.Exit(localpg.Main(m)) }

const tool = "payment.charge"

// suspension is an ordinary call to be parked.
func suspension(callID string, edit ...func(*pending.Suspension)) pending.Suspension {
	s := pending.Suspension{CallID: callID, BizID: "B1", Tool: tool, Operation: "charge", Request: json.RawMessage(`{"amount": 1}`)}
	for _, e := range edit {
		e(&s)
	}
	return s
}

// park inserts rows as any program may: set is a list of column=expression pairs, for example "status='RETRY'".
func park(t testing.TB, db *sqlx.DB, callID string, set ...string) {
	t.Helper()
	columns, values := "call_id, biz_id, tool, operation", "$1, 'B-' || $1, '"+tool+"', 'charge'"
	given := map[string]bool{}
	for _, s := range set {
		column, value, _ := strings.Cut(s, "=")
		given[column] = true
		if column == "biz_id" || column == "tool" {
			values = strings.Replace(values, map[string]string{"biz_id": "'B-' || $1", "tool": "'" + tool + "'"}[column], value, 1)
			continue
		}
		columns, values = columns+", "+column, values+", "+value
	}
	if !given["next_check_at"] {
		columns, values = columns+", next_check_at", values+", now() - interval '1 second'"
	}
	if _, err := db.Exec(`INSERT INTO reconciler.pending_confirmations (`+columns+`) VALUES (`+values+`)`, callID); err != nil {
		t.Fatalf("parking %q: %v", callID, err)
	}
}

// read gets calls as they stand, in the order of the ids.
func read(t testing.TB, db *sqlx.DB, ids ...string) []pending.Call {
	t.Helper()
	got, err := pending.NewStore(db).Get(t.Context(), ids)
	if err != nil {
		t.Fatal(err)
	}
	calls := make([]pending.Call, len(ids))
	for i, id := range ids {
		for _, c := range got {
			if c.CallID == id {
				calls[i] = c
			}
		}
		if calls[i].CallID == "" {
			t.Fatalf("call %q is not in the table", id)
		}
	}
	return calls
}

// value reads one value.
func value[T any](t testing.TB, db sqlx.Queryer, query string, args ...any) T {
	t.Helper()
	var v T
	if err := sqlx.Get(db, &v, query, args...); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return v
}

// events counts the ledger rows of a call.
func events(t testing.TB, db *sqlx.DB, callID string) int {
	t.Helper()
	return value[int](t, db, `SELECT count(*) FROM reconciler.call_events WHERE call_id = $1`, callID)
}

// with adds a run-time parameter to a database URL.
func with(t testing.TB, dsn, name, text string) string {
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

// ids lists the callIds.
func ids(calls []pending.Call) []string {
	all := []string{}
	for _, c := range calls {
		all = append(all, c.CallID)
	}
	return all
}

// success settles a call with a receipt that says so, and one ledger row.
func success(c pending.Call) pending.Change {
	change := pending.Settle(c, "receipt_success", pending.Proof{Status: pending.StatusSuccess, Raw: json.RawMessage(`{"status":"SUCCESS"}`)})
	change.Look = pending.Answered
	change.Event = pending.Event{Kind: pending.EventVerdict, Detail: json.RawMessage(`{"status":"SUCCESS"}`)}
	return change
}
