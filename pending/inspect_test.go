package pending_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/callreceipt/reconciler/internal/testdb"
	"github.com/callreceipt/reconciler/pending"
)

func TestAListIsFilteredByEveryColumnThatPeopleNameAndOrderedByDueTime(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	park(t, db, "C1", "biz_id='B1'", "next_check_at='2024-05-03'", "reason='processing'")
	park(t, db, "C2", "biz_id='B1'", "next_check_at='2024-05-01'", "status='MANUAL'", "reason='not_retryable'")
	park(t, db, "C3", "biz_id='B2'", "next_check_at='2024-05-02'", "status='SUCCESS'", "reason='receipt_success'")
	park(t, db, "C4", "biz_id='B2'", "next_check_at='2024-05-02'", "tool='payment.refund'")
	all := pending.Statuses
	for _, tt := range []struct {
		filter pending.Filter
		want   string
	}{
		{pending.Filter{Statuses: all, Limit: 10}, "C2 C3 C4 C1"},
		{pending.Filter{Statuses: all, Limit: 2}, "C2 C3"},
		{pending.Filter{Statuses: all, Tool: tool, Limit: 10}, "C2 C3 C1"},
		{pending.Filter{Statuses: []pending.Status{"MANUAL"}, Limit: 10}, "C2"},
		{pending.Filter{Statuses: all, BizID: "B2", Limit: 10}, "C3 C4"},
		{pending.Filter{Statuses: all, Reason: "processing", Limit: 10}, "C1"},
		{pending.Filter{BizID: "B1", Statuses: []pending.Status{"PENDING", "SUCCESS"}, Limit: 10}, "C1"},
		{pending.Filter{Limit: 10}, ""},
		{pending.Filter{Statuses: all, BizID: "B1' OR true --", Limit: 10}, ""},
	} {
		records, err := pending.NewStore(db).List(t.Context(), tt.filter)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, r := range records {
			got = append(got, r.CallID)
		}
		if strings.Join(got, " ") != tt.want {
			t.Errorf("%+v: %v, want %s", tt.filter, got, tt.want)
		}
	}
}

func TestARecordHoldsWhatTheRowHolds(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	park(t, db, "C1", "status='SUCCESS'", "resolved_at='infinity'", "resolved_by='person:ann'", "notified_at='-infinity'", "processed_at='12000-01-01'",
		"retry_before='0044-03-15 BC'", "last_error='x'", "timeout_kind='write'", `receipt='{"status": "SUCCESS"}'`)
	r, err := pending.NewStore(db).Find(t.Context(), "C1")
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]any{
		"call_id": "C1", "status": "SUCCESS", "resolved_by": "person:ann", "last_error": "x", "timeout_kind": "write",
		"receipt": map[string]any{"status": "SUCCESS"}, "not_found_since": nil, "has_request": false,
	} {
		if diff := cmp.Diff(want, got[name]); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
	if r.ResolvedAt.Year() != 9999 || r.ProcessedAt.Year() != 9999 || r.NotifiedAt.Year() != 1 || r.RetryBefore.Year() != 1 {
		t.Errorf("instants: %s", text)
	}
}

func TestWhatIsNotThereIsNullAndNotEmpty(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	park(t, db, "C1")
	r, err := pending.NewStore(db).Find(t.Context(), "C1")
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"timeout_kind", "last_error", "retry_before", "processed_at", "resolved_at", "resolved_by", "notified_at", "receipt"} {
		if !strings.Contains(string(text), `"`+name+`":null`) {
			t.Errorf("%s is not null in %s", name, text)
		}
	}
}

func TestACallThatIsNotThereIsSaidToBeMissing(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	store := pending.NewStore(db)
	if _, err := store.Find(t.Context(), "C\x1b1"); !errors.Is(err, pending.ErrNoSuchCall) || !strings.Contains(err.Error(), `"C\x1b1"`) {
		t.Errorf("%v", err)
	}
	if entries, err := store.Ledger(t.Context(), "C1", 10); err != nil || len(entries) != 0 {
		t.Errorf("its ledger: %v %v", entries, err)
	}
}

func TestTheLedgerShowsTheNewestEntriesOldestFirst(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	for n, kind := range []string{"sent", "verdict", "reopened", "verdict"} {
		db.MustExec(`INSERT INTO reconciler.call_events (call_id, biz_id, at, kind, attempt, reason, actor, detail)
			VALUES ('C1', 'B1', now() + $1 * interval '1 second', $2, $1::int + 1, nullif('not_found', $2), 'reconciler', '{"n": 1}')`, n, kind)
	}
	db.MustExec(`INSERT INTO reconciler.call_events (call_id, biz_id, kind, attempt, actor) VALUES ('C2', 'B1', 'sent', 1, 'orchestrator')`)
	entries, err := pending.NewStore(db).Ledger(t.Context(), "C1", 3)
	if err != nil || len(entries) != 3 {
		t.Fatalf("%+v %v", entries, err)
	}
	for i, attempt := range []int{2, 3, 4} {
		if e := entries[i]; e.Attempt != attempt || e.Reason != "not_found" || e.Actor != "reconciler" || string(e.Detail) != `{"n": 1}` {
			t.Errorf("entry %d: %+v", i, e)
		}
	}
	other, err := pending.NewStore(db).Ledger(t.Context(), "C2", 3)
	if err != nil || len(other) != 1 || other[0].Reason != "" || other[0].Detail != nil {
		t.Errorf("%+v %v", other, err)
	}
}
