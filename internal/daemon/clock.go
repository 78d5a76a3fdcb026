package daemon

import (
	"context"
	"time"

	"github.com/robfig/cron/v3"

	"github.com/callreceipt/reconciler/internal/pause"
)

// clockCheck is how often it is looked whether somebody set the clock, and clockStep how far it may be off. Slewing is slower.
const (
	clockCheck = 30 * time.Second
	clockStep  = 5 * time.Second
)

// reading is what the two clocks of a process show: the wall clock, which can be set, and the time since it began, which cannot.
type reading struct {
	wall    time.Time
	elapsed time.Duration
}

// readings returns what reads both clocks.
func readings(now func() time.Time) func() reading {
	began := now()
	return func() reading {
		at := now()
		return reading{at.Round(0), at.Sub(began)}
	}
}

// stepped is how far the wall clock was set between two readings, and what it would show had it not been.
func stepped(before, after reading) (by time.Duration, unset time.Time) {
	unset = before.wall.Add(after.elapsed - before.elapsed)
	return after.wall.Sub(unset), unset
}

// timetable is the jobs in the hands of cron. It sleeps until its next tick by the wall clock as that was, and is not told when the clock
// is set: an hour back, and nothing would run for an hour.
type timetable struct {
	*cron.Cron
	ids map[*entry]cron.EntryID
}

func (t timetable) add(e *entry) { t.ids[e] = t.Schedule(e.Schedule, e.tick) }

// follow reads the timetable anew whenever the clock was set, until ctx ends. catchUp gets each job of which a tick was jumped over.
func (t timetable) follow(ctx context.Context, read func() reading, catchUp func(*entry)) {
	for before := read(); pause.For(ctx, clockCheck) == nil; {
		after := read()
		by, unset := stepped(before, after)
		before = after
		if by.Abs() < clockStep {
			continue
		}
		for e, id := range t.ids {
			t.Remove(id)
			t.add(e)
			if missed := e.Schedule.Next(unset); by > 0 && !missed.IsZero() && !missed.After(after.wall) {
				catchUp(e)
			}
		}
	}
}
