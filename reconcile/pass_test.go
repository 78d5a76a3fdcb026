package reconcile

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/callreceipt/reconciler/internal/task"
	"github.com/callreceipt/reconciler/internal/testdb"
	"github.com/callreceipt/reconciler/pending"
)

func TestAPassGivesEveryCallTheVerdictOfTheTable(t *testing.T) {
	t.Parallel()
	db, d := open(t)
	parkMany(t, db, 60)
	for i := range 60 {
		c, b := fmt.Sprint("C", i), fmt.Sprint("B", i)
		switch i / 10 {
		case 0:
			d.say(c, b, "SUCCESS", `"result":{"ref":"x"}`, `"processedAt":"2026-01-01T10:00:00+05:30"`)
		case 1:
			d.say(c, b, "FAILED")
		case 2:
			d.say(c, b, "PROCESSING")
		case 3:
			d.say("", b, "NOT_FOUND")
		case 4: // not mentioned
		case 5:
			d.say("other-"+c, b, "SUCCESS", `"operation":"charge"`)
		}
	}
	r := on(t, db, d)
	sum := runPass(t, r)
	want := Summary{
		Tool: tool, Outcome: task.Partial, Scanned: 60, Success: 20, Failed: 10, Retry: 10, Waiting: 10, Unanswered: 10,
		Requests: 6, DurationSeconds: sum.DurationSeconds,
	}
	if sum != want {
		t.Errorf("got  %+v\nwant %+v", sum, want)
	}
	for callID, want := range map[string]row{
		"C0":  {Status: "SUCCESS", Reason: "receipt_success", Checks: 1, Attempt: 1, Events: 1},
		"C10": {Status: "FAILED", Reason: "receipt_failed", Checks: 1, Attempt: 1, Events: 1},
		"C20": {Status: "PENDING", Reason: "processing", Checks: 1, Attempt: 1},
		"C30": {Status: "RETRY", Reason: "not_found", Checks: 1, Attempt: 1, NotFound: 1, Events: 1},
		"C40": {Status: "PENDING", Reason: "unanswered", LastError: "not_mentioned", Unanswered: 1, Attempt: 1},
		"C50": {Status: "SUCCESS", Reason: "settled_by_other_call", Checks: 1, Attempt: 1, Events: 2},
	} {
		got := look(t, db, callID)
		got.LastError, _, _ = strings.Cut(got.LastError, ":")
		if got != want {
			t.Errorf("%s: got %+v, want %+v", callID, got, want)
		}
	}
	if n := count(t, db, `status IN ('SUCCESS', 'FAILED') AND (receipt->>'status' <> status OR resolved_at IS NULL OR resolved_by <> 'reconciler')`); n > 0 {
		t.Errorf("%d verdicts do not stand on their receipt", n)
	}
	if n := count(t, db, `call_id = 'C0' AND processed_at = '2026-01-01T04:30:00Z'`); n != 1 {
		t.Error("processedAt is not the receipt's instant")
	}

	again := runPass(t, r)
	if again.Scanned != 0 || again.Requests != 0 || again.Outcome != task.Success {
		t.Errorf("a second pass asked about what is not due: %+v", again)
	}
}

func TestARowInsertedByPlainSQLIsFoundInTheNextPass(t *testing.T) { // killbill#353
	t.Parallel()
	db, d := open(t)
	r := on(t, db, d)
	runPass(t, r)
	parkOne(t, db, "C1", "B1")
	d.say("C1", "B1", "SUCCESS")
	if sum := runPass(t, r); sum.Success != 1 {
		t.Errorf("%+v", sum)
	}
}

func TestOneAnswerServesEveryDueCallOfABizIdWhereverItStands(t *testing.T) {
	t.Parallel()
	db, d := open(t)
	// 3,000 calls of 1,000 bizIds, three each, a thousand rows apart: no page holds two of one bizId.
	db.MustExec(`INSERT INTO reconciler.pending_confirmations (call_id, biz_id, tool, operation, next_check_at)
		SELECT 'C' || n, 'B' || n % 1000, 'payment.charge', 'charge', now() - (3000 - n) * interval '1 second' FROM generate_series(0, 2999) n`)
	for i := range 3000 {
		d.say(fmt.Sprint("C", i), fmt.Sprint("B", i%1000), "SUCCESS")
	}
	sum := runPass(t, on(t, db, d, func(c *Config) { c.BatchSize = 300 }))
	if sum.Success != 3000 || sum.Requests != 4 || sum.LostRaces != 0 {
		t.Errorf("%d settled with %d requests, want 3000 with ceil(1000/300) = 4: %+v", sum.Success, sum.Requests, sum)
	}
	for id, n := range d.asked {
		if n != 1 {
			t.Fatalf("%s was asked for %d times", id, n)
		}
	}
}

func TestOneBizIdMayOwnTenThousandCalls(t *testing.T) {
	if testing.Short() {
		t.Skip("under the race detector it takes the better part of a minute; the plain run has it")
	}
	t.Parallel()
	db, d := open(t)
	db.MustExec(`INSERT INTO reconciler.pending_confirmations (call_id, biz_id, tool, operation) SELECT 'C' || n, 'B', 'payment.charge', 'charge' FROM generate_series(0, 9999) n`)
	parkOne(t, db, "last", "B1")
	for i := range 10_000 {
		d.say(fmt.Sprint("C", i), "B", "SUCCESS")
	}
	d.say("last", "B1", "SUCCESS")
	if sum := runPass(t, on(t, db, d)); sum.Success != 10_001 || sum.Requests > 10_000/maxBatchCalls+1 {
		t.Errorf("%+v", sum)
	}
}

func TestThreeReplicasAskForEachBizIdOnce(t *testing.T) { // seata#1841
	t.Parallel()
	db, d := open(t)
	parkMany(t, db, 1000)
	for i := range 1000 {
		d.say(fmt.Sprint("C", i), fmt.Sprint("B", i), "SUCCESS")
	}
	sums := make(chan Summary)
	for i := range 3 {
		r := on(t, db, d, func(c *Config) { c.Holder = fmt.Sprint("replica ", i) })
		go func() {
			sum, err := r.RunOnce(context.Background(), Limits{})
			var held *task.HeldError
			if err != nil && !errors.As(err, &held) {
				t.Error(err)
			}
			sums <- sum
		}()
	}
	settled := 0
	for range 3 {
		sum := <-sums
		settled += sum.Success
		if sum.LostRaces > 0 {
			t.Errorf("%+v", sum)
		}
	}
	if settled != 1000 {
		t.Errorf("%d settled", settled)
	}
	for id, n := range d.asked {
		if n != 1 {
			t.Fatalf("%s was asked for %d times", id, n)
		}
	}
}

func TestTheRowLimitAndTheDryRun(t *testing.T) {
	t.Parallel()
	db, d := open(t)
	parkMany(t, db, 50)
	for i := range 50 {
		d.say(fmt.Sprint("C", i), fmt.Sprint("B", i), "SUCCESS")
	}
	r := on(t, db, d)
	sum, err := r.RunOnce(context.Background(), Limits{DryRun: true})
	if err != nil || sum.Success != 50 || sum.Requests != 5 {
		t.Errorf("dry: %v, %+v", err, sum)
	}
	var written int
	if err := db.Get(&written, `SELECT (SELECT count(*) FROM reconciler.pending_confirmations WHERE version > 0) +
		(SELECT count(*) FROM reconciler.call_events) + (SELECT count(*) FROM reconciler.leases) + (SELECT count(*) FROM reconciler.runs)`); err != nil || written != 0 {
		t.Errorf("a dry run wrote %d rows, %v", written, err)
	}
	if sum, err := r.RunOnce(context.Background(), Limits{Rows: 23}); err != nil || sum.Success != 23 {
		t.Errorf("limited: %v, %+v", err, sum)
	}
	if n := count(t, db, `version > 0`); n != 23 {
		t.Errorf("%d rows were written", n)
	}
}

func TestAStopFinishesTheBatchInHandAndBeginsNoOther(t *testing.T) {
	t.Parallel()
	db, d := open(t)
	parkMany(t, db, 500)
	for i := range 500 {
		d.say(fmt.Sprint("C", i), fmt.Sprint("B", i), "SUCCESS")
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	stopped := errors.New("stopped by the test")
	d.before = func(http.ResponseWriter, []string) bool {
		if d.requests == 5 {
			cancel(stopped)
		}
		return false
	}
	sum, err := on(t, db, d, func(c *Config) { c.Concurrency = 1 }).RunOnce(ctx, Limits{})
	if !errors.Is(err, stopped) || sum.Success != 50 || sum.Outcome != task.Partial {
		t.Errorf("%v, %+v", err, sum)
	}
	if n := count(t, db, `status = 'SUCCESS'`); n != 50 {
		t.Errorf("%d settled, %d reported", n, sum.Success)
	}
	var free bool
	if err := db.Get(&free, `SELECT expires_at <= clock_timestamp() FROM reconciler.leases`); err != nil || !free {
		t.Errorf("the lease was not given back: %v", err)
	}
}

func TestAPureQueryIsOfferedAgainWithoutALook(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	parkMany(t, db, 25)
	sum := runPass(t, on(t, db, nil, func(c *Config) { c.Policy.NeedsReceipt = false }))
	if sum.Retry != 25 || sum.Requests != 0 || sum.Outcome != task.Success {
		t.Errorf("%+v", sum)
	}
	if got := look(t, db, "C0"); got.Checks != 0 || got.Status != "RETRY" {
		t.Errorf("%+v", got)
	}
}

func TestEveryVerdictCanBeReplayedFromTheLedger(t *testing.T) { // I10
	t.Parallel()
	db, d := open(t)
	parkMany(t, db, 9)
	d.say("C0", "B0", "SUCCESS", `"attempt":1`)
	d.say("C1", "B1", "FAILED")
	d.say("", "B2", "NOT_FOUND")
	d.say("C9", "B3", "SUCCESS", `"operation":"charge"`)
	d.say("C4", "B4", "SUCCESS")
	d.say("C4", "B4", "FAILED")
	d.say("C5", "B5", "SUCCESS")
	d.say("C55", "B5", "FAILED", `"operation":"charge"`)
	d.say("C6", "B6", "PROCESSING")
	d.say("C77", "B7", "FAILED", `"operation":"refund"`)
	d.say("C8", "B8", "SUCCESS")
	db.MustExec(`UPDATE reconciler.pending_confirmations SET attempt = 3 WHERE call_id = 'C7'`)
	db.MustExec(`UPDATE reconciler.pending_confirmations SET status = 'MANUAL', reason = 'not_retryable' WHERE call_id = 'C8'`)
	db.MustExec(`UPDATE reconciler.pending_confirmations SET created_at = now() - interval '2 days' WHERE call_id = 'C6'`)
	r := on(t, db, d, func(c *Config) { c.Policy.ManualAfter = 24 * time.Hour })
	runPass(t, r)
	var verdicts []struct {
		CallID  string `db:"call_id"`
		Attempt int
		Reason  string
		Detail  []byte
		Receipt []byte
	}
	if err := db.Select(&verdicts, `SELECT e.call_id, e.attempt, e.reason, e.detail, p.receipt FROM reconciler.call_events e
		JOIN reconciler.pending_confirmations p USING (call_id) WHERE e.kind = 'verdict'`); err != nil {
		t.Fatal(err)
	}
	if len(verdicts) != 9 {
		t.Errorf("%d verdicts, want one for each call", len(verdicts))
	}
	store := pending.NewStore(db)
	for _, v := range verdicts {
		calls, err := store.Get(context.Background(), []string{v.CallID})
		if err != nil {
			t.Fatal(err)
		}
		got, err := Replay(calls[0], v.Attempt, v.Receipt, v.Detail, r.cfg.Policy)
		if err != nil || string(got.Reason) != v.Reason {
			t.Errorf("%s: replayed as %+v, %v; the ledger says %s: %s", v.CallID, got, err, v.Reason, v.Detail)
		}
		var s Seen
		if err := json.Unmarshal(v.Detail, &s); err != nil || s.Policy != r.cfg.Policy.Digest() {
			t.Errorf("%s: %v %s", v.CallID, err, v.Detail)
		}
	}
	var policies int
	if err := db.Get(&policies, `SELECT count(*) FROM reconciler.runs WHERE policy->>'max_attempts' = '3'`); err != nil || policies != 1 {
		t.Errorf("the policy is not on record: %d, %v", policies, err)
	}
}
