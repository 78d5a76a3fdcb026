package demo

import (
	"time"

	"github.com/callreceipt/reconciler/receipt"
	"github.com/callreceipt/reconciler/reconcile"
	"github.com/callreceipt/reconciler/toolcall"
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
		{Answered, 63}, {Refused, 2}, {Down, 1}, {AnswerLost, 14}, {NotRepeatable, 10}, {Declined, 10},
	}},
}

var repeatableFates = []share{
	{Answered, 51},
	{Refused, 2},
	{Down, 1},
	{AnswerLost, 10},
	{NeverArrived, 12},
	{Unreachable, 2},
	{Late, 6},
	{Overtaken, 2},
	{Brief, 2},
	{Processing, 3},
	{Declined, 5},
	{ChangedID, 4},
}

// The waits of production in miniature: what takes minutes there takes a second here.
const (
	sendsAtOnce = 16                     // to one tool; more would keep the downstream of a small machine from answering in time
	callTimeout = 400 * time.Millisecond // of one send, and of one look-up of a receipt
	settle      = 800 * time.Millisecond // above callTimeout and delay together
	firstCheck  = 100 * time.Millisecond
	slowestLook = 500 * time.Millisecond
	// A caller sends a call mostSends times at most, and whoever sends it after that has one more.
	mostSends   = 3
	maxAttempts = mostSends + 1
)

// called is the tool as its callers register it.
func (t Tool) called(url string) toolcall.Tool {
	return toolcall.Tool{
		Name: t.Name, Operation: t.Operation, Retryable: t.Repeatable, Idempotent: t.Repeatable, NeedsReceipt: true, MaxSends: mostSends, Concurrency: sendsAtOnce,
		Endpoint: receipt.Config{URL: url + "/" + t.Operation, Timeout: callTimeout},
		Receipts: receipt.Config{URL: url + receiptsPath, Timeout: callTimeout},
	}
}

// policy is the tool as the reconciler knows it.
func (t Tool) policy() reconcile.Policy {
	return reconcile.Policy{
		Retryable: t.Repeatable, Idempotent: t.Repeatable, NeedsReceipt: true, NeedsRequest: t.Dispatched, Settle: settle, NotFoundConfirmations: 2,
		DedupWindow: time.Hour, MaxAttempts: maxAttempts, ManualAfter: time.Hour,
		Backoff: reconcile.Backoff{Initial: firstCheck, Max: slowestLook},
	}
}

// resender is who sends a parked call again, as the ledger names it.
func (t Tool) resender() string {
	if t.Dispatched {
		return "reconciler"
	}
	return "orchestrator"
}
