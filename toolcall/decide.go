package toolcall

import (
	"time"

	"github.com/callreceipt/reconciler/pending"
	"github.com/callreceipt/reconciler/receipt"
)

// The bounds of one Do.
const (
	mostSends       = 3               // what Tool.MaxSends may be at most, and is unless it says otherwise
	mostAsks        = 3               // looks for the receipt after one send
	mostSilent      = 2               // of them, looks in a row that are not answered
	longestHonoured = 2 * time.Second // a Retry-After beyond it is left to the reconciler
)

// tags are what a tool declares of itself.
type tags struct {
	retryable, idempotent, needsReceipt bool
	maxSends                            int
}

// state is where a call stands. It is a value: every function below returns the next one.
type state struct {
	tags
	begun     int  // sends begun, those of an earlier process included
	arrived   int  // of them, those that may have arrived: the number of the latest. The next send has the number after it
	pointless bool // the latest of them was answered so that a repeat is pointless
	kind      pending.TimeoutKind
	asks      int // looks since the latest send
	silent    int // of them, the latest ones in a row that were not answered
}

// verb is what is to be done next. The zero value is none of them.
type verb int

const (
	send verb = iota + 1
	ask
	settle // end with the receipt
	park   // end with the outcome unknown
	giveUp // end, known not to have been executed
)

// step is a verb and what it needs.
type step struct {
	verb    verb
	attempt int                 // with send: its number
	pause   bool                // with send and ask: wait for the next backoff before it
	atLeast time.Duration       // with pause: and for no less than that
	kind    pending.TimeoutKind // with park
	receipt receipt.Receipt     // with settle
}

// evidence is how one step ended.
type evidence struct {
	result     Result
	arrived    int             // the number of the send that ended, if it may have arrived; otherwise 0
	receipt    receipt.Receipt // with success and failed
	retryAfter time.Duration   // 0 when nobody asked for a pause
	err        error           // for people: nothing is decided by it
}

// begin is the first step of a call of which an earlier process may have made some sends already.
func begin(t tags, sent int) (state, step) {
	s := state{tags: t, begun: sent, arrived: sent}
	if sent == 0 {
		return s.send(0)
	}
	return s.unknown(0)
}

// next is the whole rule book: where the call stands and how the last step ended give the next step.
func (s state) next(e evidence) (state, step) {
	if e.arrived > 0 {
		s.arrived, s.pointless, s.kind = e.arrived, e.result == ResultRefused, pending.TimeoutRead
		if e.result == ResultWriteInterrupted {
			s.kind = pending.TimeoutWrite
		}
	}
	switch e.result {
	case ResultSuccess, ResultFailed:
		return s, step{verb: settle, receipt: e.receipt}
	case ResultNotConnected:
		return s.notConnected()
	case ResultWriteInterrupted, ResultNoAnswer, ResultAnswered, ResultRefused:
		return s.unknown(0)
	case ResultThrottled:
		if e.retryAfter > longestHonoured {
			return s.park(s.kind)
		}
		return s.unknown(e.retryAfter)
	case ResultProcessing:
		s.silent = 0
		return s.askAgain(0, s.kind)
	case ResultNotFound:
		return s.repeat(0)
	case ResultUnanswered:
		s.silent++
		if s.silent >= mostSilent || e.retryAfter > longestHonoured {
			return s.park(pending.TimeoutReceipt)
		}
		return s.askAgain(e.retryAfter, pending.TimeoutReceipt)
	case ResultUnusable:
		return s.park(pending.TimeoutReceipt)
	case ResultCanceled:
	}
	if s.arrived == 0 {
		return s, step{verb: giveUp}
	}
	return s.park(s.kind)
}

// send makes the next attempt. Nothing but the sends that may have arrived raises its number.
func (s state) send(atLeast time.Duration) (state, step) {
	pause := s.begun > 0
	s.begun++
	s.asks, s.silent = 0, 0
	return s, step{verb: send, attempt: s.arrived + 1, pause: pause, atLeast: atLeast}
}

// notConnected: nothing of this send has arrived, so it may be made again as it is, whatever the tags say.
func (s state) notConnected() (state, step) {
	switch {
	case s.maySend():
		return s.send(0)
	case s.arrived > 0:
		return s.unknown(0)
	case s.mayRepeat():
		return s.park(pending.TimeoutConnect)
	}
	return s, step{verb: giveUp}
}

// unknown: a send may have arrived, and its end says nothing. The receipt is asked for at once, unless somebody wanted a pause.
func (s state) unknown(atLeast time.Duration) (state, step) {
	if !s.needsReceipt {
		return s.repeat(atLeast)
	}
	s.asks++
	return s, step{verb: ask, pause: atLeast > 0, atLeast: atLeast}
}

func (s state) askAgain(atLeast time.Duration, why pending.TimeoutKind) (state, step) {
	if s.asks >= mostAsks {
		return s.park(why)
	}
	s.asks++
	return s, step{verb: ask, pause: true, atLeast: atLeast}
}

// repeat sends once more what was not found, where that can do no harm and may do good.
func (s state) repeat(atLeast time.Duration) (state, step) {
	if s.maySend() {
		return s.send(atLeast)
	}
	return s.park(s.kind)
}

// maySend: as long as nothing has arrived, anybody may send; afterwards only what can be executed once.
func (s state) maySend() bool {
	return s.begun < s.maxSends && (s.arrived == 0 || s.mayRepeat() && !s.pointless)
}

func (s state) park(why pending.TimeoutKind) (state, step) { return s, step{verb: park, kind: why} }

func (t tags) mayRepeat() bool { return t.retryable && t.idempotent }
