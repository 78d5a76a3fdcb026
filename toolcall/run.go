package toolcall

import (
	"context"
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/callreceipt/reconciler/receipt"
)

// run is one Do.
type run struct {
	*Client
	tool     *tool
	call     call
	wait     backoff.BackOff
	lastSent time.Time // when the latest send began; zero before the first
	steps    []Step
}

func (r *run) do(ctx context.Context) (Outcome, error) {
	began := r.now()
	s, todo := begin(r.tool.tags, r.call.sent)
	for todo.verb == send || todo.verb == ask {
		s, todo = s.next(r.perform(ctx, s, todo))
	}
	out := Outcome{CallID: r.call.ids.CallID, Attempt: s.arrived}
	var err error
	switch todo.verb {
	case settle:
		out.Receipt = todo.receipt
		out.Status = Failed
		if todo.receipt.Status == receipt.StatusSuccess {
			out.Status = Success
		}
	case park:
		if err = r.park(ctx, s.arrived, todo.kind); err == nil {
			out.Status, out.Timeout = Suspended, todo.kind
		}
	case giveUp, send, ask:
		out.Status = NotSent
		if ctx.Err() != nil {
			err = fmt.Errorf("toolcall: call %s was not sent: %w", shown(r.call.ids.CallID), ctx.Err())
		}
	}
	out.Steps = r.steps
	r.tell(Event{Tool: r.tool.name, CallID: out.CallID, Status: out.Status, Step: Step{Action: ActionEnd, Took: r.now().Sub(began), Err: err}})
	return out, err
}

// perform does one step and tells how it ended.
func (r *run) perform(ctx context.Context, s state, todo step) evidence {
	if todo.pause && !r.pause(ctx, todo.atLeast) || ctx.Err() != nil {
		return evidence{result: ResultCanceled, err: ctx.Err()}
	}
	if todo.verb == send {
		return r.send(ctx, r.call.attempt(todo.attempt))
	}
	began := r.now()
	answer, err := r.tool.receipts.QueryCalls(ctx, []string{r.call.ids.CallID})
	ended := r.now()
	e := ofAsk(r.call.attempt(s.arrived), answer, err, ended)
	r.record(Step{Action: ActionAsk, Result: e.result, Took: ended.Sub(began), Err: e.err})
	return e
}

func (r *run) send(ctx context.Context, a receipt.Attempt) evidence {
	select {
	case r.tool.slots <- struct{}{}:
		defer func() { <-r.tool.slots }()
	case <-ctx.Done():
		return evidence{result: ResultCanceled, err: ctx.Err()}
	}
	r.lastSent = r.now()
	answer, err := r.tool.endpoint.Send(ctx, a)
	ended := r.now()
	e := ofSend(a, answer, err, ended)
	r.record(Step{Action: ActionSend, Attempt: a.Number, Result: e.result, Took: ended.Sub(r.lastSent), Err: e.err})
	return e
}

// pause waits for the next backoff, and for no less than atLeast. It reports whether ctx lasted that long.
func (r *run) pause(ctx context.Context, atLeast time.Duration) bool {
	timer := time.NewTimer(max(r.wait.NextBackOff(), atLeast))
	defer timer.Stop()
	began := r.now()
	done := Step{Action: ActionWait}
	select {
	case <-timer.C:
	case <-ctx.Done():
		done.Result = ResultCanceled
	}
	done.Took = r.now().Sub(began)
	r.record(done)
	return done.Result == ""
}

func (r *run) record(s Step) {
	r.steps = append(r.steps, s)
	r.tell(Event{Tool: r.tool.name, CallID: r.call.ids.CallID, Step: s})
}
