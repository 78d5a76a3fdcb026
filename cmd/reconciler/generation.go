package main

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/lib/pq"

	"github.com/callreceipt/reconciler/config"
	"github.com/callreceipt/reconciler/internal/daemon"
	"github.com/callreceipt/reconciler/internal/database"
	"github.com/callreceipt/reconciler/internal/task"
	"github.com/callreceipt/reconciler/metrics"
	"github.com/callreceipt/reconciler/receipt"
	"github.com/callreceipt/reconciler/reconcile"
)

// generation is one configuration at work: its connections, its workers and its timetable. A reload makes the next one, and this
// one finishes what it has in hand.
type generation struct {
	*app
	cfg       *config.Config
	db        *sqlx.DB
	workers   *workers
	tables    *tables
	scheduler *daemon.Scheduler
	turns     *sync.Map // of the process; see inTurn

	ctx    context.Context // ends when no new work may begin, and says why
	cancel context.CancelCauseFunc
	over   chan struct{} // closed when nothing is in hand any more
}

// generation builds one from a configuration, and connects to nothing yet: a database that is away is no reason not to start.
func (d *supervisor) generation(c *config.Config) (*generation, error) {
	if err := c.RequireDatabase(); err != nil {
		return nil, err
	}
	dsn, err := c.Database.DSN()
	if err != nil {
		return nil, err
	}
	names, err := chosen(c, nil)
	if err != nil {
		return nil, err
	}
	if err := d.tryOut(c, dsn, names); err != nil {
		return nil, err
	}
	g := &generation{app: d.app, cfg: c, turns: &d.turns, over: make(chan struct{})}
	g.ctx, g.cancel = context.WithCancelCause(context.WithoutCancel(d.ctx))
	if g.db, err = database.Open(dsn); err != nil {
		return nil, err
	}
	if g.workers, err = d.wire(c, g.db, names, nil); err == nil {
		g.tables, err = d.wireTables(c, g.db, g.workers.holder, 0, nil)
	}
	if err == nil {
		g.scheduler, err = daemon.New(daemon.Config{Jobs: g.jobs(), Log: d.log, Clock: time.Now})
	}
	if err != nil {
		return nil, errors.Join(err, g.close())
	}
	return g, nil
}

// tryOut wires everything once without metrics: a configuration that is refused must not change those of the one in force.
func (d *supervisor) tryOut(c *config.Config, dsn string, names []string) error {
	db, err := database.Open(dsn)
	if err != nil {
		return err
	}
	unmeasured := *d.app
	unmeasured.metrics = nil
	w, err := unmeasured.wire(c, db, names, nil)
	w.close()
	t, wrong := unmeasured.wireTables(c, db, w.holder, 0, nil)
	return errors.Join(err, wrong, t.close(), db.Close())
}

// work runs until stop, and then until what is in hand has come to its end.
func (g *generation) work() {
	defer close(g.over)
	var all sync.WaitGroup
	all.Go(func() { g.scheduler.Run(g.ctx) })
	all.Go(func() { g.tell(g.ctx) })
	all.Go(func() { g.keepGauges(g.ctx) })
	all.Go(func() { g.tend(g.ctx) })
	all.Wait()
	if err := g.close(); err != nil {
		g.log.Warn("closing the database", "error", err)
	}
}

// stop begins no new work and waits for the work in hand. The runs that it cuts short have the reason on record.
func (g *generation) stop(reason error) {
	g.cancel(reason)
	<-g.over
}

func (g *generation) close() error {
	g.cancel(nil)
	if g.workers != nil {
		g.workers.close()
	}
	var err error
	if g.tables != nil {
		err = g.tables.close()
	}
	return errors.Join(err, g.db.Close())
}

// jobs is the timetable.
func (g *generation) jobs() []daemon.Job {
	slots, places := make(chan struct{}, toolsAtOnce), make(chan struct{}, tablesAtOnce)
	tools, tables := map[string]*reconcile.Reconciler{}, map[string]*partitioned{}
	for _, r := range g.workers.tools {
		tools[r.Tool()] = r
	}
	for _, t := range g.tables.all {
		tables[t.Subject()] = t
	}
	var jobs []daemon.Job
	for _, e := range g.cfg.Schedules() {
		switch e.Task {
		case config.TaskReconcile:
			jobs = append(jobs, g.reconcileJob(e, tools[e.Subject], slots))
		case config.TaskArchive:
			jobs = append(jobs, g.archiveJob(e, tables[e.Subject], places))
		}
	}
	if age := g.cfg.Reconcile.Retention.Std(); age > 0 {
		c := &cleanup{db: g.db, log: g.log, holder: g.workers.holder, age: age}
		jobs = append(jobs, daemon.Job{
			Task: taskCleanup, Subject: subjectPending, Schedule: cleanupSchedule,
			Run: func(ctx context.Context) (task.Outcome, error) {
				outcome, err := c.RunOnce(ctx)
				return outcome, g.databaseOnly(err)
			},
		})
	}
	for i, j := range jobs {
		jobs[i].Run = g.inTurn(j)
		jobs[i].Last = func(ctx context.Context) (*task.Run, error) { return task.Latest(ctx, g.db, j.Task, j.Subject) }
	}
	return jobs
}

// reconcileJob is the passes over one tool on its schedule.
func (g *generation) reconcileJob(e config.Entry, r *reconcile.Reconciler, slots chan struct{}) daemon.Job {
	pass := func(ctx context.Context) (task.Outcome, error) {
		sum, err := r.RunOnce(ctx, reconcile.Limits{})
		g.sayRun(sum)
		return sum.Outcome, g.databaseOnly(err)
	}
	return daemon.Job{
		Task: string(e.Task), Subject: e.Subject, Schedule: e.Schedule, Run: within(slots, pass),
		Watch: schedule{g.metrics.Run(metrics.TaskReconcile, e.Subject)},
	}
}

// inTurn lets a run begin when that of the generation before has ended, so that what this one left is gone on with at once. The
// lease would tell it to come again after seconds.
func (g *generation) inTurn(j daemon.Job) func(context.Context) (task.Outcome, error) {
	turn, _ := g.turns.LoadOrStore(j.Task+" "+j.Subject, make(chan struct{}, 1))
	return within(turn.(chan struct{}), j.Run)
}

// within runs while it has one of the places.
func within(places chan struct{}, run func(context.Context) (task.Outcome, error)) func(context.Context) (task.Outcome, error) {
	return func(ctx context.Context) (task.Outcome, error) {
		select {
		case places <- struct{}{}:
			defer func() { <-places }()
			return run(ctx)
		case <-ctx.Done():
			return task.Skipped, context.Cause(ctx)
		}
	}
}

// sayRun logs what a pass did, when it did anything.
func (g *generation) sayRun(s reconcile.Summary) {
	if s.Scanned+s.Sent == 0 {
		return
	}
	g.log.Info("pass over", "tool", s.Tool, "outcome", string(s.Outcome), "scanned", s.Scanned, "success", s.Success, "failed", s.Failed, "retry", s.Retry,
		"manual", s.Manual, "waiting", s.Waiting, "unanswered", s.Unanswered, "lost_races", s.LostRaces, "requests", s.Requests, "sent", s.Sent,
		"took", time.Duration(s.DurationSeconds*float64(time.Second)).Round(time.Millisecond).String())
}

// databaseOnly counts what the database did wrong. The error of a downstream may hold a refused connection too, and must not be taken
// for the database's: its text is kept and its cause is cut off.
func (g *generation) databaseOnly(err error) error {
	var downstream *receipt.Error
	if errors.As(err, &downstream) {
		return errors.New(err.Error())
	}
	g.countDatabase(err)
	return err
}

func (g *generation) countDatabase(err error) {
	if err != nil && g.ctx.Err() == nil && (pq.As(err) != nil || database.Unreachable(err) || errors.Is(err, database.ErrCommitUnknown)) {
		g.metrics.DBError(err)
	}
}

// schedule tells the metrics of a run what the scheduler knows; the run itself tells the rest.
type schedule struct{ runs *metrics.Run }

func (s schedule) Skipped(reason daemon.SkipReason) { s.runs.Skipped(metrics.SkipReason(reason)) }
func (s schedule) Panicked()                        { s.runs.Panicked() }
func (s schedule) Interval(d time.Duration)         { s.runs.Interval(d) }
