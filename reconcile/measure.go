package reconcile

import (
	"net/http"

	"github.com/sony/gobreaker/v2"

	"github.com/callreceipt/reconciler/metrics"
	"github.com/callreceipt/reconciler/pending"
	"github.com/callreceipt/reconciler/receipt"
)

// MeasuredAs is what metrics can know of a tool before anything happens: the words that its counters may get.
func MeasuredAs(notify bool) metrics.ToolConfig {
	words := func(reasons ...Reason) (all []string) {
		for _, r := range reasons {
			all = append(all, string(r))
		}
		return all
	}
	return metrics.ToolConfig{
		Notify: notify,
		Reasons: map[metrics.Verdict][]string{
			metrics.VerdictSuccess: words(ReasonReceiptSuccess, ReasonSettledByOtherCall),
			metrics.VerdictFailed:  words(ReasonReceiptFailed),
			metrics.VerdictRetry:   words(ReasonNotFound, ReasonFailedRetryable),
			metrics.VerdictManual: words(ReasonConflictingReceipts, ReasonStaleFailure, ReasonProcessingTooLong, ReasonUnmatchedReceipts,
				ReasonSentInFuture, ReasonNotRetryable, ReasonAttemptsExhausted, ReasonDedupWindowPassed, ReasonRequestMissing, ReasonUnwritable),
		},
		Kinds: []string{
			string(receipt.KindRefused), string(receipt.KindDNS), string(receipt.KindTLS), string(receipt.KindTimeout), string(receipt.KindLost),
			string(receipt.KindCanceled), string(receipt.KindSetup),
		},
	}
}

// measure counts one call that was written.
func (p *pass) measure(j *judged) {
	m, call := p.cfg.Metrics, j.change.Call
	if look := j.change.Look; look != pending.NoLook {
		m.Look(look == pending.Answered)
	}
	verdict := map[Action]metrics.Verdict{
		Succeed: metrics.VerdictSuccess, Fail: metrics.VerdictFailed, Retry: metrics.VerdictRetry, Escalate: metrics.VerdictManual,
	}[j.verdict.Action]
	if verdict == "" {
		return
	}
	m.Verdict(verdict, string(j.verdict.Reason))
	if j.change.Status().Terminal() {
		m.Resolved(j.at.Sub(call.CreatedAt))
	}
	if j.verdict.Anomaly == CallIDChanged {
		m.Anomaly(metrics.AnomalyCallIDChanged, 1)
	}
	if j.verdict.Reason == ReasonConflictingReceipts {
		m.Anomaly(metrics.AnomalyConflictingReceipts, 1)
	}
}

// breakerStates translates the library's words.
var breakerStates = map[gobreaker.State]metrics.BreakerState{
	gobreaker.StateClosed: metrics.BreakerClosed, gobreaker.StateHalfOpen: metrics.BreakerHalfOpen, gobreaker.StateOpen: metrics.BreakerOpen,
}

// sendOutcome says in one word what came of an attempt.
func sendOutcome(err error) metrics.SendOutcome {
	e, _ := asError(err)
	switch {
	case err == nil:
		return metrics.SendAnswered
	case e == nil:
		return metrics.SendUnanswered
	case e.Status == http.StatusTooManyRequests || e.Status == http.StatusServiceUnavailable:
		return metrics.SendRefused
	case !e.Connected:
		return metrics.SendNeverConnected
	}
	return metrics.SendUnanswered
}
