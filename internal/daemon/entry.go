package daemon

import (
	"log/slog"
	"sync"
	"time"

	"github.com/robfig/cron/v3"
)

// entry is a job and what goes on with it. One goroutine at a time works for its ticks.
type entry struct {
	Job
	log      *slog.Logger
	now      func() time.Time
	tick     cron.Job // what a tick sets going
	database *trouble // shared by all entries
	own      trouble  // every other trouble

	mu     sync.Mutex
	due    time.Time // the latest tick; zero before the first one
	asking bool      // it is not known yet whether the job was overdue at the start
	busy   bool      // a goroutine is at a tick: it works, or waits
	folded bool      // a tick came for that goroutine to go on with
	began  time.Time // of the run in hand; zero when there is none
	told   bool      // a tick was skipped for that run, and the log says so
}

// String names the job.
func (e *entry) String() string { return e.Task + " " + e.Subject }

// oneAtATime is the outer wrapper of a job: it skips a tick that finds the run before it still at work.
func (e *entry) oneAtATime(next cron.Job) cron.Job {
	return cron.FuncJob(func() {
		for mine := e.arrive(); mine; mine = e.leave() {
			next.Run()
		}
	})
}

// arrive takes a tick. It returns true when the caller is to work for it.
func (e *entry) arrive() bool {
	level := slog.LevelInfo
	what, running := e.receive()
	switch what {
	case taken, folded:
		return what == taken
	case skipped:
	case skippedAgain:
		level = slog.LevelDebug
	}
	e.say(level, "skipped: the previous run is still at work", "running_for", running.Round(time.Second).String())
	e.Watch.Skipped(StillRunning)
	return false
}

// reception is what becomes of a tick.
type reception int

const (
	folded       reception = iota // whoever waits, or has only just begun, goes on for it
	taken                         // nobody was at work
	skipped                       // a run is at work
	skippedAgain                  // and the log says so
)

// leaseWait is how young a run may be and not have the lease yet: task.Hold takes 2 s before it says that it is held. It is below
// the shortest interval of a schedule.
const leaseWait = 4 * time.Second

func (e *entry) receive() (what reception, running time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	now := e.now()
	e.due = now
	if !e.busy {
		e.busy = true
		return taken, 0
	}
	if running = now.Sub(e.began); e.began.IsZero() || running < leaseWait {
		e.folded = true
		return folded, 0
	}
	if e.told {
		what = skippedAgain
	} else {
		what, e.told = skipped, true
	}
	return what, running
}

// leave ends the work for a tick. It returns true when another one came in the last moment, for the same goroutine to work on.
func (e *entry) leave() (again bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	again, e.folded = e.folded, false
	e.busy = again
	return again
}

// latest returns the tick to work for. Those that were folded into the wait are part of it.
func (e *entry) latest() time.Time {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.folded = false
	return e.due
}

// ticked reports that the first tick has come.
func (e *entry) ticked() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return !e.due.IsZero()
}

// begin marks the begin of a run. It is for every tick so far.
func (e *entry) begin() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.began, e.told, e.folded = e.now(), false, false
}

// end marks the end of a run.
func (e *entry) end() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.began = time.Time{}
}

// ask marks whether it is still being asked if the job was overdue at the start.
func (e *entry) ask(asking bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.asking = asking
}

// state tells whether anything goes on, and for how long the run in hand has.
func (e *entry) state() (busy bool, running time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.began.IsZero() {
		running = e.now().Sub(e.began)
	}
	return e.busy || e.asking, running
}
