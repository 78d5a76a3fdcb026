package reconcile

import (
	"fmt"
	"time"

	"github.com/callreceipt/reconciler/pending"
	"github.com/callreceipt/reconciler/receipt"
)

// sorted is the evidence of a bizId as one of its calls sees it.
type sorted struct {
	own             receipt.Weighed // of this callId
	otherSuccess    *receipt.Receipt
	otherProcessing bool
	unmatched       bool // receipts that may or may not be of this intent
}

// relation tells whose receipt it is, seen from one call.
type relation int

const (
	unclear relation = iota
	mine
	sameIntent
	otherIntent
)

// sortReceipts does not depend on the order of the receipts nor on duplicates.
func sortReceipts(call pending.Call, seen receipt.Evidence) sorted {
	s := sorted{own: receipt.Weigh(call.CallID, call.Attempt, seen.Receipts)}
	for i := range seen.Receipts {
		r := &seen.Receipts[i]
		switch relate(call, r) {
		case sameIntent:
			switch r.Status {
			case receipt.StatusSuccess:
				s.otherSuccess = receipt.First(s.otherSuccess, r)
			case receipt.StatusProcessing:
				s.otherProcessing = true
			case receipt.StatusFailed, receipt.StatusNotFound: // the intent was not executed by that call
			}
		case unclear:
			s.unmatched = true
		case mine, otherIntent:
		}
	}
	return s
}

// relate decides whose receipt r is. The callId says it; failing that the idempotency key, which is the intent; failing that the
// operation, but only where the call's key is the default one, biz_id:operation: a caller with keys of its own
// may well have two intents of one operation, and the receipt does not say which of them it is.
func relate(call pending.Call, r *receipt.Receipt) relation {
	defaultKey := call.IdempotencyKey == call.BizID+":"+call.Operation
	switch {
	case r.CallID == call.CallID:
		return mine
	case r.CallID == "" || r.Status == receipt.StatusNotFound:
		return otherIntent // it says of another call that there is nothing
	case r.IdempotencyKey == call.IdempotencyKey:
		return sameIntent
	case r.Operation == call.Operation && defaultKey:
		return sameIntent
	case r.IdempotencyKey == "" && (r.Operation == "" || r.Operation == call.Operation):
		return unclear
	}
	return otherIntent
}

// Plausible turns evidence with a receipt from the future into no evidence: a proof of something that has not happened yet
// proves nothing. It becomes plausible when its time comes.
func Plausible(seen receipt.Evidence, now time.Time) receipt.Evidence {
	for _, r := range seen.Receipts {
		if err := r.CheckTime(now); err != nil {
			return receipt.Evidence{Err: &receipt.Error{Kind: receipt.KindMalformed, Err: fmt.Errorf("a receipt was %w", err)}}
		}
	}
	return seen
}

// mentions reports whether an answered bizId says anything that bears on the call: a NOT_FOUND for the bizId as a whole
// or for this call, or receipts. An answer that only says NOT_FOUND of other calls leaves this one unanswered.
func mentions(call pending.Call, seen receipt.Evidence) bool {
	if seen.Presence != receipt.Present {
		return seen.Presence == receipt.Absent
	}
	for _, r := range seen.Receipts {
		if r.Status != receipt.StatusNotFound || r.CallID == call.CallID {
			return true
		}
	}
	return false
}
