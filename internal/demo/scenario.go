package demo

import (
	"fmt"
	"math/rand/v2"
)

// Tool is one kind of call that the downstream offers.
type Tool struct {
	Name, Operation string
	// Repeatable tools execute one idempotency key once, however often it arrives, so a call may be sent again.
	Repeatable bool
	// Dispatched tools are sent again by the reconciler itself; the others are handed off to the orchestrator.
	Dispatched bool
	fates      []share
}

// Tools are what an order needs, in this order.
var Tools = []Tool{
	{Name: "payment.charge", Operation: "charge", Repeatable: true, Dispatched: true, fates: repeatableFates},
	{Name: "stock.reserve", Operation: "reserve", Repeatable: true, fates: repeatableFates},
	{Name: "sms.send", Operation: "send", fates: []share{
		{Answered, 70}, {AnswerLost, 9}, {NotRepeatable, 9}, {Processing, 4}, {Declined, 8},
	}},
}

// resender is who sends a call again, as the ledger names it.
func (t Tool) resender() string {
	if t.Dispatched {
		return "reconciler"
	}
	return "orchestrator"
}

var repeatableFates = []share{
	{Answered, 57},
	{AnswerLost, 9},
	{NeverArrived, 11},
	{Unreachable, 2},
	{Late, 6},
	{Overtaken, 2},
	{Processing, 4},
	{Declined, 5},
	{ChangedID, 4},
}

// share is how many of a hundred calls go one way.
type share struct {
	way     Way
	percent int
}

// Way is what becomes of a call.
type Way int

// The ways. All but Answered leave the caller without an answer.
const (
	Answered      Way = iota
	AnswerLost        // executed; the connection broke or fell silent before the answer
	NeverArrived      // lost on its way; sent again, it arrives
	Unreachable       // lost on its way, and so is every retry
	NotRepeatable     // lost on its way, and the tool may not be sent again
	Late              // held up, and executed after the caller had given up
	Overtaken         // held up until its own retry arrived
	Processing        // executed long after the caller had given up; the receipt says PROCESSING until then
	Declined          // not executed, and nobody heard that
	ChangedID         // a second call of an intent that was executed already, under another callId
	Busy              // not planned: the machine was too busy to bring the request, or the answer, in time
	ways              // how many there are
)

var wayText = [ways]string{
	Answered:      "answered in time",
	AnswerLost:    "executed, but the answer was lost",
	NeverArrived:  "never arrived",
	Unreachable:   "never arrived, three times in a row",
	NotRepeatable: "never arrived, must not be repeated",
	Late:          "arrived after the caller gave up",
	Overtaken:     "arrived together with its own retry",
	Processing:    "still being processed when asked",
	Declined:      "declined, but the answer was lost",
	ChangedID:     "sent anew under a changed callId",
	Busy:          "late or lost on a busy machine",
}

func (w Way) String() string { return wayText[w] }

// Fault is what the network does to one request.
type Fault int

// The faults. Each but Deliver leaves the sender without an answer.
const (
	Deliver       Fault = iota
	HangUp              // the connection closes before the request is handed over
	Swallow             // the request vanishes, and the connection falls silent
	CutAnswer           // the request is executed, and the connection closes before the answer
	SwallowAnswer       // the request is executed, and the connection falls silent
	Delay               // the request is executed some time after its sender has gone
	DelayUntilResent
)

// The accounts that the downstream treats in its own way, as the sandboxes of payment services do.
const (
	accountOrdinary = "ordinary"
	accountDeclined = "test-declined"
	accountSlow     = "test-slow"
)

// Call is one call of the plan.
type Call struct {
	Index   int // among all calls
	CallID  string
	BizID   string
	Tool    Tool
	Way     Way
	Account string
	// Reception is that of the first news of the call at the orchestrator's webhook.
	Reception Reception
	// Awaited calls are those that, once parked, somebody at the orchestrator waits for on the spot.
	Awaited bool
	// faults are those of each send; every further one is delivered.
	faults []Fault
}

// Key names the intent; two calls of one intent have the same.
func (c Call) Key() string { return c.BizID + ":" + c.Tool.Operation }

// Fault is what becomes of a send, counted from 1.
func (c Call) Fault(attempt int) Fault {
	if attempt < 1 || attempt > len(c.faults) {
		return Deliver
	}
	return c.faults[attempt-1]
}

// Plan is the whole scenario: exactly n calls, grouped by intent. The calls of an intent are sent one after the other. The
// same seed gives the same plan.
func Plan(seed uint64, n int) [][]Call {
	rng, news := rand.New(rand.NewPCG(seed, 0)), rand.New(rand.NewPCG(seed, 1))
	var intents [][]Call
	index := 0
	for order := 1; index < n; order++ {
		bizID := fmt.Sprintf("ORD-%06d", order)
		sequence := 0
		call := func(tool Tool, way Way) Call {
			sequence++
			c := Call{Index: index, CallID: fmt.Sprintf("%s-%04d", bizID, sequence), BizID: bizID, Tool: tool, Way: way}
			c.Account, c.faults = behaviour(rng, way)
			c.Reception, c.Awaited = reception(news), news.IntN(20) == 0
			index++
			return c
		}
		for _, tool := range Tools {
			if index == n {
				break
			}
			way := draw(rng, tool.fates)
			if way != ChangedID {
				intents = append(intents, []Call{call(tool, way)})
				continue
			}
			intent := []Call{call(tool, AnswerLost)}
			if index < n {
				intent = append(intent, call(tool, ChangedID))
			}
			intents = append(intents, intent)
		}
	}
	return intents
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

// reception is a fault for one verdict in eight.
func reception(rng *rand.Rand) Reception {
	switch rng.IntN(16) {
	case 0:
		return Refuse
	case 1:
		return TakeAndDrop
	}
	return Take
}

// behaviour spells a way out: the account that the call names, and what the network does to each of its sends.
func behaviour(rng *rand.Rand, way Way) (account string, faults []Fault) {
	lost := func() Fault { return []Fault{HangUp, Swallow}[rng.IntN(2)] }
	unanswered := func() Fault { return []Fault{CutAnswer, SwallowAnswer}[rng.IntN(2)] }
	switch way {
	case AnswerLost, ChangedID:
		return accountOrdinary, []Fault{unanswered()}
	case Declined:
		return accountDeclined, []Fault{unanswered()}
	case NeverArrived:
		faults = []Fault{lost()}
		if rng.IntN(3) == 0 {
			faults = append(faults, unanswered()) // the retry times out as well
		}
		return accountOrdinary, faults
	case Unreachable:
		for range maxAttempts {
			faults = append(faults, lost())
		}
		return accountOrdinary, faults
	case NotRepeatable:
		return accountOrdinary, []Fault{lost()}
	case Late:
		return accountOrdinary, []Fault{Delay}
	case Overtaken:
		return accountOrdinary, []Fault{DelayUntilResent}
	case Processing:
		return accountSlow, nil
	case Answered, Busy, ways:
	}
	return accountOrdinary, nil
}
