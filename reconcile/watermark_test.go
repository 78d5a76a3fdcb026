package reconcile

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/callreceipt/reconciler/internal/task"
	"github.com/callreceipt/reconciler/internal/testdb"
	"github.com/callreceipt/reconciler/pending"
	"github.com/callreceipt/reconciler/receipt"
)

const keys = "idempotency.keys"

// archiving names the table of the tool's keys.
func archiving(c *Config) { c.IdempotencyTable = keys }

// raise sets the archive watermark of the keys as an archiver does; to is an expression.
func raise(t testing.TB, db *sqlx.DB, to string) {
	t.Helper()
	_, err := db.Exec(`INSERT INTO reconciler.archive_watermarks (table_name, watermark) VALUES ($1, `+to+`)
		ON CONFLICT (table_name) DO UPDATE SET watermark = excluded.watermark, raised_at = clock_timestamp()`, keys)
	if err != nil {
		t.Error(err)
	}
}

// offerYesterday makes every call of the table one that a pass has offered, long before it is looked at again.
func offerYesterday(db *sqlx.DB) {
	db.MustExec(`UPDATE reconciler.pending_confirmations SET status = 'RETRY', reason = 'not_found', not_found_count = 1,
		retry_before = now() + interval '6 days', next_check_at = now() + interval '1 hour', version = version + 1`)
}

func handedOut(t testing.TB, db *sqlx.DB) int {
	t.Helper()
	taken, err := pending.TakeRetries(context.Background(), db, tool, 100)
	if err != nil {
		t.Fatal(err)
	}
	return len(taken)
}

// ledgerCount counts the rows of the ledger that became of a status.
func ledgerCount(t testing.TB, db *sqlx.DB, status string) (n int) {
	t.Helper()
	if err := db.Get(&n, `SELECT count(*) FROM reconciler.call_events WHERE kind = 'verdict' AND detail->>'status' = $1`, status); err != nil {
		t.Fatal(err)
	}
	return n
}

func TestACallWhoseKeyIsArchivedIsNeverOfferedAgain(t *testing.T) {
	t.Parallel()
	for name, edit := range map[string]func(*Config){
		"looked up":      func(*Config) {},
		"a pure query":   func(c *Config) { c.Policy.NeedsReceipt = false },
		"with a failure": func(c *Config) { c.Policy.RetryFailed = true },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, d := open(t)
			parkMany(t, db, 3) // issued ten minutes ago
			// One was issued at the watermark itself, which the guard lets pass.
			db.MustExec(`INSERT INTO reconciler.pending_confirmations (call_id, biz_id, tool, operation, issued_at, last_sent_at)
				VALUES ('at', 'B-at', 'payment.charge', 'charge', '2026-05-01 12:00:00.000001Z', now() - interval '10 minutes')`)
			db.MustExec(`INSERT INTO reconciler.archive_watermarks (table_name, watermark) VALUES ('other.keys', now())`)
			long := func(c *Config) { c.Policy.DedupWindow = 100 * 365 * 24 * time.Hour }
			status := "NOT_FOUND"
			if name == "with a failure" {
				status = "FAILED"
			}
			for _, id := range []string{"0", "1", "2", "-at"} {
				d.say(strings.TrimPrefix("C"+id, "C-"), "B"+id, status)
			}
			raise(t, db, `'2026-05-01 12:00:00.000001Z'`)
			if sum := runPass(t, on(t, db, d, archiving, long, edit)); sum.Retry != 4 {
				t.Fatalf("at the watermark and after it: %+v", sum)
			}
			db.MustExec(`UPDATE reconciler.pending_confirmations SET status = 'PENDING', retry_before = NULL, next_check_at = now()`)
			raise(t, db, `now()`)
			sum := runPass(t, on(t, db, d, archiving, long, edit))
			if status == "FAILED" {
				if sum.Failed != 4 || sum.Retry != 0 {
					t.Errorf("%+v", sum)
				}
				return
			}
			if sum.Manual != 4 || sum.Retry != 0 || count(t, db, `status = 'MANUAL' AND reason = 'dedup_window_passed'`) != 4 || ledgerCount(t, db, "RETRY") != 4 {
				t.Errorf("%+v, %+v", sum, look(t, db, "C0"))
			}
		})
	}
}

func TestAnOfferOfYesterdayIsNotSentOnceItsKeyIsArchived(t *testing.T) {
	t.Parallel()
	db, s := testdb.New(t), newShop(t)
	parkMany(t, db, 20)
	offerYesterday(db)
	db.MustExec(`UPDATE reconciler.pending_confirmations SET retry_before = NULL WHERE call_id = 'C1'`) // as a person might
	raise(t, db, `now()`)
	sum := runPass(t, on(t, db, s.receipts, sending(t, s), archiving))
	if sum.Sent != 0 || len(s.seen()) != 0 || ledgerSends(t, db) != 0 {
		t.Errorf("%+v, sent %+v", sum, s.seen())
	}
	if n := count(t, db, `status = 'MANUAL' AND reason = 'dedup_window_passed'`); sum.Manual != 20 || n != 20 {
		t.Errorf("%+v, %d went to a person", sum, n)
	}
}

func TestAnOfferOfYesterdayIsNotHandedOutOnceItsKeyIsArchived(t *testing.T) {
	t.Parallel()
	db, d := open(t)
	parkMany(t, db, 20)
	offerYesterday(db)
	raise(t, db, `now()`)
	down := true
	d.before = func(w http.ResponseWriter, _ []string) bool {
		if down {
			w.WriteHeader(http.StatusInternalServerError)
		}
		return down
	}
	r := on(t, db, d, archiving, func(c *Config) { c.BatchSize = 20 })
	// While the downstream does not answer there is no verdict, and still nobody gets the calls, however often they are looked at.
	for range 3 {
		_, _ = r.RunOnce(t.Context(), Limits{})
		if n := handedOut(t, db); n != 0 {
			t.Fatalf("%d calls were handed out", n)
		}
		due(db)
	}
	if n := count(t, db, `status = 'RETRY' AND unanswered > 0`); n != 20 {
		t.Fatalf("%d calls wait for an answer", n)
	}
	d.mu.Lock()
	down = false
	d.mu.Unlock()
	for i := range 20 {
		d.say("", fmt.Sprint("B", i), "NOT_FOUND")
	}
	if sum := runPass(t, r); sum.Manual != 20 || count(t, db, `reason = 'dedup_window_passed' AND attempt = 1`) != 20 {
		t.Errorf("%+v", sum)
	}
}

// A look that brings nothing new must not give an offer a longer life.
func TestALookDoesNotTakeTheDeadlineFromAnOffer(t *testing.T) {
	t.Parallel()
	db, d := open(t)
	parkMany(t, db, 2)
	db.MustExec(`UPDATE reconciler.pending_confirmations SET status = 'RETRY', reason = 'not_found', retry_before = '2100-01-01'`)
	d.say("", "B1", "NOT_FOUND") // C0 is not mentioned
	sum := runPass(t, on(t, db, d))
	if n := count(t, db, `status = 'RETRY' AND retry_before = '2100-01-01'`); n != 2 || sum.Waiting != 1 || sum.Unanswered != 1 {
		t.Errorf("%+v, %d have their deadline", sum, n)
	}
}

// midway raises the watermark while the downstream is being asked, which is after the pass has read it.
func midway(t testing.TB, db *sqlx.DB, s *shop) {
	answer, done := s.receipts.before, false
	s.receipts.before = func(w http.ResponseWriter, bizIDs []string) bool {
		if !done {
			raise(t, db, `clock_timestamp()`)
			done = true
		}
		return answer(w, bizIDs)
	}
}

func TestAWatermarkThatRisesInTheMiddleOfAPassStopsItsSends(t *testing.T) {
	t.Parallel()
	db, s := testdb.New(t), newShop(t)
	parkMany(t, db, 10)
	raise(t, db, `now() - interval '1 day'`)
	midway(t, db, s)
	r := on(t, db, s.receipts, sending(t, s), archiving)
	first := runPass(t, r)
	if first.Retry != 10 || first.Sent != 0 || len(s.seen()) != 0 || ledgerSends(t, db) != 0 {
		t.Errorf("%+v, sent %+v", first, s.seen())
	}
	second := runPass(t, r)
	if second.Manual != 10 || second.Sent != 0 || count(t, db, `reason = 'dedup_window_passed'`) != 10 {
		t.Errorf("%+v", second)
	}
	everyVerdictReplays(t, db, 20)
}

func TestAWatermarkThatRisesAmongTheSendsStopsTheRest(t *testing.T) {
	t.Parallel()
	db, s := testdb.New(t), newShop(t)
	parkMany(t, db, 10)
	s.answer = func(http.ResponseWriter, sent) bool { // the first call is sent alone
		raise(t, db, `clock_timestamp()`)
		return true
	}
	r := on(t, db, s.receipts, sending(t, s), archiving)
	sum := runPass(t, r)
	if sum.Sent != 1 || len(s.seen()) != 1 || ledgerSends(t, db) != 1 {
		t.Errorf("%+v, %d sent", sum, len(s.seen()))
	}
	if sum = runPass(t, r); sum.Manual != 9 || sum.Sent != 0 || count(t, db, `status = 'MANUAL' AND reason = 'dedup_window_passed'`) != 9 {
		t.Errorf("%+v", sum)
	}
}

func TestAWatermarkThatRisesInTheMiddleOfAPassEndsItsOffers(t *testing.T) {
	t.Parallel()
	db, s := testdb.New(t), newShop(t)
	parkMany(t, db, 10)
	midway(t, db, s)
	r := on(t, db, s.receipts, archiving)
	if sum := runPass(t, r); sum.Retry != 10 {
		t.Errorf("%+v", sum)
	}
	if n := handedOut(t, db); n != 0 {
		t.Errorf("%d were handed out", n)
	}
	if sum := runPass(t, r); sum.Manual != 10 || count(t, db, `reason = 'dedup_window_passed' AND attempt = 1`) != 10 {
		t.Errorf("%+v", sum)
	}
}

func TestVerdictsOfBothSidesOfAWatermarkReplayByTheirOwnRules(t *testing.T) {
	t.Parallel()
	db, d := open(t)
	parkMany(t, db, 4)
	for i := range 4 {
		d.say("", fmt.Sprint("B", i), "NOT_FOUND")
	}
	r := on(t, db, d, archiving)
	for _, to := range []string{"", `now() - interval '1 hour'`, `'2026-01-01 00:00:00.123456+02'`, `now()`} {
		if to != "" {
			raise(t, db, to)
		}
		runPass(t, r)
		// The next pass is to give a verdict again, and not to send.
		db.MustExec(`UPDATE reconciler.pending_confirmations SET status = 'PENDING', reason = NULL, not_found_count = 0, retry_before = NULL, next_check_at = now()`)
	}
	if retry, manual := ledgerCount(t, db, "RETRY"), ledgerCount(t, db, "MANUAL"); retry != 12 || manual != 4 {
		t.Errorf("%d offered, %d to a person", retry, manual)
	}
	everyVerdictReplays(t, db, 16)
	var policies, without int
	if err := db.QueryRow(`SELECT count(DISTINCT policy), count(*) FILTER (WHERE NOT policy ? 'watermark') FROM reconciler.runs`).
		Scan(&policies, &without); err != nil || policies != 4 || without != 1 {
		t.Errorf("%d policies, %d of them without a watermark; %v", policies, without, err)
	}
}

func TestAPassThatCannotReadTheWatermarkDecidesAndSendsNothing(t *testing.T) {
	t.Parallel()
	db, s := testdb.New(t), newShop(t)
	parkMany(t, db, 5)
	db.MustExec(`UPDATE reconciler.pending_confirmations SET status = 'RETRY', retry_before = now() + interval '1 hour' WHERE call_id <> 'C0'`)
	db.MustExec(`DROP TABLE reconciler.archive_watermarks`)
	r := on(t, db, s.receipts, sending(t, s), archiving)
	for _, limits := range []Limits{{}, {DryRun: true}} {
		sum, err := r.RunOnce(t.Context(), limits)
		if err == nil || !strings.Contains(err.Error(), "reading the archive watermark of idempotency.keys") || sum.Outcome != task.Failed ||
			sum.Requests != 0 || sum.Scanned != 0 || sum.Sent != 0 {
			t.Errorf("%+v %v", sum, err)
		}
	}
	if n := count(t, db, `version = CASE status WHEN 'RETRY' THEN 1 ELSE 0 END`); n != 5 || len(s.seen()) != 0 {
		t.Errorf("%d calls are as they were, %d were sent", n, len(s.seen()))
	}
	var outcome string
	if err := db.Get(&outcome, `SELECT outcome || ' ' || (error ~ 'watermark') || ' ' || (policy IS NULL) FROM reconciler.runs`); err != nil || outcome != "failed true true" {
		t.Errorf("the run is on record as %q, %v", outcome, err)
	}
}

// The table of watermarks goes away while the pass works: what it has offered is not sent on an old watermark.
func TestAPassThatCannotReadTheWatermarkAgainSendsNothing(t *testing.T) {
	t.Parallel()
	db, s := testdb.New(t), newShop(t)
	parkMany(t, db, 5)
	answer := s.receipts.before
	s.receipts.before = func(w http.ResponseWriter, bizIDs []string) bool {
		db.MustExec(`DROP TABLE IF EXISTS reconciler.archive_watermarks`)
		return answer(w, bizIDs)
	}
	sum, err := on(t, db, s.receipts, sending(t, s), archiving).RunOnce(t.Context(), Limits{})
	if err == nil || sum.Retry != 5 || sum.Sent != 0 || len(s.seen()) != 0 {
		t.Errorf("%+v %v", sum, err)
	}
}

func TestADryRunGoesByTheWatermarkAndWritesNothing(t *testing.T) {
	t.Parallel()
	db, d := open(t)
	parkMany(t, db, 2)
	db.MustExec(`UPDATE reconciler.pending_confirmations SET status = 'RETRY', retry_before = now() + interval '1 hour' WHERE call_id = 'C0'`)
	for i := range 2 {
		d.say("", fmt.Sprint("B", i), "NOT_FOUND")
	}
	raise(t, db, `now()`)
	sum, err := on(t, db, d, archiving).RunOnce(t.Context(), Limits{DryRun: true})
	if err != nil || sum.Manual != 2 || count(t, db, `version = CASE status WHEN 'RETRY' THEN 1 ELSE 0 END`) != 2 {
		t.Errorf("%+v %v", sum, err)
	}
}

func TestAToolWithoutATableOrWithAnotherIsUntouchedByTheWatermark(t *testing.T) {
	t.Parallel()
	for name, table := range map[string]string{"none": "", "another": "other.keys"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, s := testdb.New(t), newShop(t)
			db.MustExec(`INSERT INTO reconciler.pending_confirmations (call_id, biz_id, tool, operation, issued_at, last_sent_at, status, retry_before)
				VALUES ('theirs', 'B', 'payment.refund', 'refund', now() - interval '1 hour', now() - interval '1 hour', 'RETRY', now() + interval '1 day')`)
			parkMany(t, db, 3)
			offerYesterday(db)
			db.MustExec(`UPDATE reconciler.pending_confirmations SET version = 7 WHERE call_id = 'theirs'`)
			raise(t, db, `now()`)
			sum := runPass(t, on(t, db, s.receipts, sending(t, s), func(c *Config) { c.IdempotencyTable = table }))
			if sum.Sent != 3 || sum.Success != 3 || sum.Manual != 0 {
				t.Errorf("%+v", sum)
			}
			// And a pass over the tool that has it leaves the calls of others alone.
			parkOne(t, db, "C9", "B9")
			if sum := runPass(t, on(t, db, s.receipts, sending(t, s), archiving)); sum.Manual != 1 {
				t.Errorf("%+v", sum)
			}
			if n := count(t, db, `call_id = 'theirs' AND status = 'RETRY' AND version = 7 AND retry_before > now()`); n != 1 {
				t.Error("a call of another tool was touched")
			}
		})
	}
}

func TestAnAnswerToASendIsJudgedByTheRulesOfThePass(t *testing.T) {
	t.Parallel()
	db, s := testdb.New(t), newShop(t)
	parkMany(t, db, 1)
	s.answer = func(w http.ResponseWriter, c sent) bool {
		raise(t, db, `clock_timestamp()`)
		fmt.Fprintf(w, `{"callId":%q,"bizId":%q,"operation":"charge","status":"FAILED","attempt":%d}`, c.CallID, c.BizID, c.Attempt)
		return false
	}
	r := on(t, db, s.receipts, sending(t, s), archiving, func(c *Config) { c.Policy.RetryFailed = true })
	if sum := runPass(t, r); sum.Retry != 2 || len(s.seen()) != 1 {
		t.Errorf("%+v, %d sent", sum, len(s.seen()))
	}
	s.receipts.before = nil
	s.receipts.say("C0", "B0", string(receipt.StatusFailed), `"attempt":2`)
	if sum := runPass(t, r); sum.Failed != 1 || len(s.seen()) != 1 {
		t.Errorf("%+v, %d sent", sum, len(s.seen()))
	}
}
