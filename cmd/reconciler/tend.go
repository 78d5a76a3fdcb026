package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"

	"github.com/callreceipt/reconciler/config"
	"github.com/callreceipt/reconciler/internal/daemon"
	"github.com/callreceipt/reconciler/internal/database"
	"github.com/callreceipt/reconciler/internal/pause"
	"github.com/callreceipt/reconciler/internal/task"
	"github.com/callreceipt/reconciler/metrics"
	"github.com/callreceipt/reconciler/partition"
)

const (
	// tablesAtOnce bounds the tables that are archived at the same time: each compresses and reads back what may be large.
	tablesAtOnce = 2
	// tendEvery is how often each table is looked at beside its schedule. Hourly partitions that are made ahead for a few hours cannot
	// wait for an archiving that comes once a day.
	tendEvery = 5 * time.Minute
)

// archiveJob is the archiving of one table on its schedule.
func (g *generation) archiveJob(e config.Entry, t *partitioned, places chan struct{}) daemon.Job {
	pass := func(ctx context.Context) (task.Outcome, error) {
		sum, err := t.RunOnce(ctx, partition.Limits{})
		g.sayArchive(t, sum)
		switch {
		case t.database == "":
			g.countDatabase(err)
		case database.Unreachable(err):
			// The scheduler would take it for the reconciler's own database, and try again all day. The next tick is soon enough.
			err = errors.New(err.Error())
		}
		return sum.Outcome, err
	}
	return daemon.Job{
		Task: string(e.Task), Subject: e.Subject, Schedule: e.Schedule, Run: within(places, pass),
		Watch: schedule{g.metrics.Run(metrics.TaskArchive, e.Subject)},
	}
}

// sayArchive logs what a run did, when it had anything to do.
func (g *generation) sayArchive(t *partitioned, s partition.Summary) {
	if s.Due+s.Made+s.Exported+s.Detached+s.Dropped == 0 {
		return
	}
	g.log.Info("archive over", "table", t.Subject(), "outcome", string(s.Outcome), "due", s.Due, "held", s.Held, "exported", s.Exported,
		"detached", s.Detached, "dropped", s.Dropped, "made", s.Made, "rows", s.Rows, "bytes", s.Bytes,
		"took", time.Duration(s.DurationSeconds*float64(time.Second)).Round(time.Millisecond).String())
}

// tend looks after the tables between the runs. Whatever is wrong with one is logged, and keeps nobody from the others, nor from the
// calls.
func (g *generation) tend(ctx context.Context) {
	var all sync.WaitGroup
	for _, t := range g.tables.all {
		all.Go(func() { g.tendTable(ctx, t) })
	}
	all.Wait()
}

func (g *generation) tendTable(ctx context.Context, t *partitioned) {
	for said := ""; ; {
		err := g.tendOnce(ctx, t)
		if ctx.Err() != nil {
			return
		}
		trouble, level := "", slog.LevelError
		switch {
		case err == nil:
		case database.Unreachable(err):
			trouble, level = "its database is away", slog.LevelWarn
		default:
			trouble = err.Error()
		}
		switch trouble {
		case said:
		case "":
			g.log.Info("the table can be archived again", "table", t.Subject())
		default:
			g.log.Log(ctx, level, "the table cannot be looked after; calls are settled all the same", "table", t.Subject(), "error", err)
		}
		said = trouble
		if pause.For(ctx, tendEvery) != nil {
			return
		}
	}
}

// tendOnce makes the partitions that are missing ahead, whatever may be wrong with the old ones, and tells the metrics how all stand.
func (g *generation) tendOnce(ctx context.Context, t *partitioned) (err error) {
	defer func() {
		if cause := recover(); cause != nil {
			g.log.Error("panic; the table is looked at again later", "table", t.Subject(), "panic", cause, "stack", string(debug.Stack()))
			err = fmt.Errorf("panic: %v", cause)
		}
	}()
	wrong := t.Check(ctx)
	// Under the lease of a run, so that of many replicas one does it. Whoever holds it makes them as well.
	missing := task.Hold(ctx, g.db, g.log, "archive:"+t.Subject(), g.workers.holder, func(ctx context.Context) error {
		done, err := t.Ensure(ctx)
		if len(done.Made) > 0 {
			g.log.Info("partitions made ahead", "table", t.Subject(), "made", len(done.Made), "until", done.Until)
		}
		return err
	})
	if held, _ := errors.AsType[*task.HeldError](missing); held != nil {
		missing = nil
	}
	return cmp.Or(wrong, missing, t.Survey(ctx))
}
