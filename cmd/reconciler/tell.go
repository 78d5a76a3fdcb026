package main

import (
	"context"
	"errors"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"

	"github.com/callreceipt/reconciler/internal/database"
	"github.com/callreceipt/reconciler/internal/pause"
	"github.com/callreceipt/reconciler/internal/task"
	"github.com/callreceipt/reconciler/metrics"
	"github.com/callreceipt/reconciler/pending"
	"github.com/callreceipt/reconciler/reconcile"
)

const (
	// heldPause is how long a tool is left to the replica that delivers for it. Should that one die, this is what it costs.
	heldPause = 5 * time.Second
	// restateTrouble is how often the log repeats that a receiver takes nothing.
	restateTrouble = time.Hour
)

// tell delivers verdicts soon after they were given. Every replica looks for some each second, which costs a look into an index;
// who finds some takes the tool's lease and delivers. A receiver that takes none is tried ever more seldom, and holds up no other.
func (g *generation) tell(ctx context.Context) {
	t := &teller{generation: g, tools: map[string]*told{}, turns: make(chan struct{}, notifyAtOnce)}
	var names []string
	for _, n := range g.workers.notifiers {
		names = append(names, n.Tool())
		t.tools[n.Tool()] = &told{Notifier: n}
	}
	if len(names) == 0 {
		return
	}
	defer t.busy.Wait()
	store, next := pending.NewStore(g.db), notifyEvery
	for {
		due, err := store.ToolsToTell(ctx, names)
		if err == nil {
			next = notifyEvery
			t.begin(ctx, due)
		} else if ctx.Err() == nil { // the passes say that the database is away
			g.countDatabase(err)
			next = min(2*next, notifyBackoff)
		}
		if pause.For(ctx, next) != nil {
			return
		}
	}
}

// teller tells of the verdicts of all tools.
type teller struct {
	*generation
	tools map[string]*told
	busy  sync.WaitGroup
	turns chan struct{}
}

// told is a tool whose verdicts are delivered. It is left alone while a round is under way, and longer after each that failed.
type told struct {
	*reconcile.Notifier

	mu       sync.Mutex
	underWay bool
	until    time.Time
	pause    time.Duration // after the failure before
	failing  time.Time     // since when every round failed; zero when the latest did not
	said     time.Time     // when the log spoke of that
}

func (t *teller) begin(ctx context.Context, due []string) {
	for _, tool := range due {
		if to := t.tools[tool]; to.take(time.Now()) {
			t.busy.Go(func() {
				t.turns <- struct{}{}
				defer func() { <-t.turns }()
				t.round(ctx, to)
			})
		}
	}
}

// round delivers what is due for a tool. The error of a receiver that cannot be reached is one of the network, as the database's is;
// a round in which a delivery failed is taken to have failed by that.
func (t *teller) round(ctx context.Context, to *told) {
	defer t.recovered(to)
	sum, err := to.RunOnce(ctx)
	if sum.Failed == 0 {
		t.countDatabase(err)
	}
	_, held := errors.AsType[*task.HeldError](err)
	now := time.Now()
	switch {
	case ctx.Err() != nil:
		to.rest(time.Time{})
	case held:
		to.rest(now.Add(heldPause))
	case sum.Failed == 0 && database.Unreachable(err):
		t.log.Debug("verdicts are not delivered while the database is away", "tool", to.Tool(), "error", err)
		to.rest(now.Add(notifyEvery))
	case err != nil:
		since, news := to.failed(now)
		level := slog.LevelDebug
		if news {
			level = slog.LevelWarn
		}
		t.log.Log(ctx, level, "verdicts are not delivered; it is tried again until they are", "tool", to.Tool(), "delivered", sum.Delivered,
			"waiting", sum.Waiting, "since", since.UTC().Format(time.RFC3339), "error", err)
	default:
		msg := "verdicts delivered"
		if to.works() {
			msg = "verdicts are delivered again"
		}
		if sum.Delivered > 0 {
			t.log.Info(msg, "tool", to.Tool(), "delivered", sum.Delivered, "waiting", sum.Waiting)
		}
	}
}

// recovered keeps a panic in one round from ending the process.
func (t *teller) recovered(to *told) {
	if cause := recover(); cause != nil {
		to.failed(time.Now())
		t.metrics.Run(metrics.TaskNotify, to.Tool()).Panicked()
		t.log.Error("panic; verdicts are delivered in the next round", "tool", to.Tool(), "panic", cause, "stack", string(debug.Stack()))
	}
}

// take reserves the tool for a round, unless it is being left alone.
func (to *told) take(now time.Time) bool {
	to.mu.Lock()
	defer to.mu.Unlock()
	if to.underWay || now.Before(to.until) {
		return false
	}
	to.underWay = true
	return true
}

// rest ends a round of which there is nothing to be learned.
func (to *told) rest(until time.Time) {
	to.mu.Lock()
	defer to.mu.Unlock()
	to.underWay, to.until = false, until
}

// works ends a round that did not fail. It returns whether the log says that the ones before did.
func (to *told) works() (again bool) {
	to.mu.Lock()
	defer to.mu.Unlock()
	again = !to.said.IsZero()
	to.underWay, to.until, to.pause, to.failing, to.said = false, time.Time{}, 0, time.Time{}, time.Time{}
	return again
}

// failed ends a round that failed. It returns since when they do, and whether the log is to speak of it.
func (to *told) failed(now time.Time) (since time.Time, news bool) {
	to.mu.Lock()
	defer to.mu.Unlock()
	to.pause = min(max(2*to.pause, notifyEvery), notifyBackoff)
	to.underWay, to.until = false, now.Add(to.pause)
	if to.failing.IsZero() {
		to.failing = now
	}
	if news = now.Sub(to.said) >= restateTrouble; news {
		to.said = now
	}
	return to.failing, news
}
