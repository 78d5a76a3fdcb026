// Package daemon is the scheduler of `reconciler serve`. Each job, one task on one subject, has a schedule of its own and waits
// for no other:
//
//	        tick             done, or failed: the next tick will do
//	idle ─────────► working ────────────────────────────────────────► idle
//	                 │   ▲
//	       held, or  │   │  the lease may have expired by now,
//	  database away  ▼   │  or the database be back
//	                waiting ────────────────────────────────────────► idle
//	                          somebody's run ended after the tick
//
// A tick that finds its job working is skipped; one that finds it waiting is folded into what it waits for.
package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/robfig/cron/v3"

	"github.com/callreceipt/reconciler/internal/task"
)

// Job is one entry of the timetable: one task on one subject.
type Job struct {
	Task, Subject string
	// Schedule carries its own zone; one that carries none is read in UTC. It has to fire some day.
	Schedule cron.Schedule
	// Run does one unit of work. When its context ends it finishes what it has in hand and returns. *task.HeldError says
	// that another replica works on it.
	Run func(ctx context.Context) (task.Outcome, error)
	// Last is the latest run on record by anybody, or nil when there is none.
	Last func(ctx context.Context) (*task.Run, error)
	// Watch is told what becomes of the job; it may be nil.
	Watch Watch
}

// Watch is told what becomes of a job. Its methods must not block, and may be called by several goroutines.
type Watch interface {
	// Skipped says that a tick came to nothing here.
	Skipped(reason SkipReason)
	// Panicked says that Run panicked.
	Panicked()
	// Interval is called once, at the start: the longest time between two ticks over the coming 400 days, or between the first
	// two if they are further apart.
	Interval(d time.Duration)
}

// SkipReason says why a tick came to nothing.
type SkipReason string

// The reasons to skip a tick.
const (
	StillRunning SkipReason = "still_running" // the run before it is still at work
	LeaseHeld    SkipReason = "lease_held"    // another replica did the work
)

// DefaultDrain is how long runs may go on after the end when Config does not say. A pass gives the batches in hand 30 s.
const DefaultDrain = 35 * time.Second

// Config is a timetable.
type Config struct {
	Jobs  []Job            // each task and subject once
	Log   *slog.Logger     // nil discards
	Clock func() time.Time // nil means time.Now
	Drain time.Duration    // how long Run waits for the runs in hand once its context ended; 0 means DefaultDrain
}

// Scheduler runs the jobs of a timetable.
type Scheduler struct {
	entries []*entry
	log     *slog.Logger
	drain   time.Duration
	read    func() reading
}

// New checks a timetable. It starts nothing.
func New(cfg Config) (*Scheduler, error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Clock == nil {
		cfg.Clock = time.Now //nolint:forbidigo // the default of an injected clock
	}
	if cfg.Drain == 0 {
		cfg.Drain = DefaultDrain
	}
	var errs []error
	if cfg.Drain < 0 {
		errs = append(errs, fmt.Errorf("drain is %s; it must not be negative", cfg.Drain))
	}
	s := &Scheduler{log: cfg.Log, drain: cfg.Drain, read: readings(cfg.Clock)}
	database := &trouble{quiet: databaseQuiet}
	seen := map[string]bool{}
	for _, job := range cfg.Jobs {
		e := &entry{Job: job, log: cfg.Log.With("task", job.Task, "subject", job.Subject), now: cfg.Clock, database: database}
		if e.Watch == nil {
			e.Watch = unwatched{}
		}
		if err := job.check(); err != nil {
			errs = append(errs, fmt.Errorf("job %s: %w", e, err))
		}
		if seen[e.String()] {
			errs = append(errs, fmt.Errorf("job %s stands twice in the timetable", e))
		}
		seen[e.String()] = true
		s.entries = append(s.entries, e)
	}
	return s, errors.Join(errs...)
}

func (j Job) check() error {
	switch {
	case j.Task == "" || j.Subject == "":
		return errors.New("it needs a task and a subject")
	case j.Schedule == nil || j.Run == nil || j.Last == nil:
		return errors.New("it needs Schedule, Run and Last")
	}
	return nil
}

// unwatched is the Watch of a job that has none.
type unwatched struct{}

func (unwatched) Skipped(SkipReason)     {}
func (unwatched) Panicked()              {}
func (unwatched) Interval(time.Duration) {}
