package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/jmoiron/sqlx"

	"github.com/callreceipt/reconciler/pending"
	"github.com/callreceipt/reconciler/reconcile"
	"github.com/callreceipt/reconciler/toolcall"
)

// Outcome is what is known of one call when everything is over, but for what the downstream has on record.
type Outcome struct {
	Call    Call
	Brought bool  // the network brought the call to the downstream, with whatever send
	Arrived bool  // the same of any call of the intent
	Seen    []int // what came by the network, in order: the number of a send, or lookUp
	// What its caller has of it from toolcall.
	Said     toolcall.Status
	TimedOut bool // the first send brought no answer
	Sent     int  // sends by the caller, those without a connection included
	Attempt  int  // the number of the latest of them that may have arrived; 0 is none
	// What follows is the row of the pending table and its ledger, where there is one.
	Parked  bool
	Status  pending.Status
	Reason  string
	Sends   int // the attempt of the row
	Resends []Resend
	// Ref is the result that the verdict brought, be it from the caller's own receipt or from the row's; "" is none.
	Ref string
	// What the orchestrator was told: by the webhook, latest, and when it waited on the spot. "" is nothing.
	Told, Awaited pending.Status
}

// row is what the pending table has of a call.
type row struct {
	CallID  string         `db:"call_id"`
	Status  pending.Status `db:"status"`
	Reason  string         `db:"reason"`
	Attempt int            `db:"attempt"`
	Ref     string         `db:"ref"`
}

func readRows(ctx context.Context, db *sqlx.DB) (map[string]row, error) {
	var all []row
	err := db.SelectContext(ctx, &all, `
		SELECT call_id, status, coalesce(reason, '') AS reason, attempt, coalesce(receipt #>> '{result,ref}', '') AS ref
		FROM reconciler.pending_confirmations`)
	if err != nil {
		return nil, fmt.Errorf("reading the parked calls: %w", err)
	}
	rows := make(map[string]row, len(all))
	for _, r := range all {
		rows[r.CallID] = r
	}
	return rows, nil
}

// collect joins what the orchestrator, its webhook and the network remember of the calls with their rows.
func collect(ctx context.Context, db *sqlx.DB, plan [][]Call, caller *orchestrator, net *network, webhook *receiver) ([]Outcome, error) {
	recorded, err := resends(ctx, db)
	if err != nil {
		return nil, err
	}
	rows, err := readRows(ctx, db)
	if err != nil {
		return nil, err
	}
	outcomes := make([]Outcome, len(caller.outcomes))
	for _, intent := range plan {
		arrived := false
		for _, c := range intent {
			o := &outcomes[c.Index]
			o.Call, o.Resends, o.Told, o.Awaited = c, recorded[c.CallID], webhook.latest(c.CallID), caller.waits.told[c.Index]
			o.Seen, o.Brought = net.sightings(c.CallID)
			o.heard(caller.outcomes[c.Index])
			if r, ok := rows[c.CallID]; ok {
				o.Parked, o.Status, o.Reason, o.Sends, o.Ref = true, r.Status, r.Reason, r.Attempt, r.Ref
			}
			arrived = arrived || o.Brought
		}
		for _, c := range intent {
			outcomes[c.Index].Arrived = arrived
		}
	}
	return outcomes, nil
}

// heard takes over what toolcall said to the caller.
func (o *Outcome) heard(from toolcall.Outcome) {
	o.Said, o.Attempt = from.Status, from.Attempt
	for i, s := range from.Steps {
		if s.Action == toolcall.ActionSend {
			o.Sent++
			o.TimedOut = o.TimedOut || i == 0 && s.Result != toolcall.ResultSuccess && s.Result != toolcall.ResultFailed
		}
	}
	var brought result
	_ = json.Unmarshal(from.Receipt.Result, &brought) // without a result there is no ref, which the judge compares
	o.Ref = brought.Ref
}

// statusNotSent is the end of a call that is known not to have been sent; no row ever has it.
const statusNotSent = pending.Status(toolcall.NotSent)

// end is how the call ended, and whether its caller found out by itself. "" is a call that is lost.
func (o Outcome) end() (status pending.Status, atOnce bool) {
	switch o.Said {
	case toolcall.Success, toolcall.Failed, toolcall.NotSent:
		return pending.Status(o.Said), true
	case toolcall.Suspended:
	}
	return o.Status, false
}

// sentAgain counts the sends beyond the first, by whomever.
func (o Outcome) sentAgain() int { return max(0, o.Sent-1) + len(o.Resends) }

// want is where a call must end.
type want struct {
	atOnce bool
	status pending.Status
	reason reconcile.Reason // of its row; "" is any
	// leastSends and mostSends bound the sends of the callId that may have arrived.
	leastSends, mostSends int
}

// want follows from what happened to the call, not from how long it took.
func (o Outcome) want() want {
	w := want{atOnce: !o.Call.parks(), status: pending.StatusSuccess, leastSends: 1, mostSends: 1}
	if o.Call.Tool.Repeatable {
		w.mostSends = maxAttempts
	}
	switch {
	case !o.Arrived && o.Attempt == 0 && !o.Call.Tool.Repeatable && !slices.Contains(o.Seen, 1):
		w.status, w.leastSends = statusNotSent, 0
	case !o.Arrived && o.Call.Tool.Repeatable:
		w.status, w.reason, w.leastSends = pending.StatusManual, reconcile.ReasonAttemptsExhausted, maxAttempts
	case !o.Arrived:
		w.status, w.reason = pending.StatusManual, reconcile.ReasonNotRetryable
	case o.Call.Way == Declined:
		w.status, w.reason = pending.StatusFailed, reconcile.ReasonReceiptFailed
	case !o.Brought:
		w.reason = reconcile.ReasonSettledByOtherCall
	case o.Call.Way == NeverArrived, o.Call.Way == Down:
		w.leastSends = 2
	}
	return w
}

// way is the one that the call went, which on a busy machine is not always the planned one.
func (o Outcome) way() Way {
	planned, want := o.Call.Way, o.want()
	neverArrives := planned == Unreachable || planned == NotRepeatable || (planned == Down && !o.Call.Tool.Repeatable)
	_, atOnce := o.end()
	switch {
	case planned == Answered && o.TimedOut, !o.Arrived && !neverArrives, (o.Said != "") && atOnce != want.atOnce:
		return Busy
	}
	return planned
}
