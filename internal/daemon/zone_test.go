package daemon

import (
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/callreceipt/reconciler/internal/task"
)

// aYear is a timetable entry, and what becomes of it in 2024: the days on which the hour named is struck never or twice. Those are
// why a schedule is in UTC unless somebody asks for a zone.
type aYear struct {
	spec, zone      string
	runs            int
	skipped, struck string // days without a run, and with two
}

var year2024 = []aYear{
	{spec: "0 2 * * *", zone: "UTC", runs: 366},
	{spec: "30 2 * * *", zone: "UTC", runs: 366},
	{spec: "*/15 * * * *", zone: "UTC", runs: 366 * 96},
	{spec: "0 0 29 2 *", zone: "UTC", runs: 1},

	{spec: "0 2 * * *", zone: "Asia/Kolkata", runs: 366},
	{spec: "30 2 * * *", zone: "Asia/Kolkata", runs: 366},
	{spec: "*/15 * * * *", zone: "Asia/Kolkata", runs: 366 * 96},
	{spec: "0 0 29 2 *", zone: "Asia/Kolkata", runs: 1},

	// From 02:00 to 03:00 on 31 March, and from 03:00 back to 02:00 on 27 October.
	{spec: "0 2 * * *", zone: "Europe/Berlin", runs: 366, skipped: "03-31", struck: "10-27"},
	{spec: "30 2 * * *", zone: "Europe/Berlin", runs: 366, skipped: "03-31", struck: "10-27"},
	{spec: "*/15 * * * *", zone: "Europe/Berlin", runs: 366 * 96},
	{spec: "0 0 29 2 *", zone: "Europe/Berlin", runs: 1},

	// From 02:00 to 03:00 on 10 March, and from 02:00 back to 01:00 on 3 November.
	{spec: "0 2 * * *", zone: "America/New_York", runs: 365, skipped: "03-10"},
	{spec: "30 2 * * *", zone: "America/New_York", runs: 365, skipped: "03-10"},
	{spec: "30 1 * * *", zone: "America/New_York", runs: 367, struck: "11-03"},
	{spec: "*/15 * * * *", zone: "America/New_York", runs: 366 * 96},
	{spec: "0 0 29 2 *", zone: "America/New_York", runs: 1},

	// From 02:00 back to 01:30 on 7 April, where cron walks past the one 02:00 in steps of an hour, and from 02:00 to 02:30 on
	// 6 October.
	{spec: "0 2 * * *", zone: "Australia/Lord_Howe", runs: 364, skipped: "04-07 10-06"},
	{spec: "30 2 * * *", zone: "Australia/Lord_Howe", runs: 366},
	{spec: "*/15 * * * *", zone: "Australia/Lord_Howe", runs: 366 * 96},
	{spec: "0 0 29 2 *", zone: "Australia/Lord_Howe", runs: 1},
}

func TestAYearOfTicksInFiveZones(t *testing.T) {
	t.Parallel()
	ran := make([][]time.Time, len(year2024))
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Until(time.Date(2023, 12, 31, 0, 0, 0, 0, time.UTC)))
		var jobs []Job
		for i, y := range year2024 {
			s := schedule(t, y.spec, y.zone)
			jobs = append(jobs, Job{
				Task: y.spec, Subject: y.zone, Schedule: s, Last: justNow,
				Run: func(context.Context) (task.Outcome, error) {
					if now := time.Now().In(s.(zoned).loc); now.Year() == 2024 {
						ran[i] = append(ran[i], now)
					}
					return task.Success, nil
				},
			})
		}
		serveFor(t, 368*24*time.Hour, Config{Jobs: jobs})
	})
	for i, y := range year2024 {
		ran := ran[i]
		if len(ran) != y.runs {
			t.Errorf("%s in %s ran %d times, want %d", y.spec, y.zone, len(ran), y.runs)
		}
		for i, at := range ran {
			if i > 0 && !at.After(ran[i-1]) {
				t.Errorf("%s in %s ran twice at %s", y.spec, y.zone, at)
			}
			if i > 0 && strings.HasPrefix(y.spec, "*/15") && at.Sub(ran[i-1]) != 15*time.Minute {
				t.Errorf("%s in %s ran at %s, and next at %s", y.spec, y.zone, ran[i-1], at)
			}
		}
		if strings.HasSuffix(y.spec, "2 * * *") || strings.HasSuffix(y.spec, "1 * * *") {
			if got := strings.Join(days(ran, 0), " "); got != y.skipped {
				t.Errorf("%s in %s skipped %q, want %q", y.spec, y.zone, got, y.skipped)
			}
			if got := strings.Join(days(ran, 2), " "); got != y.struck {
				t.Errorf("%s in %s ran twice on %q, want %q", y.spec, y.zone, got, y.struck)
			}
		}
	}
}

// days are those of 2024 with so many runs.
func days(ran []time.Time, n int) (found []string) {
	count := map[int]int{}
	for _, at := range ran {
		count[at.YearDay()]++
	}
	for d := range 366 {
		if count[d+1] == n {
			found = append(found, time.Date(2024, 1, 1+d, 0, 0, 0, 0, time.UTC).Format("01-02"))
		}
	}
	return found
}

func TestAFixedIntervalKnowsNoZoneAndNoChangeOfTheClocks(t *testing.T) {
	t.Parallel()
	for zone, change := range map[string]time.Time{
		"UTC":                 time.Date(2024, 3, 31, 1, 0, 0, 0, time.UTC),
		"Europe/Berlin":       time.Date(2024, 3, 31, 1, 0, 0, 0, time.UTC),
		"America/New_York":    time.Date(2024, 11, 3, 6, 0, 0, 0, time.UTC),
		"Asia/Kolkata":        time.Date(2024, 3, 31, 1, 0, 0, 0, time.UTC),
		"Australia/Lord_Howe": time.Date(2024, 4, 6, 15, 0, 0, 0, time.UTC),
	} {
		synctest.Test(t, func(t *testing.T) {
			time.Sleep(time.Until(change.Add(-12 * time.Hour)))
			var ran []time.Time
			serveFor(t, 24*time.Hour+time.Second, Config{Jobs: []Job{{
				Task: "reconcile", Subject: "T", Schedule: schedule(t, "@every 10s", zone), Last: justNow,
				Run: func(context.Context) (task.Outcome, error) {
					ran = append(ran, time.Now())
					return task.Success, nil
				},
			}}})
			want := make([]time.Time, 24*360)
			for i := range want {
				want[i] = change.Add(-12*time.Hour + time.Duration(i+1)*10*time.Second)
			}
			if !slices.EqualFunc(ran, want, time.Time.Equal) {
				t.Errorf("%s: %d runs, want %d", zone, len(ran), len(want))
			}
		})
	}
}
