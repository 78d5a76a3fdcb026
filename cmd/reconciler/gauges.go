package main

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/callreceipt/reconciler/config"
	"github.com/callreceipt/reconciler/internal/task"
	"github.com/callreceipt/reconciler/metrics"
	"github.com/callreceipt/reconciler/pending"
)

// How often the numbers that only the database knows are asked for, and how long that may take.
const (
	gaugesEvery = 15 * time.Second
	gaugesLimit = 10 * time.Second
)

// gauges shows what the database holds: the backlog of each tool, and when runs last ended, in whatever process.
func (a *app) gauges(ctx context.Context, c *config.Config, db *sqlx.DB) error {
	ctx, cancel := context.WithTimeout(ctx, gaugesLimit)
	defer cancel()
	store, tools := pending.NewStore(db), slices.Sorted(maps.Keys(c.Tools))
	backlogs, err := store.Backlogs(ctx, tools, metrics.BacklogLimit)
	if err != nil {
		return err
	}
	unknown, err := store.UnknownTools(ctx, tools, metrics.BacklogLimit)
	if err != nil {
		return err
	}
	subjects := map[config.Task][]string{}
	for _, e := range c.Schedules() {
		subjects[e.Task] = append(subjects[e.Task], e.Subject)
	}
	var last []metrics.LastRun
	for of, names := range subjects {
		ends, err := task.LastEnds(ctx, db, string(of), names)
		if err != nil {
			return err
		}
		for _, e := range ends {
			last = append(last, metrics.LastRun{
				Task: metrics.Task(of), Tool: e.Subject, LastSuccess: orZero(e.Success), LastCompletion: orZero(e.Completion),
			})
		}
	}
	for _, b := range backlogs {
		a.metrics.SetBacklog(b.Tool, metrics.Backlog{
			Pending: b.Pending, Retry: b.Retry, Manual: b.Manual, NotificationsPending: b.Undelivered, Oldest: orZero(b.Oldest),
		})
	}
	calls := 0
	for _, u := range unknown {
		calls += u.Calls
	}
	a.metrics.SetUnknownTools(calls)
	a.metrics.Seed(last)
	return nil
}

func orZero(t *time.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return *t
}

// keepGauges asks again and again. While the database cannot be asked there are no numbers, since the last ones no longer hold.
func (g *generation) keepGauges(ctx context.Context) {
	ticker := time.NewTicker(gaugesEvery)
	defer ticker.Stop()
	for {
		// A server that hangs keeps the driver waiting whatever the context says.
		hangs := time.AfterFunc(gaugesLimit, func() {
			if ctx.Err() == nil {
				g.metrics.BacklogUnknown()
			}
		})
		err := g.gauges(ctx, g.cfg, g.db)
		hangs.Stop()
		if err != nil && ctx.Err() == nil {
			g.metrics.BacklogUnknown()
			g.countDatabase(err)
			g.log.Debug("the backlog could not be counted", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}
