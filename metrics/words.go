package metrics

import "slices"

// Task is a kind of run.
type Task string

// The tasks.
const (
	TaskReconcile Task = "reconcile"
	TaskArchive   Task = "archive"
	TaskDispatch  Task = "dispatch"
	TaskNotify    Task = "notify"
)

// Outcome is how a run ended.
type Outcome string

// The outcomes of a run.
const (
	OutcomeSuccess Outcome = "success"
	OutcomePartial Outcome = "partial"
	OutcomeFailed  Outcome = "failed"
	OutcomeSkipped Outcome = "skipped"
)

// SkipReason says why a run did not take place.
type SkipReason string

// The reasons to skip a run.
const (
	SkipStillRunning SkipReason = "still_running" // the run before it is still at work in this process
	SkipLeaseHeld    SkipReason = "lease_held"    // another replica is at work
)

// Verdict is what was decided about a call.
type Verdict string

// The verdicts.
const (
	VerdictSuccess Verdict = "success"
	VerdictFailed  Verdict = "failed"
	VerdictRetry   Verdict = "retry"
	VerdictManual  Verdict = "manual"
)

// Anomaly is something a downstream should never do.
type Anomaly string

// The anomalies.
const (
	AnomalyCallIDChanged       Anomaly = "call_id_changed"      // the intent was executed under another callId
	AnomalyContradiction       Anomaly = "contradiction"        // a receipt contradicts a final call
	AnomalyConflictingReceipts Anomaly = "conflicting_receipts" // SUCCESS and FAILED for one callId
	AnomalyDuplicateReceipt    Anomaly = "duplicate_receipt"
	AnomalyUnaskedReceipt      Anomaly = "unasked_receipt"
)

// BreakerState is the state of a tool's circuit breaker.
type BreakerState string

// The states of a breaker.
const (
	BreakerClosed   BreakerState = "closed"
	BreakerHalfOpen BreakerState = "half_open"
	BreakerOpen     BreakerState = "open"
)

// SendOutcome is what came of sending a call again.
type SendOutcome string

// The outcomes of a send.
const (
	SendAnswered       SendOutcome = "answered"   // a receipt came back
	SendUnanswered     SendOutcome = "unanswered" // the next look decides
	SendRefused        SendOutcome = "refused"    // 429 or 503
	SendNeverConnected SendOutcome = "never_connected"
)

// The closed sets. Their series are there from the start.
var (
	outcomes      = []Outcome{OutcomeSuccess, OutcomePartial, OutcomeFailed, OutcomeSkipped}
	skipReasons   = []SkipReason{SkipStillRunning, SkipLeaseHeld}
	verdicts      = []Verdict{VerdictSuccess, VerdictFailed, VerdictRetry, VerdictManual}
	anomalies     = []Anomaly{AnomalyCallIDChanged, AnomalyContradiction, AnomalyConflictingReceipts, AnomalyDuplicateReceipt, AnomalyUnaskedReceipt}
	breakerStates = []BreakerState{BreakerClosed, BreakerHalfOpen, BreakerOpen}
	sendOutcomes  = []SendOutcome{SendAnswered, SendUnanswered, SendRefused, SendNeverConnected}
	looks         = []string{"answered", "unanswered"}
	deliveries    = []string{"delivered", "failed"}
	dbClasses     = []string{"unreachable", "busy", "refused", "other"}
	archiveSteps  = []string{"frozen", "exported", "verified", "watermark", "detached", "dropped", "premade"}
	stepResults   = []string{"failed", "done"}
	heldReasons   = []string{
		"newest", "last", "subpartitioned", "foreign_table", "inbound_foreign_key", "not_terminal", "open_call", "unanswerable",
		"detach_pending", "locked", "changed_after_freeze", "object_damaged", "replaced", "referenced",
	}
)

// other stands for a word that is in no set. What comes from outside never becomes a label value, and is counted all the same.
const other = "other"

func known[T ~string](set []T, word T) string {
	if slices.Contains(set, word) {
		return string(word)
	}
	return other
}

// either picks the first word when it is so, and the second otherwise.
func either(so bool, words []string) string {
	if so {
		return words[0]
	}
	return words[1]
}
