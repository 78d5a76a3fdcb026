package demo

import "math/rand/v2"

// Way is what becomes of a call.
type Way int

// The ways. All but Answered leave the first send without an answer. Whether the caller finds out at once or has to park the call
// depends on what becomes of its look-ups: see Call.parks.
const (
	Answered      Way = iota
	Refused           // nobody listens when it is first sent; a moment later somebody does
	Down              // nobody listens, however often its caller sends it
	AnswerLost        // executed; the connection broke or fell silent before the answer
	NeverArrived      // lost on its way; sent again, it arrives
	Unreachable       // lost on its way, and so is every further send
	NotRepeatable     // lost on its way, and the tool may not be sent again
	Late              // held up, and executed after the caller had given up
	Overtaken         // held up until its own retry arrives
	Brief             // executed a little later than the caller waits
	Processing        // executed long after the caller has asked for the last time; the receipt says PROCESSING until then
	Declined          // not executed, and nobody heard that
	ChangedID         // a second call of an intent that was executed already, under another callId
	Busy              // not planned: the machine was too busy to bring the request, or an answer, in time
	ways              // how many there are
)

var wayText = [ways]string{
	Answered:      "answered in time",
	Refused:       "connection refused, then answered",
	Down:          "connection refused, three times",
	AnswerLost:    "executed, but the answer was lost",
	NeverArrived:  "never arrived",
	Unreachable:   "never arrived, four times in a row",
	NotRepeatable: "never arrived, must not be repeated",
	Late:          "arrived after the caller gave up",
	Overtaken:     "arrived together with its own retry",
	Brief:         "finished while the caller asked again",
	Processing:    "still being processed when asked",
	Declined:      "declined, but the answer was lost",
	ChangedID:     "sent anew under a changed callId",
	Busy:          "late or lost on a busy machine",
}

func (w Way) String() string { return wayText[w] }

// duringOutage tells that the call is made before the downstream listens.
func (w Way) duringOutage() bool { return w == Refused || w == Down }

// mayBeCutOff tells that the look-ups of the caller may be lost as well.
func (w Way) mayBeCutOff() bool {
	switch w {
	case AnswerLost, NeverArrived, Late, Overtaken, Declined, ChangedID:
		return true
	case Answered, Refused, Down, Unreachable, NotRepeatable, Brief, Processing, Busy, ways:
	}
	return false
}

// share is how many of a hundred calls go one way.
type share struct {
	way     Way
	percent int
}

func draw(rng *rand.Rand, fates []share) Way {
	at := rng.IntN(100)
	for _, s := range fates {
		if at -= s.percent; at < 0 {
			return s.way
		}
	}
	return Answered
}
