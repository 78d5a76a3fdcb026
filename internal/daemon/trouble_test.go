package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/lib/pq"

	"github.com/callreceipt/reconciler/internal/task"
)

// outage is a database that is away from one instant to another, and what jobs on it do.
type outage struct {
	from, until time.Time
	attempts    atomic.Int64
}

func (o *outage) err() error {
	o.attempts.Add(1)
	if now := time.Now(); now.Before(o.from) || !now.Before(o.until) {
		return nil
	}
	return errAway
}

func (o *outage) run(context.Context) (task.Outcome, error) {
	if err := o.err(); err != nil {
		return task.Failed, err
	}
	return task.Success, nil
}

func (o *outage) last(ctx context.Context) (*task.Run, error) {
	if err := o.err(); err != nil {
		return nil, err
	}
	return never(ctx)
}

func TestAnOutageOfTheDatabaseIsSaidOnceForFortyTools(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log, began := newLogbook(slog.LevelInfo), time.Now()
		o := &outage{from: began.Add(90 * time.Second), until: began.Add(30 * time.Minute)}
		var jobs []Job
		for i := range 40 {
			jobs = append(jobs, Job{
				Task: "reconcile", Subject: fmt.Sprint("T", i), Schedule: schedule(t, "* * * * *", "UTC"), Last: justNow, Run: o.run,
			})
		}
		serveFor(t, 40*time.Minute+time.Second, Config{Jobs: jobs, Log: slog.New(log)})
		lines := log.lines()
		if len(lines) != 2 || len(log.matching("level=WARN", "the database is unreachable", "connection refused", "subject=T")) != 1 ||
			len(log.matching("level=INFO", "the database works again after", "failures in 28m")) != 1 {
			t.Errorf("the log says\n%s", strings.Join(lines, ""))
		}
		// 28 minutes at 22 to 30 s, and the eleven ticks without trouble.
		if n := o.attempts.Load() / 40; n < 60 || n > 100 {
			t.Errorf("%d attempts of each job", n)
		}
	})
}

func TestAJobIsTriedAgainWhileTheDatabaseIsAwayAndDoesNotWaitForItsTick(t *testing.T) {
	t.Parallel()
	for what, failure := range map[string]error{
		"a refused connection":     errAway,
		"no free slot":             fmt.Errorf("taking lease reconcile:T: %w", &pq.Error{Code: "53300"}),
		"a lease lost meanwhile":   errors.Join(context.Canceled, fmt.Errorf("working on reconcile:T: %w", task.ErrLeaseLost)),
		"gone at the very end":     errors.Join(errors.New("2 batches were not written"), fmt.Errorf("recording: %w", errAway)),
		"a shutdown of the server": &pq.Error{Code: "57P01"},
	} {
		synctest.Test(t, func(t *testing.T) {
			w, tries := newWatch(), 0
			serveFor(t, 3*time.Hour, Config{Jobs: []Job{{
				Task: "archive", Subject: "T", Schedule: schedule(t, "0 2 * * *", "UTC"), Last: justNow, Watch: w,
				Run: func(context.Context) (task.Outcome, error) {
					if tries++; tries <= 10 {
						return task.Failed, failure
					}
					return task.Success, nil
				},
			}}})
			// 1 + 2 + 4 + 8 + 16 + 5 × 30 s, each shortened by up to a quarter.
			took := w.all()[len(w.all())-1]
			if w.count("failed") != 10 || w.count("success") != 1 || took < "2h2m15s" || took > "2h3m2s" {
				t.Errorf("%s: %q", what, w.all())
			}
		})
	}
}

func TestAnyOtherFailureWaitsForTheNextTick(t *testing.T) {
	t.Parallel()
	receiver := &url.Error{Op: "Post", URL: "http://r", Err: errAway}
	for what, run := range map[string]func(context.Context) (task.Outcome, error){
		"an error":                       func(context.Context) (task.Outcome, error) { return task.Failed, errors.New("401") },
		"an error with something done":   func(context.Context) (task.Outcome, error) { return task.Partial, errors.New("row limit") },
		"no reason":                      func(context.Context) (task.Outcome, error) { return task.Failed, nil },
		"a statement that is refused":    func(context.Context) (task.Outcome, error) { return task.Failed, &pq.Error{Code: "42501"} },
		"a downstream that is not there": func(context.Context) (task.Outcome, error) { return task.Failed, fmt.Errorf("asking: %w", receiver) },
	} {
		synctest.Test(t, func(t *testing.T) {
			w := newWatch()
			serveFor(t, 3*time.Hour+time.Minute, Config{Jobs: []Job{{
				Task: "reconcile", Subject: "T", Schedule: schedule(t, "@hourly", "UTC"), Last: justNow, Watch: w, Run: run,
			}}})
			if w.count("began") != 3 {
				t.Errorf("%s: %q", what, w.all())
			}
		})
	}
}

func TestAtTheStartTheLatestRunIsAskedForUntilTheDatabaseIsThere(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, log, tries := newWatch(), newLogbook(slog.LevelInfo), 0
		serveFor(t, 10*time.Minute, Config{Log: slog.New(log), Jobs: []Job{{
			Task: "archive", Subject: "T", Schedule: schedule(t, "0 3 * * *", "UTC"), Watch: w, Run: succeeds,
			Last: func(context.Context) (*task.Run, error) {
				if tries++; tries <= 4 {
					return nil, errAway
				}
				return nil, nil
			},
		}}})
		if got := w.all(); len(got) != 2 || got[0] < "12s began" || got[0] > "15s began" || w.count("success") != 1 {
			t.Errorf("%q", got)
		}
		if len(log.lines()) != 2 || len(log.matching("the database works again after 4 failures in 1")) != 1 {
			t.Errorf("the log says\n%s", strings.Join(log.lines(), ""))
		}
	})
}

func TestATickTakesOverFromTheQuestionAtTheStart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		o := &outage{from: began, until: began.Add(10 * time.Minute)}
		w := newWatch()
		serveFor(t, 10*time.Minute+59*time.Second, Config{Jobs: []Job{{
			Task: "reconcile", Subject: "T", Schedule: schedule(t, "* * * * *", "UTC"), Last: o.last, Watch: w, Run: o.run, // overdue, says Last
		}}})
		if w.count("success") != 1 || w.count("still_running") != 0 {
			t.Errorf("%q", w.all())
		}
	})
}

func TestAFailureIsSaidAgainWhenItChangesAndAfterAnHour(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log, runs := newLogbook(slog.LevelInfo), 0
		serveFor(t, 200*time.Minute+time.Second, Config{Log: slog.New(log), Jobs: []Job{{
			Task: "reconcile", Subject: "T", Schedule: schedule(t, "* * * * *", "UTC"), Last: justNow,
			Run: func(context.Context) (task.Outcome, error) {
				switch runs++; {
				case runs <= 100:
					return task.Failed, fmt.Errorf("401 Unauthorized, request %d", runs)
				case runs <= 150:
					return task.Failed, fmt.Errorf("404 Not Found, request %d", runs)
				case runs == 190:
					panic("no")
				}
				return task.Success, nil
			},
		}}})
		want := []string{
			`level=ERROR msg="run failed; the next tick tries again" task=reconcile subject=T error="401 Unauthorized, request 1" next=2000-01-01T00:02:00Z failures=1 since=2000-01-01T00:01:00Z`,
			`level=ERROR msg="run failed; the next tick tries again" task=reconcile subject=T error="401 Unauthorized, request 61" next=2000-01-01T01:02:00Z failures=61 since=2000-01-01T00:01:00Z`,
			`level=ERROR msg="run failed; the next tick tries again" task=reconcile subject=T error="404 Not Found, request 101" next=2000-01-01T01:42:00Z failures=101 since=2000-01-01T00:01:00Z`,
			`level=INFO msg="works again after 150 failures in 2h30m0s" task=reconcile subject=T`,
			`level=ERROR msg="panic; the next tick tries again" task=reconcile subject=T panic=no`,
			`level=INFO msg="works again after 1 failure in 1m0s" task=reconcile subject=T`,
		}
		var got []string
		for _, line := range log.lines() {
			line, _, _ = strings.Cut(strings.TrimSpace(line), " next=2000-01-01T03:11:00Z")
			got = append(got, line)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
	})
}

func TestAServerThatTakesOneAndRefusesTheNextIsNotSaidAllTheTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log := newLogbook(slog.LevelInfo)
		var turn atomic.Int64
		var jobs []Job
		for i := range 10 {
			jobs = append(jobs, Job{
				Task: "reconcile", Subject: fmt.Sprint("T", i), Schedule: schedule(t, "* * * * *", "UTC"), Last: justNow,
				Run: func(context.Context) (task.Outcome, error) {
					if turn.Add(1)%2 == 0 {
						return task.Failed, &pq.Error{Code: "53300", Message: "too many clients"}
					}
					return task.Success, nil
				},
			})
		}
		serveFor(t, time.Hour, Config{Jobs: jobs, Log: slog.New(log)})
		if n := len(log.lines()); n < 2 || n > 14 {
			t.Errorf("the log says\n%s", strings.Join(log.lines(), ""))
		}
	})
}

func TestOneDatabaseThatIsAwayForGoodDoesNotHideTheOutageOfAnother(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log, began := newLogbook(slog.LevelInfo), time.Now()
		gone := &outage{from: began, until: began.Add(24 * time.Hour)}
		ours := &outage{from: began.Add(30 * time.Minute), until: began.Add(35 * time.Minute)}
		jobs := []Job{{Task: "archive", Subject: "elsewhere", Schedule: schedule(t, "* * * * *", "UTC"), Last: justNow, Run: gone.run}}
		for i := range 10 {
			jobs = append(jobs, Job{
				Task: "reconcile", Subject: fmt.Sprint("T", i), Schedule: schedule(t, "* * * * *", "UTC"), Last: justNow, Run: ours.run,
			})
		}
		serveFor(t, 50*time.Minute, Config{Jobs: jobs, Log: slog.New(log)})
		if n := len(log.lines()); n > 5 || len(log.matching("WARN", "subject=elsewhere")) < 1 || len(log.matching("WARN", "subject=T")) != 1 ||
			len(log.matching("INFO", "the database works again", "subject=T")) != 1 {
			t.Errorf("the log says\n%s", strings.Join(log.lines(), ""))
		}
	})
}

func TestTheEndOfTheContextIsNoTrouble(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, log := newWatch(), newLogbook(slog.LevelDebug)
		serveFor(t, 90*time.Second, Config{Log: slog.New(log), Jobs: []Job{{
			Task: "reconcile", Subject: "T", Schedule: schedule(t, "* * * * *", "UTC"), Last: justNow, Watch: w,
			Run: func(ctx context.Context) (task.Outcome, error) {
				<-ctx.Done()
				return task.Partial, errors.Join(ctx.Err(), errAway)
			},
		}}})
		if diff := cmp.Diff([]string{"1m0s began", "1m30s partial after 30s"}, w.all()); diff != "" {
			t.Error(diff)
		}
		for _, line := range log.lines() {
			if !strings.Contains(line, "cron: ") {
				t.Errorf("the log says %s", line)
			}
		}
	})
}

func TestPausesGrowToHalfAMinuteAndNoFurther(t *testing.T) {
	t.Parallel()
	for n, want := range map[int]time.Duration{0: 1, 1: 2, 2: 4, 3: 8, 4: 16, 5: 30, 6: 30, 62: 30, 63: 30, 64: 30, 1000: 30} {
		want *= time.Second
		for range 100 {
			if got := backoff(n); got > want || got < want*3/4 {
				t.Errorf("after %d failures a pause of %s", n, got)
			}
		}
	}
}
