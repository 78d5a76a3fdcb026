package pending

import (
	"encoding/json"
	"time"
)

// Look says what the downstream did at the look behind a change. The zero value moves no counter.
type Look int

// The kinds of looks.
const (
	NoLook Look = iota // the downstream was not asked
	Answered
	NotAnswered
)

// EventKind is one word for a ledger row.
type EventKind string

// The kinds of the ledger.
const (
	EventVerdict       EventKind = "verdict"         // the status became SUCCESS, FAILED, RETRY or MANUAL
	EventReopened      EventKind = "reopened"        // RETRY was withdrawn, since something turned up
	EventSent          EventKind = "sent"            // an attempt was committed before its first byte left
	EventContradiction EventKind = "contradiction"   // a receipt says otherwise than a final status
	EventCallIDChanged EventKind = "call_id_changed" // the intent was executed under another callId
)

// Event is one row of the audit ledger, written in the transaction of the change that it records and with the reason that the
// call has after it. The zero value is no row.
type Event struct {
	Kind   EventKind
	Detail json.RawMessage // nil, or a JSON object
}

// Proof is the receipt that decided, verbatim.
type Proof struct {
	Status      Status // StatusSuccess or StatusFailed
	Raw         json.RawMessage
	ProcessedAt time.Time // zero when the downstream does not state it
}

// Change is one write to one call, decided from the version in Call. It is made by Settle, Offer, Escalate, Reopen
// or Keep, so that a SUCCESS without a receipt, or a RETRY without a deadline, cannot be spelled.
type Change struct {
	Call Call // as it was read

	// Look, NotFoundCount, NotFoundSince and LastError record the look that led to the change.
	Look          Look
	NotFoundCount int
	NotFoundSince *time.Time
	LastError     string // why the look was not answered; "" when it was

	Event   Event // the change itself, when it is one of the status
	Anomaly Event // what was noticed on the way

	// Notify puts the new status on its way to the orchestrator. A change of the status without it takes back what has not
	// been delivered yet.
	Notify bool

	status      Status
	reason      string
	proof       Proof
	nextCheckAt time.Time // zero leaves it
	retryBefore time.Time // zero unless status is RETRY
}

// Status is the status after the change.
func (c Change) Status() Status { return c.status }

// Reason is the reason after the change.
func (c Change) Reason() string { return c.reason }

// Settle ends the call as its receipt says.
func Settle(call Call, reason string, proof Proof) Change {
	return Change{Call: call, status: proof.Status, reason: reason, proof: proof}
}

// Offer offers the call to be sent again with its original callId, before the given instant and never after.
func Offer(call Call, reason string, before, nextCheckAt time.Time) Change {
	return Change{Call: call, status: StatusRetry, reason: reason, retryBefore: before, nextCheckAt: nextCheckAt}
}

// Escalate hands the call to a person.
func Escalate(call Call, reason string, nextCheckAt time.Time) Change {
	return Change{Call: call, status: StatusManual, reason: reason, nextCheckAt: nextCheckAt}
}

// Reopen withdraws a RETRY that nobody has taken yet.
func Reopen(call Call, reason string, nextCheckAt time.Time) Change {
	return Change{Call: call, status: StatusPending, reason: reason, nextCheckAt: nextCheckAt}
}

// Keep leaves the status and moves the next look. RETRY and MANUAL keep their reason, which says why they are that.
func Keep(call Call, reason string, nextCheckAt time.Time) Change {
	if call.Status != StatusPending {
		reason = call.Reason
	}
	return Change{Call: call, status: call.Status, reason: reason, nextCheckAt: nextCheckAt}
}
