package reconcile

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/callreceipt/reconciler/internal/database"
	"github.com/callreceipt/reconciler/internal/task"
	"github.com/callreceipt/reconciler/metrics"
	"github.com/callreceipt/reconciler/pending"
)

const (
	pageSize     = 1000
	maxSiblings  = 2000             // calls of a page's bizIds beyond the page; more are left to their own turn
	drainTimeout = 30 * time.Second // how long the batches in hand may go on after the pass was told to stop
)

// Limits bound one pass. The zero value bounds nothing.
type Limits struct {
	Rows   int  // stop after about so many calls; 0 is no limit
	DryRun bool // ask and decide, and write nothing: no lease, no row, no ledger
}

// pass is one run over the due calls of a tool:
//
//	page ──► batch ──► ask ──► Decide ──► write     one goroutine reads, up to Concurrency work
//	then dispatch: take ──► send ──► Decide ──► write
type pass struct {
	*Reconciler
	rules
	limits   Limits
	soft     context.Context // ends when no new batch may begin
	patience int             // openings of the breaker that are sat out
	asked    int64           // requests made before this pass
	putOff   int             // wishes for a long pause before this pass

	turns atomic.Int64 // calls that were taken to be sent, or tried to

	mu        sync.Mutex
	sum       Summary
	refusals  int             // answers in a row that say the tool is misconfigured
	refusal   error           // the latest of them
	batchSize int             // lowered when the downstream finds a batch too large
	landed    []string        // calls whose batch has been written
	inFlight  map[string]bool // siblings that were taken out of turn; touched by the reader alone
}

// RunOnce makes one pass and returns what it did, also together with an error. It ends on an empty page, on the row
// limit, or when ctx ends; the batches in hand are finished then. *task.HeldError means that another holder works
// on the tool and nothing was done.
func (r *Reconciler) RunOnce(ctx context.Context, limits Limits) (Summary, error) {
	p := &pass{
		Reconciler: r, limits: limits, sum: Summary{Tool: r.cfg.Tool}, batchSize: r.cfg.BatchSize,
		patience: r.gate.timesOpened() + breakerProbes, asked: r.gate.requests.Load(), putOff: r.gate.timesPutOff(), inFlight: map[string]bool{},
	}
	began := r.cfg.Clock()
	var err error
	if limits.DryRun {
		err = p.unrecorded(ctx)
	} else {
		err = task.Hold(ctx, r.cfg.DB, r.cfg.Log, "reconcile:"+r.cfg.Tool, r.cfg.Holder, p.recorded)
	}
	return p.finish(ctx, began, err), err
}

// finish completes the summary.
func (p *pass) finish(ctx context.Context, began time.Time, err error) Summary {
	sum := p.snapshot()
	sum.DurationSeconds = p.cfg.Clock().Sub(began).Seconds()
	sum.Outcome = sum.outcome(err, ctx.Err() != nil)
	var held *task.HeldError
	if errors.As(err, &held) {
		sum.Outcome = task.Skipped
	}
	if err != nil {
		sum.Error = err.Error()
	}
	return sum
}

// snapshot is the summary so far.
func (p *pass) snapshot() Summary {
	sum := p.sum
	sum.Requests = int(p.gate.requests.Load() - p.asked)
	return sum
}

// unrecorded drains and writes nothing.
func (p *pass) unrecorded(ctx context.Context) error {
	if err := p.adopt(ctx); err != nil {
		return err
	}
	return p.drain(ctx)
}

// recorded drains and leaves a row in the table of runs.
func (p *pass) recorded(ctx context.Context) error {
	if err := p.store.EnsureEventPartitions(ctx); err != nil {
		return err
	}
	unruled := p.adopt(ctx)
	id, err := task.Start(ctx, p.cfg.DB, "reconcile", p.cfg.Tool, p.cfg.Holder, p.text)
	if err != nil {
		return err
	}
	p.gate.show()
	p.cfg.Runs.LeaseHeld(true)
	defer p.cfg.Runs.LeaseHeld(false)
	ended := p.cfg.Runs.Begin()
	defer ended(metrics.OutcomeFailed) // only a panic gets there first
	began := p.cfg.Clock()
	if err = unruled; err == nil {
		err = p.drain(ctx)
	}
	sum := p.finish(ctx, began, err)
	ended(metrics.Outcome(sum.Outcome))
	counts, _ := json.Marshal(sum) // numbers and words always marshal
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTimeout)
	defer cancel()
	if failed := task.Finish(end, p.cfg.DB, id, sum.Outcome, counts, err); failed != nil && !database.Unreachable(failed) {
		p.cfg.Log.Warn("the end of the run is not on record", "tool", p.cfg.Tool, "error", failed)
	}
	return err
}

// drain looks at every call that was due when it began.
func (p *pass) drain(ctx context.Context) error {
	horizon, err := p.store.Now(ctx)
	if err != nil {
		return err
	}
	soft, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	p.soft = soft
	// A batch in hand outlives soft, since what the downstream answered should not be thrown away; but not for long.
	hard, abandon := context.WithCancel(context.WithoutCancel(ctx))
	defer abandon()
	defer context.AfterFunc(soft, func() { time.AfterFunc(drainTimeout, abandon) })()

	var workers errgroup.Group
	workers.SetLimit(p.cfg.Concurrency)
	begin := func(b batch) {
		workers.Go(func() error {
			if err := guarded(p.cfg.Log, p.cfg.Tool, func() error { return p.work(hard, b) }); err != nil {
				stop(err)
			}
			return nil
		})
	}
	err = p.read(soft, horizon, begin)
	_ = workers.Wait() // workers report through stop
	if cause := context.Cause(soft); cause != nil {
		return cause
	}
	if err = errors.Join(err, p.refusal); err != nil {
		return err
	}
	// The pass may have taken hours. What it offered by its own rules is not for anybody to take if the keys are archived by now.
	if _, err := p.endOffers(hard); err != nil {
		return err
	}
	return errors.Join(p.dispatch(hard), context.Cause(soft))
}

// read pages through the due calls and begins a batch whenever one is full. It holds one page and one batch.
func (p *pass) read(soft context.Context, horizon time.Time, begin func(batch)) error {
	var next batcher
	left := p.limits.Rows
	for _, within := range []pending.Range{pending.Due(horizon), pending.Astray(horizon)} {
		for after := within.Start(); ; {
			calls, page, err := p.page(soft, within, after, left)
			if err != nil {
				return err
			}
			if len(page.Calls) == 0 {
				break
			}
			read := reading{at: page.ReadAt, local: p.cfg.Clock()}
			for _, c := range calls {
				for !next.add(c, read, p.size()) {
					begin(next.take())
				}
			}
			if p.limits.Rows > 0 {
				if left -= len(calls); left <= 0 {
					begin(next.take())
					return nil
				}
			}
			after = page.Next
		}
	}
	if len(next.calls) > 0 {
		begin(next.take())
	}
	return nil
}

// page reads a page together with the other due calls of its bizIds, less those that came as siblings of an earlier page.
func (p *pass) page(ctx context.Context, within pending.Range, after pending.Cursor, left int) ([]pending.Call, pending.Page, error) {
	limit := pageSize
	if p.limits.Rows > 0 {
		limit = min(limit, left)
	}
	p.forgetLanded()
	page, err := p.store.Page(ctx, p.cfg.Tool, within, after, limit)
	if err != nil || len(page.Calls) == 0 {
		return nil, page, err
	}
	calls := p.untaken(page.Calls)
	if p.limits.Rows > 0 || !p.policy.NeedsReceipt {
		return calls, page, nil // a bounded run takes just what it was told to; without a look there is nothing to share
	}
	siblings, err := p.store.Siblings(ctx, p.cfg.Tool, within, page.Next, distinctBizIDs(calls), maxSiblings)
	if err != nil {
		return nil, page, err
	}
	siblings = p.untaken(siblings)
	for _, c := range siblings {
		p.inFlight[c.CallID] = true
	}
	return byBizID(calls, siblings), page, nil
}

// guarded keeps a panic in a worker from ending the process; what it had in hand is left as it was.
func guarded(log *slog.Logger, tool string, work func() error) (err error) {
	defer func() {
		if cause := recover(); cause != nil {
			log.Error("panic", "tool", tool, "panic", cause, "stack", string(debug.Stack()))
			err = fmt.Errorf("panic in a worker of %s: %v", tool, cause)
		}
	}()
	return work()
}

func (p *pass) size() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.batchSize
}

// untaken leaves out the calls that came as siblings of an earlier page and were not written when this one was read.
func (p *pass) untaken(calls []pending.Call) []pending.Call {
	kept := calls[:0:0]
	for _, c := range calls {
		if !p.inFlight[c.CallID] {
			kept = append(kept, c)
		}
	}
	return kept
}

// forgetLanded forgets the siblings that have been written. A page read from now on sees them where they went.
func (p *pass) forgetLanded() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, id := range p.landed {
		delete(p.inFlight, id)
	}
	p.landed = nil
}

func distinctBizIDs(calls []pending.Call) []string {
	seen := make(map[string]bool, len(calls))
	var ids []string
	for _, c := range calls {
		if !seen[c.BizID] {
			seen[c.BizID] = true
			ids = append(ids, c.BizID)
		}
	}
	return ids
}

// byBizID puts the calls of one bizId next to each other, bizIds in the order in which they came due.
func byBizID(calls, siblings []pending.Call) []pending.Call {
	of := make(map[string][]pending.Call, len(calls))
	for _, c := range append(calls, siblings...) {
		of[c.BizID] = append(of[c.BizID], c)
	}
	grouped := make([]pending.Call, 0, len(calls)+len(siblings))
	for _, c := range calls {
		grouped = append(grouped, of[c.BizID]...)
		delete(of, c.BizID)
	}
	return grouped
}
