package docs_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jmoiron/sqlx"
	"github.com/lib/pq"

	"github.com/callreceipt/reconciler/internal/database"
	"github.com/callreceipt/reconciler/internal/testdb"
	"github.com/callreceipt/reconciler/migrations"
	"github.com/callreceipt/reconciler/receipt"
)

// ask puts the question of the guide to the database over HTTP, and returns what the strict reader understands.
func ask(t *testing.T, db *sqlx.DB, callIDs bool, ids ...string) []string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		question, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		mark := queryByBiz
		if callIDs {
			mark = queryByCall
		}
		var answer string
		if err := db.GetContext(t.Context(), &answer, guide(t, mark), string(question)); err != nil {
			t.Error(err)
		}
		io.WriteString(w, answer)
	}))
	defer server.Close()
	client, err := receipt.NewClient(receipt.Config{URL: server.URL, Timeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	query := client.Query
	if callIDs {
		query = client.QueryCalls
	}
	answer, err := query(t.Context(), ids)
	if err != nil {
		t.Fatal(err)
	}
	understood := []string{}
	for _, id := range ids {
		evidence := answer.Of[id]
		switch evidence.Presence {
		case receipt.Unknown:
			understood = append(understood, id+" not answered")
		case receipt.Absent:
			understood = append(understood, id+" not found")
		case receipt.Present:
			for _, r := range evidence.Receipts {
				understood = append(understood, fmt.Sprint(r.CallID, " ", r.BizID, " ", r.IdempotencyKey, " ", r.Status, " ", string(r.Result), " ", r.Attempt))
			}
		}
	}
	slices.Sort(understood)
	return understood
}

func TestTheReceiptQueriesOfTheGuideAnswerForEveryIdAsked(t *testing.T) {
	t.Parallel()
	db := newDownstream(t)
	odd := "ORD \"ä\u2028\\" // all that JSON escapes
	for _, c := range []call{
		newCall("C-1", odd, 1, `{}`), newCall("C-2", odd, 2, `{}`), newCall("C-3", "ORD-3", 1, `{}`), newCall("C-4", "not asked for", 1, `{}`),
	} {
		if _, _, err := c.serve(t, db, nil); err != nil {
			t.Fatal(err)
		}
	}
	first := fmt.Sprintf(`%[1]s %[1]s:charge SUCCESS {"ref" : "ch_1"}`, odd)
	for name, got := range map[string]struct{ got, want []string }{
		"bizIds":  {ask(t, db, false, odd, "ORD-3", "NOBODY"), []string{"C-1 " + first + " 1", "C-2 " + first + " 2", `C-3 ORD-3 ORD-3:charge SUCCESS {"ref" : "ch_2"} 1`, "NOBODY not found"}},
		"callIds": {ask(t, db, true, "C-2", "NOBODY"), []string{"C-2 " + first + " 2", "NOBODY not found"}},
		"none":    {ask(t, db, false), []string{}},
	} {
		if diff := cmp.Diff(got.want, got.got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

func TestAnEffectOutsideOfTheDatabaseIsEndedByItsOwner(t *testing.T) {
	t.Parallel()
	db := newDownstream(t)
	c := newCall("ORD-1-0001", "ORD-1", 1, `{}`)
	a, err := c.arrive(t, db)
	if err != nil || a.Outcome != "EXECUTE" {
		t.Fatal(a.Outcome, err)
	}
	if err := c.settle(t, db, a, "PROCESSING", nil); err != nil {
		t.Fatal(err)
	}
	if outcome, _, err := newCall("ORD-1-0002", "ORD-1", 1, `{}`).serve(t, db, nil); err != nil || outcome != "PROCESSING" {
		t.Errorf("meanwhile: %s %v", outcome, err)
	}
	end := func(attempt int, status, result string) []string {
		return rows(t, db, guide(t, complete), c.key, a.CreatedAt, c.id, attempt, status, result)
	}
	if ended := end(2, "FAILED", `{}`); len(ended) > 0 {
		t.Error("it was ended by somebody who did not begin it")
	}
	first := end(1, "SUCCESS", `{"ref": "ext_1"}`)
	if again := end(1, "SUCCESS", `{"ref": "ext_1"}`); len(first) != 1 || !cmp.Equal(first, again) {
		t.Errorf("ended at %v, and when repeated at %v", first, again)
	}
	if ended := end(1, "FAILED", `{}`); len(ended) > 0 {
		t.Error("it was ended a second time, otherwise")
	}
	want := []string{`ORD-1-0001 ORD-1 ORD-1:charge SUCCESS {"ref": "ext_1"} 1`, `ORD-1-0002 ORD-1 ORD-1:charge SUCCESS {"ref": "ext_1"} 1`}
	if diff := cmp.Diff(want, ask(t, db, false, "ORD-1")); diff != "" {
		t.Error(diff)
	}
}

func TestWhatACrashLeftIsFoundOnceItIsOld(t *testing.T) {
	t.Parallel()
	db := newDownstream(t)
	for _, id := range []string{"old", "ended", "new"} {
		c := newCall(id, id, 1, `{}`)
		a, err := c.arrive(t, db)
		if err != nil {
			t.Fatal(err)
		}
		status := "PROCESSING"
		if id == "ended" {
			status = "SUCCESS"
		}
		if id != "new" {
			past := rows(t, db, `UPDATE idempotency.claims SET created_at = created_at - interval '11 minutes' WHERE created_at = $1 RETURNING created_at::text`, a.CreatedAt)
			a.CreatedAt = &past[0]
		}
		if err := c.settle(t, db, a, status, nil); err != nil {
			t.Fatal(err)
		}
	}
	found := records(t, db, guide(t, unfinished))
	if len(found) != 1 || found[0]["call_id"] != "old" {
		t.Errorf("%v", found)
	}
}

// records is the rows of a query, each value as text.
func records(t *testing.T, db *sqlx.DB, query string) (found []map[string]any) {
	t.Helper()
	cursor, err := db.QueryxContext(t.Context(), query)
	if err != nil {
		t.Fatalf("%v in %s", err, query)
	}
	defer func() { _ = cursor.Close() }()
	for cursor.Next() {
		r := map[string]any{}
		if err := cursor.MapScan(r); err != nil {
			t.Fatal(err)
		}
		found = append(found, r)
	}
	if err := cursor.Err(); err != nil {
		t.Fatal(err)
	}
	return found
}

// relay is one round of the relay in the guide. It returns the calls whose receipts were delivered, and those that were refused.
func relay(t *testing.T, from, to *sqlx.DB, deleteThem bool) (delivered, refused []string) {
	t.Helper()
	ids := []int64{}
	for _, r := range records(t, from, guide(t, outboxRead)) {
		_, err := to.ExecContext(t.Context(), guide(t, outboxKeep), r["call_id"], r["biz_id"], r["operation"], r["idempotency_key"],
			r["status"], r["result"], r["attempt"], r["processed_at"])
		if state, ok := database.Refused(err); ok {
			refused = append(refused, r["call_id"].(string))
			from.MustExec(guide(t, outboxRefuse), r["id"], state)
		} else if err != nil {
			t.Fatal(err)
		} else {
			delivered = append(delivered, r["call_id"].(string))
			ids = append(ids, r["id"].(int64))
		}
	}
	if deleteThem {
		from.MustExec(guide(t, outboxDelete), pq.Array(ids))
	}
	return delivered, refused
}

func TestTheRelayOfTheGuideCarriesReceiptsOver(t *testing.T) {
	t.Parallel()
	from, to := newDownstream(t), testdb.New(t, migrations.Downstream)
	if _, _, err := newCall("C-0", "ORD-0", 1, `{}`).serve(t, from, nil); err != nil { // before anybody thought of an outbox
		t.Fatal(err)
	}
	from.MustExec(guide(t, outboxOn))
	from.MustExec(guide(t, outboxFill))
	for _, c := range []call{newCall("C-1", "ORD-1", 1, `{}`), newCall("C-1", "ORD-1", 2, `{}`), newCall("C-2", "ORD-2", 1, `{}`)} {
		if _, _, err := c.serve(t, from, nil); err != nil {
			t.Fatal(err)
		}
	}
	// The other database knows C-2 as a call of another intent.
	to.MustExec(guide(t, outboxKeep), "C-2", "ORD-9", "charge", "ORD-9:charge", "SUCCESS", `{}`, 1, "2026-05-01Z")
	for round, want := range []struct{ delivered, refused []string }{
		{[]string{"C-0", "C-1", "C-1"}, []string{"C-2"}},
		{[]string{"C-0", "C-1", "C-1"}, nil}, // since the first round died before it deleted them
		{nil, nil},
	} {
		delivered, refused := relay(t, from, to, round > 0)
		if !slices.Equal(delivered, want.delivered) || !slices.Equal(refused, want.refused) {
			t.Errorf("round %d: delivered %v, refused %v, want %v, %v", round, delivered, refused, want.delivered, want.refused)
		}
	}
	want := []string{`C-0 ORD-0 ORD-0:charge SUCCESS {"ref" : "ch_1"} 1`, `C-1 ORD-1 ORD-1:charge SUCCESS {"ref" : "ch_2"} 2`, "ORD-2 not found"}
	if diff := cmp.Diff(want, ask(t, to, false, "ORD-0", "ORD-1", "ORD-2")); diff != "" {
		t.Error(diff)
	}
	if left := rows(t, from, `SELECT call_id || ' ' || refused FROM idempotency.receipt_outbox`); !slices.Equal(left, []string{"C-2 23505"}) {
		t.Errorf("left in the outbox: %v", left)
	}
}
