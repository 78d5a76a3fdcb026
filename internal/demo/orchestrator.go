package demo

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"sync/atomic"

	"github.com/jmoiron/sqlx"
	"golang.org/x/sync/errgroup"

	"github.com/callreceipt/reconciler/internal/database"
	"github.com/callreceipt/reconciler/pending"
	"github.com/callreceipt/reconciler/receipt"
	"github.com/callreceipt/reconciler/toolcall"
)

const (
	callsAtOnce   = 256 // most of them wait
	resendsAtOnce = 16
	retriesAtOnce = 100 // taken in one statement
)

// orchestrator is the caller. What it cannot find out at once is parked, and it sends again what is handed back to it. Of verdicts it
// is told by its webhook; for a few it waits on the spot.
type orchestrator struct {
	db      *sqlx.DB
	tools   *toolcall.Client
	refused *outage // ends when all calls that are planned to be refused have been

	outcomes []toolcall.Outcome // by Call.Index
	parked   atomic.Int64
	waits    *waits
}

func newOrchestrator(ctx context.Context, cfg Config, db *sqlx.DB, url string, plan [][]Call) (*orchestrator, error) {
	o := &orchestrator{
		db: db, outcomes: make([]toolcall.Outcome, cfg.Calls), waits: newWaits(ctx, db, cfg.Calls),
		refused: newOutage(those(plan, func(w Way) bool { return w == Refused })),
	}
	var tools []toolcall.Tool
	for _, t := range Tools {
		tools = append(tools, t.called(url))
	}
	var err error
	o.tools, err = toolcall.New(toolcall.Config{DB: db, Tools: tools, Observe: o.refused.observe, Log: cfg.Log, Clock: cfg.Clock})
	return o, err
}

func (o *orchestrator) close() {
	o.waits.close()
	o.tools.Close()
}

// those are the intents that begin with a call of such a way.
func those(plan [][]Call, is func(Way) bool) [][]Call {
	return slices.DeleteFunc(slices.Clone(plan), func(intent []Call) bool { return !is(intent[0].Way) })
}

// callAll makes every call of the plan: some while nobody listens, and the others after the downstream has come up.
func (o *orchestrator) callAll(ctx context.Context, plan [][]Call, comeUp func() error, made func(calls int)) error {
	if err := o.call(ctx, those(plan, func(w Way) bool { return w == Down }), made); err != nil {
		return err
	}
	group, each := errgroup.WithContext(ctx)
	group.Go(func() error { return o.call(each, those(plan, func(w Way) bool { return w == Refused }), made) })
	group.Go(func() error {
		if err := o.refused.wait(each); err != nil {
			return err
		}
		if err := comeUp(); err != nil {
			return err
		}
		return o.call(each, those(plan, func(w Way) bool { return !w.duringOutage() }), made)
	})
	return group.Wait()
}

// call makes the calls of these intents, many at once and those of one intent one after the other.
func (o *orchestrator) call(ctx context.Context, intents [][]Call, made func(calls int)) error {
	group, each := errgroup.WithContext(ctx)
	group.SetLimit(callsAtOnce)
	for _, intent := range intents {
		if each.Err() != nil {
			break
		}
		group.Go(func() error {
			for _, c := range intent {
				if err := o.callOne(each, c); err != nil {
					return err
				}
			}
			made(len(intent))
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	return context.Cause(ctx)
}

// callOne makes one call. That its outcome is unknown is no error: then it is parked.
func (o *orchestrator) callOne(ctx context.Context, c Call) error {
	request, err := json.Marshal(map[string]string{"account": c.Account})
	if err != nil {
		return err
	}
	outcome, err := o.tools.Do(ctx, toolcall.Call{Tool: c.Tool.Name, CallID: c.CallID, BizID: c.BizID, Request: request})
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if e, ok := errors.AsType[*toolcall.NotParkedError](err); ok {
		// The table was out of reach for too long. Nobody else knows of the call, so it is parked with more patience.
		outcome.Status, err = toolcall.Suspended, o.park(ctx, e.Suspension)
	}
	if err != nil {
		return err
	}
	o.outcomes[c.Index] = outcome
	if outcome.Status != toolcall.Suspended {
		return nil
	}
	o.parked.Add(1)
	if c.Awaited {
		o.waits.begin(c)
	}
	return nil
}

func (o *orchestrator) park(ctx context.Context, s pending.Suspension) error {
	return database.InTx(ctx, o.db, func(tx *sqlx.Tx) error {
		_, err := pending.Suspend(ctx, tx, s)
		return err
	})
}

// resend takes the retries that are handed off and sends each once, under its original callId. Whatever comes of it, nothing needs
// to be done: the next look decides.
func (o *orchestrator) resend(ctx context.Context, tool Tool, downstream *receipt.Client) error {
	for {
		taken, err := pending.TakeRetries(ctx, o.db, tool.Name, retriesAtOnce)
		if err != nil {
			return err
		}
		var group errgroup.Group
		group.SetLimit(resendsAtOnce)
		for _, retry := range taken {
			group.Go(func() error {
				_, _ = downstream.Send(ctx, receipt.Attempt{
					CallID: retry.CallID, BizID: retry.BizID, Operation: retry.Operation, IdempotencyKey: retry.IdempotencyKey,
					Number: retry.Attempt, IssuedAt: retry.IssuedAt, Request: json.RawMessage(retry.Request),
				})
				return nil
			})
		}
		_ = group.Wait()
		if len(taken) < retriesAtOnce {
			return nil
		}
	}
}
