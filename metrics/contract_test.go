package metrics

import (
	"database/sql"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/lib/pq"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

// contract is what dashboards and alerts outside of this repository rest on: name, type, and labels with the words they may
// have. A word in capitals stands for a configured name.
const contract = `
build_info gauge commit=abc goversion=go1.26 version=v1.2.3

run_last_success_timestamp_seconds    gauge     task tool=T
run_last_completion_timestamp_seconds gauge     task tool=T
run_duration_seconds                  histogram task tool=T
runs_total                            counter   outcome=success,partial,failed,skipped task tool=T
runs_skipped_total                    counter   reason=still_running,lease_held task tool=T
run_in_progress                       gauge     task tool=T
run_panics_total                      counter   task tool=T
schedule_interval_seconds             gauge     task tool=T
lease_held                            gauge     task tool=T

pending_calls                                gauge status=PENDING,RETRY,MANUAL tool=T
oldest_pending_call_timestamp_seconds        gauge tool=T
notifications_pending                        gauge tool=T
unknown_tool_calls                           gauge

verdicts_total                   counter   reason=receipt_success,receipt_failed,not_found,not_retryable tool=T verdict=success,failed,retry,manual
resolution_seconds               histogram tool=T
looks_total                      counter   result=answered,unanswered tool=T
anomalies_total                  counter   kind=call_id_changed,contradiction,conflicting_receipts,duplicate_receipt,unasked_receipt tool=T
lost_races_total                 counter   tool=T
receipt_requests_total           counter   code=200,301,302,303,307,308,400,401,403,404,413,422,429,500,502,503,504,timeout,dns tool=T
receipt_request_duration_seconds histogram tool=T
breaker_state                    gauge     state=closed,half_open,open tool=T
sends_total                      counter   outcome=answered,unanswered,refused,never_connected tool=T
notifications_total              counter   outcome=delivered,failed tool=T

archive_steps_total                        counter result=done,failed step=frozen,exported,verified,watermark,detached,dropped,premade table=T
archived_rows_total                        counter table=T
archived_bytes_total                       counter table=T
partitions                                 gauge   table=T
partitions_due                             gauge   table=T
partitions_held                            gauge   reason=newest,last,subpartitioned,foreign_table,inbound_foreign_key,not_terminal,open_call,unanswerable,detach_pending,locked,changed_after_freeze,object_damaged,replaced,referenced table=T
partition_oldest_due_timestamp_seconds     gauge   table=T
partition_oldest_held_timestamp_seconds    gauge   table=T
partition_horizon_timestamp_seconds        gauge   table=T
partition_premake_seconds                  gauge   table=T
partition_detach_pending_timestamp_seconds gauge   table=T
partition_default_rows                     gauge   table=T

db_errors_total                              counter class=unreachable,busy,refused,other
config_last_reload_successful                gauge
config_last_reload_success_timestamp_seconds gauge
`

// announced is a Metrics with one tool, all its runs and one table, and whatever else makes a series.
func announced() (*Metrics, *prometheus.Registry) {
	m, reg, _ := newMetrics()
	m.Tool("T", charge)
	for _, task := range []Task{TaskReconcile, TaskArchive, TaskDispatch, TaskNotify} {
		m.Run(task, "T").Interval(time.Minute)
	}
	m.Archive("T").Set(ArchiveState{})
	m.SetBacklog("T", Backlog{})
	m.SetUnknownTools(0)
	m.Reloaded(nil)
	return m, reg
}

func TestTheMetricsAreThoseOfTheContract(t *testing.T) {
	t.Parallel()
	want := map[string]string{}
	for line := range strings.Lines(strings.ReplaceAll(contract, " task ", " task=reconcile,archive,dispatch,notify ")) {
		if fields := strings.Fields(line); len(fields) > 0 {
			for i, f := range fields[2:] {
				label, words, _ := strings.Cut(f, "=")
				fields[i+2] = label + "=" + sorted(strings.Split(words, ","))
			}
			want["reconciler_"+fields[0]] = strings.Join(fields[1:], " ")
		}
	}
	_, reg := announced()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, f := range families {
		words := map[string][]string{}
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				words[l.GetName()] = append(words[l.GetName()], l.GetValue())
			}
		}
		text := strings.ToLower(f.GetType().String())
		for _, label := range slices.Sorted(maps.Keys(words)) {
			text += " " + label + "=" + sorted(words[label])
		}
		got[f.GetName()] = text
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-contract +shown:\n%s", diff)
	}
}

func sorted(words []string) string {
	words = slices.Clone(words)
	slices.Sort(words)
	return strings.Join(slices.Compact(words), ",")
}

func TestNamesHelpAndUnitsPassThePrometheusLinter(t *testing.T) {
	t.Parallel()
	_, reg := announced()
	problems, err := testutil.GatherAndLint(reg)
	if err != nil || len(problems) > 0 {
		t.Errorf("%v %v", problems, err)
	}
}

func TestEveryCounterOfAnAnnouncedToolStartsAtZero(t *testing.T) {
	t.Parallel()
	_, reg := announced()
	counters := 0
	for series, v := range shown(t, reg) {
		if strings.Contains(series, "_total{") {
			counters++
			if v != 0 {
				t.Errorf("%s is %g before anything happened", series, v)
			}
		}
	}
	if counters < 50 {
		t.Errorf("%d counters", counters)
	}
}

func TestTheRegistryShowsTheRuntimeTheProcessAndThePool(t *testing.T) {
	t.Parallel()
	reg := NewRegistry()
	m := New(reg, Build{}, (&clock{at: noon}).now)
	pool := openPool(t)
	pool.SetMaxOpenConns(7)
	m.WatchDB(openPool(t))
	m.WatchDB(pool) // a reload opened another one
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		got[f.GetName()+labelText(f.GetMetric()[0])] = number(f.GetMetric()[0])
	}
	if v := got[`go_sql_max_open_connections{db_name="reconciler"}`]; v != 7 {
		t.Errorf("the pool watched last shows %g connections", v)
	}
	for _, name := range []string{"go_goroutines", "process_start_time_seconds"} {
		if _, ok := got[name]; !ok {
			t.Errorf("%s is missing", name)
		}
	}
}

// openPool makes a pool that connects to nobody.
func openPool(t *testing.T) *sql.DB {
	t.Helper()
	connector, err := pq.NewConnector("postgres://nobody@127.0.0.1:1/x?sslmode=disable")
	if err != nil {
		t.Fatal(err)
	}
	db := sql.OpenDB(connector)
	t.Cleanup(func() { _ = db.Close() })
	return db
}
