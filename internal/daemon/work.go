package daemon

import (
	"context"
	"errors"
	"log/slog"
	"net/url"
	"time"

	"github.com/robfig/cron/v3"

	"github.com/callreceipt/reconciler/internal/database"
	"github.com/callreceipt/reconciler/internal/pause"
	"github.com/callreceipt/reconciler/internal/task"
)

// errOutcome stands for the error of a run that failed and gave none.
var errOutcome = errors.New("the run gave no reason; see the table of runs")

// start runs the job at once when it is overdue. Nobody needs to ask any more once the first tick has come.
func (e *entry) start(ctx context.Context) {
	if gap := longestGap(e.Schedule, e.now()); gap > 0 {
		e.Watch.Interval(gap)
	}
	e.ask(true)
	defer e.ask(false)
	for failures := 0; ctx.Err() == nil && !e.ticked(); failures++ {
		last, err := e.Last(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case unreachable(err):
			e.databaseFailed(err)
			_ = pause.For(ctx, backoff(failures))
			continue
		case err != nil:
			e.failed(slog.LevelWarn, "it is not known whether the job is overdue, so it runs now", err)
		default:
			e.databaseWorks()
		}
		if err != nil || overdue(e.Schedule, last, e.now()) {
			e.tick.Run()
		}
		return
	}
}

// overdue decides from the latest run on record whether a job runs at the start of the process: when a tick has passed since
// that run began, and when it did not end well, since what it left undone need not wait for a tick that may be a day away.
func overdue(schedule cron.Schedule, last *task.Run, now time.Time) bool {
	if last == nil || last.Outcome != task.Success {
		return true
	}
	next := schedule.Next(last.StartedAt)
	return !next.IsZero() && !next.After(now)
}

// work does what a tick is for. It ends when that is done, here or by another replica, and when it has failed in a way that is
// not mended by waiting a moment.
func (e *entry) work(ctx context.Context) {
	standby := false
	for failures := 0; ctx.Err() == nil; {
		due := e.latest()
		if standby && e.doneSince(ctx, due) {
			e.Watch.Skipped(LeaseHeld)
			return
		}
		outcome, err := e.attempt(ctx)
		held, isHeld := errors.AsType[*task.HeldError](err)
		switch {
		case ctx.Err() != nil:
			return
		case isHeld:
			e.databaseWorks()
			e.log.Debug("standing by: another replica works on it", "holder", held.Holder)
			standby, failures = true, 0
			_ = pause.For(ctx, standBy(held))
		case unreachable(err):
			e.databaseFailed(err)
			if outcome == task.Partial {
				failures = 0 // it was back, and the run came on
			}
			_ = pause.For(ctx, backoff(failures))
			failures++
		case errors.Is(err, task.ErrLeaseLost): // the database was away for too long, or somebody else has it now
			e.interrupted(err)
			_ = pause.For(ctx, backoff(failures))
			failures++
		case err != nil:
			e.failed(slog.LevelError, runFailed, err)
			return
		case outcome == task.Failed:
			e.failed(slog.LevelError, runFailed, errOutcome)
			return
		default:
			e.worked()
			return
		}
	}
}

// attempt makes one run.
func (e *entry) attempt(ctx context.Context) (outcome task.Outcome, err error) {
	e.begin()
	defer e.end()
	return e.Run(ctx)
}

// doneSince reports that a run on record came to its own end after the tick. One that was stopped, or that failed, left something
// undone. When nobody can tell, the lease will.
func (e *entry) doneSince(ctx context.Context, tick time.Time) bool {
	last, err := e.Last(ctx)
	return err == nil && last != nil && last.FinishedAt != nil && last.FinishedAt.After(tick) &&
		(last.Outcome == task.Success || last.Outcome == task.Partial && last.Error == nil)
}

// unreachable reports trouble with the connection to the database. A downstream that does not answer has the same errors of
// the network in it, under a *url.Error.
func unreachable(err error) bool {
	_, http := errors.AsType[*url.Error](err)
	return database.Unreachable(err) && !http
}
