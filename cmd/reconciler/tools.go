package main

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/callreceipt/reconciler/config"
	"github.com/callreceipt/reconciler/internal/printable"
	"github.com/callreceipt/reconciler/internal/task"
	"github.com/callreceipt/reconciler/metrics"
	"github.com/callreceipt/reconciler/receipt"
	"github.com/callreceipt/reconciler/reconcile"
)

// How often verdicts are delivered while passes go on; seldom while a receiver takes none.
const (
	notifyEvery   = time.Second
	notifyBackoff = time.Minute
	// notifyAtOnce bounds the webhooks that are served at the same time. Like a tool, each holds a connection for its lease.
	notifyAtOnce = 8
	// workConns is how many connections there are beside those that carry leases.
	workConns = 16
)

// chosen is the tools to work on, in order.
func chosen(c *config.Config, only []string) ([]string, error) {
	var names []string
	for name := range c.Tools {
		names = append(names, name)
	}
	slices.Sort(names)
	if len(names) == 0 {
		return nil, fmt.Errorf("no tools are configured in %s: add one under 'tools'", c.Source)
	}
	if len(only) == 0 {
		return names, nil
	}
	for _, name := range only {
		if !slices.Contains(names, name) {
			return nil, fmt.Errorf("--tool %s is not configured; the tools in %s are %v", printable.ID(name), c.Source, names)
		}
	}
	slices.Sort(only)
	return slices.Compact(only), nil
}

// workers are the tools of the configuration, ready to work.
type workers struct {
	tools     []*reconcile.Reconciler
	notifiers []*reconcile.Notifier
	clients   []*receipt.Client
	holder    string // of their leases
}

// close gives their connections back.
func (w *workers) close() {
	for _, c := range w.clients {
		c.Close()
	}
	for _, n := range w.notifiers {
		n.Close()
	}
}

func (w *workers) connect(cfg receipt.Config) (*receipt.Client, error) {
	client, err := receipt.NewClient(cfg)
	if err == nil {
		w.clients = append(w.clients, client)
	}
	return client, err
}

// wire turns the configuration of tools into workers; they are to be closed also after an error.
func (a *app) wire(c *config.Config, db *sqlx.DB, names []string, progress func(reconcile.Summary)) (*workers, error) {
	w := &workers{holder: task.NewHolder()}
	for _, name := range names {
		t := c.Tools[name]
		cfg := reconcile.Config{
			Tool: name, Policy: policyOf(t), IdempotencyTable: t.IdempotencyTable, BatchSize: t.Receipts.BatchSize, Concurrency: t.Receipts.Concurrency,
			Retries: t.Receipts.Retries, Rate: t.Receipts.Rate, DB: db, Holder: w.holder, Log: a.log, Progress: progress,
			Metrics: a.metrics.Tool(name, reconcile.MeasuredAs(t.Notify.URL != "")), Runs: a.metrics.Run(metrics.TaskReconcile, name),
			Notify: t.Notify.URL != "",
		}
		var err error
		if t.NeedsReceipt {
			cfg.Source, err = w.connect(receipt.Config{
				URL: string(t.Receipts.URL), Timeout: t.Receipts.Timeout.Std(), Concurrency: t.Receipts.Concurrency,
				BearerTokenFile: t.Receipts.BearerTokenFile, CAFile: t.Receipts.CAFile,
			})
			if err != nil {
				return w, fmt.Errorf("tool %s: receipts: %w", name, err)
			}
		}
		if t.Retry.Mode == config.RetryDispatch {
			cfg.Sender, err = w.connect(receipt.Config{
				URL: string(t.Retry.URL), Timeout: t.Retry.Timeout.Std(), Concurrency: t.Receipts.Concurrency,
				BearerTokenFile: t.Retry.BearerTokenFile, CAFile: t.Retry.CAFile, FreshConnections: true,
			})
			if err != nil {
				return w, fmt.Errorf("tool %s: retry: %w", name, err)
			}
		}
		r, err := reconcile.New(cfg)
		if err != nil {
			return w, err
		}
		w.tools = append(w.tools, r)
		if t.Notify.URL == "" {
			continue
		}
		n, err := reconcile.NewNotifier(reconcile.NotifierConfig{
			Tool: name, URL: string(t.Notify.URL), SecretFile: t.Notify.SecretFile, DB: db, Holder: w.holder, Log: a.log,
			Metrics: cfg.Metrics, Runs: a.metrics.Run(metrics.TaskNotify, name),
		})
		if err != nil {
			return w, err
		}
		w.notifiers = append(w.notifiers, n)
	}
	db.SetMaxOpenConns(min(len(w.tools), toolsAtOnce) + min(len(w.notifiers), notifyAtOnce) + workConns)
	return w, nil
}

func policyOf(t config.Tool) reconcile.Policy {
	return reconcile.Policy{
		Retryable: t.Retryable, Idempotent: t.Idempotent, NeedsReceipt: t.NeedsReceipt,
		NeedsRequest: t.Retry.Mode == config.RetryDispatch, RetryFailed: t.RetryFailed, Settle: t.Settle.Std(),
		NotFoundConfirmations: t.NotFoundConfirmations, DedupWindow: t.DedupWindow.Std(), MaxAttempts: t.MaxAttempts,
		ManualAfter: t.ManualAfter.Std(),
		Backoff:     reconcile.Backoff{Initial: t.CheckBackoff.Initial.Std(), Max: t.CheckBackoff.Max.Std()},
	}
}

// notifyMeanwhile delivers verdicts while passes give them, so that the first of ten million is not told of after the last.
// The returned function is called when the passes are over: it waits for one more round and returns what came of all.
func (w *workers) notifyMeanwhile(ctx context.Context) (finish func() []reconcile.NotifySummary) {
	over := make(chan struct{})
	sums := make([]reconcile.NotifySummary, len(w.notifiers))
	var all sync.WaitGroup
	turn := make(chan struct{}, notifyAtOnce)
	for i, n := range w.notifiers {
		all.Go(func() {
			sums[i] = notifyUntil(over, func() (reconcile.NotifySummary, error) {
				turn <- struct{}{}
				defer func() { <-turn }()
				return n.RunOnce(ctx)
			})
		})
	}
	return func() []reconcile.NotifySummary {
		close(over)
		all.Wait()
		return sums
	}
}

// notifyUntil runs rounds until over, and then the last one.
func notifyUntil(over <-chan struct{}, round func() (reconcile.NotifySummary, error)) (total reconcile.NotifySummary) {
	pause := notifyEvery
	for last := false; ; {
		sum, err := round()
		sum.Delivered += total.Delivered
		sum.Failed += total.Failed
		total = sum
		if last {
			return total
		}
		if err == nil {
			pause = notifyEvery
		} else {
			pause = min(2*pause, notifyBackoff)
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-over:
			last = true
		}
		timer.Stop()
	}
}
