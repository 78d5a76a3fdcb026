package pending

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/callreceipt/reconciler/internal/testdb"
)

func TestAfterALostCommitOnlyWhatTheRowShowsCounts(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	store := NewStore(db)
	var changes []*Change
	for id, set := range map[string]string{
		"untouched":      "",
		"ours":           "status = 'MANUAL', reason = 'not_retryable', version = version + 1",
		"another reason": "status = 'MANUAL', reason = 'by hand', version = version + 1",
		"another status": "status = 'PENDING', reason = 'not_retryable', version = version + 1",
		"gone on":        "status = 'MANUAL', reason = 'not_retryable', version = version + 2",
		"deleted":        "status = 'SUCCESS'",
	} {
		db.MustExec(`INSERT INTO reconciler.pending_confirmations (call_id, biz_id, tool, operation) VALUES ($1, 'B', 'T', 'charge')`, id)
		calls, err := store.Get(t.Context(), []string{id})
		if err != nil {
			t.Fatal(err)
		}
		change := Escalate(calls[0], "not_retryable", time.Now())
		changes = append(changes, &change)
		if set != "" {
			db.MustExec(`UPDATE reconciler.pending_confirmations SET `+set+` WHERE call_id = $1`, id)
		}
	}
	db.MustExec(`DELETE FROM reconciler.pending_confirmations WHERE call_id = 'deleted'`)
	written := map[string]bool{"before": true}
	left, err := store.reread(t.Context(), changes, written)
	if err != nil {
		t.Fatal(err)
	}
	if len(left) != 1 || left[0].Call.CallID != "untouched" {
		t.Errorf("to be tried again: %+v", left)
	}
	if diff := cmp.Diff(map[string]bool{"before": true, "ours": true}, written); diff != "" {
		t.Errorf("written: %s", diff)
	}
}

func TestASendIsOursOnlyIfTheRowIsAsItLeftIt(t *testing.T) {
	t.Parallel()
	at := time.Date(2024, 5, 1, 10, 0, 0, 0, time.UTC)
	r := Retry{CallID: "C1", Attempt: 2, Version: 7, LastSentAt: at}
	ours := Call{CallID: "C1", Status: StatusPending, Attempt: 2, Version: 7, LastSentAt: at.In(time.FixedZone("CST", 8*3600))}
	if !r.standsIn(ours) {
		t.Error("our own send is not known again")
	}
	for name, edit := range map[string]func(*Call){
		"not taken":           func(c *Call) { c.Version, c.Attempt, c.Status = 6, 1, StatusRetry },
		"settled by a person": func(c *Call) { c.Status = StatusSuccess },
		"changed since":       func(c *Call) { c.Version = 8 },
		"only looked at":      func(c *Call) { c.Attempt = 1 },
		"taken by another":    func(c *Call) { c.LastSentAt = at.Add(time.Microsecond) },
	} {
		c := ours
		edit(&c)
		if r.standsIn(c) {
			t.Errorf("%s: passes for our send", name)
		}
	}
}
