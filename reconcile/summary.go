package reconcile

import (
	"github.com/callreceipt/reconciler/internal/task"
)

// Summary counts what a pass did. Counts are of what was written, not of what was selected; the names are a
// contract (DESIGN section 9).
type Summary struct {
	Tool           string       `json:"tool"`
	Outcome        task.Outcome `json:"outcome"`
	Scanned        int          `json:"scanned"` // calls looked at
	Success        int          `json:"success"`
	Failed         int          `json:"failed"`
	Retry          int          `json:"retry"`
	Manual         int          `json:"manual"`
	Waiting        int          `json:"waiting"`    // looked up, and not to be decided yet
	Unanswered     int          `json:"unanswered"` // asked for, and not answered
	LostRaces      int          `json:"lost_races"` // changed by somebody else meanwhile; nothing was written
	Unwritten      int          `json:"unwritten"`  // the database refuses every change of them
	Contradictions int          `json:"contradictions"`
	Requests       int          `json:"requests"`
	Sent           int          `json:"sent"`
	// Unasked and Duplicates count items of answers that nobody asked for, or that repeat another.
	Unasked         int     `json:"unasked_receipts"`
	Duplicates      int     `json:"duplicate_receipts"`
	DurationSeconds float64 `json:"duration_seconds"`
	Error           string  `json:"error,omitempty"`
}

// Moved is how many calls were written.
func (s Summary) Moved() int {
	return s.Success + s.Failed + s.Retry + s.Manual + s.Waiting + s.Unanswered
}

// outcome judges a pass that went as far as s. failure ended it early, or is nil; stopped says that it was told to end.
func (s Summary) outcome(failure error, stopped bool) task.Outcome {
	switch {
	case failure != nil && !stopped && s.Moved() == 0:
		return task.Failed
	case failure != nil, s.Unanswered > 0, s.Unwritten > 0:
		return task.Partial
	}
	return task.Success
}

func (s *Summary) count(a Action, reason Reason) {
	switch a {
	case Succeed:
		s.Success++
	case Fail:
		s.Failed++
	case Retry:
		s.Retry++
	case Escalate:
		s.Manual++
	case Wait, Reopen:
		if reason == ReasonUnanswered {
			s.Unanswered++
		} else {
			s.Waiting++
		}
	case Leave:
	}
}
