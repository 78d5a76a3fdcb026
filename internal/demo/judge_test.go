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
	"github.com/callreceipt/reconciler/toolcall"
)

// world is the end of a run as both sides have it.
type world struct {
	outcomes []Outcome
	books    Books
	told     Deliveries
}

func (w *world) judge() Result { return judge(w.outcomes, w.books, w.told) }

// flawless is the end of a run in which everything went as it must.
func flawless(calls int) *world {
	var w world
	for _, c := range slices.Concat(Plan(1, calls)...) {
		o := flawlessly(c)
		w.outcomes = append(w.outcomes, o)
		if !o.Brought {
			continue
		}
		status, _ := o.end()
		proof := Proof{
			CallID: c.CallID, BizID: c.BizID, Operation: c.Tool.Operation, IdempotencyKey: c.Key(), Status: receipt.Status(status),
			Attempt: o.Seen[len(o.Seen)-1], Ref: o.Ref,
		}
		if proof.Attempt == lookUp {
			proof.Attempt = 1
		}
		w.books.Receipts = append(w.books.Receipts, proof)
		if c.Way == ChangedID {
			continue // it was given the result of the first
		}
		if c.Tool.Repeatable {
			w.books.Keys = append(w.books.Keys, proof)
		}
		if status == pending.StatusSuccess {
			w.books.Effects = append(w.books.Effects, Effect{Ref: "effect of " + c.Key(), CallID: c.CallID, IdempotencyKey: c.Key(), Attempt: proof.Attempt})
		}
	}
	return &w
}

// flawlessly is the end of a call to which happened what was planned.
func flawlessly(c Call) Outcome {
	o := Outcome{Call: c, Arrived: true, TimedOut: true, Sent: 1, Attempt: 1, Seen: []int{1, lookUp, lookUp}}
	cutOff := c.LookUp != Deliver
	switch c.Way {
	case Answered:
		o.TimedOut, o.Seen = false, []int{1}
	case Refused:
		o.Sent, o.Seen = 2, []int{1}
	case Down:
		o.Arrived, o.Sent, o.Attempt, o.Seen = c.Tool.Repeatable, 3, 0, nil
	case NotRepeatable:
		o.Arrived = false
	case Unreachable:
		o.Arrived, o.Sent, o.Attempt, o.Seen = false, 3, 3, []int{1, lookUp, 2, lookUp, 3, lookUp}
	case NeverArrived:
		if !cutOff {
			o.Sent, o.Attempt, o.Seen = 2, 2, []int{1, lookUp, 2}
		}
	case ChangedID:
		if !cutOff {
			o.TimedOut, o.Seen = false, []int{1}
		}
	case AnswerLost, Late, Overtaken, Brief, Processing, Declined, Busy, ways:
	}
	o.Brought = o.Arrived && (c.Way != ChangedID || !cutOff)
	want := o.want()
	if want.atOnce {
		return o.settled(toolcall.Status(want.status))
	}
	if want.reason == "" {
		want.reason = reconcile.ReasonReceiptSuccess
	}
	return o.parked(want.status, want.reason, max(want.leastSends, o.Attempt))
}

// settled is the call as its caller settled it.
func (o Outcome) settled(status toolcall.Status) Outcome {
	o.Said = status
	if status == toolcall.Success && o.Call.Tool.Repeatable {
		o.Ref = "effect of " + o.Call.Key()
	}
	return o
}

// parked is the call as parked and then settled like this, with every account in agreement.
func (o Outcome) parked(status pending.Status, reason reconcile.Reason, sends int) Outcome {
	o.Said, o.Parked, o.Status, o.Reason, o.Sends, o.Told = toolcall.Suspended, true, status, string(reason), sends, status
	for attempt := max(o.Attempt, 1) + 1; attempt <= sends; attempt++ {
		o.Seen = append(o.Seen, attempt)
		o.Resends = append(o.Resends, Resend{CallID: o.Call.CallID, Attempt: attempt, Actor: o.Call.Tool.resender()})
	}
	if o.Call.Awaited {
		o.Awaited = status
	}
	if status == pending.StatusSuccess && o.Call.Tool.Repeatable {
		o.Ref = "effect of " + o.Call.Key()
	}
	return o
}

func (w *world) find(is func(o Outcome) bool) *Outcome {
	return &w.outcomes[slices.IndexFunc(w.outcomes, is)]
}

// first is the first call that went this way and was parked, or was not, of a tool that may be sent again.
func (w *world) first(way Way, parked bool) *Outcome {
	return w.find(func(o Outcome) bool { return o.Call.Way == way && o.Parked == parked && o.Call.Tool.Repeatable })
}

// unguarded is the first call of this way that must never be sent twice.
func (w *world) unguarded(way Way) *Outcome {
	return w.find(func(o Outcome) bool { return o.Call.Way == way && !o.Call.Tool.Repeatable })
}

// awaited is the first call with this end that somebody waited for on the spot.
func (w *world) awaited(status pending.Status) *Outcome {
	return w.find(func(o Outcome) bool { return o.Awaited == status })
}

func (w *world) effectOf(o *Outcome) *Effect {
	return &w.books.Effects[slices.IndexFunc(w.books.Effects, func(e Effect) bool { return e.CallID == o.Call.CallID })]
}

func (w *world) keyOf(o *Outcome) *Proof {
	return &w.books.Keys[slices.IndexFunc(w.books.Keys, func(p Proof) bool { return p.IdempotencyKey == o.Call.Key() })]
}

func (w *world) receiptOf(o *Outcome) *Proof {
	return &w.books.Receipts[slices.IndexFunc(w.books.Receipts, func(p Proof) bool { return p.CallID == o.Call.CallID })]
}

// unpark loses the row of a call.
func (w *world) unpark(o *Outcome) {
	o.Parked, o.Status, o.Reason, o.Sends, o.Resends, o.Told, o.Awaited = false, "", "", 0, nil, "", ""
}

// unparked is the first parked call of this way as its caller could have settled it.
func (w *world) unparked(way Way) Outcome {
	o := w.first(way, true)
	w.unpark(o)
	return o.settled(toolcall.Success)
}

func (w *world) execute(o *Outcome) {
	w.books.Effects = append(w.books.Effects, Effect{Ref: "another", CallID: o.Call.CallID, IdempotencyKey: o.Call.Key(), Attempt: 1})
}

// undo takes the effect away; forget everything that the downstream has of the call.
func (w *world) undo(o *Outcome) {
	w.books.Effects = slices.DeleteFunc(w.books.Effects, func(e Effect) bool { return e.CallID == o.Call.CallID })
}

func (w *world) forget(o *Outcome) {
	w.undo(o)
	w.books.Keys = slices.DeleteFunc(w.books.Keys, func(p Proof) bool { return p.IdempotencyKey == o.Call.Key() })
	w.books.Receipts = slices.DeleteFunc(w.books.Receipts, func(p Proof) bool { return p.CallID == o.Call.CallID })
	o.Arrived, o.Brought = false, false
}

func TestTheJudgeFindsNothingWrongWithAFlawlessRun(t *testing.T) {
	t.Parallel()
	w := flawless(1000)
	got := w.judge()
	if !got.Good() || len(got.Problems) > 0 {
		t.Fatalf("%+v\n%s", got.Summary, strings.Join(got.Problems, "\n"))
	}
	if got.Calls != 1000 || got.Effects != len(w.books.Effects) || got.AtOnce+got.Suspended != 1000 || got.TimedOut <= got.Suspended {
		t.Errorf("the counts do not fit the run: %d settled at once, %+v", got.AtOnce, got.Summary)
	}
	if got.Success+got.Failed+got.Manual != got.Suspended || got.Success == 0 || got.Failed == 0 || got.Manual == 0 {
		t.Errorf("the verdicts do not add up to the parked calls: %+v", got.Summary)
	}
	if own := got.Retried - got.Dispatched - got.HandedOff; own <= 0 || got.Dispatched == 0 || got.HandedOff == 0 {
		t.Errorf("sent again by the callers %d, by the reconciler %d, by the orchestrator %d", own, got.Dispatched, got.HandedOff)
	}
	var total Row
	for _, r := range got.Rows {
		total.Calls += r.Calls
		total.AtOnce += r.AtOnce
		total.Parked += r.Parked
		total.Success += r.Success
		total.SentAgain += r.SentAgain
		total.Effects += r.Effects
	}
	want := Row{
		Calls: got.Calls, AtOnce: got.AtOnce, Parked: got.Suspended, Success: got.Success, SentAgain: got.Retried, Effects: got.Effects,
	}
	if diff := cmp.Diff(want, total); diff != "" {
		t.Errorf("the rows do not add up to the totals:\n%s", diff)
	}
}

func TestTheJudgeFindsEachPlantedFault(t *testing.T) {
	t.Parallel()
	duplicate, wrong, lost, open := Summary{DuplicateEffects: 1}, Summary{WrongVerdicts: 1}, Summary{Lost: 1}, Summary{Open: 1}
	wrong2 := Summary{WrongVerdicts: 2} // it shows in two places
	for name, c := range map[string]struct {
		plant func(w *world)
		want  Summary
	}{
		"a verdict that the webhook was never told":       {func(w *world) { w.first(Late, true).Told = "" }, wrong},
		"a verdict that the webhook was told as another":  {func(w *world) { w.first(Declined, true).Told = pending.StatusManual }, wrong},
		"a verdict told of a call that was never parked":  {func(w *world) { w.first(Answered, false).Told = pending.StatusSuccess }, wrong},
		"a delivery whose signature does not hold":        {func(w *world) { w.told.Invalid = 1 }, wrong},
		"an orchestrator that waits and is told nothing":  {func(w *world) { w.awaited(pending.StatusSuccess).Awaited = "" }, wrong},
		"an orchestrator that waits and is told wrongly":  {func(w *world) { w.awaited(pending.StatusSuccess).Awaited = pending.StatusFailed }, wrong},
		"a send that nobody records":                      {func(w *world) { w.first(AnswerLost, true).Seen = []int{1, 0, 2} }, wrong},
		"a recorded send that left twice":                 {func(w *world) { w.first(NeverArrived, true).Seen = []int{1, 0, 0, 2, 2} }, wrong},
		"a first send that left twice":                    {func(w *world) { w.first(Answered, false).Seen = []int{1, 1} }, wrong},
		"a row that counts more sends than the ledger":    {func(w *world) { w.first(NeverArrived, true).Sends = 3 }, wrong},
		"a ledger that leaves a send out":                 {func(w *world) { w.first(Unreachable, true).Resends[0].Attempt = 5 }, wrong},
		"a call sent again by who does not send these":    {func(w *world) { w.first(NeverArrived, true).Resends[0].Actor = "somebody" }, wrong},
		"a caller that sends again without asking":        {func(w *world) { w.first(NeverArrived, false).Seen = []int{1, 2, 0} }, wrong},
		"a caller that knows what it cannot know":         {func(w *world) { *w.first(AnswerLost, true) = w.unparked(AnswerLost) }, wrong},
		"a call that is settled and parked as well":       {func(w *world) { w.first(Declined, true).Said = toolcall.Failed }, wrong},
		"an intent executed twice by one call":            {func(w *world) { w.execute(w.first(Answered, false)) }, duplicate},
		"an intent executed again under a changed callId": {func(w *world) { w.execute(w.first(ChangedID, false)) }, duplicate},
		"a call without a guard that was executed twice":  {func(w *world) { w.execute(w.unguarded(AnswerLost)) }, duplicate},
		"SUCCESS without an effect":                       {func(w *world) { w.undo(w.first(Late, true)) }, wrong},
		"an answer SUCCESS without an effect":             {func(w *world) { w.undo(w.first(Answered, false)) }, wrong},
		"a receipt SUCCESS found without an effect":       {func(w *world) { w.undo(w.first(AnswerLost, false)) }, wrong},
		"FAILED with an effect":                           {func(w *world) { w.first(AnswerLost, true).Status = pending.StatusFailed }, wrong},
		"FAILED of a call that nobody declined": {func(w *world) {
			w.first(NeverArrived, true).Status = pending.StatusFailed
			w.undo(w.first(NeverArrived, true))
		}, wrong},
		"MANUAL with an effect": {func(w *world) { w.execute(w.unguarded(NotRepeatable)) }, wrong},
		"MANUAL of a call that may be sent again": {func(w *world) {
			w.first(NeverArrived, true).Status = pending.StatusManual
			w.undo(w.first(NeverArrived, true))
		}, wrong},
		"MANUAL for another reason":                    {func(w *world) { w.unguarded(NotRepeatable).Reason = "attempts_exhausted" }, wrong},
		"SUCCESS of a call that never arrived":         {func(w *world) { w.first(NeverArrived, true).Sends = 1 }, wrong},
		"a call sent again that must not be":           {func(w *world) { w.unguarded(NotRepeatable).Sends = 2 }, wrong},
		"a call said not to be sent that was":          {func(w *world) { w.unguarded(Down).Seen = []int{1} }, wrong},
		"a call said not to be sent that was executed": {func(w *world) { w.execute(w.unguarded(Down)) }, wrong},
		"an effect under a callId never sent":          {func(w *world) { w.effectOf(w.first(Late, true)).CallID = "ORD-X" }, wrong2},
		"an outcome with the result of another":        {func(w *world) { w.first(Answered, false).Ref = "another" }, wrong},
		"a verdict with the result of another":         {func(w *world) { w.first(Overtaken, true).Ref = "another" }, wrong},
		"a receipt with the result of another":         {func(w *world) { w.receiptOf(w.first(AnswerLost, false)).Ref = "another" }, wrong},
		"a receipt that says otherwise":                {func(w *world) { w.receiptOf(w.first(Late, true)).Status = receipt.StatusProcessing }, wrong},
		"a receipt of another intent":                  {func(w *world) { w.receiptOf(w.first(Late, true)).IdempotencyKey = "ORD-X:charge" }, wrong},
		"a receipt of a call that nobody sent":         {func(w *world) { w.books.Receipts = append(w.books.Receipts, Proof{CallID: "ORD-X"}) }, wrong},
		"a call that arrived and left no receipt":      {func(w *world) { w.first(Answered, false).Brought = false }, wrong},
		"a key that says otherwise":                    {func(w *world) { w.keyOf(w.first(Declined, false)).Status = receipt.StatusProcessing }, wrong},
		"a key with the result of another":             {func(w *world) { w.keyOf(w.first(Refused, false)).Ref = "another" }, wrong},
		"a key that remembers another send":            {func(w *world) { w.keyOf(w.first(NeverArrived, false)).Attempt = 1 }, wrong},
		"a key that is there twice":                    {func(w *world) { w.books.Keys = append(w.books.Keys, w.books.Keys[0]) }, wrong},
		"a key that is forgotten":                      {func(w *world) { w.keyOf(w.first(Answered, false)).IdempotencyKey = "ORD-X:charge" }, wrong2},
		"a call that was parked and has no row":        {func(w *world) { w.unpark(w.first(Late, true)) }, lost},
		"a call of which its caller knows nothing":     {func(w *world) { w.first(Answered, false).Said = "" }, lost},
		"a call left PENDING":                          {func(w *world) { w.first(Processing, true).Status = pending.StatusPending }, open},
		"a RETRY that nobody took":                     {func(w *world) { w.first(NeverArrived, true).Status = pending.StatusRetry }, open},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := flawless(1000)
			c.plant(w)
			got := w.judge()
			if got.Good() || len(got.Problems) != max(1, c.want.WrongVerdicts) {
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
	late := w.first(Answered, false)
	late.TimedOut, late.Seen = true, nil // it came after everybody had given up, and so did the look-ups
	*late = late.parked(pending.StatusSuccess, reconcile.ReasonReceiptSuccess, 1)
	found := w.first(Answered, false)
	found.TimedOut, found.Seen = true, []int{lookUp, 1} // its own look-up overtook it
	given := w.first(AnswerLost, false)
	*given = given.parked(pending.StatusSuccess, reconcile.ReasonReceiptSuccess, 1)
	lost := w.unguarded(AnswerLost)
	w.forget(lost)
	*lost = lost.parked(pending.StatusManual, reconcile.ReasonNotRetryable, 1)
	lost.Ref = ""
	unreached := w.unguarded(Refused)
	w.forget(unreached)
	unreached.Ref, unreached.Said, unreached.Attempt, unreached.Seen = "", toolcall.NotSent, 0, nil
	w.first(Unreachable, true).Seen = []int{1, 0, 2, 0, 3, 0}
	w.awaited(pending.StatusSuccess).Awaited = pending.StatusManual // and then its receipt turned up
	got := w.judge()
	last := got.Rows[len(got.Rows)-1]
	if want := (Row{Way: Busy, Calls: 5, AtOnce: 2, Parked: 3, Success: 2, Manual: 1, SentAgain: 1, Effects: 3}); !got.Good() || last != want {
		t.Errorf("%+v, %+v", last, got.Problems)
	}
	lost.Arrived = true
	if got := w.judge(); got.WrongVerdicts != 1 {
		t.Errorf("MANUAL of a call that did arrive is no fault: %+v", got.Summary)
	}
}

func TestRequestsThatNobodySawAreADoubtAndManyOfThemAFault(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		is   func(o Outcome) bool
		seen []int
	}{
		"recorded sends that never left":  {func(o Outcome) bool { return o.Call.Way == NeverArrived && o.Parked }, []int{1, lookUp, lookUp}},
		"callers that park and never ask": {func(o Outcome) bool { return o.Call.Way == AnswerLost && o.Parked }, []int{1}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := flawless(1000)
			planted := 0
			for i, o := range w.outcomes {
				if !c.is(o) {
					continue
				}
				w.outcomes[i].Seen = c.seen
				planted++
				if got := w.judge(); planted <= 10 && !got.Good() || planted > 10 && got.WrongVerdicts != planted {
					t.Fatalf("%d planted: %+v", planted, got.Summary)
				}
			}
			if planted < 20 {
				t.Errorf("only %d planted", planted)
			}
			for i, o := range w.outcomes {
				w.outcomes[i].TimedOut = o.TimedOut || o.Call.Way == Answered && i%2 == 0
			}
			if got := w.judge(); !got.Good() {
				t.Errorf("on a machine that is too slow for half of the plain calls: %+v", got.Summary)
			}
		})
	}
}

func TestManyFaultsAreCountedAndTheFirstOfThemSpelledOut(t *testing.T) {
	t.Parallel()
	w := flawless(1000)
	w.books.Effects = nil
	got := w.judge()
	if got.WrongVerdicts <= maxProblems || len(got.Problems) != maxProblems {
		t.Errorf("%d wrong verdicts, %d spelled out", got.WrongVerdicts, len(got.Problems))
	}
}
