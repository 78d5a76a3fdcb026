package pending_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/callreceipt/reconciler/internal/eventually"
	"github.com/callreceipt/reconciler/internal/testdb"
	"github.com/callreceipt/reconciler/pending"
)

func TestTheBacklogIsCountedPerStatusUpToALimit(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	db.MustExec(`
		INSERT INTO reconciler.pending_confirmations (call_id, biz_id, tool, operation, status, created_at, resolved_at, notify_at, notify_version, notify_since)
		SELECT s || n, s || n, 'charge', 'charge', s, now() - n * interval '1 hour', now(), CASE WHEN s = 'SUCCESS' THEN now() END, 1, now()
		FROM unnest('{PENDING,RETRY,MANUAL,SUCCESS,FAILED}'::text[]) s, generate_series(1, 5) n
		WHERE (s, n) <> ('RETRY', 5)`)
	db.MustExec(`UPDATE reconciler.pending_confirmations SET created_at = '-infinity' WHERE call_id = 'MANUAL1'`)
	got, err := pending.NewStore(db).Backlogs(t.Context(), []string{"charge", "idle"}, 3)
	if err != nil || len(got) != 2 {
		t.Fatalf("%+v, %v", got, err)
	}
	if got[0].Tool != "charge" {
		got[0], got[1] = got[1], got[0]
	}
	b := got[0]
	if b.Pending != 3 || b.Retry != 3 || b.Manual != 3 || b.Undelivered != 3 {
		t.Errorf("%+v", b)
	}
	if age := time.Since(*b.Oldest); age < 5*time.Hour-time.Minute || age > 5*time.Hour+time.Minute {
		t.Errorf("the oldest waits %s; a call that waits for a person does not count", age)
	}
	if due, err := pending.NewStore(db).ToolsToTell(t.Context(), []string{"charge", "idle"}); err != nil || fmt.Sprint(due) != "[charge]" {
		t.Errorf("to tell of: %v, %v", due, err)
	}
	if idle := (pending.Backlog{Tool: "idle"}); got[1] != idle {
		t.Errorf("%+v", got[1])
	}
}

func TestNobodyIsCalledForAVerdictThatWasTakenBackByHand(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	db.MustExec(`
		INSERT INTO reconciler.pending_confirmations (call_id, biz_id, tool, operation, status, notify_at, notify_version, notify_since)
		VALUES ('C', 'B', 'charge', 'charge', 'MANUAL', now(), 1, now())`)
	store := pending.NewStore(db)
	for _, want := range []string{"[charge]", "[]"} {
		if due, err := store.ToolsToTell(t.Context(), []string{"charge"}); err != nil || fmt.Sprint(due) != want {
			t.Errorf("to tell of: %v, want %s, %v", due, want, err)
		}
		db.MustExec(`UPDATE reconciler.pending_confirmations SET status = 'PENDING'`)
	}
}

// With ten million rows a number that reads them all would be asked for every few seconds.
func TestCountingTheBacklogReadsNoMoreThanItsLimit(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	db.MustExec(`
		INSERT INTO reconciler.pending_confirmations (call_id, biz_id, tool, operation, status)
		SELECT 'C' || n, 'B' || n, 'charge', 'charge', CASE WHEN n % 1000 = 0 THEN 'MANUAL' ELSE 'PENDING' END FROM generate_series(1, 20000) n`)
	db.MustExec(`VACUUM ANALYZE reconciler.pending_confirmations`)
	tx := db.MustBegin()
	defer func() { _ = tx.Rollback() }()
	var plan []string
	if err := tx.Select(&plan, `EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF, SUMMARY OFF)
		SELECT count(*) FROM (SELECT FROM reconciler.pending_confirmations p WHERE p.tool = 'charge' AND p.status = 'MANUAL'
			AND p.status IN ('PENDING', 'RETRY', 'MANUAL') LIMIT 100) few`); err != nil {
		t.Fatal(err)
	}
	if text := strings.Join(plan, "\n"); !strings.Contains(text, "pending_confirmations_backlog") {
		t.Errorf("20 calls wait for a person among 20,000, and finding them takes\n%s", text)
	}
}

// What was settled within the retention may be a hundred million calls, and the clean-up asks each hour.
func TestFindingThatNothingIsOldReadsNothing(t *testing.T) {
	t.Parallel()
	dsn := testdb.URL(t)
	db := testdb.Open(t, dsn)
	db.MustExec(`
		INSERT INTO reconciler.pending_confirmations (call_id, biz_id, tool, operation, status, resolved_at)
		SELECT 'C' || n, 'B' || n, 'charge', 'charge', 'SUCCESS', now() - n * interval '1 second' FROM generate_series(1, 5000) n`)
	db.MustExec(`VACUUM ANALYZE reconciler.pending_confirmations`)
	read := func() (entries int) {
		if err := db.Get(&entries, `SELECT sum(idx_tup_read) + sum(1000000 * idx_scan) FROM pg_stat_user_indexes WHERE indexrelname = 'pending_confirmations_settled'`); err != nil {
			t.Fatal(err)
		}
		return entries
	}
	cleaner := testdb.Open(t, dsn)
	if n, err := pending.NewStore(cleaner).DeleteSettled(t.Context(), 48*time.Hour, 1000); err != nil || n != 0 {
		t.Fatal(n, err)
	}
	if err := cleaner.Close(); err != nil { // a session reports what it read when it ends
		t.Fatal(err)
	}
	eventually.True(t, "the scan is on record", func() bool { return read() > 0 })
	if n := read() - 1000000; n > 10 {
		t.Errorf("%d entries of the index were read", n)
	}
}

func TestOnlySettledAndToldCallsAreDeleted(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	store := pending.NewStore(db)
	db.MustExec(`
		INSERT INTO reconciler.pending_confirmations (call_id, biz_id, tool, operation, status, resolved_at, notify_at)
		SELECT s || w || n, 'B', 'charge', 'charge', s, now() - CASE w WHEN 'old' THEN interval '3 days' ELSE interval '1 day' END,
			CASE n WHEN 3 THEN now() WHEN 4 THEN 'infinity' END
		FROM unnest('{PENDING,RETRY,MANUAL,SUCCESS,FAILED}'::text[]) s, unnest('{old,new}'::text[]) w, generate_series(1, 4) n`)
	db.MustExec(`INSERT INTO reconciler.pending_confirmations (call_id, biz_id, tool, operation, status) VALUES ('undated', 'B', 'charge', 'charge', 'SUCCESS')`)
	for i, want := range []int{3, 1, 0} {
		if n, err := store.DeleteSettled(t.Context(), 48*time.Hour, 3); err != nil || n != want {
			t.Errorf("batch %d deleted %d, want %d: %v", i, n, want, err)
		}
	}
	var left []string
	if err := db.Select(&left, `SELECT call_id FROM reconciler.pending_confirmations WHERE status IN ('SUCCESS', 'FAILED') AND call_id LIKE '%old%' ORDER BY 1`); err != nil {
		t.Fatal(err)
	}
	if want := "[FAILEDold3 FAILEDold4 SUCCESSold3 SUCCESSold4]"; fmt.Sprint(left) != want {
		t.Errorf("left are %v, want %s: a verdict that was not delivered is kept", left, want)
	}
	var open, all int
	if err := db.QueryRow(`SELECT count(*) FILTER (WHERE status NOT IN ('SUCCESS', 'FAILED')), count(*) FROM reconciler.pending_confirmations`).Scan(&open, &all); err != nil || open != 24 || all != 37 {
		t.Errorf("%d open of %d, want 24 of 37: %v", open, all, err)
	}
}
