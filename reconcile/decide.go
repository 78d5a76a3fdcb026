package reconcile

import (
	"time"

	"github.com/callreceipt/reconciler/pending"
	"github.com/callreceipt/reconciler/receipt"
)

// Action is what happens to a call. The zero value leaves it alone.
type Action int

// The actions.
const (
	Leave    Action = iota // a final call: nothing is written to it
	Wait                   // the status stays, the next look moves
	Succeed                // SUCCESS
	Fail                   // FAILED
	Retry                  // RETRY with the original callId
	Escalate               // MANUAL
	Reopen                 // RETRY back to PENDING: something turned up before anybody sent it again
)

// Anomaly is something that should not be, noticed on the way to a verdict.
type Anomaly int

// The anomalies that a decision can notice.
const (
	NoAnomaly     Anomaly = iota
	Contradiction         // a receipt says otherwise than a final status
	CallIDChanged         // the intent was executed under another callId
)

// Verdict is the outcome of Decide.
type Verdict struct {
	Action  Action
	Reason  Reason
	Anomaly Anomaly
	// Proof is the receipt that decided; with Succeed and Fail always, with an Anomaly the receipt that shows it.
	Proof *receipt.Receipt
	// NotFound is how many settled NOT_FOUND looks in a row there are now, this one included.
	NotFound int
}

// Decide is the whole rule book: one call, what one look learned about its bizId, the tool's policy and one
// instant of the database clock give one verdict. It is total and has no memory, so that the daemon, the command
// line and a replay years later agree. The numbers are the rules of docs/decision-table.md.
func Decide(call pending.Call, seen receipt.Evidence, p Policy, now time.Time) Verdict {
	of := sortReceipts(call, seen)
	if call.Status.Terminal() {
		return final(call, of) // 1
	}
	v := decideOpen(call, seen, of, p, now)
	switch {
	case call.Status == pending.StatusManual && !settlesManual(call, v):
		return Verdict{Action: Wait, Reason: v.Reason, NotFound: v.NotFound}
	case call.Status == pending.StatusRetry && v.Action == Retry:
		v.Action = Wait // it is offered already
	case call.Status == pending.StatusRetry && v.Action == Wait && v.Reason != ReasonUnanswered:
		v.Action = Reopen
	}
	return v
}

func decideOpen(call pending.Call, seen receipt.Evidence, of sorted, p Policy, now time.Time) Verdict {
	old := now.Sub(issued(call)) >= p.ManualAfter
	switch {
	case !p.NeedsReceipt && seen.Presence == receipt.Unknown:
		return resend(call, p, now, ReasonNotFound, 0) // a pure query skips to 10
	case !mentions(call, seen):
		return Verdict{Action: Wait, Reason: ReasonUnanswered, NotFound: call.NotFoundCount} // 12
	case of.own.Contradictory:
		return Verdict{Action: Escalate, Reason: ReasonConflictingReceipts} // 2
	case of.own.Success != nil:
		return Verdict{Action: Succeed, Reason: ReasonReceiptSuccess, Proof: of.own.Success} // 3
	case of.own.Failed != nil:
		return failed(call, of, p, now) // 4
	case of.own.StaleFailed:
		return waitOrEscalate(old, ReasonStaleFailure, ReasonStaleFailure) // 4
	case of.own.Processing:
		return waitOrEscalate(old, ReasonProcessing, ReasonProcessingTooLong) // 5
	case of.otherSuccess != nil:
		return Verdict{Action: Succeed, Reason: ReasonSettledByOtherCall, Anomaly: CallIDChanged, Proof: of.otherSuccess} // 6
	case of.otherProcessing:
		return waitOrEscalate(old, ReasonOtherCallProcessing, ReasonProcessingTooLong) // 7
	case of.unmatched:
		return waitOrEscalate(old, ReasonUnmatchedReceipts, ReasonUnmatchedReceipts) // 8
	}
	return notFound(call, p, now, old) // 9, 10, 11
}

// final never changes a call; it only notices a receipt that says otherwise.
func final(call pending.Call, of sorted) Verdict {
	against := of.own.Failed
	if call.Status == pending.StatusFailed {
		against = of.own.Success
	}
	if against == nil {
		return Verdict{}
	}
	return Verdict{Anomaly: Contradiction, Proof: against}
}

// settlesManual: a call that waits for a person is settled by a receipt of its own callId and by nothing else, and after
// conflicting receipts not even by that.
func settlesManual(call pending.Call, v Verdict) bool {
	own := v.Reason == ReasonReceiptSuccess || v.Reason == ReasonReceiptFailed
	return own && Reason(call.Reason) != ReasonConflictingReceipts
}

func failed(call pending.Call, of sorted, p Policy, now time.Time) Verdict {
	if p.RetryFailed && call.Status != pending.StatusManual {
		if of.own.Failed.Attempt == 0 && call.Attempt > 1 {
			// The receipt does not say which attempt failed, and the latest may still be running.
			return waitOrEscalate(now.Sub(issued(call)) >= p.ManualAfter, ReasonStaleFailure, ReasonStaleFailure)
		}
		if v := resend(call, p, now, ReasonFailedRetryable, 0); v.Action == Retry {
			return v
		}
	}
	return Verdict{Action: Fail, Reason: ReasonReceiptFailed, Proof: of.own.Failed}
}

func waitOrEscalate(old bool, wait, escalate Reason) Verdict {
	if old {
		return Verdict{Action: Escalate, Reason: escalate}
	}
	return Verdict{Action: Wait, Reason: wait}
}

func notFound(call pending.Call, p Policy, now time.Time, old bool) Verdict {
	if now.Before(call.LastSentAt.Add(p.Settle)) {
		if old && now.Before(call.LastSentAt) {
			return Verdict{Action: Escalate, Reason: ReasonSentInFuture}
		}
		return Verdict{Action: Wait, Reason: ReasonNotFoundUnsettled} // 9: it may still be on its way
	}
	looks := call.NotFoundCount + 1
	if looks < p.NotFoundConfirmations {
		return Verdict{Action: Wait, Reason: ReasonNotFoundUnsettled, NotFound: looks} // 9: said too few times
	}
	return resend(call, p, now, ReasonNotFound, looks)
}

// resend allows another send of the original callId (10), or says what forbids it (11).
func resend(call pending.Call, p Policy, now time.Time, why Reason, looks int) Verdict {
	forbidden := func(r Reason) Verdict { return Verdict{Action: Escalate, Reason: r, NotFound: looks} }
	switch {
	case !p.Retryable || !p.Idempotent:
		return forbidden(ReasonNotRetryable)
	case call.Attempt >= p.MaxAttempts:
		return forbidden(ReasonAttemptsExhausted)
	case !now.Before(RetryBefore(call, p)) || issued(call).Before(p.Watermark):
		return forbidden(ReasonDedupWindowPassed)
	case p.NeedsRequest && !call.HasRequest:
		return forbidden(ReasonRequestMissing)
	}
	return Verdict{Action: Retry, Reason: why, NotFound: looks}
}

// RetryBefore is the instant from which the downstream may have forgotten the key.
func RetryBefore(call pending.Call, p Policy) time.Time { return issued(call).Add(p.DedupWindow) }

// issued is when the call was first issued. A caller whose clock is ahead cannot have issued the call after the database
// saw it parked, and must not gain a longer window by it.
func issued(call pending.Call) time.Time {
	if call.CreatedAt.Before(call.IssuedAt) {
		return call.CreatedAt
	}
	return call.IssuedAt
}

// NextCheck is when to look at the call again after this verdict.
func NextCheck(call pending.Call, v Verdict, p Policy, now time.Time) time.Time {
	manual := v.Action == Escalate || call.Status == pending.StatusManual
	if manual {
		return now.Add(p.Backoff.Max - p.Backoff.Max/4 + p.Backoff.Delay(62, call.CallID)/4) // slowly
	}
	looks := call.Checks
	if v.Reason == ReasonUnanswered {
		looks = call.Unanswered
	}
	next := now.Add(p.Backoff.Delay(looks, call.CallID))
	if settled := call.LastSentAt.Add(p.Settle); v.Reason == ReasonNotFoundUnsettled && next.Before(settled) {
		next = settled // nothing can change before
	}
	if latest := now.Add(p.Backoff.Max); next.After(latest) {
		next = latest
	}
	return next
}
