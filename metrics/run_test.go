package metrics

import (
	"testing"
	"time"
)

func TestARunIsInProgressUntilItsEndAndIsTimed(t *testing.T) {
	t.Parallel()
	m, reg, c := newMetrics()
	run := m.Run(TaskReconcile, "T")
	var end func(Outcome)
	same(t, "at the start", map[string]float64{`run_in_progress{task="reconcile",tool="T"}`: 1}, changes(t, reg, func() { end = run.Begin() }))
	c.advance(90 * time.Second)
	done := seconds(noon.Add(90 * time.Second))
	same(t, "at the end", map[string]float64{
		`run_in_progress{task="reconcile",tool="T"}`:                       0,
		`runs_total{outcome="success",task="reconcile",tool="T"}`:          1,
		`run_duration_seconds{task="reconcile",tool="T"}`:                  1,
		`run_last_success_timestamp_seconds{task="reconcile",tool="T"}`:    done,
		`run_last_completion_timestamp_seconds{task="reconcile",tool="T"}`: done,
	}, changes(t, reg, func() { end(OutcomeSuccess) }))
	same(t, "at another end", map[string]float64{}, changes(t, reg, func() { end(OutcomeFailed) }))

	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "reconciler_run_duration_seconds" {
			if sum := f.GetMetric()[0].GetHistogram().GetSampleSum(); sum != 90 {
				t.Errorf("it took %gs", sum)
			}
		}
	}
}

func TestOnlyASuccessMovesTheTimeOfTheLastSuccess(t *testing.T) {
	t.Parallel()
	for _, outcome := range []Outcome{OutcomePartial, OutcomeFailed, ""} {
		m, reg, _ := newMetrics()
		m.Run(TaskNotify, "T").Begin()(outcome)
		all := shown(t, reg)
		if v := all[`run_last_success_timestamp_seconds{task="notify",tool="T"}`]; v != 0 {
			t.Errorf("%q counts as a success at %g", outcome, v)
		}
		if v := all[`run_last_completion_timestamp_seconds{task="notify",tool="T"}`]; v != seconds(noon) {
			t.Errorf("%q completed at %g", outcome, v)
		}
	}
}

func TestASkippedRunIsCountedWithItsReasonAndCompletesNothing(t *testing.T) {
	t.Parallel()
	m, reg, _ := newMetrics()
	run := m.Run(TaskReconcile, "T")
	same(t, "the lease is held", map[string]float64{
		`runs_total{outcome="skipped",task="reconcile",tool="T"}`:           1,
		`runs_skipped_total{reason="lease_held",task="reconcile",tool="T"}`: 1,
	}, changes(t, reg, func() { run.Begin()(OutcomeSkipped) }))
	same(t, "still running", map[string]float64{
		`runs_total{outcome="skipped",task="reconcile",tool="T"}`:              2,
		`runs_skipped_total{reason="still_running",task="reconcile",tool="T"}`: 1,
	}, changes(t, reg, func() { run.Skipped(SkipStillRunning) }))
}

func TestScheduleLeaseAndPanicsShow(t *testing.T) {
	t.Parallel()
	m, reg, _ := newMetrics()
	run := m.Run(TaskArchive, "idempotency.keys")
	same(t, "changes", map[string]float64{
		`schedule_interval_seconds{task="archive",tool="idempotency.keys"}`: 86400,
		`lease_held{task="archive",tool="idempotency.keys"}`:                1,
		`run_panics_total{task="archive",tool="idempotency.keys"}`:          1,
	}, changes(t, reg, func() {
		run.Interval(24 * time.Hour)
		run.LeaseHeld(true)
		run.Panicked()
	}))
	run.LeaseHeld(false)
	if shown(t, reg)[`lease_held{task="archive",tool="idempotency.keys"}`] != 0 {
		t.Error("the lease is still held")
	}
}

func TestASeedMovesTimestampsForwardOnly(t *testing.T) {
	t.Parallel()
	m, reg, _ := newMetrics()
	run := m.Run(TaskReconcile, "T")
	const success, completion = `run_last_success_timestamp_seconds{task="reconcile",tool="T"}`, `run_last_completion_timestamp_seconds{task="reconcile",tool="T"}`
	seed := func(s, c time.Time) func() {
		return func() { m.Seed([]LastRun{{Task: TaskReconcile, Tool: "T", LastSuccess: s, LastCompletion: c}}) }
	}
	hour := func(n int) time.Time { return noon.Add(time.Duration(n) * time.Hour) }
	same(t, "before any run", map[string]float64{}, changes(t, reg, seed(time.Time{}, time.Time{})))
	same(t, "after a restart", map[string]float64{success: seconds(hour(-5)), completion: seconds(hour(-4))}, changes(t, reg, seed(hour(-5), hour(-4))))
	same(t, "an older one", map[string]float64{}, changes(t, reg, seed(hour(-6), hour(-5))))
	run.Begin()(OutcomeSuccess)
	same(t, "older than our own", map[string]float64{}, changes(t, reg, seed(hour(-1), hour(-1))))
	same(t, "a run of somebody else", map[string]float64{completion: seconds(hour(1))}, changes(t, reg, seed(hour(-1), hour(1))))
}

func TestAClockThatWasAYearAheadDoesNotHideLateRunsUntilThen(t *testing.T) {
	t.Parallel()
	m, reg, c := newMetrics()
	run := m.Run(TaskReconcile, "T")
	const success, completion = `run_last_success_timestamp_seconds{task="reconcile",tool="T"}`, `run_last_completion_timestamp_seconds{task="reconcile",tool="T"}`
	const year = 365 * 24 * time.Hour
	c.advance(year)
	run.Begin()(OutcomeSuccess)
	c.advance(-year)
	m.Seed([]LastRun{{Task: TaskReconcile, Tool: "T"}}) // of nothing new
	run.Begin()(OutcomeSuccess)
	if all := shown(t, reg); all[success] != seconds(noon) || all[completion] != seconds(noon) {
		t.Errorf("our own clock was wrong, and shown are %g and %g, want %g", all[success], all[completion], seconds(noon))
	}
	ahead := noon.Add(year)
	same(t, "the clock of the database was wrong", map[string]float64{}, changes(t, reg, func() {
		m.Seed([]LastRun{{Task: TaskReconcile, Tool: "T", LastSuccess: ahead, LastCompletion: ahead}})
	}))
}
