package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/robfig/cron/v3"

	"github.com/callreceipt/reconciler/internal/database"
	"github.com/callreceipt/reconciler/internal/pause"
	"github.com/callreceipt/reconciler/internal/task"
	"github.com/callreceipt/reconciler/pending"
)

// cleanup deletes settled calls that nobody waits for any more, and runs as old as those.
type cleanup struct {
	db     *sqlx.DB
	log    *slog.Logger
	holder string
	age    time.Duration
}

const (
	taskCleanup    = "cleanup"
	subjectPending = "pending_confirmations"
	cleanupBatch   = 1000
	// quietPatience is how long a batch waits for passes to end; in a backlog that takes hours some rows go all the same.
	quietPatience = time.Minute
	quietEvery    = time.Second
)

// cleanupSchedule is once an hour, away from the full hour at which everything else begins.
var cleanupSchedule = must(cron.ParseStandard("23 * * * *"))

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// RunOnce deletes batch by batch until nothing is old enough. Each batch is a small transaction, begins when no pass is at work, and
// is followed by a pause as long as it took.
func (c *cleanup) RunOnce(ctx context.Context) (task.Outcome, error) {
	outcome := task.Success
	err := task.Hold(ctx, c.db, c.log, taskCleanup+":"+subjectPending, c.holder, func(ctx context.Context) error {
		id, err := task.Start(ctx, c.db, taskCleanup, subjectPending, c.holder, nil)
		if err != nil {
			return err
		}
		calls, err := c.sweep(ctx, func(ctx context.Context) (int, error) {
			return pending.NewStore(c.db).DeleteSettled(ctx, c.age, cleanupBatch)
		})
		runs := 0
		if err == nil {
			runs, err = c.sweep(ctx, func(ctx context.Context) (int, error) { return task.DeleteRuns(ctx, c.db, c.age, cleanupBatch) })
		}
		if calls+runs > 0 {
			c.log.Info("settled calls and old runs deleted", "calls", calls, "runs", runs, "older_than", c.age.String())
		}
		if err != nil {
			outcome = task.Partial
		}
		counts, _ := json.Marshal(map[string]int{"calls": calls, "runs": runs}) // numbers always marshal
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), task.LeaseTTL)
		defer cancel()
		if failed := task.Finish(end, c.db, id, outcome, counts, err); failed != nil && !database.Unreachable(failed) { // or else all know
			c.log.Warn("the end of the run is not on record", "task", taskCleanup, "error", failed)
		}
		return err
	})
	if err != nil && outcome == task.Success {
		outcome = task.Failed
	}
	return outcome, err
}

// sweep deletes until a batch is not full.
func (c *cleanup) sweep(ctx context.Context, batch func(context.Context) (int, error)) (deleted int, err error) {
	for {
		if err := c.quiet(ctx); err != nil {
			return deleted, err
		}
		began := time.Now()
		n, err := batch(ctx)
		deleted += n
		if err != nil || n < cleanupBatch {
			return deleted, err
		}
		if err := pause.For(ctx, time.Since(began)); err != nil {
			return deleted, err
		}
	}
}

// quiet waits until no pass is at work, in any replica.
func (c *cleanup) quiet(ctx context.Context) error {
	for waited := time.Duration(0); waited < quietPatience; waited += quietEvery {
		var busy bool
		err := c.db.GetContext(ctx, &busy, `
			SELECT EXISTS (SELECT FROM reconciler.leases WHERE name LIKE 'reconcile:%' AND expires_at > clock_timestamp())`)
		if err != nil {
			return fmt.Errorf("looking for passes at work: %w", err)
		}
		if !busy {
			return nil
		}
		if err := pause.For(ctx, quietEvery); err != nil {
			return err
		}
	}
	return nil
}
