package deploy

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/callreceipt/reconciler/internal/database"
	"github.com/callreceipt/reconciler/metrics"
	"github.com/callreceipt/reconciler/reconcile"
)

// words are the values that a label can have, as far as they are known beforehand.
type words map[string]bool

// exported are the metrics of a daemon, by name, with their labels.
func exported(t *testing.T) map[string]map[string]words {
	t.Helper()
	db, err := database.Open("postgres://nobody@127.0.0.1:1/nothing?sslmode=disable")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	registry := metrics.NewRegistry()
	m := metrics.New(registry, metrics.Build{}, time.Now)
	m.Tool("T", reconcile.MeasuredAs(true))
	for _, task := range []metrics.Task{metrics.TaskReconcile, metrics.TaskArchive, metrics.TaskDispatch, metrics.TaskNotify} {
		m.Run(task, "T").Interval(time.Minute)
	}
	m.Archive("T").Set(metrics.ArchiveState{})
	m.SetBacklog("T", metrics.Backlog{})
	m.SetUnknownTools(0)
	m.Reloaded(nil)
	m.WatchDB(db.DB)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	// What Prometheus adds itself.
	all := map[string]map[string]words{"up": {}, "ALERTS": {"alertname": {}, "alertstate": {}}}
	for _, family := range families {
		labels := map[string]words{}
		for _, series := range family.GetMetric() {
			for _, label := range series.GetLabel() {
				if labels[label.GetName()] == nil {
					labels[label.GetName()] = words{}
				}
				labels[label.GetName()][label.GetValue()] = true
			}
			if series.GetHistogram() != nil {
				for _, part := range []string{"_bucket", "_sum", "_count"} {
					all[family.GetName()+part] = labels
				}
			}
		}
		all[family.GetName()] = labels
	}
	return all
}

var (
	metricName = regexp.MustCompile(`\b(?:(?:reconciler|process|go_sql|go)_[a-z0-9_]+|reconciler:[a-z_]{3,}[a-z0-9_:]*|up\{|ALERTS)`)
	selector   = regexp.MustCompile(`((?:reconciler|process|go_sql|go)_[a-z0-9_]+|up|ALERTS)\{([^}]*)\}`)
	matcher    = regexp.MustCompile(`(\w+)\s*(?:=~|!~|!=|=)\s*"((?:[^"\\]|\\.)*)"`)
)

// ofScrapes are the labels that scraping adds, and what a histogram has.
var ofScrapes = []string{"job", "namespace", "instance", "le"}

// ofUsers are labels whose values are configured names, statuses of a downstream, or versions.
var ofUsers = []string{"tool", "table", "version", "commit", "goversion", "alertname", "alertstate", "db_name"}

// problems lists the metrics, labels and label values of a query that no process of ours exports.
func problems(query string, known map[string]map[string]words, recorded []string) (list []string) {
	for _, name := range metricName.FindAllString(query, -1) {
		name = strings.TrimSuffix(name, "{")
		if _, ok := known[name]; !ok && !slices.Contains(recorded, name) {
			list = append(list, "there is no metric "+name)
		}
	}
	for _, found := range selector.FindAllStringSubmatch(query, -1) {
		labels, ok := known[found[1]]
		if !ok {
			continue // noticed above
		}
		for _, m := range matcher.FindAllStringSubmatch(found[2], -1) {
			list = append(list, wrongWords(found[1], m[1], m[2], labels)...)
		}
	}
	return list
}

// wrongWords lists what is wrong with one matcher, name="values", of a metric.
func wrongWords(metric, name, values string, labels map[string]words) (list []string) {
	set, ok := labels[name]
	switch {
	case slices.Contains(ofScrapes, name):
		return nil
	case !ok:
		return []string{fmt.Sprintf("%s has no label %s", metric, name)}
	case slices.Contains(ofUsers, name), strings.ContainsAny(values, "$.[*+"):
		return nil
	}
	for value := range strings.SplitSeq(values, "|") {
		if !set[value] {
			list = append(list, fmt.Sprintf("%s of %s is never %q, only %v", name, metric, value, slices.Sorted(maps.Keys(set))))
		}
	}
	return list
}

func check(t *testing.T, where, query string, known map[string]map[string]words, recorded []string) {
	t.Helper()
	for _, problem := range problems(query, known, recorded) {
		t.Errorf("%s: %s", where, problem)
	}
}

func recordedSeries(t *testing.T) (names []string) {
	t.Helper()
	for _, r := range rules(t) {
		if r.Record != "" {
			names = append(names, r.Record)
		}
	}
	return names
}

func TestRulesSpeakOfMetricsThatAreExported(t *testing.T) {
	t.Parallel()
	known, recorded := exported(t), recordedSeries(t)
	for _, r := range rules(t) {
		check(t, r.file+": "+r.Alert+r.Record, r.Expr, known, recorded)
	}
}

func TestTestsOfRulesSpeakOfMetricsThatAreExported(t *testing.T) {
	t.Parallel()
	known, recorded := exported(t), recordedSeries(t)
	for _, file := range files(t, "prometheus/tests/*.yml") {
		for _, doc := range documents[promtoolTests](t, file) {
			for _, test := range doc.Tests {
				for _, in := range test.InputSeries {
					check(t, file+": "+test.Name, in.Series, known, recorded)
				}
			}
		}
	}
}

func TestRunbooksSpeakOfMetricsThatAreExported(t *testing.T) {
	t.Parallel()
	known, recorded := exported(t), recordedSeries(t)
	for _, file := range append(files(t, runbooks+"/*.md"), "README.md") {
		check(t, file, text(t, file), known, recorded)
	}
}

func TestAMetricThatIsNotExportedIsNoticed(t *testing.T) {
	t.Parallel()
	known := exported(t)
	for wrong, want := range map[string]string{
		`sum(reconciler_gone_total)`:                           "no metric reconciler_gone_total",
		`reconciler:gone:max > 1`:                              "no metric reconciler:gone:max",
		`reconciler_run_duration_seconds_buckets{le="1"}`:      "no metric reconciler_run_duration_seconds_buckets",
		`reconciler_looks_total{colour="red"}`:                 "no label colour",
		`up - reconciler_looks_total{result=~"answered|lost"}`: `never "lost"`,
		`reconciler_looks_total{job="a",result!="answered"}`:   "",
	} {
		if got := strings.Join(problems(wrong, known, nil), ", "); !strings.Contains(got, want) || (want == "") != (got == "") {
			t.Errorf("%s: %q, want %q", wrong, got, want)
		}
	}
}
