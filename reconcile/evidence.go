package reconcile

import (
	"fmt"
	"time"

	"github.com/callreceipt/reconciler/pending"
	"github.com/callreceipt/reconciler/receipt"
)

// sorted is the evidence of a bizId as one of its calls sees it.
type sorted struct {
	success, failed *receipt.Receipt // of this callId
	staleFailed     bool             // FAILED, but of an earlier attempt than the latest
	processing      bool
	conflict        bool // this callId is said to be SUCCESS and FAILED
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

// sortReceipts does not depend on the order of the receipts nor on duplicates: of several that say the same, the
// one with the smallest text stands for all.
func sortReceipts(call pending.Call, seen receipt.Evidence) sorted {
	var s sorted
	for i := range seen.Receipts {
		r := &seen.Receipts[i]
		switch relate(call, r) {
		case mine:
			s.addMine(call, r)
		case sameIntent:
			switch r.Status {
			case receipt.StatusSuccess:
				s.otherSuccess = first(s.otherSuccess, r)
			case receipt.StatusProcessing:
				s.otherProcessing = true
			case receipt.StatusFailed, receipt.StatusNotFound: // the intent was not executed by that call
			}
		case unclear:
			s.unmatched = true
		case otherIntent:
		}
	}
	s.conflict = s.success != nil && disagree(call, seen.Receipts)
	return s
}

func (s *sorted) addMine(call pending.Call, r *receipt.Receipt) {
	switch r.Status {
	case receipt.StatusSuccess:
		s.success = first(s.success, r)
	case receipt.StatusFailed:
		if r.Attempt > 0 && r.Attempt < call.Attempt {
			s.staleFailed = true
		} else {
			s.failed = first(s.failed, r)
		}
	case receipt.StatusProcessing:
		s.processing = true
	case receipt.StatusNotFound:
	}
}

// disagree looks for a FAILED receipt of this call that its SUCCESS receipts do not explain. A failed attempt followed by a
// successful one is no disagreement.
func disagree(call pending.Call, receipts []receipt.Receipt) bool {
	latest := 0
	for _, r := range receipts {
		if r.CallID == call.CallID && r.Status == receipt.StatusSuccess {
			latest = max(latest, r.Attempt)
		}
	}
	for _, r := range receipts {
		if r.CallID == call.CallID && r.Status == receipt.StatusFailed && (r.Attempt == 0 || r.Attempt >= latest) {
			return true
		}
	}
	return false
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

// first keeps the choice independent of the order: the receipt with the smaller text.
func first(a, b *receipt.Receipt) *receipt.Receipt {
	if a == nil || string(b.Raw) < string(a.Raw) {
		return b
	}
	return a
}

// clockTolerance is how far the downstream's clock may be ahead of the database's.
const clockTolerance = 5 * time.Minute

// Plausible turns evidence with a receipt from the future into no evidence: a proof of something that has not happened yet
// proves nothing. It becomes plausible when its time comes.
func Plausible(seen receipt.Evidence, now time.Time) receipt.Evidence {
	for _, r := range seen.Receipts {
		if r.ProcessedAt.After(now.Add(clockTolerance)) {
			return receipt.Evidence{Err: &receipt.Error{Kind: receipt.KindMalformed, Err: fmt.Errorf("a receipt was processed at %s, and now it is %s",
				r.ProcessedAt.UTC().Format(time.RFC3339), now.UTC().Format(time.RFC3339))}}
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
