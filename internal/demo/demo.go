// Package demo shows the whole of it on one machine: a downstream that executes every intent once and proves it (package
// idempotency), a network that loses requests and answers, an orchestrator that finds out what became of its calls or parks them
// (package toolcall), and the reconciler's passes.
//
//	orchestrator ────► network ────► downstream ──► effects, keys, receipts ──┐
//	 │  ▲   ▲  calls,    (faults by seed) ▲                                   │
//	 │  │   │  look-ups      ▲            │                                   │
//	 │  │   │ webhook        │ retries    │ receipts                          ├──► judge
//	 │  │   └──────────── passes ─────────┘                                   │
//	 │  │ retries handed off ▲                                                │
//	 ▼  │                    ▼                                                │
//	pending table ◄──────────┘                                                │
//	 └────────────────────────────────────────────────────────────────────────┘
//
// One tool is sent again by the reconciler itself, another by the orchestrator, to which its retries are handed off; the third
// must never be sent twice. The orchestrator's webhook verifies the signature of every verdict, refuses some and drops the answer
// to others.
//
// Everything is real but the length of the waits: HTTP over TCP, PostgreSQL, and the packages that production runs. In the end
// the judge compares every outcome with what the downstream has on record and with what the webhook was told.
package demo

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/callreceipt/reconciler/internal/database"
	"github.com/callreceipt/reconciler/internal/task"
	"github.com/callreceipt/reconciler/migrations"
	"github.com/callreceipt/reconciler/reconcile"
)

// MaxCalls bounds Config.Calls.
const MaxCalls = 100_000

// Stage is what a run is doing.
type Stage string

// The stages, in order.
const (
	StageSending   Stage = "sending"   // calls, while passes run beside it
	StageSettling  Stage = "settling"  // passes, until no call is open and no verdict undelivered
	StageComparing Stage = "comparing" // outcomes with the downstream's books
)

// Config is one run.
type Config struct {
	DSN   string // an empty database, for this run alone
	Calls int    // 1 to MaxCalls
	Seed  uint64 // the same seed gives the same faults
	Log   *slog.Logger
	// Progress is called at the begin of each stage with done 0, and as it goes on; by several goroutines. It may be nil.
	Progress func(stage Stage, done, total int)
	Clock    func() time.Time // nil means time.Now
}

// Run plays the scenario to its end and judges it. Faults that the judge finds are in the result and are no error. When ctx
// ends, so does the run, with its cause; nothing of it goes on after the return.
func Run(ctx context.Context, cfg Config) (Result, error) {
	if cfg.Calls < 1 || cfg.Calls > MaxCalls {
		return Result{}, fmt.Errorf("the demo takes 1 to %d calls, not %d", MaxCalls, cfg.Calls)
	}
	if cfg.Clock == nil {
		cfg.Clock = time.Now //nolint:forbidigo // the default of an injected clock
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Progress == nil {
		cfg.Progress = func(Stage, int, int) {}
	}
	result, err := run(ctx, cfg)
	if err != nil && ctx.Err() != nil {
		return Result{}, context.Cause(ctx) // whatever it was that noticed it first
	}
	return result, err
}

func run(ctx context.Context, cfg Config) (result Result, err error) {
	began := cfg.Clock()
	ours, err := database.Open(cfg.DSN)
	if err != nil {
		return Result{}, err
	}
	defer func() { _ = ours.Close() }()
	theirs, err := database.Open(cfg.DSN) // the downstream shares the server and nothing else
	if err != nil {
		return Result{}, err
	}
	defer func() { _ = theirs.Close() }()
	if _, err := migrations.Reconciler.Up(ctx, ours.DB); err != nil {
		return Result{}, err
	}
	if _, err := migrations.Downstream.Up(ctx, theirs.DB); err != nil {
		return Result{}, err
	}
	plan := Plan(cfg.Seed, cfg.Calls)
	down, err := newDownstream(ctx, theirs, plan, cfg.Log)
	if err != nil {
		return Result{}, err
	}
	defer func() { err = errors.Join(err, down.close(ctx)) }()
	secret, folder, file, err := newSecret()
	if err != nil {
		return Result{}, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(folder)) }()
	webhook, err := startReceiver(secret, plan)
	if err != nil {
		return Result{}, err
	}
	defer func() { err = errors.Join(err, webhook.close(ctx)) }()
	caller, err := newOrchestrator(ctx, cfg, ours, down.url, plan)
	if err != nil {
		return Result{}, err
	}
	defer caller.close()
	workers, err := newWorkers(ours, down.url, caller, reconcile.NotifierConfig{
		URL: webhook.url + "/verdicts", SecretFile: file, DB: ours, Holder: task.NewHolder(), Log: cfg.Log,
	})
	defer func() {
		for _, w := range workers {
			w.close()
		}
	}()
	if err != nil {
		return Result{}, err
	}

	if err := perform(ctx, cfg, plan, down, caller, workers); err != nil {
		return Result{}, err
	}
	cfg.Progress(StageComparing, 0, cfg.Calls)
	outcomes, err := collect(ctx, ours, plan, caller, down.network, webhook)
	if err != nil {
		return Result{}, err
	}
	books, err := readBooks(ctx, theirs)
	if err != nil {
		return Result{}, err
	}
	result = judge(outcomes, books, webhook.deliveries())
	if result.Example, err = example(ctx, ours, outcomes, caller, books.Effects); err != nil {
		return Result{}, err
	}
	result.DurationSeconds = cfg.Clock().Sub(began).Seconds()
	return result, nil
}

// perform plays until everything is at rest, and delivers verdicts beside it until each has been told.
func perform(ctx context.Context, cfg Config, plan [][]Call, down *downstream, caller *orchestrator, workers []*worker) error {
	group, ctx := errgroup.WithContext(ctx)
	passesOver := make(chan struct{})
	group.Go(func() error {
		if err := play(ctx, cfg, plan, down, caller, workers); err != nil {
			return err
		}
		if err := comeToRest(ctx, down, workers); err != nil {
			return err
		}
		close(passesOver)
		caller.waits.over()
		return nil
	})
	for _, w := range workers {
		group.Go(func() error { return w.deliver(ctx, passesOver) })
	}
	return group.Wait()
}

// play makes every call while passes run beside it, as they do in production, and lets them go on until no call is open.
func play(ctx context.Context, cfg Config, plan [][]Call, down *downstream, caller *orchestrator, workers []*worker) error {
	group, ctx := errgroup.WithContext(ctx)
	allSent := make(chan struct{})
	var settling atomic.Bool
	group.Go(func() error {
		var sent atomic.Int64
		cfg.Progress(StageSending, 0, cfg.Calls)
		err := caller.callAll(ctx, plan, down.listen, func(calls int) {
			cfg.Progress(StageSending, int(sent.Add(int64(calls))), cfg.Calls)
		})
		if err != nil {
			return err
		}
		cfg.Progress(StageSettling, 0, int(caller.parked.Load()))
		settling.Store(true)
		close(allSent)
		return nil
	})
	settled := func() {
		if !settling.Load() {
			return
		}
		parked, open := int(caller.parked.Load()), 0
		for _, w := range workers {
			open += int(w.open.Load())
		}
		cfg.Progress(StageSettling, parked-open, parked)
	}
	for _, w := range workers {
		group.Go(func() error { return w.run(ctx, allSent, settled) })
	}
	return group.Wait()
}

// comeToRest waits until the downstream has finished with whatever is still under way, and looks once more at the calls that
// wait for a person: a receipt that turned up late settles them.
func comeToRest(ctx context.Context, down *downstream, workers []*worker) error {
	if err := down.network.quiet(ctx); err != nil {
		return err
	}
	due := time.NewTimer(slowestLook)
	defer due.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-due.C:
	}
	for _, w := range workers {
		if err := w.pass(ctx); err != nil {
			return err
		}
	}
	return down.network.quiet(ctx)
}
