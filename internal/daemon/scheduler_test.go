package daemon

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/callreceipt/reconciler/internal/pause"
	"github.com/callreceipt/reconciler/internal/task"
)

func succeeds(context.Context) (task.Outcome, error) { return task.Success, nil }

// takes is a run that takes so long, and ends well also when its context does.
func takes(d time.Duration) func(context.Context) (task.Outcome, error) {
	return func(ctx context.Context) (task.Outcome, error) {
		_ = pause.For(ctx, d)
		return task.Success, nil
	}
}

func TestAPanicEndsTheRunAndTheNextTicksRun(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, log := newWatch(), newLogbook(slog.LevelInfo)
		serveFor(t, 3*time.Minute+30*time.Second, Config{Log: slog.New(log), Jobs: []Job{{
			Task: "reconcile", Subject: "T", Schedule: schedule(t, "* * * * *", "UTC"), Last: justNow, Watch: w,
			Run: func(context.Context) (task.Outcome, error) { panic(errors.New("call 17 is nil")) },
		}}})
		want := []string{
			"1m0s began", "1m0s failed after 0s", "1m0s panicked",
			"2m0s began", "2m0s failed after 0s", "2m0s panicked",
			"3m0s began", "3m0s failed after 0s", "3m0s panicked",
		}
		if diff := cmp.Diff(want, w.all()); diff != "" {
			t.Error(diff)
		}
		lines := log.lines()
		if len(lines) != 1 || len(log.matching("level=ERROR", "task=reconcile subject=T", `panic="call 17 is nil"`, "scheduler_test.go")) != 1 {
			t.Errorf("the log says\n%s", strings.Join(lines, ""))
		}
	})
}

func TestAPanicWhileItAsksForTheLatestRunEndsNothingElse(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWatch()
		serveFor(t, 90*time.Second, Config{Jobs: []Job{{
			Task: "reconcile", Subject: "T", Schedule: schedule(t, "* * * * *", "UTC"), Watch: w, Run: succeeds,
			Last: func(context.Context) (*task.Run, error) { panic("no") },
		}}})
		if diff := cmp.Diff([]string{"0s panicked", "1m0s began", "1m0s success after 0s"}, w.all()); diff != "" {
			t.Error(diff)
		}
	})
}

func TestATickThatFindsTheRunBeforeItAtWorkIsSkippedAndSaidOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, log := newWatch(), newLogbook(slog.LevelDebug)
		serveFor(t, 5*time.Minute+30*time.Second, Config{Log: slog.New(log), Jobs: []Job{{
			Task: "reconcile", Subject: "T", Schedule: schedule(t, "* * * * *", "UTC"), Last: justNow, Watch: w, Run: takes(130 * time.Second),
		}}})
		want := []string{
			"1m0s began", "2m0s skipped still_running", "3m0s skipped still_running", "3m10s success after 2m10s",
			"4m0s began", "5m0s skipped still_running", "5m30s success after 1m30s", // its context ended
		}
		if diff := cmp.Diff(want, w.all()); diff != "" {
			t.Error(diff)
		}
		if got := log.matching("level=INFO", "skipped", "task=reconcile subject=T", "running_for=1m0s"); len(got) != 2 {
			t.Errorf("two runs are said to be at work:\n%s", strings.Join(got, ""))
		}
		if got := log.matching("level=DEBUG", "skipped", "running_for=2m0s"); len(got) != 1 {
			t.Errorf("once more for who looks for it:\n%s", strings.Join(got, ""))
		}
	})
}

func TestAJobIsOverdueWhenATickHasPassedOrItsLatestRunDidNotEndWell(t *testing.T) {
	t.Parallel()
	now := time.Date(2024, 5, 2, 2, 0, 0, 0, time.UTC)
	daily := schedule(t, "0 3 * * *", "UTC")
	ended := func(began time.Duration, outcome task.Outcome) *task.Run {
		at := now.Add(began)
		return &task.Run{StartedAt: at, FinishedAt: &at, Outcome: outcome}
	}
	for what, tt := range map[string]struct {
		last *task.Run
		want bool
	}{
		"never ran":                         {nil, true},
		"a tick has passed since":           {ended(-24*time.Hour, task.Success), true},
		"no tick has passed":                {ended(-22*time.Hour, task.Success), false},
		"it began at the tick":              {ended(-23*time.Hour, task.Success), false},
		"the clock of the database is fast": {ended(time.Hour, task.Success), false},
		"it failed":                         {ended(-time.Hour, task.Failed), true},
		"something was left to do":          {ended(-time.Hour, task.Partial), true},
		"it was killed, or is at work":      {&task.Run{StartedAt: now.Add(-time.Hour), Outcome: "running"}, true},
	} {
		if got := overdue(daily, tt.last, now); got != tt.want {
			t.Errorf("%s: %t", what, got)
		}
	}
	if at := now.Add(time.Hour); !overdue(daily, ended(-23*time.Hour, task.Success), at) {
		t.Error("the tick is now")
	}
	if overdue(once(now), ended(0, task.Success), now.Add(time.Hour)) {
		t.Error("there is no tick any more")
	}
}

func TestAJobThatIsOverdueRunsAtTheStartAndOneThatIsNotWaitsForItsTick(t *testing.T) {
	t.Parallel()
	for what, tt := range map[string]struct {
		last func(context.Context) (*task.Run, error)
		want []string
	}{
		"overdue":     {never, []string{"0s began", "0s success after 0s", "3h0m0s began", "3h0m0s success after 0s"}},
		"not overdue": {justNow, []string{"3h0m0s began", "3h0m0s success after 0s"}},
		"nobody may read the runs": {
			func(context.Context) (*task.Run, error) { return nil, errors.New("permission denied for table runs") },
			[]string{"0s began", "0s success after 0s", "3h0m0s began", "3h0m0s success after 0s"},
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			w := newWatch()
			serveFor(t, 4*time.Hour, Config{Jobs: []Job{{
				Task: "archive", Subject: "T", Schedule: schedule(t, "0 3 * * *", "UTC"), Watch: w, Run: succeeds, Last: tt.last,
			}}})
			if diff := cmp.Diff(tt.want, w.all()); diff != "" {
				t.Errorf("%s:\n%s", what, diff)
			}
		})
	}
}

func TestATickThatComesRightAfterTheRunAtTheStartBeganIsWorkedForWhenThatEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(58 * time.Second)
		w := newWatch()
		stop := serve(t, Config{Jobs: []Job{{
			Task: "reconcile", Subject: "T", Schedule: schedule(t, "* * * * *", "UTC"), Watch: w, Run: takes(10 * time.Second), Last: never,
		}}})
		time.Sleep(30 * time.Second)
		stop()
		if diff := cmp.Diff([]string{"0s began", "10s success after 10s", "10s began", "20s success after 10s"}, w.all()); diff != "" {
			t.Error(diff)
		}
	})
}

func TestAJobThatHangsLeavesTheOthersAlone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		hung, fine := newWatch(), newWatch()
		serveFor(t, time.Hour+time.Second, Config{Jobs: []Job{
			{Task: "reconcile", Subject: "hung", Schedule: schedule(t, "* * * * *", "UTC"), Last: never, Watch: hung, Run: takes(24 * time.Hour)},
			{Task: "reconcile", Subject: "fine", Schedule: schedule(t, "* * * * *", "UTC"), Last: justNow, Watch: fine, Run: succeeds},
		}})
		if fine.count("success") != 60 || hung.count("began") != 1 || hung.count("skipped still_running") != 60 {
			t.Errorf("the fine one %q\nthe hung one %q", fine.all(), hung.all())
		}
	})
}

func TestTheEndWaitsForTheRunsInHandAndBeginsNone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, idle, log := newWatch(), newWatch(), newLogbook(slog.LevelInfo)
		began := time.Now()
		serveFor(t, 90*time.Second, Config{Log: slog.New(log), Jobs: []Job{
			{
				Task: "reconcile", Subject: "T", Schedule: schedule(t, "* * * * *", "UTC"), Last: justNow, Watch: w,
				Run: func(ctx context.Context) (task.Outcome, error) {
					<-ctx.Done()
					time.Sleep(33 * time.Second) // the batch in hand, over the next tick
					return task.Partial, context.Cause(ctx)
				},
			},
			{Task: "reconcile", Subject: "U", Schedule: schedule(t, "* * * * *", "UTC"), Last: justNow, Watch: idle, Run: succeeds},
		}})
		if diff := cmp.Diff([]string{"1m0s began", "2m3s partial after 1m3s"}, w.all()); diff != "" {
			t.Error(diff)
		}
		if diff := cmp.Diff([]string{"1m0s began", "1m0s success after 0s"}, idle.all()); diff != "" {
			t.Error(diff)
		}
		if took := time.Since(began); took != 123*time.Second || len(log.lines()) > 0 {
			t.Errorf("ended after %s, the log says %q", took, log.lines())
		}
	})
}

func TestTheEndWaitsForARunThatBeganAtTheStart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWatch()
		serveFor(t, time.Second, Config{Jobs: []Job{{
			Task: "reconcile", Subject: "T", Schedule: schedule(t, "0 * * * *", "UTC"), Last: never, Watch: w,
			Run: func(ctx context.Context) (task.Outcome, error) {
				<-ctx.Done()
				time.Sleep(9 * time.Second)
				return task.Partial, context.Cause(ctx)
			},
		}}})
		if diff := cmp.Diff([]string{"0s began", "10s partial after 10s"}, w.all()); diff != "" {
			t.Error(diff)
		}
	})
}

func TestARunThatDoesNotEndIsLeftAndNamed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log, release := newLogbook(slog.LevelInfo), make(chan struct{})
		began := time.Now()
		hangs := func(context.Context) (task.Outcome, error) { <-release; return task.Success, nil }
		serveFor(t, 90*time.Second, Config{Log: slog.New(log), Drain: 5 * time.Second, Jobs: []Job{
			{Task: "reconcile", Subject: "T", Schedule: schedule(t, "* * * * *", "UTC"), Last: justNow, Run: hangs},
			{Task: "archive", Subject: "U", Schedule: schedule(t, "* * * * *", "UTC"), Last: justNow, Run: succeeds},
			{Task: "archive", Subject: "V", Schedule: schedule(t, "0 * * * *", "UTC"), Run: succeeds, Last: func(context.Context) (*task.Run, error) {
				<-release
				return nil, nil
			}},
		}})
		if took := time.Since(began); took != 95*time.Second {
			t.Errorf("ended after %s", took)
		}
		lines := log.lines()
		if len(lines) != 1 || !strings.Contains(lines[0], "level=WARN") || !strings.Contains(lines[0], `runs="reconcile T (running for 35s), archive V"`) {
			t.Errorf("the log says %q", lines)
		}
		close(release)
	})
}

func TestNothingRunsWhenItIsOverBeforeItBegins(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWatch()
		serveFor(t, 0, Config{})
		s, err := New(Config{Jobs: []Job{{Task: "reconcile", Subject: "T", Schedule: schedule(t, "* * * * *", "UTC"), Last: never, Watch: w, Run: succeeds}}})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		s.Run(ctx)
		if len(w.all()) > 0 {
			t.Errorf("%q", w.all())
		}
	})
}

func TestATimetableThatCannotWorkIsRefused(t *testing.T) {
	t.Parallel()
	fine := Job{Task: "reconcile", Subject: "T", Schedule: schedule(t, "* * * * *", "UTC"), Last: never, Run: succeeds}
	other := func(change func(j *Job)) Job {
		j := fine
		change(&j)
		return j
	}
	for want, cfg := range map[string]Config{
		"drain is -1s; it must not be negative":            {Drain: -time.Second},
		"job reconcile T stands twice in the timetable":    {Jobs: []Job{fine, fine}},
		"job  T: it needs a task and a subject":            {Jobs: []Job{other(func(j *Job) { j.Task = "" })}},
		"job reconcile : it needs a task and a subject":    {Jobs: []Job{other(func(j *Job) { j.Subject = "" })}},
		"job reconcile T: it needs Schedule, Run and Last": {Jobs: []Job{other(func(j *Job) { j.Schedule = nil })}},
		"job reconcile U: it needs Schedule, Run and Last": {Jobs: []Job{fine, other(func(j *Job) { j.Subject, j.Run = "U", nil })}},
	} {
		if _, err := New(cfg); err == nil || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	if _, err := New(Config{Jobs: []Job{fine, other(func(j *Job) { j.Task = "archive" }), other(func(j *Job) { j.Subject = "U" })}}); err != nil {
		t.Error(err)
	}
}
