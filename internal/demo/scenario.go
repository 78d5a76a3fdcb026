package demo

import (
	"fmt"
	"math/rand/v2"
	"time"
)

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
	accountBrief    = "test-brief"
	accountSlow     = "test-slow"
)

// work is how long the downstream is at it. Brief is longer than a send waits, and shorter than a caller goes on asking; slow is
// longer than that.
var work = map[string]time.Duration{accountBrief: 550 * time.Millisecond, accountSlow: 1600 * time.Millisecond}

// Call is one call of the plan.
type Call struct {
	Index   int // among all calls
	CallID  string
	BizID   string
	Tool    Tool
	Way     Way
	Account string
	// LookUp is what becomes of each look-up of the receipt by its caller; the questions of the reconciler pass.
	LookUp Fault
	// Reception is that of the first news of the call at the orchestrator's webhook.
	Reception Reception
	// Awaited calls are those that, once parked, somebody at the orchestrator waits for on the spot.
	Awaited bool
	// faults are those of each send; every further one is delivered.
	faults []Fault
}

// Key names the intent; two calls of one intent have the same.
func (c Call) Key() string { return c.BizID + ":" + c.Tool.Operation }

func (c Call) String() string {
	return fmt.Sprintf("call %s of %s (%s)", c.CallID, c.Tool.Name, c.Way)
}

// Fault is what becomes of a send, counted from 1.
func (c Call) Fault(attempt int) Fault {
	if attempt < 1 || attempt > len(c.faults) {
		return Deliver
	}
	return c.faults[attempt-1]
}

// parks tells that the plan leaves the caller no other way than to park the call.
func (c Call) parks() bool {
	switch c.Way {
	case Unreachable, NotRepeatable, Processing:
		return true
	case Down:
		return c.Tool.Repeatable // of the others it is known that they were not sent
	case Answered, Refused, AnswerLost, NeverArrived, Late, Overtaken, Brief, Declined, ChangedID, Busy, ways:
	}
	return c.LookUp != Deliver
}

// mostOfOutage is how many calls of each kind are made at most while nobody listens: as many as can be made at once.
const mostOfOutage = 50

// Plan is the whole scenario: exactly n calls, grouped by intent. The calls of an intent are sent one after the other. The
// same seed gives the same plan.
func Plan(seed uint64, n int) [][]Call {
	rng, news := rand.New(rand.NewPCG(seed, 0)), rand.New(rand.NewPCG(seed, 1))
	var intents [][]Call
	var planned [ways]int
	index := 0
	for order := 1; index < n; order++ {
		bizID := fmt.Sprintf("ORD-%06d", order)
		sequence := 0
		call := func(tool Tool, way Way) Call {
			sequence++
			c := Call{Index: index, CallID: fmt.Sprintf("%s-%04d", bizID, sequence), BizID: bizID, Tool: tool, Way: way}
			c.behave(rng)
			c.Reception, c.Awaited = reception(news), news.IntN(20) == 0
			index++
			return c
		}
		for _, tool := range Tools {
			if index == n {
				break
			}
			way := draw(rng, tool.fates)
			if planned[way]++; way.duringOutage() && planned[way] > mostOfOutage {
				way = Answered
			}
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

// behave spells the way out: the account that the call names, and what the network does to its sends and to the look-ups of its
// caller.
func (c *Call) behave(rng *rand.Rand) {
	lost := func() Fault { return []Fault{HangUp, Swallow}[rng.IntN(2)] }
	unanswered := func() Fault { return []Fault{CutAnswer, SwallowAnswer}[rng.IntN(2)] }
	c.Account = accountOrdinary
	if c.Way.mayBeCutOff() && rng.IntN(3) > 0 {
		c.LookUp = lost()
	}
	switch c.Way {
	case AnswerLost:
		c.faults = []Fault{unanswered()}
	case Declined:
		c.Account, c.faults = accountDeclined, []Fault{unanswered()}
	case NeverArrived:
		c.faults = []Fault{lost()}
		if rng.IntN(3) == 0 {
			c.faults = append(c.faults, unanswered()) // the next one brings no answer either
		}
	case Unreachable:
		for range maxAttempts {
			c.faults = append(c.faults, lost())
		}
	case NotRepeatable:
		c.faults = []Fault{lost()}
	case Late:
		c.faults = []Fault{Delay}
	case Overtaken:
		c.faults = []Fault{DelayUntilResent}
	case Brief:
		c.Account = accountBrief
	case Processing:
		c.Account = accountSlow
	case ChangedID:
		if c.LookUp != Deliver {
			c.faults = []Fault{lost()} // otherwise it would be answered with the result of the first
		}
	case Answered, Refused, Down, Busy, ways:
	}
}
