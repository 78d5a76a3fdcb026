package receipt

import (
	"cmp"
	"fmt"
	"math"
	"time"
)

// Weighed is what all receipts of one call say together. The zero value says nothing.
type Weighed struct {
	// Success and Failed are receipts that say so, or nil. Of several, First stands for all. A stale FAILED is never in Failed.
	Success, Failed *Receipt
	// StaleFailed: there is a FAILED of an earlier attempt than the latest, which says nothing of the latest: that may still be running.
	// A FAILED that names no attempt is not stale.
	StaleFailed bool
	Processing  bool
	// Contradictory: the call is said to be SUCCESS and FAILED. A failed attempt followed by a successful one is no contradiction; a
	// FAILED of the attempt that succeeded, of a later one, or that names none, is.
	Contradictory bool
}

// Weigh sorts the receipts of the call with that callId, of which attempt is the number of the latest send. Receipts of other calls are
// not looked at. The outcome depends neither on the order of the receipts nor on duplicates, and points into them.
func Weigh(callID string, attempt int, receipts []Receipt) Weighed {
	var w Weighed
	succeeded, failed := 0, -1 // the latest attempts that are said to have
	for i := range receipts {
		r := &receipts[i]
		if r.CallID != callID {
			continue
		}
		switch r.Status {
		case StatusSuccess:
			w.Success = First(w.Success, r)
			succeeded = max(succeeded, r.Attempt)
		case StatusFailed:
			failed = max(failed, cmp.Or(r.Attempt, math.MaxInt)) // one that names no attempt may be of any
			if r.Attempt > 0 && r.Attempt < attempt {
				w.StaleFailed = true
			} else {
				w.Failed = First(w.Failed, r)
			}
		case StatusProcessing:
			w.Processing = true
		case StatusNotFound:
		}
	}
	w.Contradictory = w.Success != nil && failed >= succeeded
	return w
}

// First returns the receipt that stands for two that say the same: the one with the smaller Raw, so that the choice does not depend on
// their order. The receipt a may be nil.
func First(a, b *Receipt) *Receipt {
	if a == nil || string(b.Raw) < string(a.Raw) {
		return b
	}
	return a
}

// ClockTolerance is how far the clock of a downstream may be ahead of the clock of whoever reads its receipts.
const ClockTolerance = 5 * time.Minute

// CheckTime returns why the receipt proves nothing yet, or nil: it was processed later than ClockTolerance after now, and has not happened
// so far. It counts when its time comes.
func (r Receipt) CheckTime(now time.Time) error {
	if r.ProcessedAt.After(now.Add(ClockTolerance)) {
		return fmt.Errorf("processed at %s, and now it is %s", r.ProcessedAt.UTC().Format(time.RFC3339), now.UTC().Format(time.RFC3339))
	}
	return nil
}
