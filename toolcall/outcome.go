package toolcall

import (
	"errors"
	"fmt"

	"github.com/callreceipt/reconciler/internal/printable"
	"github.com/callreceipt/reconciler/pending"
	"github.com/callreceipt/reconciler/receipt"
)

// Status is how Do ended. The zero value goes with a *NotParkedError: the outcome is unknown and nobody else knows of the call.
type Status string

// The statuses.
const (
	Success   Status = "SUCCESS"   // executed, the receipt says so
	Failed    Status = "FAILED"    // refused by the business, the receipt says so
	Suspended Status = "SUSPENDED" // unknown, parked: the reconciler settles it, and pending.Await waits for that
	NotSent   Status = "NOT_SENT"  // known not to have been executed, not parked: it may be called again
)

// Outcome is what became of a call.
type Outcome struct {
	Status  Status
	CallID  string
	Attempt int                 // sends that may have arrived
	Receipt receipt.Receipt     // with Success and Failed
	Timeout pending.TimeoutKind // with Suspended: why. "" when the only send was an earlier process's
	Steps   []Step              // what was sent, asked, waited for and parked, in this order
}

// ErrUnknownTool is returned for a call of a tool that was not registered.
var ErrUnknownTool = errors.New("unknown tool")

// NotParkedError says that a call's outcome is unknown and that it could not be parked, so that nobody will settle it. Whoever gets
// it keeps Suspension and parks it later, as it is, with pending.Suspend.
type NotParkedError struct {
	CallID     string
	Suspension pending.Suspension
	Err        error
}

func (e *NotParkedError) Error() string {
	return fmt.Sprintf("the outcome of call %s (bizId %s) is unknown, and it could not be parked: %v",
		printable.ID(e.CallID), printable.ID(e.Suspension.BizID), e.Err)
}

func (e *NotParkedError) Unwrap() error { return e.Err }
