// Package metrics is what the reconciler tells Prometheus: every metric, the HTTP endpoints of the daemon, and the files and
// pushes of one-off runs.
//
// A process makes one Metrics. It announces its tools and runs, and reports through what it gets for them:
//
//	New ──► Tool(name, …) ──► Verdict, Look, Request, Sent, …     what happens to calls
//	    ──► Run(task, tool) ──► Begin … end, Skipped, LeaseHeld   what the schedule does
//	    ──► Archive(table) ──► Step, Archived, Set, Unknown       what becomes of partitions
//	    ──► SetBacklog, Seed, DBError, Reloaded                   what somebody looked up
//
// The series of what was announced are there at once, counters at 0, so that increase() sees the first step. Label values are
// configured names or words of closed sets, never an id and never text from outside. All methods may be called by several
// goroutines, and do nothing on a nil *Metrics, *Tool, *Run or *Archive: whoever has no metrics needs no branch.
package metrics

import (
	"math"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// Build names the binary.
type Build struct {
	Version   string
	Commit    string
	GoVersion string
}

// Metrics holds every metric of a process.
type Metrics struct {
	reg prometheus.Registerer
	now func() time.Time

	mu       sync.RWMutex // guards what follows, and keeps the series of a forgotten tool from coming back
	tools    map[string]*Tool
	runs     map[runKey]*Run
	archives map[string]*Archive
	watched  prometheus.Collector // of the database pool, or nil

	// Of each tool.
	verdicts, looks, anomalies, lostRaces, requests, sends, notifications *prometheus.CounterVec
	resolution, requestDuration                                           *prometheus.HistogramVec
	breaker, pendingCalls, oldestPending, notificationsPending            *prometheus.GaugeVec

	// Of each run.
	lastSuccess, lastCompletion, inProgress, scheduleInterval, leases *prometheus.GaugeVec
	runsTotal, runsSkipped, runPanics                                 *prometheus.CounterVec
	runDuration                                                       *prometheus.HistogramVec

	// Of each table that is archived.
	archiveSteps, archivedRows, archivedBytes                                         *prometheus.CounterVec
	partitions, partitionsDue, partitionsHeld, partitionDefaultRows                   *prometheus.GaugeVec
	oldestDue, oldestHeld, partitionHorizon, partitionPremake, partitionDetachPending *prometheus.GaugeVec

	// Of the process.
	unknownTools, reloadSuccessful, reloadSuccessAt *prometheus.GaugeVec
	dbErrors                                        *prometheus.CounterVec

	vecsOfTool, vecsOfRun, vecsOfTable []*prometheus.MetricVec
}

// Buckets in seconds: from a quick answer to a hanging one, from a pass over nothing to a long archive, and from a call that was
// parked too early to one that waited a week for a person.
var (
	requestBuckets    = []float64{.005, .025, .1, .25, .5, 1, 2.5, 5, 10, 30}
	runBuckets        = []float64{.05, .25, 1, 5, 15, 60, 300, 900, 3600, 4 * 3600}
	resolutionBuckets = []float64{1, 5, 15, 60, 300, 900, 3600, 4 * 3600, 12 * 3600, 24 * 3600, 3 * 24 * 3600, 7 * 24 * 3600}
)

// New defines the metrics and registers them. It panics when reg has them already. now is the clock that runs are timed by.
func New(reg prometheus.Registerer, build Build, now func() time.Time) *Metrics {
	t := table{factory: promauto.With(reg)}
	m := &Metrics{
		reg: reg, now: now, tools: map[string]*Tool{}, runs: map[runKey]*Run{}, archives: map[string]*Archive{},

		// Of each tool.
		verdicts:        t.counter("reconciler_verdicts_total", "Verdicts that were written.", "tool", "verdict", "reason"),
		resolution:      t.histogram("reconciler_resolution_seconds", "Time from the parking of a call to its final status.", resolutionBuckets, "tool"),
		looks:           t.counter("reconciler_looks_total", "Looks at a call, by whether the downstream answered.", "tool", "result"),
		anomalies:       t.counter("reconciler_anomalies_total", "Things a downstream should never do.", "tool", "kind"),
		lostRaces:       t.counter("reconciler_lost_races_total", "Writes that found a call changed by somebody else.", "tool"),
		requests:        t.counter("reconciler_receipt_requests_total", "Requests for receipts, by HTTP status or by what kept one from coming.", "tool", "code"),
		requestDuration: t.histogram("reconciler_receipt_request_duration_seconds", "How long a request for receipts took.", requestBuckets, "tool"),
		breaker:         t.gauge("reconciler_breaker_state", "1 for the state the circuit breaker is in.", "tool", "state"),
		sends:           t.counter("reconciler_sends_total", "Calls that were sent again, by what came of it.", "tool", "outcome"),
		notifications:   t.counter("reconciler_notifications_total", "Deliveries of verdicts to the orchestrator.", "tool", "outcome"),

		pendingCalls:         t.gauge("reconciler_pending_calls", "Open calls; 100000 stands for more as well.", "tool", "status"),
		oldestPending:        t.gauge("reconciler_oldest_pending_call_timestamp_seconds", "When the oldest call in PENDING or RETRY was parked; NaN when there is none.", "tool"),
		notificationsPending: t.gauge("reconciler_notifications_pending", "Verdicts that are not delivered yet; 100000 stands for more as well.", "tool"),

		// Of each run. For task="archive" the tool is the name of the table.
		lastSuccess:      t.gauge("reconciler_run_last_success_timestamp_seconds", "When the last successful run ended, in whatever process; 0 when there was none.", "task", "tool"),
		lastCompletion:   t.gauge("reconciler_run_last_completion_timestamp_seconds", "When the last run ended that was not skipped, in whatever process; 0 when there was none.", "task", "tool"),
		runDuration:      t.histogram("reconciler_run_duration_seconds", "How long a run of this process took.", runBuckets, "task", "tool"),
		runsTotal:        t.counter("reconciler_runs_total", "Runs of this process.", "task", "tool", "outcome"),
		runsSkipped:      t.counter("reconciler_runs_skipped_total", "Runs that did not take place.", "task", "tool", "reason"),
		inProgress:       t.gauge("reconciler_run_in_progress", "1 while a run is at work in this process.", "task", "tool"),
		runPanics:        t.counter("reconciler_run_panics_total", "Runs that ended in a panic.", "task", "tool"),
		scheduleInterval: t.gauge("reconciler_schedule_interval_seconds", "The longest gap between two ticks of the schedule.", "task", "tool"),
		leases:           t.gauge("reconciler_lease_held", "1 while this process holds the lease.", "task", "tool"),

		// Of each table that is archived.
		archiveSteps:  t.counter("reconciler_archive_steps_total", "Steps of archiving that ended, and partitions that were made ahead.", "table", "step", "result"),
		archivedRows:  t.counter("reconciler_archived_rows_total", "Rows that were written into archive objects.", "table"),
		archivedBytes: t.counter("reconciler_archived_bytes_total", "Compressed bytes of the archive objects that were written.", "table"),

		partitions:             t.gauge("reconciler_partitions", "Partitions of the table, without the default.", "table"),
		partitionsDue:          t.gauge("reconciler_partitions_due", "Partitions that are old enough to be archived, and are not held.", "table"),
		partitionsHeld:         t.gauge("reconciler_partitions_held", "Partitions that are old enough to be archived, by what forbids it.", "table", "reason"),
		oldestDue:              t.gauge("reconciler_partition_oldest_due_timestamp_seconds", "When the partition that is due and not held became due, the oldest of them; NaN when there is none.", "table"),
		oldestHeld:             t.gauge("reconciler_partition_oldest_held_timestamp_seconds", "Since when the partition is held that is held longest; NaN when there is none.", "table"),
		partitionHorizon:       t.gauge("reconciler_partition_horizon_timestamp_seconds", "Up to when there are partitions without a gap; NaN when they have no end.", "table"),
		partitionPremake:       t.gauge("reconciler_partition_premake_seconds", "How far ahead of now partitions are made; 0 when that is unknown.", "table"),
		partitionDetachPending: t.gauge("reconciler_partition_detach_pending_timestamp_seconds", "Since when a partition is neither attached nor detached; NaN when there is none.", "table"),
		partitionDefaultRows:   t.gauge("reconciler_partition_default_rows", "Rows in the default partition.", "table"),

		// Of the process.
		unknownTools:     t.gauge("reconciler_unknown_tool_calls", "Open calls of tools that are not configured; 100000 stands for more as well."),
		dbErrors:         t.counter("reconciler_db_errors_total", "Errors of the database.", "class"),
		reloadSuccessful: t.gauge("reconciler_config_last_reload_successful", "1 when the configuration that was read last is in force, 0 when it was refused."),
		reloadSuccessAt:  t.gauge("reconciler_config_last_reload_success_timestamp_seconds", "When a configuration last came into force."),
	}
	m.vecsOfTool, m.vecsOfRun, m.vecsOfTable = t.ofTool, t.ofRun, t.ofTable
	t.gauge("reconciler_build_info", "The binary; always 1.", "version", "commit", "goversion").
		WithLabelValues(build.Version, build.Commit, build.GoVersion).Set(1)
	for _, class := range dbClasses {
		m.dbErrors.WithLabelValues(class)
	}
	return m
}

// NewRegistry makes a registry with the metrics of the Go runtime and of the operating system's process in it.
func NewRegistry() *prometheus.Registry {
	reg := prometheus.NewRegistry()
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return reg
}

// table registers metrics and notes which of them belong to a tool, which to a run and which to a table of the database.
type table struct {
	factory                promauto.Factory
	ofTool, ofRun, ofTable []*prometheus.MetricVec
}

func (t *table) counter(name, help string, labels ...string) *prometheus.CounterVec {
	v := t.factory.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	t.note(v.MetricVec, labels)
	return v
}

// gauge without labels is a vector as well: it can be absent as long as nothing is known.
func (t *table) gauge(name, help string, labels ...string) *prometheus.GaugeVec {
	v := t.factory.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels)
	t.note(v.MetricVec, labels)
	return v
}

func (t *table) histogram(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
	v := t.factory.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, labels)
	t.note(v.MetricVec, labels)
	return v
}

func (t *table) note(v *prometheus.MetricVec, labels []string) {
	switch {
	case slices.Contains(labels, "task"):
		t.ofRun = append(t.ofRun, v)
	case slices.Contains(labels, "tool"):
		t.ofTool = append(t.ofTool, v)
	case slices.Contains(labels, "table"):
		t.ofTable = append(t.ofTable, v)
	}
}

// seconds is an instant as Prometheus counts it.
func seconds(at time.Time) float64 { return float64(at.UnixMilli()) / 1000 }

// instant shows no time as NaN: no comparison with it is true, so no alert on age fires.
func instant(at time.Time) float64 {
	if at.IsZero() {
		return math.NaN()
	}
	return seconds(at)
}

// flag is a truth as Prometheus shows it.
func flag(so bool) float64 {
	if so {
		return 1
	}
	return 0
}
