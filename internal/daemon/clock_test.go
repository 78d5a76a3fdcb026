package daemon

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/callreceipt/reconciler/internal/task"
)

func TestAStepIsWhatTheWallClockWentMoreThanTheOther(t *testing.T) {
	t.Parallel()
	noon := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		after reading
		by    time.Duration
	}{
		{reading{noon.Add(30 * time.Second), 40 * time.Second}, 0},
		{reading{noon.Add(30*time.Second - time.Hour), 40 * time.Second}, -time.Hour},
		{reading{noon.Add(time.Hour), 40 * time.Second}, time.Hour - 30*time.Second},
	} {
		if by, unset := stepped(reading{noon, 10 * time.Second}, c.after); by != c.by || !unset.Equal(noon.Add(30*time.Second)) {
			t.Errorf("%+v: by %s, else it would show %s", c.after, by, unset)
		}
	}
}

// hourly counts how often somebody asks when its next tick is.
type hourly struct{ asked *atomic.Int64 }

func (h hourly) Next(t time.Time) time.Time {
	h.asked.Add(1)
	return t.Truncate(time.Hour).Add(time.Hour)
}

// cron itself reads the clock of the bubble, which nobody sets; what it is told again is seen by the question.
func TestTheTimetableIsReadAnewWhenTheClockWasSet(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		step time.Duration
		runs int64
	}{"by nothing": {0, 0}, "slewed": {2 * time.Second, 0}, "an hour back": {-time.Hour, 0}, "two hours ahead": {2 * time.Hour, 1}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var asked, runs, step atomic.Int64
				s, err := New(Config{Clock: time.Now, Jobs: []Job{{
					Task: "reconcile", Subject: "T", Schedule: hourly{&asked}, Last: justNow,
					Run: func(context.Context) (task.Outcome, error) { runs.Add(1); return task.Success, nil },
				}}})
				if err != nil {
					t.Fatal(err)
				}
				honest := s.read
				s.read = func() reading {
					r := honest()
					r.wall = r.wall.Add(time.Duration(step.Load()))
					return r
				}
				ctx, stop := context.WithCancel(t.Context())
				ended := make(chan struct{})
				go func() { s.Run(ctx); close(ended) }()
				time.Sleep(time.Minute)
				before, ranBefore := asked.Load(), runs.Load()
				step.Store(int64(c.step))
				time.Sleep(time.Minute)
				if anew := asked.Load() > before; anew != (c.step.Abs() >= clockStep) || runs.Load()-ranBefore != c.runs {
					t.Errorf("read anew: %t, and %d runs", anew, runs.Load()-ranBefore)
				}
				stop()
				<-ended
			})
		})
	}
}
