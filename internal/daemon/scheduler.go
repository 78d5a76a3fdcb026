package daemon

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/robfig/cron/v3"
)

// Run works through the timetable until ctx ends, and is called once. Jobs that are overdue run at once. When ctx ends no run
// begins any more and the context of the runs in hand ends; Run returns when they have, or after the drain time: those that are
// left then are named in one line of the log.
func (s *Scheduler) Run(ctx context.Context) {
	timetable := timetable{cron.New(cron.WithLogger(cronLog{s.log}), cron.WithLocation(time.UTC)), map[*entry]cron.EntryID{}}
	for _, e := range s.entries {
		// The order matters: a panic that passed by the outer wrapper would keep the job busy for ever.
		e.tick = cron.NewChain(e.oneAtATime, e.recovered).Then(cron.FuncJob(func() { e.work(ctx) }))
		timetable.add(e)
	}
	timetable.Start()
	var starting sync.WaitGroup
	for _, e := range s.entries {
		starting.Go(e.recovered(cron.FuncJob(func() { e.start(ctx) })).Run)
	}

	timetable.follow(ctx, s.read, func(e *entry) { starting.Go(e.tick.Run) })
	working := timetable.Stop()
	ended := make(chan struct{})
	go func() {
		<-working.Done()
		starting.Wait()
		close(ended)
	}()
	limit := time.NewTimer(s.drain)
	defer limit.Stop()
	select {
	case <-ended:
	case <-limit.C:
		s.log.Warn("stopping without waiting any longer for runs that do not end; what they had in hand is looked at again",
			"waited", s.drain.String(), "runs", strings.Join(s.left(), ", "))
	}
}

// left names the jobs that are still busy.
func (s *Scheduler) left() []string {
	var names []string
	for _, e := range s.entries {
		busy, running := e.state()
		switch {
		case running > 0:
			names = append(names, fmt.Sprintf("%s (running for %s)", e, running.Round(time.Second)))
		case busy:
			names = append(names, e.String())
		}
	}
	return names
}

// cronLog is what cron has to say, which is of interest to those who look for a fault in it.
type cronLog struct{ log *slog.Logger }

func (l cronLog) Info(msg string, keysAndValues ...any) { l.log.Debug("cron: "+msg, keysAndValues...) }

func (l cronLog) Error(err error, msg string, keysAndValues ...any) {
	l.log.Debug("cron: "+msg, append([]any{"error", err}, keysAndValues...)...)
}
