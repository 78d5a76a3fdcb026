package demo

import (
	"context"
	"fmt"
	"time"
)

const (
	deliverEvery = 200 * time.Millisecond
	// deliverLimit is how long after the last pass verdicts may stay undelivered before they are reported as that. A delivery
	// that was not taken is repeated about a second later.
	deliverLimit = 30 * time.Second
)

// deliver tells the webhook of verdicts beside the passes. Once those are over it goes on until nothing is left to be told, or
// the limit has come.
func (w *worker) deliver(ctx context.Context, passesOver <-chan struct{}) error {
	schedule := time.NewTicker(deliverEvery)
	defer schedule.Stop()
	var limit <-chan time.Time
	for {
		complete := limit != nil // every verdict had been given before this round began
		if err := w.deliverDue(ctx); err != nil {
			return err
		}
		if complete {
			if left, err := w.undelivered(ctx); left == 0 || err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-limit:
			return nil
		case <-passesOver:
			passesOver = nil
			limit = time.After(deliverLimit)
		case <-schedule.C:
		}
	}
}

// deliverDue delivers what is due. What the webhook does not take is no error: it is due again by itself.
func (w *worker) deliverDue(ctx context.Context) error {
	sum, err := w.notifier.RunOnce(ctx)
	if err != nil && sum.Failed == 0 {
		return fmt.Errorf("delivering verdicts of %s: %w", w.tool.Name, err)
	}
	return nil
}

func (w *worker) undelivered(ctx context.Context) (n int, err error) {
	err = w.db.GetContext(ctx, &n, `
		SELECT count(*) FROM reconciler.pending_confirmations WHERE tool = $1 AND notify_at IS NOT NULL`, w.tool.Name)
	if err != nil {
		return 0, fmt.Errorf("counting the undelivered verdicts of %s: %w", w.tool.Name, err)
	}
	return n, nil
}
