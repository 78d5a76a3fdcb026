package reconcile

import (
	"context"
	"slices"

	"github.com/callreceipt/reconciler/internal/database"
	"github.com/callreceipt/reconciler/metrics"
	"github.com/callreceipt/reconciler/pending"
	"github.com/callreceipt/reconciler/receipt"
)

// noteOthers looks at the callIds that the answers name beyond the batch: calls that are final already, and about which the
// downstream may have changed its mind.
func (p *pass) noteOthers(ctx context.Context, b batch, seen map[string]receipt.Evidence) error {
	ours := make(map[string]bool, len(b.calls))
	for _, c := range b.calls {
		ours[c.CallID] = true
	}
	var others []string
	for _, ev := range seen {
		for _, r := range ev.Receipts {
			if r.CallID != "" && !ours[r.CallID] && (r.Status == receipt.StatusSuccess || r.Status == receipt.StatusFailed) {
				ours[r.CallID] = true
				others = append(others, r.CallID)
			}
		}
	}
	for part := range slices.Chunk(others, maxWrite) {
		if err := p.noteContradictions(ctx, part, seen); err != nil {
			return err
		}
	}
	return nil
}

// noteContradictions reads calls again and puts on record which of them are final and contradicted by what was seen. Nothing
// is written to the calls themselves.
func (p *pass) noteContradictions(ctx context.Context, callIDs []string, seen map[string]receipt.Evidence) error {
	if len(callIDs) == 0 {
		return nil
	}
	calls, err := p.store.Get(ctx, callIDs)
	if err != nil {
		return err
	}
	var against []pending.Call
	var events []pending.Event
	for _, call := range calls {
		if !call.Status.Terminal() {
			continue
		}
		v := Decide(call, seen[call.BizID], p.policy, call.CreatedAt)
		if v.Anomaly == Contradiction {
			against = append(against, call)
			events = append(events, event(pending.EventContradiction, map[string]any{
				"status": call.Status, "receipt": v.Proof.Raw,
			}))
		}
	}
	if len(against) == 0 {
		return nil
	}
	recorded := len(against)
	if !p.limits.DryRun {
		recorded, err = p.store.RecordContradictions(ctx, against, events)
		if state, refused := database.Refused(err); refused {
			// One of the receipts cannot be stored. That there is a contradiction is what matters.
			for i, call := range against {
				events[i] = event(pending.EventContradiction, map[string]any{"status": call.Status, "sqlstate": state})
			}
			recorded, err = p.store.RecordContradictions(ctx, against, events)
		}
		if err != nil {
			return err
		}
	}
	p.mu.Lock()
	p.sum.Contradictions += recorded
	p.mu.Unlock()
	p.cfg.Metrics.Anomaly(metrics.AnomalyContradiction, recorded)
	for _, call := range against {
		p.cfg.Log.Warn(Prefix(call)+" a receipt contradicts a final status; nothing is changed",
			"tool", call.Tool, "status", string(call.Status))
	}
	return nil
}

// land tells the reader that the calls of a batch stand where the table says from now on. In a dry run they stay due, and
// the reader has to remember them.
func (p *pass) land(b batch) {
	if p.limits.DryRun {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range b.calls {
		p.landed = append(p.landed, c.CallID)
	}
}
