package toolcall

import (
	"fmt"
	"time"
)

// Action is what a step did. It is a metric label.
type Action string

// The actions.
const (
	ActionSend Action = "send"
	ActionAsk  Action = "ask"  // for the receipt
	ActionWait Action = "wait" // before a send or an ask
	ActionPark Action = "park"
	ActionEnd  Action = "end" // of the whole call; in an Event only
)

// Result is what a send or an ask brought. It is a metric label.
type Result string

// The results. All but the first two leave the outcome of the call open.
const (
	ResultSuccess Result = "success" // a receipt of this call that says so
	ResultFailed  Result = "failed"  // the same

	ResultNotConnected     Result = "not_connected"     // of a send: there was no connection, so nothing has arrived
	ResultWriteInterrupted Result = "write_interrupted" // of a send: a part of it may have arrived
	ResultNoAnswer         Result = "no_answer"         // of a send: it was written, and no whole answer came
	ResultAnswered         Result = "answered"          // of a send: with something else than a receipt that decides
	ResultRefused          Result = "refused"           // of a send: so that a repeat is pointless
	ResultThrottled        Result = "throttled"         // of a send: with a Retry-After

	ResultProcessing Result = "processing" // of an ask: also when the only failure is that of an earlier attempt
	ResultNotFound   Result = "not_found"  // of an ask: in so many words
	ResultUnanswered Result = "unanswered" // of an ask: no answer, a malformed one, or one that leaves the call out
	ResultUnusable   Result = "unusable"   // of an ask: receipts that contradict each other or the call

	ResultCanceled Result = "canceled" // the caller's context ended, and nothing was learned
)

// Step is one thing that was done for a call.
type Step struct {
	Action  Action
	Attempt int    // of a send, from 1
	Result  Result // of a send and an ask; of a wait that was cut short
	Took    time.Duration
	Err     error // why it brought nothing; a send and an ask have a *receipt.Error, a park what the database said
}

// String is for people, for example "send 2 no_answer 300ms".
func (s Step) String() string {
	text := string(s.Action)
	if s.Attempt > 0 {
		text += fmt.Sprintf(" %d", s.Attempt)
	}
	if s.Result != "" {
		text += " " + string(s.Result)
	}
	return text + " " + s.Took.Round(time.Millisecond).String()
}

// Event tells Config.Observe of a step as soon as it has ended, and of the end of each call.
type Event struct {
	Tool   string
	CallID string
	Step   Step
	Status Status // with ActionEnd: how the call ended; "" when it could not be parked
}
