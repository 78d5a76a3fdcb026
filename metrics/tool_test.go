package metrics

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"
)

func TestWhatHappensToCallsIsCountedForTheTool(t *testing.T) {
	t.Parallel()
	m, reg, _ := newMetrics()
	m.Tool("U", charge)
	tool := m.Tool("T", charge)
	for _, c := range []struct {
		what string
		do   func()
		want map[string]float64
	}{
		{
			"a verdict", func() { tool.Verdict(VerdictRetry, "not_found") },
			map[string]float64{`verdicts_total{reason="not_found",tool="T",verdict="retry"}`: 1},
		},
		{"a resolution", func() { tool.Resolved(time.Hour) }, map[string]float64{`resolution_seconds{tool="T"}`: 1}},
		{"a look", func() { tool.Look(true) }, map[string]float64{`looks_total{result="answered",tool="T"}`: 1}},
		{"a look in vain", func() { tool.Look(false) }, map[string]float64{`looks_total{result="unanswered",tool="T"}`: 1}},
		{"anomalies", func() { tool.Anomaly(AnomalyContradiction, 2) }, map[string]float64{`anomalies_total{kind="contradiction",tool="T"}`: 2}},
		{"lost races", func() { tool.LostRaces(3) }, map[string]float64{`lost_races_total{tool="T"}`: 3}},
		{"no lost race", func() { tool.LostRaces(0); tool.LostRaces(-1) }, map[string]float64{}},
		{
			"an answer", func() { tool.Request(200, "", time.Second) },
			map[string]float64{`receipt_requests_total{code="200",tool="T"}`: 1, `receipt_request_duration_seconds{tool="T"}`: 1},
		},
		{
			"no answer", func() { tool.Request(0, "timeout", 5*time.Second) },
			map[string]float64{`receipt_requests_total{code="timeout",tool="T"}`: 1, `receipt_request_duration_seconds{tool="T"}`: 2},
		},
		{"a send", func() { tool.Sent(SendNeverConnected) }, map[string]float64{`sends_total{outcome="never_connected",tool="T"}`: 1}},
		{"a delivery", func() { tool.Notified(true) }, map[string]float64{`notifications_total{outcome="delivered",tool="T"}`: 1}},
		{"a failed delivery", func() { tool.Notified(false) }, map[string]float64{`notifications_total{outcome="failed",tool="T"}`: 1}},
	} {
		same(t, c.what, c.want, changes(t, reg, c.do))
	}
}

func TestExactlyOneStateOfTheBreakerIsOne(t *testing.T) {
	t.Parallel()
	m, reg, _ := newMetrics()
	tool := m.Tool("T", charge)
	for _, c := range []struct{ told, want BreakerState }{
		{"", BreakerClosed}, {BreakerOpen, BreakerOpen}, {BreakerHalfOpen, BreakerHalfOpen}, {"ajar", BreakerHalfOpen}, {BreakerClosed, BreakerClosed},
	} {
		tool.Breaker(c.told)
		all := shown(t, reg)
		for _, s := range breakerStates {
			if got := all[fmt.Sprintf(`breaker_state{state="%s",tool="T"}`, s)]; got != flag(s == c.want) {
				t.Errorf("told %q: %s is %g", c.told, s, got)
			}
		}
	}
	tool.Breaker(BreakerOpen)
	if m.Tool("T", charge); shown(t, reg)[`breaker_state{state="closed",tool="T"}`] != 1 {
		t.Error("the breaker of a tool that was announced anew is not closed")
	}
}

func TestNoWordFromOutsideBecomesALabel(t *testing.T) {
	t.Parallel()
	m, reg, _ := newMetrics()
	tool := m.Tool("T", charge)
	const evil = "<script>"
	got := changes(t, reg, func() {
		for i := range 100 {
			word := fmt.Sprint(evil, i)
			tool.Verdict(VerdictSuccess, word)
			tool.Verdict(Verdict(word), "receipt_success")
			tool.Anomaly(Anomaly(word), 1)
			tool.Request(0, word, 0)
			tool.Sent(SendOutcome(word))
			m.Run(TaskReconcile, "T").Skipped(SkipReason(word))
			m.Run(TaskReconcile, "T").Begin()(Outcome(word))
			m.SetBacklog(word, Backlog{Pending: 1})
			m.Seed([]LastRun{{Task: TaskReconcile, Tool: word, LastSuccess: noon}})
		}
		for status := -50; status < 2000; status++ {
			tool.Request(status, evil, 0)
		}
	})
	if len(got) > 110 {
		t.Errorf("%d series", len(got))
	}
	for series := range got {
		if strings.Contains(series, evil) {
			t.Errorf("%s", series)
		}
	}
	for series, want := range map[string]float64{
		`verdicts_total{reason="other",tool="T",verdict="success"}`:    100,
		`verdicts_total{reason="other",tool="T",verdict="other"}`:      100,
		`anomalies_total{kind="other",tool="T"}`:                       100,
		`sends_total{outcome="other",tool="T"}`:                        100,
		`runs_skipped_total{reason="other",task="reconcile",tool="T"}`: 100,
		`runs_total{outcome="failed",task="reconcile",tool="T"}`:       100,
		`receipt_requests_total{code="418",tool="T"}`:                  1,
		`receipt_requests_total{code="5xx",tool="T"}`:                  89,
		`receipt_requests_total{code="other",tool="T"}`:                101 + 149 + 1400,
	} {
		if got[series] != want {
			t.Errorf("%s is %g, not %g", series, got[series], want)
		}
	}
}

func TestATimeThatRunsBackIsNoTimeAtAll(t *testing.T) {
	t.Parallel()
	m, reg, c := newMetrics()
	tool, run := m.Tool("T", charge), m.Run(TaskReconcile, "T")
	tool.Resolved(-time.Hour)
	tool.Request(200, "", -time.Hour)
	end := run.Begin()
	c.advance(-time.Hour)
	end(OutcomeSuccess)
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, h := range f.GetMetric() {
			if h.GetHistogram().GetSampleSum() < 0 {
				t.Errorf("the sum of %s went back", f.GetName())
			}
		}
	}
}

func TestAForgottenToolLeavesNoSeriesAndNoneComesBack(t *testing.T) {
	t.Parallel()
	m, reg, _ := newMetrics()
	m.Tool("U", charge)
	table := m.Run(TaskArchive, "T") // a table may have the name of a tool
	table.Panicked()
	want := shown(t, reg)

	tool, run := m.Tool("T", charge), m.Run(TaskReconcile, "T")
	m.Run(TaskDispatch, "T").Interval(time.Minute)
	m.Run(TaskNotify, "T").LeaseHeld(true)
	m.SetBacklog("T", Backlog{Manual: 1})
	tool.Request(418, "", 0)
	end := run.Begin()
	m.Forget("T")
	same(t, "after Forget", want, shown(t, reg))

	// What is still under way reports in vain.
	end(OutcomeSuccess)
	run.LeaseHeld(true)
	run.Begin()(OutcomeSuccess)
	tool.Verdict(VerdictSuccess, "receipt_success")
	tool.Breaker(BreakerOpen)
	tool.Request(418, "", 0)
	m.SetBacklog("T", Backlog{Manual: 1})
	m.Seed([]LastRun{{Task: TaskReconcile, Tool: "T", LastSuccess: noon}})
	same(t, "from what was under way", want, shown(t, reg))

	m.ForgetRun(TaskArchive, "T")
	for series := range shown(t, reg) {
		if strings.Contains(series, `tool="T"`) {
			t.Errorf("%s", series)
		}
	}
}

func TestAToolThatStaysKeepsItsCountersOverAReload(t *testing.T) {
	t.Parallel()
	m, reg, _ := newMetrics()
	old := m.Tool("T", charge)
	old.LostRaces(3)
	m.SetBacklog("T", Backlog{NotificationsPending: 5})
	silent := charge
	silent.Notify = false
	got := changes(t, reg, func() {
		m.Tool("T", silent).LostRaces(1)
		old.LostRaces(1) // a pass that began before the reload
		old.Notified(true)
		m.SetBacklog("T", Backlog{NotificationsPending: 5})
	})
	delete(got, `oldest_pending_call_timestamp_seconds{tool="T"}`) // NaN differs from itself
	same(t, "changes", map[string]float64{
		`lost_races_total{tool="T"}`:                        5,
		`notifications_total{outcome="delivered",tool="T"}`: -1,
		`notifications_total{outcome="failed",tool="T"}`:    -1,
		`notifications_pending{tool="T"}`:                   -1,
	}, got)
}

func TestWhoHasNoMetricsNeedsNoBranch(t *testing.T) {
	t.Parallel()
	var m *Metrics
	tool, run, archive := m.Tool("T", charge), m.Run(TaskReconcile, "T"), m.Archive("T")
	archive.Step("exported", false)
	archive.Archived(1, 1)
	archive.Set(ArchiveState{})
	archive.Unknown()
	tool.Verdict(VerdictSuccess, "receipt_success")
	tool.Resolved(0)
	tool.Look(true)
	tool.Anomaly(AnomalyContradiction, 1)
	tool.LostRaces(1)
	tool.Request(200, "", 0)
	tool.Breaker(BreakerOpen)
	tool.Sent(SendAnswered)
	tool.Notified(true)
	run.Begin()(OutcomeSuccess)
	run.Skipped(SkipStillRunning)
	run.Panicked()
	run.Interval(0)
	run.LeaseHeld(true)
	m.Seed([]LastRun{{}})
	m.SetBacklog("T", Backlog{})
	m.SetUnknownTools(1)
	m.BacklogUnknown()
	m.DBError(errNobody)
	m.Reloaded(nil)
	m.WatchDB(nil)
	m.Forget("T")
	m.ForgetRun(TaskArchive, "T")
	m.ForgetArchive("T")
}

func TestToolsComeAndGoWhileTheyAreReportedOnAndScraped(t *testing.T) {
	t.Parallel()
	m, reg, _ := newMetrics()
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 200 {
				tool, run := m.Tool("T", charge), m.Run(TaskReconcile, "T")
				end := run.Begin()
				tool.Verdict(VerdictSuccess, "receipt_success")
				tool.Breaker(BreakerOpen)
				m.SetBacklog("T", Backlog{Pending: 1})
				m.Seed([]LastRun{{Task: TaskReconcile, Tool: "T", LastSuccess: noon}})
				end(OutcomeSuccess)
				m.BacklogUnknown()
				m.Forget("T")
			}
		})
	}
	all.Go(func() {
		for range 50 {
			if _, err := reg.Gather(); err != nil {
				t.Error(err)
			}
		}
	})
	all.Wait()
	for series := range shown(t, reg) {
		if strings.Contains(series, `tool="T"`) {
			t.Errorf("%s is left", series)
		}
	}
}
