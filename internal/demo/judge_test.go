package demo

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/callreceipt/reconciler/pending"
	"github.com/callreceipt/reconciler/receipt"
	"github.com/callreceipt/reconciler/reconcile"
)

// world is the end of a run as both sides have it.
type world struct {
	outcomes []Outcome
	effects  []Effect
	told     Deliveries
}

func (w *world) judge() Result { return judge(w.outcomes, w.effects, w.told) }

// flawless is the end of a run in which everything went as it must.
func flawless(calls int) *world {
	var w world
	for _, c := range slices.Concat(Plan(1, calls)...) {
		o := flawlessly(c)
		w.outcomes = append(w.outcomes, o)
		if o.want().status == pending.StatusSuccess && c.Way != ChangedID {
			w.effects = append(w.effects, Effect{CallID: c.CallID, IdempotencyKey: c.Key(), Attempt: o.Sends})
		}
	}
	return &w
}

// flawlessly is the end of a call to which happened what was planned.
func flawlessly(c Call) Outcome {
	o := Outcome{Call: c, Arrived: c.Way != Unreachable && c.Way != NotRepeatable}
	if c.Way == Answered {
		o.Answer, o.Seen = receipt.StatusSuccess, []int{1}
		return o
	}
	want := o.want()
	if want.reason == "" {
		want.reason = reconcile.ReasonReceiptSuccess
	}
	return o.ended(want.status, want.reason, want.leastSends)
}

// ended is the call as parked and settled like this, with every account in agreement.
func (o Outcome) ended(status pending.Status, reason reconcile.Reason, sends int) Outcome {
	o.Answer, o.Seen, o.Resends, o.Awaited = "", []int{1}, nil, ""
	o.Parked, o.Status, o.Reason, o.Sends, o.Told = true, status, string(reason), sends, status
	for attempt := 2; attempt <= sends; attempt++ {
		o.Seen = append(o.Seen, attempt)
		o.Resends = append(o.Resends, Resend{CallID: o.Call.CallID, Attempt: attempt, Actor: o.Call.Tool.resender()})
	}
	if o.Call.Awaited {
		o.Awaited = status
	}
	return o
}

// first is the first call that went this way.
func (w *world) first(way Way) *Outcome {
	return &w.outcomes[slices.IndexFunc(w.outcomes, func(o Outcome) bool { return o.Call.Way == way })]
}

// awaited is the first call with this end that somebody waited for on the spot.
func (w *world) awaited(status pending.Status) *Outcome {
	return &w.outcomes[slices.IndexFunc(w.outcomes, func(o Outcome) bool { return o.Awaited == status })]
}

func (w *world) effectOf(o *Outcome) *Effect {
	return &w.effects[slices.IndexFunc(w.effects, func(e Effect) bool { return e.CallID == o.Call.CallID })]
}

func (w *world) execute(o *Outcome) {
	w.effects = append(w.effects, Effect{CallID: o.Call.CallID, IdempotencyKey: o.Call.Key(), Attempt: o.Sends})
}

func (w *world) undo(o *Outcome) {
	w.effects = slices.DeleteFunc(w.effects, func(e Effect) bool { return e.CallID == o.Call.CallID })
}

func TestTheJudgeFindsNothingWrongWithAFlawlessRun(t *testing.T) {
	t.Parallel()
	w := flawless(1000)
	got := w.judge()
	if !got.Good() || len(got.Problems) > 0 {
		t.Fatalf("%+v\n%s", got.Summary, strings.Join(got.Problems, "\n"))
	}
	if got.Calls != 1000 || got.Effects != len(w.effects) || got.Suspended != got.TimedOut {
		t.Errorf("the counts do not fit the run: %+v", got.Summary)
	}
	if got.Success+got.Failed+got.Manual != got.Suspended || got.Success == 0 || got.Failed == 0 || got.Manual == 0 || got.Retried == 0 {
		t.Errorf("the verdicts do not add up to the parked calls: %+v", got.Summary)
	}
	var total Row
	for _, r := range got.Rows {
		total.Calls += r.Calls
		total.Success += r.Success
		total.SentAgain += r.SentAgain
		total.Effects += r.Effects
	}
	want := Row{Calls: got.Calls, Success: got.Success, SentAgain: got.Retried, Effects: got.Effects}
	if diff := cmp.Diff(want, total); diff != "" {
		t.Errorf("the rows do not add up to the totals:\n%s", diff)
	}
}

func TestTheJudgeFindsEachPlantedFault(t *testing.T) {
	t.Parallel()
	duplicate, wrong, lost, open := Summary{DuplicateEffects: 1}, Summary{WrongVerdicts: 1}, Summary{Lost: 1}, Summary{Open: 1}
	for name, c := range map[string]struct {
		plant func(w *world)
		want  Summary
	}{
		"a verdict that the webhook was never told":       {func(w *world) { w.first(Late).Told = "" }, wrong},
		"a verdict that the webhook was told as another":  {func(w *world) { w.first(Declined).Told = pending.StatusManual }, wrong},
		"a verdict told of a call that was never parked":  {func(w *world) { w.first(Answered).Told = pending.StatusSuccess }, wrong},
		"a delivery whose signature does not hold":        {func(w *world) { w.told.Invalid = 1 }, wrong},
		"an orchestrator that waits and is told nothing":  {func(w *world) { w.awaited(pending.StatusSuccess).Awaited = "" }, wrong},
		"an orchestrator that waits and is told wrongly":  {func(w *world) { w.awaited(pending.StatusSuccess).Awaited = pending.StatusFailed }, wrong},
		"a send that the ledger does not record":          {func(w *world) { w.first(AnswerLost).Seen = []int{1, 2} }, wrong},
		"a recorded send that left twice":                 {func(w *world) { w.first(NeverArrived).Seen = []int{1, 2, 2} }, wrong},
		"a first send that left twice":                    {func(w *world) { w.first(Answered).Seen = []int{1, 1} }, wrong},
		"two recorded sends that never left":              {func(w *world) { w.first(Unreachable).Seen = []int{1} }, wrong},
		"a row that counts more sends than the ledger":    {func(w *world) { w.first(NeverArrived).Sends = 3 }, wrong},
		"a ledger that leaves a send out":                 {func(w *world) { w.first(Unreachable).Resends[0].Attempt = 3 }, wrong},
		"a call sent again by who does not send these":    {func(w *world) { w.first(NeverArrived).Resends[0].Actor = "somebody" }, wrong},
		"an intent executed twice by one call":            {func(w *world) { w.execute(w.first(Answered)) }, duplicate},
		"an intent executed again under a changed callId": {func(w *world) { w.execute(w.first(ChangedID)) }, duplicate},
		"SUCCESS without an effect":                       {func(w *world) { w.undo(w.first(Late)) }, wrong},
		"an answer SUCCESS without an effect":             {func(w *world) { w.undo(w.first(Answered)) }, wrong},
		"FAILED with an effect":                           {func(w *world) { w.first(AnswerLost).Status = pending.StatusFailed }, wrong},
		"FAILED of a call that nobody declined": {func(w *world) {
			w.first(NeverArrived).Status = pending.StatusFailed
			w.undo(w.first(NeverArrived))
		}, wrong},
		"MANUAL with an effect": {func(w *world) { w.execute(w.first(NotRepeatable)) }, wrong},
		"MANUAL of a call that may be sent again": {func(w *world) {
			w.first(NeverArrived).Status = pending.StatusManual
			w.undo(w.first(NeverArrived))
		}, wrong},
		"MANUAL for another reason":              {func(w *world) { w.first(NotRepeatable).Reason = "attempts_exhausted" }, wrong},
		"SUCCESS of a call that never arrived":   {func(w *world) { w.first(NeverArrived).Sends = 1 }, wrong},
		"a call sent again that must not be":     {func(w *world) { w.first(NotRepeatable).Sends = 2 }, Summary{WrongVerdicts: 1, Retried: 1}},
		"an effect under a callId never sent":    {func(w *world) { w.effectOf(w.first(Late)).CallID = "ORD-X" }, wrong},
		"a call without an answer and a row":     {func(w *world) { *w.first(Late) = Outcome{Call: w.first(Late).Call, Arrived: true} }, lost},
		"an answer that the orchestrator forgot": {func(w *world) { w.first(Answered).Answer = "" }, lost},
		"a call left PENDING":                    {func(w *world) { w.first(Processing).Status = pending.StatusPending }, open},
		"a RETRY that nobody took":               {func(w *world) { w.first(NeverArrived).Status = pending.StatusRetry }, open},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := flawless(1000)
			c.plant(w)
			got := w.judge()
			if got.Good() || len(got.Problems) != 1 {
				t.Errorf("good is %v, and the judge says %q", got.Good(), got.Problems)
			}
			counts := cmpopts.IgnoreFields(Summary{}, "Calls", "TimedOut", "Suspended", "Success", "Failed", "Manual", "Retried", "Effects")
			if diff := cmp.Diff(c.want, got.Summary, counts); diff != "" {
				t.Errorf("counts (-want +got):\n%s", diff)
			}
		})
	}
}

func TestWhatABusyMachineDelaysOrLosesIsNoFault(t *testing.T) {
	t.Parallel()
	w := flawless(1000)
	late := w.first(Answered)
	*late = late.ended(pending.StatusSuccess, reconcile.ReasonReceiptSuccess, 1)
	late.Seen = nil // it came after everybody had given up
	lost := &w.outcomes[slices.IndexFunc(w.outcomes, func(o Outcome) bool { return o.Call.Way == AnswerLost && !o.Call.Tool.Repeatable })]
	w.undo(lost)
	*lost = lost.ended(pending.StatusManual, reconcile.ReasonNotRetryable, 1)
	lost.Arrived = false
	w.first(Unreachable).Seen = []int{1, 3}
	w.awaited(pending.StatusSuccess).Awaited = pending.StatusManual // and then its receipt turned up
	got := w.judge()
	last := got.Rows[len(got.Rows)-1]
	if !got.Good() || last != (Row{Way: Busy, Calls: 2, Success: 1, Manual: 1, Effects: 1}) {
		t.Errorf("%+v, %+v", last, got.Problems)
	}
	lost.Arrived = true
	if got := w.judge(); got.WrongVerdicts != 1 {
		t.Errorf("MANUAL of a call that did arrive is no fault: %+v", got.Summary)
	}
}

func TestManyFaultsAreCountedAndTheFirstOfThemSpelledOut(t *testing.T) {
	t.Parallel()
	w := flawless(1000)
	w.effects = nil
	got := w.judge()
	if got.WrongVerdicts <= maxProblems || len(got.Problems) != maxProblems {
		t.Errorf("%d wrong verdicts, %d spelled out", got.WrongVerdicts, len(got.Problems))
	}
}
