package toolcall

import (
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/callreceipt/reconciler/receipt"
)

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
		if receipt.Weigh(a.CallID, a.Number, []receipt.Receipt{r}).StaleFailed {
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
	for _, r := range receipts {
		if err := unusable(a, r, now); err != nil {
			return evidence{result: ResultUnusable, err: malformed(err)}
		}
	}
	w := receipt.Weigh(a.CallID, a.Number, receipts)
	switch {
	case w.Contradictory:
		return evidence{result: ResultUnusable, err: malformed(errors.New("receipts of one call say SUCCESS and FAILED"))}
	case w.Success != nil:
		return evidence{result: ResultSuccess, receipt: *w.Success}
	case w.Failed != nil && !w.Processing && !w.StaleFailed:
		return evidence{result: ResultFailed, receipt: *w.Failed}
	}
	return evidence{result: ResultProcessing}
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
	}
	if err := r.CheckTime(now); err != nil {
		return fmt.Errorf("the receipt was %w", err)
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
