package demo

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/callreceipt/reconciler/receipt"
	"github.com/callreceipt/reconciler/reconcile"
)

const (
	passEvery = 100 * time.Millisecond
	// settleLimit is how long after the last send calls may stay open before they are reported as that.
	settleLimit = 2 * time.Minute
)

// worker runs the passes over one tool, lets the orchestrator send again what they hand off, and delivers the verdicts.
type worker struct {
	tool         Tool
	url          string // of the downstream
	db           *sqlx.DB
	reconciler   *reconcile.Reconciler
	sender       *receipt.Client // to the downstream, for calls that are sent again
	clients      []*receipt.Client
	notifier     *reconcile.Notifier
	orchestrator *orchestrator
	open         atomic.Int64 // calls of the tool that are PENDING or RETRY, as of the last pass
}

// newWorkers makes one worker for each tool. They are to be closed also after an error.
func newWorkers(db *sqlx.DB, url string, o *orchestrator, webhook reconcile.NotifierConfig) ([]*worker, error) {
	var all []*worker
	for _, tool := range Tools {
		w := &worker{tool: tool, url: url, db: db, orchestrator: o}
		all = append(all, w)
		if err := w.wire(webhook); err != nil {
			return all, err
		}
	}
	return all, nil
}

func (w *worker) wire(webhook reconcile.NotifierConfig) (err error) {
	const concurrency = 8
	cfg := reconcile.Config{
		Tool: w.tool.Name, Policy: w.tool.policy(), Notify: true, BatchSize: 200, Concurrency: concurrency, Retries: 2, Rate: 200,
		DB: w.db, Holder: webhook.Holder, Log: webhook.Log,
	}
	cfg.Source, err = w.connect(receipt.Config{URL: w.url + receiptsPath, Timeout: 5 * time.Second, Concurrency: concurrency})
	if err != nil {
		return err
	}
	w.sender, err = w.connect(receipt.Config{
		URL: w.url + "/" + w.tool.Operation, Timeout: callTimeout, Concurrency: concurrency, FreshConnections: true,
	})
	if err != nil {
		return err
	}
	if w.tool.Dispatched {
		cfg.Sender = w.sender
	}
	if w.reconciler, err = reconcile.New(cfg); err != nil {
		return err
	}
	webhook.Tool = w.tool.Name
	w.notifier, err = reconcile.NewNotifier(webhook)
	return err
}

func (w *worker) connect(cfg receipt.Config) (*receipt.Client, error) {
	client, err := receipt.NewClient(cfg)
	if err != nil {
		return nil, fmt.Errorf("tool %s: %w", w.tool.Name, err)
	}
	w.clients = append(w.clients, client)
	return client, nil
}

func (w *worker) close() {
	for _, c := range w.clients {
		c.Close()
	}
	if w.notifier != nil {
		w.notifier.Close()
	}
}

// run makes passes until everything has been sent and no call of the tool is open, or the limit has come.
func (w *worker) run(ctx context.Context, allSent <-chan struct{}, told func()) error {
	schedule := time.NewTicker(passEvery)
	defer schedule.Stop()
	var limit <-chan time.Time
	for {
		complete := limit != nil // every call had been parked before this pass began
		if err := w.pass(ctx); err != nil {
			return err
		}
		told()
		if complete && w.open.Load() == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-limit:
			return nil
		case <-allSent:
			allSent = nil
			limit = time.After(settleLimit)
		case <-schedule.C:
		}
	}
}

// pass looks at what is due, has sent again what came out of it, and counts what is open.
func (w *worker) pass(ctx context.Context) error {
	if _, err := w.reconciler.RunOnce(ctx, reconcile.Limits{}); err != nil {
		return fmt.Errorf("a pass over %s: %w", w.tool.Name, err)
	}
	if !w.tool.Dispatched {
		if err := w.orchestrator.resend(ctx, w.tool, w.sender); err != nil {
			return err
		}
	}
	var open int64
	err := w.db.GetContext(ctx, &open, `
		SELECT count(*) FROM reconciler.pending_confirmations WHERE tool = $1 AND status IN ('PENDING', 'RETRY')`, w.tool.Name)
	if err != nil {
		return fmt.Errorf("counting the open calls of %s: %w", w.tool.Name, err)
	}
	w.open.Store(open)
	return nil
}
