package pending_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/callreceipt/reconciler/internal/testdb"
	"github.com/callreceipt/reconciler/pending"
)

func TestEachRetryIsHandedToExactlyOneOfManyTakers(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	db.MustExec(`INSERT INTO reconciler.pending_confirmations (call_id, biz_id, tool, operation, status, retry_before)
		SELECT 'C' || n, 'B' || n, $1, 'charge', 'RETRY', now() + interval '1 hour' FROM generate_series(1, 200) n`, tool)
	var mu sync.Mutex
	taken := map[string]int{}
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			for {
				got, err := pending.TakeRetries(t.Context(), db, tool, 7)
				if err != nil {
					t.Error(err)
				}
				if len(got) == 0 {
					return
				}
				mu.Lock()
				for _, r := range got {
					taken[r.CallID]++
				}
				mu.Unlock()
			}
		})
	}
	group.Wait()
	if len(taken) != 200 {
		t.Errorf("%d of 200 calls were taken", len(taken))
	}
	for id, n := range taken {
		if n != 1 {
			t.Errorf("%s was handed out %d times", id, n)
		}
	}
	if n := value[int](t, db, `SELECT count(*) FROM reconciler.call_events WHERE kind = 'sent' AND attempt = 2`); n != 200 {
		t.Errorf("the ledger has %d sends", n)
	}
}

func TestATakenRetryIsOnRecordAsSentUnderItsOwnIdsAndDueAtOnce(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	park(t, db, "C1", "biz_id='B1'", "status='RETRY'", "attempt=2", "retry_before=now() + interval '1 hour'", "reason='not_found'",
		"idempotency_key='K1'", "issued_at='2024-05-01T10:00:00Z'", "last_sent_at=now() - interval '1 hour'", "next_check_at=now() + interval '1 hour'",
		"not_found_count=2", "not_found_since=now()", `request='{"amount": 12345678901234567890.10, "callId": "C1"}'`)
	taken, err := pending.TakeRetries(t.Context(), db, tool, 10)
	if err != nil || len(taken) != 1 {
		t.Fatalf("%+v %v", taken, err)
	}
	want := pending.Retry{
		CallID: "C1", BizID: "B1", Operation: "charge", IdempotencyKey: "K1", Attempt: 3, IssuedAt: taken[0].IssuedAt, Version: 1,
		LastSentAt: value[time.Time](t, db, `SELECT last_sent_at FROM reconciler.pending_confirmations`),
		Request:    pending.JSON(`{"amount": 12345678901234567890.10, "callId": "C1"}`),
	}
	if diff := cmp.Diff(want, taken[0]); diff != "" || taken[0].IssuedAt.UTC().Format("2006-01-02 15:04") != "2024-05-01 10:00" {
		t.Errorf("taken at %s: %s", taken[0].IssuedAt, diff)
	}
	got := value[string](t, db, `SELECT concat_ws(' ', status, attempt, reason IS NULL, not_found_count, not_found_since IS NULL, retry_before IS NULL,
		version, last_sent_at > now() - interval '1 minute', next_check_at <= clock_timestamp()) FROM reconciler.pending_confirmations`)
	if want := "PENDING 3 t 0 t t 1 t t"; got != want {
		t.Errorf("the row is %q, want %q", got, want)
	}
	if got := value[string](t, db, `SELECT concat_ws(' ', call_id, biz_id, kind, attempt, actor) FROM reconciler.call_events`); got != "C1 B1 sent 3 orchestrator" {
		t.Errorf("the ledger says %q", got)
	}
	if again, err := pending.TakeRetries(t.Context(), db, tool, 10); err != nil || len(again) != 0 {
		t.Errorf("taken twice: %+v %v", again, err)
	}
}

func TestARetryWithoutARequestIsTakenWithNone(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	park(t, db, "C1", "status='RETRY'")
	taken, err := pending.TakeRetries(t.Context(), db, tool, 1)
	if err != nil || len(taken) != 1 || taken[0].Request != nil {
		t.Errorf("%+v %v", taken, err)
	}
}

func TestOnlyWhatMayBeSentAgainIsHandedOut(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	park(t, db, "late", "status='RETRY'", "retry_before=now() - interval '1 second'")
	park(t, db, "spent", "status='RETRY'", "attempt=2147483647") // one more cannot be counted, and must not hold up the others
	park(t, db, "other", "status='RETRY'", "tool='payment.refund'")
	park(t, db, "good", "status='RETRY'", "retry_before=now() + interval '1 hour'", "issued_at='infinity'")
	for _, s := range pending.Statuses {
		if s != pending.StatusRetry {
			park(t, db, string(s), fmt.Sprintf("status='%s'", s))
		}
	}
	taken, err := pending.TakeRetries(t.Context(), db, tool, 100)
	if err != nil || len(taken) != 1 || taken[0].CallID != "good" {
		t.Errorf("%+v %v", taken, err)
	}
	if n := value[int](t, db, `SELECT count(*) FROM reconciler.pending_confirmations WHERE version > 0`); n != 1 {
		t.Errorf("%d rows were touched", n)
	}
}

func TestARetryThatAnotherSessionHoldsDelaysNoOther(t *testing.T) {
	t.Parallel()
	dsn := testdb.URL(t)
	db := testdb.Open(t, dsn)
	park(t, db, "C1", "status='RETRY'", "next_check_at='2024-05-01'")
	park(t, db, "C2", "status='RETRY'")
	tx := db.MustBegin()
	defer func() { _ = tx.Rollback() }()
	tx.MustExec(`SELECT FROM reconciler.pending_confirmations WHERE call_id = 'C1' FOR UPDATE`)
	taken, err := pending.TakeRetries(t.Context(), testdb.Open(t, with(t, dsn, "lock_timeout", "100ms")), tool, 10)
	if err != nil || len(taken) != 1 || taken[0].CallID != "C2" {
		t.Errorf("%+v %v", taken, err)
	}
}

func TestASendThatWasNotCommittedIsNotHandedOut(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	park(t, db, "C1", "status='RETRY'")
	db.MustExec(`CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'no'; END $$;
		CREATE CONSTRAINT TRIGGER late AFTER INSERT ON reconciler.call_events DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION no()`)
	if taken, err := pending.TakeRetries(t.Context(), db, tool, 1); err == nil || len(taken) != 0 {
		t.Errorf("handed out %+v, %v", taken, err)
	}
	if c := read(t, db, "C1")[0]; c.Status != pending.StatusRetry || c.Attempt != 1 {
		t.Errorf("the row is %s, attempt %d", c.Status, c.Attempt)
	}
}

func TestAnAttemptIsTakenByTheReconcilerUnderItsOwnName(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	store := pending.NewStore(db)
	if r, err := store.TakeRetry(t.Context(), tool, "", pending.Spacing{}); r != nil || err != nil {
		t.Errorf("from an empty table: %+v %v", r, err)
	}
	park(t, db, "C0", "status='RETRY'") // there is nothing to send; the next look says so
	park(t, db, "C1", "status='RETRY'", "request='{}'")
	r, err := store.TakeRetry(t.Context(), tool, "", pending.Spacing{})
	if err != nil || r == nil || r.CallID != "C1" || r.Attempt != 2 {
		t.Fatalf("%+v %v", r, err)
	}
	if got := value[string](t, db, `SELECT concat_ws(' ', call_id, kind, attempt, actor) FROM reconciler.call_events`); got != "C1 sent 2 reconciler" {
		t.Errorf("the ledger says %q", got)
	}
}

func TestFurtherSendsAreSpacedOutMoreAndMore(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	spacing := pending.Spacing{Initial: time.Minute, Max: 10 * time.Minute}
	for _, tt := range []struct {
		attempt int
		ago     string
		want    bool
	}{
		{1, "0", false},
		{1, "44 seconds", false},
		{1, "61 seconds", true}, // a minute, less up to a quarter
		{2, "89 seconds", false},
		{2, "121 seconds", true},
		{3, "179 seconds", false},
		{3, "241 seconds", true},
		{5, "449 seconds", false},
		{5, "601 seconds", true}, // at most ten minutes
		{1000, "449 seconds", false},
		{1000, "601 seconds", true},
		{1, "-1 hour", false},
	} {
		id := fmt.Sprint(tt.attempt, " ", tt.ago)
		park(t, db, id, "status='RETRY'", "request='{}'", fmt.Sprint("attempt=", tt.attempt), "last_sent_at=clock_timestamp() - interval '"+tt.ago+"'")
		r, err := pending.NewStore(db).TakeRetry(t.Context(), tool, "", spacing)
		if err != nil || (r != nil) != tt.want {
			t.Errorf("attempt %d, sent %s ago: %+v %v", tt.attempt, tt.ago, r, err)
		}
		db.MustExec(`UPDATE reconciler.pending_confirmations SET status = 'SUCCESS'`)
	}
}
