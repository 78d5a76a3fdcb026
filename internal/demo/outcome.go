package demo

import (
	"context"
	"slices"

	"github.com/jmoiron/sqlx"

	"github.com/callreceipt/reconciler/pending"
	"github.com/callreceipt/reconciler/receipt"
	"github.com/callreceipt/reconciler/reconcile"
)

// Outcome is what is known of one call when everything is over, but for what the downstream did.
type Outcome struct {
	Call    Call
	Arrived bool           // the network brought the intent to the downstream, with whatever send
	Seen    []int          // the sends of this callId that came by the network, by their number
	Answer  receipt.Status // SUCCESS or FAILED when the call was answered in time, otherwise ""
	// What follows is the row of the pending table and its ledger, where there is one.
	Parked  bool
	Status  pending.Status
	Reason  string
	Sends   int // of this callId, the first included
	Resends []Resend
	// What the orchestrator was told: by the webhook, latest, and when it waited on the spot. "" is nothing.
	Told, Awaited pending.Status
}

// collect joins what the orchestrator, its webhook and the network remember of the calls with their rows.
func collect(ctx context.Context, db *sqlx.DB, plan [][]Call, caller *orchestrator, net *network, webhook *receiver) ([]Outcome, error) {
	const chunk = 1000
	store := pending.NewStore(db)
	recorded, err := resends(ctx, db)
	if err != nil {
		return nil, err
	}
	outcomes := make([]Outcome, len(caller.answers))
	var unanswered []string
	at := map[string]*Outcome{}
	for _, c := range slices.Concat(plan...) {
		o := &outcomes[c.Index]
		*o = Outcome{
			Call: c, Arrived: net.arrived(c.Key()), Seen: net.sends(c.CallID), Answer: caller.answers[c.Index],
			Resends: recorded[c.CallID], Told: webhook.latest(c.CallID), Awaited: caller.waits.told[c.Index],
		}
		if o.Answer == "" {
			unanswered = append(unanswered, c.CallID)
			at[c.CallID] = o
		}
	}
	for ids := range slices.Chunk(unanswered, chunk) {
		rows, err := store.Get(ctx, ids)
		if err != nil {
			return nil, err
		}
		for _, row := range rows {
			o := at[row.CallID]
			o.Parked, o.Status, o.Reason, o.Sends = true, row.Status, row.Reason, row.Attempt
		}
	}
	return outcomes, nil
}

// want is where a call must end.
type want struct {
	status pending.Status
	reason reconcile.Reason // "" is any
	// leastSends and mostSends bound the sends of the callId, the first included.
	leastSends, mostSends int
}

// want follows from what happened to the call, not from how long it took.
func (o Outcome) want() want {
	w := want{status: pending.StatusSuccess, leastSends: 1, mostSends: 1}
	if o.Call.Tool.Repeatable {
		w.mostSends = maxAttempts
	}
	switch {
	case !o.Arrived && o.Call.Tool.Repeatable:
		w.status, w.reason, w.leastSends = pending.StatusManual, reconcile.ReasonAttemptsExhausted, maxAttempts
	case !o.Arrived:
		w.status, w.reason = pending.StatusManual, reconcile.ReasonNotRetryable
	case o.Call.Way == Declined:
		w.status, w.reason = pending.StatusFailed, reconcile.ReasonReceiptFailed
	case o.Call.Way == NeverArrived:
		w.leastSends = 2
	}
	return w
}

// way is the one that the call went, which on a busy machine is not always the planned one.
func (o Outcome) way() Way {
	planned := o.Call.Way
	late := planned == Answered && o.Answer == ""
	lost := planned != Unreachable && planned != NotRepeatable && !o.Arrived
	if late || lost {
		return Busy
	}
	return planned
}
