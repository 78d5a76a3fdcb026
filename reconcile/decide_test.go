package reconcile

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/callreceipt/reconciler/pending"
	"github.com/callreceipt/reconciler/receipt"
)

// noon is the instant of every decision in these tests.
var noon = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)

func policy(edit ...func(*Policy)) Policy {
	p := Policy{
		Retryable: true, Idempotent: true, NeedsReceipt: true,
		Settle: 30 * time.Second, NotFoundConfirmations: 2, DedupWindow: 168 * time.Hour, MaxAttempts: 3,
		ManualAfter: 24 * time.Hour, Backoff: Backoff{Initial: 30 * time.Second, Max: time.Hour},
	}
	for _, e := range edit {
		e(&p)
	}
	return p
}

// parked is a call sent ten minutes ago and found missing once already.
func parked(edit ...func(*pending.Call)) pending.Call {
	sent := noon.Add(-10 * time.Minute)
	c := pending.Call{
		CallID: "C1", BizID: "B1", Tool: "payment.charge", Operation: "charge", IdempotencyKey: "B1:charge",
		Status: pending.StatusPending, Attempt: 1, IssuedAt: sent, LastSentAt: sent, CreatedAt: sent.Add(time.Second),
		HasRequest: true, Checks: 1, NotFoundCount: 1,
	}
	for _, e := range edit {
		e(&c)
	}
	return c
}

func rec(callID string, status receipt.Status, edit ...func(*receipt.Receipt)) receipt.Receipt {
	r := receipt.Receipt{CallID: callID, BizID: "B1", Operation: "charge", IdempotencyKey: "B1:charge", Status: status}
	for _, e := range edit {
		e(&r)
	}
	r.Raw, _ = json.Marshal(map[string]any{
		"callId": r.CallID, "bizId": r.BizID, "operation": r.Operation,
		"idempotencyKey": r.IdempotencyKey, "status": r.Status, "attempt": r.Attempt,
	})
	return r
}

func attempt(n int) func(*receipt.Receipt) { return func(r *receipt.Receipt) { r.Attempt = n } }

func of(operation, key string) func(*receipt.Receipt) {
	return func(r *receipt.Receipt) { r.Operation, r.IdempotencyKey = operation, key }
}

func listed(rs ...receipt.Receipt) receipt.Evidence {
	return receipt.Evidence{Presence: receipt.Present, Receipts: rs}
}

var (
	absent     = receipt.Evidence{Presence: receipt.Absent}
	unanswered = receipt.Evidence{Err: &receipt.Error{Kind: receipt.KindTimeout}}
)

func TestDecide(t *testing.T) {
	t.Parallel()
	old := func(c *pending.Call) { c.IssuedAt = noon.Add(-25 * time.Hour) }
	status := func(s pending.Status, reason Reason) func(*pending.Call) {
		return func(c *pending.Call) { c.Status, c.Reason = s, string(reason) }
	}
	second := func(c *pending.Call) { c.Attempt = 2 }
	retryFailed := func(p *Policy) { p.RetryFailed = true }
	ownKey := func(c *pending.Call) { c.IdempotencyKey = "part-1" }

	type want struct {
		action  Action
		reason  Reason
		anomaly Anomaly
	}
	for _, tt := range []struct {
		rule string // the number of the rule, and the sentence that the case stands for
		call pending.Call
		seen receipt.Evidence
		p    Policy
		want want
	}{
		{
			"1 a SUCCESS is left alone by the same receipt", parked(status(pending.StatusSuccess, "")),
			listed(rec("C1", receipt.StatusSuccess)), policy(),
			want{},
		},
		{
			"1 a SUCCESS that the downstream now calls FAILED stays, and is a contradiction", parked(status(pending.StatusSuccess, "")),
			listed(rec("C1", receipt.StatusFailed)), policy(),
			want{anomaly: Contradiction},
		},
		{
			"1 a FAILED that the downstream now calls SUCCESS stays, and is a contradiction", parked(status(pending.StatusFailed, "")),
			listed(rec("C1", receipt.StatusSuccess)), policy(),
			want{anomaly: Contradiction},
		},
		{"1 a final call is not moved by silence", parked(status(pending.StatusFailed, "")), unanswered, policy(), want{}},
		{
			"1 a failed first attempt does not contradict the success of the second", parked(status(pending.StatusSuccess, ""), second),
			listed(rec("C1", receipt.StatusFailed, attempt(1)), rec("C1", receipt.StatusSuccess, attempt(2))), policy(),
			want{},
		},

		{
			"2 SUCCESS and FAILED of one callId go to a person", parked(),
			listed(rec("C1", receipt.StatusSuccess), rec("C1", receipt.StatusFailed)), policy(),
			want{Escalate, ReasonConflictingReceipts, NoAnomaly},
		},
		{
			"2 FAILED after SUCCESS is a conflict too", parked(second),
			listed(rec("C1", receipt.StatusSuccess, attempt(1)), rec("C1", receipt.StatusFailed, attempt(2))), policy(),
			want{Escalate, ReasonConflictingReceipts, NoAnomaly},
		},
		{
			"2 a failed attempt that a later one made good is no conflict", parked(second),
			listed(rec("C1", receipt.StatusFailed, attempt(1)), rec("C1", receipt.StatusSuccess, attempt(2))), policy(),
			want{Succeed, ReasonReceiptSuccess, NoAnomaly},
		},

		{
			"3 a SUCCESS receipt settles", parked(), listed(rec("C1", receipt.StatusSuccess)), policy(),
			want{Succeed, ReasonReceiptSuccess, NoAnomaly},
		},
		{
			"3 a SUCCESS receipt needs neither operation nor key", parked(), listed(rec("C1", receipt.StatusSuccess, of("", ""))), policy(),
			want{Succeed, ReasonReceiptSuccess, NoAnomaly},
		},
		{
			"3 SUCCESS outweighs PROCESSING of the same call", parked(),
			listed(rec("C1", receipt.StatusProcessing), rec("C1", receipt.StatusSuccess)), policy(),
			want{Succeed, ReasonReceiptSuccess, NoAnomaly},
		},

		{
			"4 a FAILED receipt settles", parked(), listed(rec("C1", receipt.StatusFailed)), policy(),
			want{Fail, ReasonReceiptFailed, NoAnomaly},
		},
		{
			"4 FAILED is tried again where the tool says so", parked(), listed(rec("C1", receipt.StatusFailed)), policy(retryFailed),
			want{Retry, ReasonFailedRetryable, NoAnomaly},
		},
		{
			"4 FAILED with no attempt left is FAILED", parked(func(c *pending.Call) { c.Attempt = 3 }),
			listed(rec("C1", receipt.StatusFailed, attempt(3))), policy(retryFailed),
			want{Fail, ReasonReceiptFailed, NoAnomaly},
		},
		{
			"4 FAILED past the window is FAILED", parked(func(c *pending.Call) { c.IssuedAt = noon.Add(-200 * time.Hour) }),
			listed(rec("C1", receipt.StatusFailed)), policy(retryFailed),
			want{Fail, ReasonReceiptFailed, NoAnomaly},
		},
		{
			"4 FAILED of an earlier attempt is stale", parked(second), listed(rec("C1", receipt.StatusFailed, attempt(1))), policy(),
			want{Wait, ReasonStaleFailure, NoAnomaly},
		},
		{
			"4 a stale failure goes to a person in the end", parked(second, old), listed(rec("C1", receipt.StatusFailed, attempt(1))), policy(),
			want{Escalate, ReasonStaleFailure, NoAnomaly},
		},
		{
			"4 after a retry of a failure, a FAILED that names no attempt may be the old one", parked(second),
			listed(rec("C1", receipt.StatusFailed)), policy(retryFailed),
			want{Wait, ReasonStaleFailure, NoAnomaly},
		},

		{"5 PROCESSING waits", parked(), listed(rec("C1", receipt.StatusProcessing)), policy(), want{Wait, ReasonProcessing, NoAnomaly}},
		{
			"5 PROCESSING for a day goes to a person", parked(old), listed(rec("C1", receipt.StatusProcessing)), policy(),
			want{Escalate, ReasonProcessingTooLong, NoAnomaly},
		},

		{
			"6 the intent succeeded under a changed callId", parked(), listed(rec("C9", receipt.StatusSuccess)), policy(),
			want{Succeed, ReasonSettledByOtherCall, CallIDChanged},
		},
		{
			"6 the operation alone names the intent where the key is the default", parked(),
			listed(rec("C9", receipt.StatusSuccess, of("charge", ""))), policy(),
			want{Succeed, ReasonSettledByOtherCall, CallIDChanged},
		},
		{
			"6 the key alone names the intent", parked(), listed(rec("C9", receipt.StatusSuccess, of("", "B1:charge"))), policy(),
			want{Succeed, ReasonSettledByOtherCall, CallIDChanged},
		},
		{
			"6 another key of the caller's own is another intent, whatever the operation", parked(ownKey),
			listed(rec("C9", receipt.StatusSuccess, of("charge", "part-2"))), policy(),
			want{Retry, ReasonNotFound, NoAnomaly},
		},
		{
			"6 the success of another call does not undo the failure of this one", parked(),
			listed(rec("C1", receipt.StatusFailed), rec("C9", receipt.StatusSuccess)), policy(),
			want{Fail, ReasonReceiptFailed, NoAnomaly},
		},

		{
			"7 another call of the intent is in progress", parked(), listed(rec("C9", receipt.StatusProcessing)), policy(),
			want{Wait, ReasonOtherCallProcessing, NoAnomaly},
		},
		{
			"7 not for ever", parked(old), listed(rec("C9", receipt.StatusProcessing)), policy(),
			want{Escalate, ReasonProcessingTooLong, NoAnomaly},
		},
		{
			"7 another call of the intent that failed executed nothing", parked(), listed(rec("C9", receipt.StatusFailed)), policy(),
			want{Retry, ReasonNotFound, NoAnomaly},
		},

		{
			"8 receipts that do not say what they are for", parked(), listed(rec("C9", receipt.StatusSuccess, of("", ""))), policy(),
			want{Wait, ReasonUnmatchedReceipts, NoAnomaly},
		},
		{
			"8 go to a person in the end", parked(old), listed(rec("C9", receipt.StatusFailed, of("", ""))), policy(),
			want{Escalate, ReasonUnmatchedReceipts, NoAnomaly},
		},
		{
			"8 an operation does not say which of the caller's own keys it was", parked(ownKey),
			listed(rec("C9", receipt.StatusSuccess, of("charge", ""))), policy(),
			want{Wait, ReasonUnmatchedReceipts, NoAnomaly},
		},

		{
			"9 a call sent just now may still be on its way", parked(func(c *pending.Call) { c.LastSentAt = noon.Add(-29 * time.Second) }),
			absent, policy(),
			want{Wait, ReasonNotFoundUnsettled, NoAnomaly},
		},
		{
			"9 one NOT_FOUND is not enough", parked(func(c *pending.Call) { c.NotFoundCount = 0 }), absent, policy(),
			want{Wait, ReasonNotFoundUnsettled, NoAnomaly},
		},
		{
			"9 a send that lies in the future does not come to pass", parked(old, func(c *pending.Call) { c.LastSentAt = noon.Add(time.Hour) }),
			absent, policy(),
			want{Escalate, ReasonSentInFuture, NoAnomaly},
		},

		{"10 not found, settled, confirmed: again with the original callId", parked(), absent, policy(), want{Retry, ReasonNotFound, NoAnomaly}},
		{
			"10 receipts of other intents only are a not found", parked(), listed(rec("C9", receipt.StatusSuccess, of("refund", "B1:refund"))),
			policy(),
			want{Retry, ReasonNotFound, NoAnomaly},
		},
		{
			"10 NOT_FOUND of this callId beside the receipt of another intent", parked(),
			listed(rec("C1", receipt.StatusNotFound), rec("C9", receipt.StatusSuccess, of("refund", ""))), policy(),
			want{Retry, ReasonNotFound, NoAnomaly},
		},
		{
			"10 a pure query is asked again without a look", parked(),
			receipt.Evidence{},
			policy(func(p *Policy) { p.NeedsReceipt = false }),
			want{Retry, ReasonNotFound, NoAnomaly},
		},
		{
			"10 and the receipt that it is answered with settles it", parked(),
			listed(rec("C1", receipt.StatusSuccess)),
			policy(func(p *Policy) { p.NeedsReceipt = false }),
			want{Succeed, ReasonReceiptSuccess, NoAnomaly},
		},

		{
			"11 a tool that may not be sent again", parked(), absent, policy(func(p *Policy) { p.Retryable = false }),
			want{Escalate, ReasonNotRetryable, NoAnomaly},
		},
		{
			"11 a tool that does not deduplicate", parked(), absent, policy(func(p *Policy) { p.Idempotent = false }),
			want{Escalate, ReasonNotRetryable, NoAnomaly},
		},
		{
			"11 sent often enough is MANUAL and never FAILED", parked(func(c *pending.Call) { c.Attempt = 3 }), absent, policy(),
			want{Escalate, ReasonAttemptsExhausted, NoAnomaly},
		},
		{
			"11 the downstream may have forgotten the key", parked(func(c *pending.Call) { c.IssuedAt = noon.Add(-168 * time.Hour) }), absent, policy(),
			want{Escalate, ReasonDedupWindowPassed, NoAnomaly},
		},
		{"11 a clock that runs ahead does not widen the window", parked(func(c *pending.Call) {
			c.CreatedAt, c.IssuedAt = noon.Add(-169*time.Hour), noon.Add(time.Hour)
		}), absent, policy(), want{Escalate, ReasonDedupWindowPassed, NoAnomaly}},
		{
			"11 the key has been archived", parked(), absent, policy(func(p *Policy) { p.Watermark = noon.Add(-time.Minute) }),
			want{Escalate, ReasonDedupWindowPassed, NoAnomaly},
		},
		{
			"11 nothing is stored that could be sent", parked(func(c *pending.Call) { c.HasRequest = false }), absent,
			policy(func(p *Policy) { p.NeedsRequest = true }),
			want{Escalate, ReasonRequestMissing, NoAnomaly},
		},
		{
			"11 the orchestrator has its own request", parked(func(c *pending.Call) { c.HasRequest = false }), absent, policy(),
			want{Retry, ReasonNotFound, NoAnomaly},
		},

		{"12 silence waits", parked(), unanswered, policy(), want{Wait, ReasonUnanswered, NoAnomaly}},
		{
			"12 silence never escalates", parked(old, func(c *pending.Call) { c.Unanswered = 1000 }), unanswered, policy(),
			want{Wait, ReasonUnanswered, NoAnomaly},
		},
		{
			"12 NOT_FOUND of another callId says nothing of this one", parked(), listed(rec("C9", receipt.StatusNotFound)), policy(),
			want{Wait, ReasonUnanswered, NoAnomaly},
		},

		{
			"a MANUAL call is settled by its own late SUCCESS", parked(status(pending.StatusManual, ReasonAttemptsExhausted)),
			listed(rec("C1", receipt.StatusSuccess)), policy(),
			want{Succeed, ReasonReceiptSuccess, NoAnomaly},
		},
		{
			"a MANUAL call is settled by its own late FAILED", parked(status(pending.StatusManual, ReasonNotRetryable)),
			listed(rec("C1", receipt.StatusFailed)), policy(retryFailed),
			want{Fail, ReasonReceiptFailed, NoAnomaly},
		},
		{
			"a MANUAL call is not settled by another call", parked(status(pending.StatusManual, ReasonNotRetryable)),
			listed(rec("C9", receipt.StatusSuccess)), policy(),
			want{Wait, ReasonSettledByOtherCall, NoAnomaly},
		},
		{
			"a MANUAL call is not sent again by rule", parked(status(pending.StatusManual, ReasonNotRetryable)), absent, policy(),
			want{Wait, ReasonNotFound, NoAnomaly},
		},
		{
			"after conflicting receipts a person decides", parked(status(pending.StatusManual, ReasonConflictingReceipts)),
			listed(rec("C1", receipt.StatusSuccess)), policy(),
			want{Wait, ReasonReceiptSuccess, NoAnomaly},
		},

		{
			"an offered retry stays offered", parked(status(pending.StatusRetry, ReasonNotFound)), absent, policy(),
			want{Wait, ReasonNotFound, NoAnomaly},
		},
		{
			"an offered retry is settled by a late receipt", parked(status(pending.StatusRetry, ReasonNotFound)),
			listed(rec("C1", receipt.StatusSuccess)), policy(),
			want{Succeed, ReasonReceiptSuccess, NoAnomaly},
		},
		{
			"an offered retry is withdrawn when the call turns up", parked(status(pending.StatusRetry, ReasonNotFound)),
			listed(rec("C1", receipt.StatusProcessing)), policy(),
			want{Reopen, ReasonProcessing, NoAnomaly},
		},
		{"an offered retry that nobody took in time goes to a person", parked(status(pending.StatusRetry, ReasonNotFound), func(c *pending.Call) {
			c.IssuedAt = noon.Add(-169 * time.Hour)
		}), absent, policy(), want{Escalate, ReasonDedupWindowPassed, NoAnomaly}},
		{
			"an offered retry is not moved by silence", parked(status(pending.StatusRetry, ReasonNotFound)), unanswered, policy(),
			want{Wait, ReasonUnanswered, NoAnomaly},
		},
		{
			"an id in another case is another id", parked(), listed(rec("c1", receipt.StatusSuccess, of("refund", "B1:refund"))), policy(),
			want{Retry, ReasonNotFound, NoAnomaly},
		},
	} {
		t.Run(tt.rule, func(t *testing.T) {
			t.Parallel()
			v := Decide(tt.call, tt.seen, tt.p, noon)
			if got := (want{v.Action, v.Reason, v.Anomaly}); got != tt.want {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
		})
	}
}

func TestNotFoundLooksAreCountedOnlyOnceTheSendHasSettled(t *testing.T) {
	t.Parallel()
	call := parked(func(c *pending.Call) { c.NotFoundCount = 0 })
	three := policy(func(p *Policy) { p.NotFoundConfirmations = 3 })
	call.LastSentAt = noon.Add(-29 * time.Second)
	if v := Decide(call, absent, three, noon); v.NotFound != 0 {
		t.Errorf("a look before settle counts as %d", v.NotFound)
	}
	call.LastSentAt = noon.Add(-30 * time.Second)
	for n := 1; n <= 3; n++ {
		v := Decide(call, absent, three, noon)
		if v.NotFound != n {
			t.Fatalf("look %d counts as %d", n, v.NotFound)
		}
		if (v.Action == Retry) != (n == 3) {
			t.Fatalf("after look %d: %+v", n, v)
		}
		call.NotFoundCount = v.NotFound
	}
	if v := Decide(call, listed(rec("C1", receipt.StatusProcessing)), three, noon); v.NotFound != 0 {
		t.Error("PROCESSING does not start the count anew")
	}
	if v := Decide(call, unanswered, three, noon); v.NotFound != 3 {
		t.Error("silence changes the count")
	}
}

func TestAReceiptFromTheFutureIsNoEvidenceUntilItsTimeComes(t *testing.T) {
	t.Parallel()
	at := func(d time.Duration) receipt.Evidence {
		return listed(rec("C1", receipt.StatusSuccess, func(r *receipt.Receipt) { r.ProcessedAt = noon.Add(d) }))
	}
	if ev := Plausible(at(6*time.Minute), noon); ev.Presence != receipt.Unknown || ev.Err == nil {
		t.Errorf("six minutes ahead is taken: %+v", ev)
	}
	if diff := cmp.Diff(at(4*time.Minute), Plausible(at(4*time.Minute), noon)); diff != "" {
		t.Errorf("four minutes ahead is a clock that differs: %s", diff)
	}
	if ev := Plausible(at(6*time.Minute), noon.Add(2*time.Minute)); ev.Presence != receipt.Present {
		t.Error("the receipt does not become plausible with time")
	}
}

func TestBackoffDoublesUpToItsCapAndNeverOverflows(t *testing.T) {
	t.Parallel()
	b := Backoff{Initial: 30 * time.Second, Max: time.Hour}
	for n, full := range map[int]time.Duration{
		0: 30 * time.Second, 1: time.Minute, 2: 2 * time.Minute, 6: 32 * time.Minute, 7: time.Hour,
		61: time.Hour, 62: time.Hour, 63: time.Hour, 64: time.Hour, 1000: time.Hour, 1<<31 - 1: time.Hour,
	} {
		for id := range 200 {
			got := b.Delay(n, fmt.Sprint("C", id))
			if got > full || got < full*3/4 {
				t.Fatalf("wait %d of C%d is %s, want %s to %s", n, id, got, full*3/4, full)
			}
		}
	}
	years := Backoff{Initial: 1000 * time.Hour, Max: 290 * 365 * 24 * time.Hour}
	for n := range 70 {
		if got := years.Delay(n, "C"); got <= 0 || got > years.Max {
			t.Fatalf("wait %d is %s", n, got)
		}
	}
}

func TestTheNextLookIsNeverBeforeItCanMatterNorBeyondTheCap(t *testing.T) {
	t.Parallel()
	p := policy(func(p *Policy) { p.Settle = 20 * time.Minute })
	call := parked(func(c *pending.Call) { c.LastSentAt, c.Checks = noon.Add(-time.Minute), 0 })
	if got := NextCheck(call, Decide(call, absent, p, noon), p, noon); !got.Equal(noon.Add(19 * time.Minute)) {
		t.Errorf("looks again at %s although nothing can have settled before 19 minutes", got.Sub(noon))
	}
	call.LastSentAt = noon.Add(100 * 365 * 24 * time.Hour)
	if got := NextCheck(call, Decide(call, absent, p, noon), p, noon); got.After(noon.Add(p.Backoff.Max)) {
		t.Errorf("a send in the future hides the call for %s", got.Sub(noon))
	}
	manual := parked(func(c *pending.Call) { c.Status, c.Checks = pending.StatusManual, 0 })
	if got := NextCheck(manual, Decide(manual, absent, p, noon), p, noon).Sub(noon); got < 45*time.Minute || got > time.Hour {
		t.Errorf("a MANUAL call is looked at after %s", got)
	}
}
