package daemon

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/robfig/cron/v3"

	"github.com/callreceipt/reconciler/internal/task"
)

// counted counts how often a schedule is asked.
type counted struct {
	cron.Schedule
	asked int
}

func (c *counted) Next(t time.Time) time.Time {
	c.asked++
	return c.Schedule.Next(t)
}

// once is a schedule that fires a single time.
type once time.Time

func (o once) Next(t time.Time) time.Time {
	if t.Before(time.Time(o)) {
		return time.Time(o)
	}
	return time.Time{}
}

func TestTheLongestGapOfAScheduleIsFoundInBoundedWork(t *testing.T) {
	t.Parallel()
	const day = 24 * time.Hour
	for _, tt := range []struct {
		spec, zone string
		want       time.Duration
	}{
		{"* * * * *", "UTC", time.Minute},
		{"@every 10s", "UTC", 10 * time.Second},
		{"@every 5s", "Europe/Berlin", 5 * time.Second},
		{"@every 1000h", "UTC", 1000 * time.Hour},
		{"@every 20000h", "UTC", 20000 * time.Hour},
		{"*/7 * * * *", "UTC", 7 * time.Minute},
		{"7,8 * * * *", "UTC", 59 * time.Minute},
		{"@hourly", "Asia/Kolkata", time.Hour},
		{"15 3 * * *", "UTC", day},
		{"15 3 * * *", "Europe/Berlin", 25 * time.Hour},
		{"30 2 * * *", "Europe/Berlin", 47 * time.Hour}, // the day without 02:30
		{"*/5 9-17 * * 1-5", "UTC", 2*day + 15*time.Hour + 5*time.Minute},
		{"*/5 9-17 * * 1-5", "Europe/Berlin", 2*day + 16*time.Hour + 5*time.Minute}, // with the hour of autumn
		{"* * * * 1-5", "UTC", 2*day + time.Minute},
		{"* 1-22 * * *", "UTC", 2*time.Hour + time.Minute},
		{"* * * 1-11 *", "UTC", 31*day + time.Minute},
		{"* * 1 * *", "UTC", 30*day + time.Minute},
		{"0 0 1 1 *", "UTC", 365 * day},
		{"0 0 29 2 *", "UTC", (4*365 + 1) * day},
	} {
		for _, from := range []time.Time{
			time.Date(2024, 5, 1, 12, 34, 56, 789, time.UTC),
			time.Date(2024, 12, 24, 0, 0, 0, 0, time.UTC),
			time.Date(2025, 3, 28, 17, 55, 0, 0, time.UTC),
		} {
			s := &counted{Schedule: schedule(t, tt.spec, tt.zone)}
			if got := longestGap(s, from); got != tt.want || s.asked > 3000 {
				t.Errorf("%s in %s from %s: %s, want %s; asked %d times", tt.spec, tt.zone, from, got, tt.want, s.asked)
			}
		}
	}
}

// allBut fires every minute except on one day.
type allBut time.Time

func (a allBut) Next(t time.Time) time.Time {
	next := t.Truncate(time.Minute).Add(time.Minute)
	if free := time.Time(a); !next.Before(free) && next.Before(free.AddDate(0, 0, 1)) {
		return free.AddDate(0, 0, 1)
	}
	return next
}

func TestOneDayLeftOutOfFourHundredIsFound(t *testing.T) {
	t.Parallel()
	from := time.Date(2024, 5, 1, 12, 34, 56, 0, time.UTC)
	for d := 1; d < 400; d++ {
		free := from.Truncate(24*time.Hour).AddDate(0, 0, d)
		if got := longestGap(allBut(free), from); got != 24*time.Hour+time.Minute {
			t.Errorf("without %s: %s", free.Format(time.DateOnly), got)
		}
	}
}

func TestAScheduleThatFiresOnceHasNoInterval(t *testing.T) {
	t.Parallel()
	now := time.Date(2024, 5, 1, 0, 0, 0, 0, time.UTC)
	for _, at := range []time.Time{now.Add(time.Hour), now} {
		if got := longestGap(once(at), now); got != 0 {
			t.Errorf("fires at %s: %s", at, got)
		}
	}
}

func TestTheIntervalIsToldOnceAtTheStart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWatch()
		serveFor(t, 3*24*time.Hour, Config{Jobs: []Job{{
			Task: "archive", Subject: "T", Schedule: schedule(t, "15 3 * * *", "UTC"), Last: justNow, Watch: w,
			Run: func(context.Context) (task.Outcome, error) { return task.Success, nil },
		}}})
		if len(w.gaps) != 1 || w.gaps[0] != 24*time.Hour {
			t.Errorf("told %v", w.gaps)
		}
	})
}

func BenchmarkLongestGap(b *testing.B) {
	for spec, zone := range map[string]string{"* * * * *": "UTC", "*/5 9-17 * * 1-5": "Europe/Berlin", "15 3 * * *": "Australia/Lord_Howe", "* * 1 1 *": "UTC"} {
		s := schedule(b, spec, zone)
		b.Run(spec, func(b *testing.B) {
			for b.Loop() {
				longestGap(s, time.Date(2024, 5, 1, 0, 0, 0, 0, time.UTC))
			}
		})
	}
}
