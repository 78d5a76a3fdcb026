package metrics

import (
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

type runKey struct {
	task Task
	tool string
}

// Run holds the metrics of the runs of one task on one tool.
type Run struct {
	m   *Metrics
	key runKey

	// Guarded by Metrics.mu.
	active              int     // runs at work in this process
	success, completion float64 // what the timestamps show
}

// Run announces the runs of a task on a tool, or on a table for TaskArchive. For the same pair it returns the same *Run.
func (m *Metrics) Run(task Task, tool string) *Run {
	if m == nil {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	key := runKey{task, tool}
	if r := m.runs[key]; r != nil {
		return r
	}
	r := &Run{m: m, key: key}
	m.runs[key] = r
	for _, outcome := range outcomes {
		m.runsTotal.WithLabelValues(r.labels(string(outcome))...)
	}
	for _, reason := range skipReasons {
		m.runsSkipped.WithLabelValues(r.labels(string(reason))...)
	}
	m.runPanics.WithLabelValues(r.labels()...)
	m.runDuration.WithLabelValues(r.labels()...)
	m.inProgress.WithLabelValues(r.labels()...)
	m.leases.WithLabelValues(r.labels()...)
	m.lastSuccess.WithLabelValues(r.labels()...)
	m.lastCompletion.WithLabelValues(r.labels()...)
	return r
}

// ForgetRun removes the series of runs that the configuration no longer has, such as those of a table.
func (m *Metrics) ForgetRun(task Task, tool string) {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.forgetRun(runKey{task, tool})
}

func (m *Metrics) forgetRun(key runKey) {
	delete(m.runs, key)
	for _, v := range m.vecsOfRun {
		v.DeletePartialMatch(prometheus.Labels{"task": string(key.task), "tool": key.tool})
	}
}

func (r *Run) labels(more ...string) []string {
	return append([]string{string(r.key.task), r.key.tool}, more...)
}

// record changes metrics of the run, unless it was forgotten.
func (r *Run) record(change func(m *Metrics)) {
	if r == nil {
		return
	}
	r.m.mu.Lock()
	defer r.m.mu.Unlock()
	if r.m.runs[r.key] == r {
		change(r.m)
	}
}

// Begin records that a run begins, and returns what is to be called when it ends; only the first call counts. A run that ends in
// OutcomeSkipped found the lease held by another replica, and counts as Skipped(SkipLeaseHeld). A word that is no outcome is
// OutcomeFailed.
func (r *Run) Begin() (end func(Outcome)) {
	var began time.Time
	r.record(func(m *Metrics) {
		began = m.now()
		r.active++
		m.inProgress.WithLabelValues(r.labels()...).Set(1)
	})
	var once sync.Once
	return func(outcome Outcome) { once.Do(func() { r.ended(began, outcome) }) }
}

func (r *Run) ended(began time.Time, outcome Outcome) {
	r.record(func(m *Metrics) {
		r.active--
		m.inProgress.WithLabelValues(r.labels()...).Set(flag(r.active > 0))
		if outcome == OutcomeSkipped {
			r.skip(SkipLeaseHeld)
			return
		}
		if !slices.Contains(outcomes, outcome) {
			outcome = OutcomeFailed
		}
		now := m.now()
		m.runsTotal.WithLabelValues(r.labels(string(outcome))...).Inc()
		m.runDuration.WithLabelValues(r.labels()...).Observe(max(now.Sub(began), 0).Seconds())
		r.completedAt(now)
		if outcome == OutcomeSuccess {
			r.succeededAt(now)
		}
	})
}

// Skipped counts a run that did not even begin.
func (r *Run) Skipped(reason SkipReason) {
	r.record(func(*Metrics) { r.skip(reason) })
}

func (r *Run) skip(reason SkipReason) {
	r.m.runsTotal.WithLabelValues(r.labels(string(OutcomeSkipped))...).Inc()
	r.m.runsSkipped.WithLabelValues(r.labels(known(skipReasons, reason))...).Inc()
}

// Panicked counts a panic. The run ends by itself: its end has to be called as well.
func (r *Run) Panicked() {
	r.record(func(m *Metrics) { m.runPanics.WithLabelValues(r.labels()...).Inc() })
}

// Interval tells the longest gap between two ticks of the schedule. Without a schedule it is not called, and there is no series.
func (r *Run) Interval(d time.Duration) {
	r.record(func(m *Metrics) { m.scheduleInterval.WithLabelValues(r.labels()...).Set(d.Seconds()) })
}

// LeaseHeld tells whether this process holds the lease, now.
func (r *Run) LeaseHeld(held bool) {
	r.record(func(m *Metrics) { m.leases.WithLabelValues(r.labels()...).Set(flag(held)) })
}

// LastRun is what the table of runs knows of a task on a tool, whoever ran it. A zero time is none.
type LastRun struct {
	Task           Task
	Tool           string
	LastSuccess    time.Time
	LastCompletion time.Time // of any outcome but skipped
}

// Seed takes the ends of runs from the table of runs, so that a restart does not lose them and a run of another process counts.
// It is called again and again. A timestamp only goes forward, and runs that nobody announced are left out.
func (m *Metrics) Seed(runs []LastRun) {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, last := range runs {
		if r := m.runs[runKey{last.Task, last.Tool}]; r != nil {
			r.succeededAt(last.LastSuccess)
			r.completedAt(last.LastCompletion)
		}
	}
}

func (r *Run) succeededAt(at time.Time) {
	r.forward(&r.success, at, r.m.lastSuccess.WithLabelValues(r.labels()...))
}

func (r *Run) completedAt(at time.Time) {
	r.forward(&r.completion, at, r.m.lastCompletion.WithLabelValues(r.labels()...))
}

// maxSkew is how far the clocks of replicas and of the database may be apart.
const maxSkew = time.Hour

// forward moves a timestamp unless that would be back. One that lies ahead of every clock was taken by a clock that was wrong: it is
// not shown, and where it is shown it makes way, or the alert on late runs would be silent until that time has come.
func (r *Run) forward(last *float64, at time.Time, shown prometheus.Gauge) {
	latest := seconds(r.m.now().Add(maxSkew))
	if s := seconds(at); !at.IsZero() && s <= latest && (s > *last || *last > latest) {
		*last = s
		shown.Set(s)
	}
}
