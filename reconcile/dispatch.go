package reconcile

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"golang.org/x/sync/errgroup"

	"github.com/callreceipt/reconciler/internal/pause"
	"github.com/callreceipt/reconciler/pending"
	"github.com/callreceipt/reconciler/receipt"
)

// Sender makes one attempt of a call at a time; *receipt.Client is one. Its errors are *receipt.Error.
type Sender interface {
	// Reach finds out whether anybody would be reached, and sends nothing.
	Reach(ctx context.Context) error
	Send(ctx context.Context, a receipt.Attempt) (receipt.Receipt, error)
}

// connectTries is how often one recorded attempt tries to connect. As long as nobody was reached nothing has been sent.
const connectTries = 3

// errNotReached ends the sending of a pass: every further attempt would be spent on nobody.
var errNotReached = errors.New("the downstream cannot be reached to send again")

// dispatch sends the calls of the tool that wait to be sent again, each with its original callId, exactly once per attempt:
//
//	rate ──► take: attempt+1 and "sent" are committed ──► send ──► a receipt decides, or the next look does
//
// It is the last part of a pass and works under its lease. A kill between the commit and the first byte spends an attempt and
// sends nothing; no kill sends twice.
func (p *pass) dispatch(ctx context.Context) error {
	if p.cfg.Sender == nil || p.limits.DryRun {
		return nil
	}
	if waiting, err := p.store.AnyRetry(ctx, p.cfg.Tool); err != nil || !waiting {
		return err
	}
	if err := p.cfg.Sender.Reach(ctx); err != nil {
		return fmt.Errorf("%w: %w", errNotReached, err)
	}
	// The first call is sent alone: should the endpoint refuse everything, one attempt is spent and not one of each worker.
	if more, err := p.sendNext(ctx, p.soft); err != nil || !more {
		return err
	}
	workers, soft := errgroup.WithContext(p.soft)
	for range p.cfg.Concurrency {
		workers.Go(func() error {
			for {
				if more, err := p.sendNext(ctx, soft); err != nil || !more {
					return err
				}
			}
		})
	}
	return workers.Wait()
}

// sendNext takes one call and sends it, when the rate allows it. It reports whether there may be more to send.
func (p *pass) sendNext(ctx, soft context.Context) (more bool, err error) {
	if n := p.turns.Add(1); p.limits.Rows > 0 && n > int64(p.limits.Rows) {
		return false, nil
	}
	if p.gate.readyToSend(soft) != nil {
		return false, nil
	}
	retry, err := p.store.TakeRetry(ctx, p.cfg.Tool, p.cfg.IdempotencyTable, pending.Spacing(p.policy.Backoff))
	if retry == nil || err != nil {
		return false, err
	}
	return true, guarded(p.cfg.Log, p.cfg.Tool, func() error { return p.send(ctx, soft, *retry) })
}

// send makes one attempt. Its error ends the sending; whatever came back of this attempt is no error.
func (p *pass) send(ctx, soft context.Context, retry pending.Retry) error {
	call := pending.Call{CallID: retry.CallID, BizID: retry.BizID, Attempt: retry.Attempt}
	r, err := p.reach(ctx, soft, receipt.Attempt{
		CallID: retry.CallID, BizID: retry.BizID, Operation: retry.Operation, IdempotencyKey: retry.IdempotencyKey,
		Number: retry.Attempt, IssuedAt: retry.IssuedAt, Request: json.RawMessage(retry.Request),
	})
	p.cfg.Metrics.Sent(sendOutcome(err))
	if err == nil {
		p.gate.sendAnswered()
		p.cfg.Log.Debug(Prefix(call)+" sent again and answered", "tool", p.cfg.Tool, "receipt", string(r.Status))
		return p.answered(ctx, retry.CallID, r)
	}
	e := receipt.AsError(err)
	p.cfg.Log.Info(Prefix(call)+" sent again, the next look decides", "tool", p.cfg.Tool, "connected", e.Connected, "error", e.Error())
	switch {
	case e.Outcome == receipt.Misconfigured:
		return fmt.Errorf("sending to %s: %w", p.cfg.Tool, err)
	case !e.Connected && e.Kind != receipt.KindCanceled && e.Kind != receipt.KindSetup:
		return fmt.Errorf("%w: %w", errNotReached, err)
	case e.Status == http.StatusTooManyRequests || e.Status == http.StatusServiceUnavailable:
		p.gate.sendRefused(e.RetryAfter)
	}
	return nil
}

// reach sends, and tries again only while no connection was had: then nothing of the attempt can have arrived.
func (p *pass) reach(ctx, soft context.Context, a receipt.Attempt) (receipt.Receipt, error) {
	p.mu.Lock()
	p.sum.Sent++
	p.mu.Unlock()
	between := betweenRepeats()
	for try := 1; ; try++ {
		r, err := p.cfg.Sender.Send(ctx, a)
		e, _ := asError(err)
		if err == nil || e == nil || e.Connected || e.Kind == receipt.KindSetup || try == connectTries {
			return r, err
		}
		if pause.For(soft, between.NextBackOff()) != nil {
			return r, err
		}
	}
}

// answered lets a receipt that came back at once decide, on the path of every other verdict.
func (p *pass) answered(ctx context.Context, callID string, r receipt.Receipt) error {
	now, err := p.store.Now(ctx)
	if err != nil {
		return err
	}
	calls, err := p.store.Get(ctx, []string{callID})
	if err != nil || len(calls) == 0 {
		return err
	}
	call := calls[0]
	seen := Plausible(receipt.Evidence{Presence: receipt.Present, Receipts: []receipt.Receipt{r}}, now)
	evidence := map[string]receipt.Evidence{call.BizID: seen}
	if call.Status.Terminal() { // somebody else settled it while it was on its way
		return p.noteContradictions(ctx, []string{callID}, evidence)
	}
	v := Decide(call, seen, p.policy, now)
	return p.settle(ctx, []judged{{verdict: v, change: p.change(call, v, seen, now), at: now}}, evidence)
}
