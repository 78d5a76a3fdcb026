package pending_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jmoiron/sqlx"

	"github.com/callreceipt/reconciler/internal/database"
	"github.com/callreceipt/reconciler/internal/eventually"
	"github.com/callreceipt/reconciler/internal/testdb"
	"github.com/callreceipt/reconciler/pending"
)

func apply(t testing.TB, db *sqlx.DB, changes ...pending.Change) map[string]bool {
	t.Helper()
	written, err := pending.NewStore(db).Apply(t.Context(), changes)
	if err != nil {
		t.Fatal(err)
	}
	return written
}

// row is one line of what a change writes.
func row(t testing.TB, db *sqlx.DB, callID string) string {
	t.Helper()
	return value[string](t, db, `SELECT concat_ws(' ', status, coalesce(reason, '-'), checks, unanswered, not_found_count, not_found_since IS NULL,
		coalesce(last_error, '-'), to_char(next_check_at AT TIME ZONE 'UTC', 'YYYY-MM-DD'), to_char(retry_before AT TIME ZONE 'UTC', 'YYYY-MM-DD'),
		receipt, to_char(processed_at AT TIME ZONE 'UTC', 'YYYY-MM-DD'), resolved_at IS NOT NULL, coalesce(resolved_by, '-'), version)
		FROM reconciler.pending_confirmations WHERE call_id = $1`, callID)
}

func TestEveryKindOfChangeIsWrittenAsItIsSpelled(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	day := func(n int) time.Time { return time.Date(2030, 1, n, 0, 0, 0, 0, time.UTC) }
	first := day(9)
	for _, tt := range []struct {
		name   string
		set    []string
		change func(c pending.Call) pending.Change
		want   string
		events int
	}{
		{"settled", nil, func(c pending.Call) pending.Change {
			change := success(c)
			return change
		}, `SUCCESS receipt_success 1 0 0 t - 2024-05-01 {"status": "SUCCESS"} t reconciler 1`, 1},
		{"failed with an instant", nil, func(c pending.Call) pending.Change {
			return pending.Settle(c, "receipt_failed", pending.Proof{Status: pending.StatusFailed, Raw: json.RawMessage(`{}`), ProcessedAt: day(3)})
		}, `FAILED receipt_failed 0 0 0 t - 2024-05-01 {} 2030-01-03 t reconciler 1`, 0},
		{"offered", nil, func(c pending.Call) pending.Change {
			change := pending.Offer(c, "not_found", day(5), day(4))
			change.Look, change.NotFoundCount, change.NotFoundSince = pending.Answered, 2, &first
			return change
		}, `RETRY not_found 1 0 2 f - 2030-01-04 2030-01-05 f - 1`, 0},
		{"escalated", []string{"not_found_count=2", "not_found_since=now()", "last_error='old'"}, func(c pending.Call) pending.Change {
			return pending.Escalate(c, "not_retryable", day(6))
		}, `MANUAL not_retryable 0 0 0 t - 2030-01-06 f - 1`, 0},
		{"withdrawn", []string{"status='RETRY'", "retry_before='2031-01-01'", "reason='not_found'"}, func(c pending.Call) pending.Change {
			return pending.Reopen(c, "processing", day(7))
		}, `PENDING processing 0 0 0 t - 2030-01-07 f - 1`, 0},
		{"kept, and not answered", []string{"reason='processing'"}, func(c pending.Call) pending.Change {
			change := pending.Keep(c, "unanswered", day(8))
			change.Look, change.LastError = pending.NotAnswered, "503"
			return change
		}, `PENDING unanswered 0 1 0 t 503 2030-01-08 f - 1`, 0},
		{"kept as RETRY, with its reason and its deadline", []string{"status='RETRY'", "retry_before='2031-01-01'", "reason='not_found'"}, func(c pending.Call) pending.Change {
			return pending.Keep(c, "unanswered", day(8))
		}, `RETRY not_found 0 0 0 t - 2030-01-08 2031-01-01 f - 1`, 0},
		{"offered for a shorter time", []string{"retry_before='2031-01-01'"}, func(c pending.Call) pending.Change {
			return pending.Offer(c, "not_found", day(5), day(4))
		}, `RETRY not_found 0 0 0 t - 2030-01-04 2030-01-05 f - 1`, 0},
		{"kept as MANUAL, with its reason", []string{"status='MANUAL'", "reason='not_retryable'"}, func(c pending.Call) pending.Change {
			return pending.Keep(c, "unanswered", day(8))
		}, `MANUAL not_retryable 0 0 0 t - 2030-01-08 f - 1`, 0},
	} {
		park(t, db, tt.name, append(tt.set, "next_check_at='2024-05-01 12:00Z'")...)
		written := apply(t, db, tt.change(read(t, db, tt.name)[0]))
		if got := row(t, db, tt.name); !written[tt.name] || got != tt.want {
			t.Errorf("%s:\n got %s\nwant %s", tt.name, got, tt.want)
		}
		if n := events(t, db, tt.name); n != tt.events {
			t.Errorf("%s: %d ledger rows", tt.name, n)
		}
	}
}

func TestAChangeWritesItsLedgerRowsWithTheReasonItEndsWith(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	park(t, db, "C1", "attempt=2", "reason='processing'")
	change := success(read(t, db, "C1")[0])
	change.Anomaly = pending.Event{Kind: pending.EventCallIDChanged, Detail: nil}
	apply(t, db, change)
	got := value[string](t, db, `SELECT string_agg(concat_ws(' ', call_id, biz_id, kind, attempt, reason, actor, detail), '; ' ORDER BY kind DESC)
		FROM reconciler.call_events`)
	want := `C1 B-C1 verdict 2 receipt_success reconciler {"status": "SUCCESS"}; C1 B-C1 call_id_changed 2 receipt_success reconciler`
	if got != want {
		t.Errorf("the ledger:\n got %s\nwant %s", got, want)
	}
}

func TestAStaleWriterWritesNeitherTheRowNorTheLedger(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	for _, id := range []string{"stale", "fresh", "deleted"} {
		park(t, db, id)
	}
	calls := read(t, db, "stale", "fresh", "deleted")
	db.MustExec(`UPDATE reconciler.pending_confirmations SET status = 'FAILED', reason = 'by hand' WHERE call_id IN ('stale', 'deleted')`)
	db.MustExec(`DELETE FROM reconciler.pending_confirmations WHERE call_id = 'deleted'`)
	written := apply(t, db, success(calls[0]), success(calls[1]), success(calls[2]))
	if diff := cmp.Diff(map[string]bool{"fresh": true}, written); diff != "" {
		t.Errorf("written: %s", diff)
	}
	if c := read(t, db, "stale")[0]; c.Status != pending.StatusFailed || c.Version != 1 || events(t, db, "stale")+events(t, db, "deleted") != 0 {
		t.Errorf("the stale write left %+v", c)
	}
	if events(t, db, "fresh") != 1 {
		t.Error("the fresh write has no ledger row")
	}
}

func TestABatchWithOneValueThatTheDatabaseRefusesWritesNothingAndSaysSo(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	for _, id := range []string{"C1", "C2", "C3"} {
		park(t, db, id)
	}
	for name, spoil := range map[string]func(*pending.Change){
		"22003 a number beyond numeric": func(c *pending.Change) {
			*c = pending.Settle(c.Call, "receipt_success", pending.Proof{Status: pending.StatusSuccess, Raw: json.RawMessage(`{"n":1e200000}`)})
		},
		"22P05 a NUL in the receipt": func(c *pending.Change) {
			*c = pending.Settle(c.Call, "receipt_success", pending.Proof{Status: pending.StatusSuccess, Raw: json.RawMessage(`{"n":"\u0000"}`)})
		},
		"22021 invalid UTF-8": func(c *pending.Change) { c.LastError = "\xff" },
		"22P02 a broken detail": func(c *pending.Change) {
			c.Event.Detail = json.RawMessage(`{`)
		},
		"23514 an unknown status": func(c *pending.Change) {
			*c = pending.Settle(c.Call, "x", pending.Proof{Status: "DONE", Raw: json.RawMessage(`{}`)})
		},
	} {
		var changes []pending.Change
		for _, c := range read(t, db, "C1", "C2", "C3") {
			changes = append(changes, success(c))
		}
		spoil(&changes[1])
		written, err := pending.NewStore(db).Apply(t.Context(), changes)
		state, refused := database.Refused(err)
		if !refused || state != name[:5] || len(written) != 0 {
			t.Errorf("%s: %v %v", name, written, err)
		}
	}
	if n := value[int](t, db, `SELECT count(*) FROM reconciler.pending_confirmations WHERE version = 0 AND status = 'PENDING'`); n != 3 {
		t.Errorf("%d of 3 rows are as they were", n)
	}
	if n := value[int](t, db, `SELECT count(*) FROM reconciler.call_events`); n != 0 {
		t.Errorf("%d ledger rows", n)
	}
}

func TestTheRowIsNotWrittenWithoutItsLedgerRow(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	park(t, db, "C1")
	db.MustExec(`ALTER TABLE reconciler.call_events ADD CONSTRAINT no CHECK (kind <> 'verdict')`)
	if _, err := pending.NewStore(db).Apply(t.Context(), []pending.Change{success(read(t, db, "C1")[0])}); err == nil {
		t.Error("no error")
	}
	if c := read(t, db, "C1")[0]; c.Status != pending.StatusPending || c.Version != 0 {
		t.Errorf("the row became %s", c.Status)
	}
}

func TestCountersStopAtTheirHighest(t *testing.T) {
	t.Parallel()
	const highest = 1<<31 - 1
	db := testdb.New(t)
	full := []string{"checks=2147483647", "unanswered=2147483647", "not_found_count=2147483647", "attempt=2147483647"}
	var changes []pending.Change
	for id, look := range map[string]pending.Look{"none": pending.NoLook, "answered": pending.Answered, "not": pending.NotAnswered} {
		park(t, db, id, full...)
		change := pending.Keep(read(t, db, id)[0], "processing", time.Now())
		change.Look, change.NotFoundCount = look, change.Call.NotFoundCount+1
		changes = append(changes, change)
	}
	if written := apply(t, db, changes...); len(written) != 3 {
		t.Errorf("written %v", written)
	}
	for _, c := range read(t, db, "none", "answered", "not") {
		if c.Checks != highest || c.Unanswered != highest || c.NotFoundCount != highest || c.Version != 1 {
			t.Errorf("%s: %+v", c.CallID, c)
		}
	}
}

func TestARowThatAnotherSessionHoldsDelaysNoOther(t *testing.T) {
	t.Parallel()
	dsn := testdb.URL(t)
	db := testdb.Open(t, dsn)
	hasty := testdb.Open(t, with(t, dsn, "lock_timeout", "100ms"))
	for _, id := range []string{"C1", "C2", "C3"} {
		park(t, db, id)
	}
	calls := read(t, db, "C1", "C2", "C3")
	tx := db.MustBegin()
	defer func() { _ = tx.Rollback() }()
	tx.MustExec(`SELECT FROM reconciler.pending_confirmations WHERE call_id = 'C2' FOR UPDATE`)
	written := apply(t, hasty, success(calls[0]), success(calls[1]), success(calls[2]))
	if diff := cmp.Diff(map[string]bool{"C1": true, "C3": true}, written); diff != "" {
		t.Errorf("written: %s", diff)
	}
	for id, want := range map[string]int{"C1": 1, "C2": 0, "C3": 1} {
		if n := events(t, db, id); n != want {
			t.Errorf("%s has %d ledger rows, want %d", id, n, want)
		}
	}
}

func TestTwoWritersOfOverlappingBatchesShareTheRowsBetweenThem(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	var all []string
	for i := range 40 {
		all = append(all, fmt.Sprintf("C%02d", i))
		park(t, db, all[i])
	}
	for range 5 {
		calls := read(t, db, all...)
		var mu sync.Mutex
		wins := map[string]int{}
		var group sync.WaitGroup
		for w := range 4 {
			var changes []pending.Change
			for _, c := range calls[w*5 : w*5+25] {
				changes = append(changes, pending.Keep(c, fmt.Sprint("writer", w), time.Now()))
			}
			if w%2 == 1 {
				slices.Reverse(changes)
			}
			group.Go(func() {
				written, err := pending.NewStore(db).Apply(t.Context(), changes)
				if err != nil {
					t.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				for id := range written {
					wins[id]++
				}
			})
		}
		group.Wait()
		for _, c := range read(t, db, all...) {
			if wins[c.CallID] != 1 {
				t.Errorf("%s was written %d times by %s", c.CallID, wins[c.CallID], c.Reason)
			}
		}
	}
}

func TestADeadlockIsGotOutOf(t *testing.T) {
	t.Parallel()
	dsn := testdb.URL(t)
	db := testdb.Open(t, dsn)
	for _, id := range []string{"C1", "C2", "C3"} {
		park(t, db, id)
	}
	calls := read(t, db, "C1", "C2", "C3")
	tx := testdb.Open(t, with(t, dsn, "deadlock_timeout", "60s")).MustBegin() // the other one is the victim
	defer func() { _ = tx.Rollback() }()
	tx.MustExec(`SELECT FROM reconciler.pending_confirmations WHERE call_id = 'C2' FOR UPDATE`)
	victim := testdb.Open(t, with(t, with(t, dsn, "deadlock_timeout", "500ms"), "application_name", "victim"))
	done := applyInBackground(t, victim, []pending.Change{success(calls[1]), success(calls[0]), success(calls[2])})
	eventually.True(t, "the writer waits for C2", func() bool {
		return value[bool](t, db, `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE application_name = 'victim' AND wait_event_type = 'Lock')`)
	})
	tx.MustExec(`SELECT FROM reconciler.pending_confirmations WHERE call_id = 'C1' FOR UPDATE`)
	got := within(t, done)
	if got.err != nil || got.written["C2"] || !got.written["C3"] {
		t.Errorf("written %v, %v", got.written, got.err)
	}
	for id, want := range map[string]bool{"C1": got.written["C1"], "C2": false, "C3": true} {
		if n := events(t, db, id); n == 1 != want {
			t.Errorf("%s has %d ledger rows", id, n)
		}
	}
}

func TestAContradictionIsRecordedOncePerCallAndTheRowStays(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	park(t, db, "C1", "status='SUCCESS'", "reason='receipt_success'", "attempt=2")
	park(t, db, "C2", "status='FAILED'")
	calls := read(t, db, "C1", "C2")
	store := pending.NewStore(db)
	record := func(calls ...pending.Call) int {
		t.Helper()
		recorded := make([]pending.Event, len(calls))
		for i := range recorded {
			recorded[i].Kind = pending.EventContradiction
			if i == 0 {
				recorded[i].Detail = json.RawMessage(`{"status":"FAILED"}`)
			}
		}
		n, err := store.RecordContradictions(t.Context(), calls, recorded)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	got := []int{record(calls[0]), record(calls...), record(calls...), record()}
	if diff := cmp.Diff([]int{1, 1, 0, 0}, got); diff != "" {
		t.Errorf("recorded: %s", diff)
	}
	text := value[string](t, db, `SELECT string_agg(concat_ws(' ', call_id, biz_id, kind, attempt, coalesce(reason, '-'), actor, detail), '; ' ORDER BY call_id)
		FROM reconciler.call_events`)
	want := `C1 B-C1 contradiction 2 receipt_success reconciler {"status": "FAILED"}; C2 B-C2 contradiction 1 - reconciler`
	if text != want {
		t.Errorf("the ledger:\n got %s\nwant %s", text, want)
	}
	if n := value[int](t, db, `SELECT count(*) FROM reconciler.pending_confirmations WHERE version > 0`); n != 0 {
		t.Errorf("%d rows were touched", n)
	}
}

func TestAFinalStatusIsNotTouchedEvenByAWriterThatKnowsTheVersion(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	park(t, db, "C1", "status='SUCCESS'", "reason='receipt_success'")
	park(t, db, "C2", "status='FAILED'", "reason='receipt_failed'")
	calls := read(t, db, "C1", "C2")
	for _, change := range []pending.Change{pending.Escalate(calls[0], "x", time.Now()), success(calls[0]), success(calls[1])} {
		if written := apply(t, db, change); len(written) != 0 {
			t.Errorf("written: %v", written)
		}
	}
	for i, c := range read(t, db, "C1", "C2") {
		if diff := cmp.Diff(calls[i], c); diff != "" || events(t, db, c.CallID) != 0 {
			t.Errorf("%s, %d ledger rows: %s", c.CallID, events(t, db, c.CallID), diff)
		}
	}
}

func TestTheLedgersPartitionsAreMadeAheadAndOnce(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	count := func() int {
		return value[int](t, db, `SELECT count(*) FROM pg_inherits WHERE inhparent = 'reconciler.call_events'::regclass`)
	}
	before := count()
	db.MustExec(`DO $$ BEGIN EXECUTE format('DROP TABLE reconciler.call_events_%s', to_char((now() AT TIME ZONE 'UTC')::date + 3, 'YYYYMMDD')); END $$`)
	for range 2 {
		if err := pending.NewStore(db).EnsureEventPartitions(t.Context()); err != nil || count() != before {
			t.Errorf("%d partitions, want %d, %v", count(), before, err)
		}
	}
}
