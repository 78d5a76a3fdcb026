package toolcall

import (
	"fmt"
	"net/http"
	"time"

	"github.com/callreceipt/reconciler/receipt"
)

// clockTolerance is how far the downstream's clock may be ahead of ours. A receipt from further ahead proves nothing yet.
const clockTolerance = 5 * time.Minute

// pointless are the statuses after which the same request can only be refused again.
var pointless = map[int]bool{
	http.StatusBadRequest: true, http.StatusUnauthorized: true, http.StatusForbidden: true, http.StatusNotFound: true,
	http.StatusMethodNotAllowed: true, http.StatusGone: true, http.StatusRequestEntityTooLarge: true,
	http.StatusUnsupportedMediaType: true, http.StatusUnprocessableEntity: true,
}

// ofSend tells how a send ended, from its receipt or its *receipt.Error and from nothing else.
func ofSend(a receipt.Attempt, r receipt.Receipt, err error, now time.Time) evidence {
	if err == nil {
		if err := unusable(a, r, now); err != nil {
			return evidence{result: ResultAnswered, arrived: a.Number, err: malformed(err)}
		}
		if stale(a, r) {
			return evidence{result: ResultAnswered, arrived: a.Number, err: malformed(fmt.Errorf("the receipt is the failure of attempt %d", r.Attempt))}
		}
		return evidence{result: resultOf(r), arrived: a.Number, receipt: r}
	}
	e := receipt.AsError(err)
	if !e.Connected {
		if e.Kind == receipt.KindCanceled {
			return evidence{result: ResultCanceled, err: err}
		}
		return evidence{result: ResultNotConnected, err: err}
	}
	ev := evidence{result: ResultAnswered, arrived: a.Number, retryAfter: e.RetryAfter, err: err}
	switch {
	case !e.Written:
		ev.result = ResultWriteInterrupted
	case e.Kind == receipt.KindTimeout, e.Kind == receipt.KindLost, e.Kind == receipt.KindTLS, e.Kind == receipt.KindCanceled:
		ev.result = ResultNoAnswer
	case e.Outcome == receipt.Throttled:
		ev.result = ResultThrottled
	case pointless[e.Status], e.Status/100 == 3:
		ev.result = ResultRefused
	}
	return ev
}

// ofAsk tells what a look for the receipt brought. The attempt is the latest that may have arrived.
func ofAsk(a receipt.Attempt, answer receipt.Answer, err error, now time.Time) evidence {
	seen := answer.Of[a.CallID]
	if err != nil {
		seen = receipt.Evidence{Err: receipt.AsError(err)}
	}
	switch {
	case seen.Presence == receipt.Absent:
		return evidence{result: ResultNotFound}
	case seen.Presence == receipt.Present:
		return sortReceipts(a, seen.Receipts, now)
	case seen.Err.Kind == receipt.KindCanceled:
		return evidence{result: ResultCanceled, err: seen.Err}
	}
	return evidence{result: ResultUnanswered, retryAfter: seen.Err.RetryAfter, err: seen.Err}
}

// sortReceipts makes one result of all receipts of a call. It does not depend on their order.
func sortReceipts(a receipt.Attempt, receipts []receipt.Receipt, now time.Time) evidence {
	var success, failed *receipt.Receipt
	processing := false
	for i := range receipts {
		r := &receipts[i]
		if err := unusable(a, *r, now); err != nil {
			return evidence{result: ResultUnusable, err: malformed(err)}
		}
		switch {
		case r.Status == receipt.StatusSuccess:
			success = first(success, r)
		case r.Status == receipt.StatusFailed && !stale(a, *r):
			failed = first(failed, r)
		default:
			processing = true
		}
	}
	switch {
	case success != nil && disagree(receipts):
		return evidence{result: ResultUnusable, err: malformed(fmt.Errorf("receipts of one call say SUCCESS and FAILED"))}
	case success != nil:
		return evidence{result: ResultSuccess, receipt: *success}
	case failed != nil && !processing:
		return evidence{result: ResultFailed, receipt: *failed}
	}
	return evidence{result: ResultProcessing}
}

// stale: the failure of an earlier attempt says nothing of this one, which may still be running.
func stale(a receipt.Attempt, r receipt.Receipt) bool {
	return r.Status == receipt.StatusFailed && r.Attempt != 0 && r.Attempt < a.Number
}

// disagree looks for a FAILED receipt that the SUCCESS receipts do not explain. A failed attempt followed by a successful one is no
// disagreement.
func disagree(receipts []receipt.Receipt) bool {
	latest := 0
	for _, r := range receipts {
		if r.Status == receipt.StatusSuccess {
			latest = max(latest, r.Attempt)
		}
	}
	for _, r := range receipts {
		if r.Status == receipt.StatusFailed && (r.Attempt == 0 || r.Attempt >= latest) {
			return true
		}
	}
	return false
}

// first keeps the choice independent of the order: the receipt with the smaller text.
func first(a, b *receipt.Receipt) *receipt.Receipt {
	if a == nil || string(b.Raw) < string(a.Raw) {
		return b
	}
	return a
}

// unusable says why a receipt with the callId of a call cannot be a receipt of it.
func unusable(a receipt.Attempt, r receipt.Receipt, now time.Time) error {
	switch {
	case r.BizID != a.BizID:
		return fmt.Errorf("the receipt is one of bizId %q", r.BizID)
	case r.Operation != "" && r.Operation != a.Operation:
		return fmt.Errorf("the receipt is one of operation %q", r.Operation)
	case r.IdempotencyKey != "" && r.IdempotencyKey != a.IdempotencyKey:
		return fmt.Errorf("the receipt is one of idempotencyKey %q", r.IdempotencyKey)
	case r.ProcessedAt.After(now.Add(clockTolerance)):
		return fmt.Errorf("the receipt was processed at %s, and now it is %s", r.ProcessedAt.UTC().Format(time.RFC3339), now.UTC().Format(time.RFC3339))
	}
	return nil
}

func malformed(err error) error { return &receipt.Error{Kind: receipt.KindMalformed, Err: err} }

func resultOf(r receipt.Receipt) Result {
	if r.Status == receipt.StatusSuccess {
		return ResultSuccess
	}
	return ResultFailed
}
