package demo

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/callreceipt/reconciler/pending"
	"github.com/callreceipt/reconciler/reconcile"
	"github.com/callreceipt/reconciler/toolcall"
)

// Example is the story of one call, told from what its caller did, its row, its ledger and the downstream's effects.
type Example struct {
	CallID, Tool string
	Way          Way
	Moments      []Moment
}

// Moment is one line of the story.
type Moment struct {
	After  time.Duration // since the call was issued
	What   string
	Reason string
	Send   int // which send of the callId it is about
	By     string
}

// mostMoments bounds the story of a call.
const mostMoments = 20

// example picks the call that has most to tell: one that was lost and sent again, or else any that was parked.
func example(ctx context.Context, db *sqlx.DB, outcomes []Outcome, caller *orchestrator, effects []Effect) (*Example, error) {
	parked := func(o Outcome) bool { return o.Parked }
	at := slices.IndexFunc(outcomes, func(o Outcome) bool {
		return o.Parked && o.way() == NeverArrived && o.Status == pending.StatusSuccess
	})
	if at < 0 {
		at = slices.IndexFunc(outcomes, parked)
	}
	if at < 0 {
		return nil, nil //nolint:nilnil // nothing was parked, so there is no story
	}
	call := outcomes[at].Call
	store := pending.NewStore(db)
	row, err := store.Find(ctx, call.CallID)
	if err != nil {
		return nil, err
	}
	events, err := store.Ledger(ctx, call.CallID, mostMoments)
	if err != nil {
		return nil, err
	}
	moments := story(caller.outcomes[call.Index].Steps, row, events, effects)
	return &Example{CallID: call.CallID, Tool: call.Tool.Name, Way: outcomes[at].way(), Moments: moments}, nil
}

// story puts the accounts of all sides into one order.
func story(steps []toolcall.Step, row pending.Record, events []pending.Entry, effects []Effect) []Moment {
	since := func(t time.Time) time.Duration { return t.Sub(row.IssuedAt) }
	moments := callersStory(steps)
	for _, e := range events {
		moments = append(moments, Moment{After: since(e.At), What: inWords(e), Reason: e.Reason, Send: e.Attempt, By: e.Actor})
	}
	if row.NotifiedAt != nil {
		moments = append(moments, Moment{After: since(*row.NotifiedAt), What: "taken, " + string(row.Status), Send: row.Attempt, By: "webhook"})
	}
	for _, e := range effects {
		if e.CallID == row.CallID {
			moments = append(moments, Moment{After: since(e.ExecutedAt), What: "executed", Send: e.Attempt, By: "downstream"})
		}
	}
	slices.SortStableFunc(moments, func(a, b Moment) int { return int(a.After - b.After) })
	return moments
}

// callersStory is what toolcall did for the caller: a send is told when it began, everything else when it ended.
func callersStory(steps []toolcall.Step) []Moment {
	var moments []Moment
	var now time.Duration
	latest := 1
	tell := func(what, reason string) {
		moments = append(moments, Moment{After: now, What: what, Reason: reason, Send: latest, By: "orchestrator"})
	}
	for _, s := range steps {
		switch s.Action {
		case toolcall.ActionSend:
			latest = s.Attempt
			tell("sent", "")
			now += s.Took
			tell(strings.ReplaceAll(string(s.Result), "_", " "), "") // no answer, not connected
		case toolcall.ActionAsk:
			now += s.Took
			tell("asked for its receipt", string(s.Result))
		case toolcall.ActionPark:
			now += s.Took
			tell("parked", "")
		case toolcall.ActionWait, toolcall.ActionEnd:
			now += s.Took
		}
	}
	return moments
}

// inWords is what a ledger row records: a verdict is told by the status it gave.
func inWords(e pending.Entry) string {
	var seen reconcile.Seen
	if e.Kind == pending.EventVerdict && json.Unmarshal(e.Detail, &seen) == nil {
		return "verdict " + string(seen.Status)
	}
	return string(e.Kind)
}
