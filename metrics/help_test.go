package metrics

import (
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if err := os.Setenv("NO_PROXY", "*"); err != nil { // the servers here are local
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

var quiet = slog.New(slog.DiscardHandler)

// clock stands still until it is moved.
type clock struct {
	mu sync.Mutex
	at time.Time
}

var noon = time.Date(2024, 5, 1, 12, 0, 0, 0, time.UTC)

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.at
}

func (c *clock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at = c.at.Add(d)
}

// newMetrics is a Metrics in a registry of its own, at noon.
func newMetrics() (*Metrics, *prometheus.Registry, *clock) {
	reg, c := prometheus.NewRegistry(), &clock{at: noon}
	return New(reg, Build{Version: "v1.2.3", Commit: "abc", GoVersion: "go1.26"}, c.now), reg, c
}

// charge is a tool with everything.
var charge = ToolConfig{
	Reasons: map[Verdict][]string{
		VerdictSuccess: {"receipt_success"}, VerdictFailed: {"receipt_failed"}, VerdictRetry: {"not_found"}, VerdictManual: {"not_retryable"},
	},
	Kinds:  []string{"timeout", "dns"},
	Notify: true,
}

// shown is every series of our own as it is scraped, such as `lost_races_total{tool="T"}`; a histogram shows its count.
func shown(t testing.TB, g prometheus.Gatherer) map[string]float64 {
	t.Helper()
	families, err := ours(g).Gather()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			all[strings.TrimPrefix(f.GetName(), "reconciler_")+labelText(m)] = number(m)
		}
	}
	return all
}

func labelText(m *dto.Metric) string {
	pairs := make([]string, len(m.GetLabel()))
	for i, l := range m.GetLabel() {
		pairs[i] = l.GetName() + `="` + l.GetValue() + `"`
	}
	if len(pairs) == 0 {
		return ""
	}
	return "{" + strings.Join(pairs, ",") + "}"
}

func number(m *dto.Metric) float64 {
	switch {
	case m.GetCounter() != nil:
		return m.GetCounter().GetValue()
	case m.GetHistogram() != nil:
		return float64(m.GetHistogram().GetSampleCount())
	}
	return m.GetGauge().GetValue()
}

// changes runs f and returns the series it changed, made (also with 0), or removed (as -1).
func changes(t testing.TB, g prometheus.Gatherer, f func()) map[string]float64 {
	t.Helper()
	before := shown(t, g)
	f()
	after := shown(t, g)
	changed := map[string]float64{}
	for name, v := range after {
		if was, ok := before[name]; !ok || was != v {
			changed[name] = v
		}
	}
	for name := range before {
		if _, ok := after[name]; !ok {
			changed[name] = -1
		}
	}
	return changed
}

func same(t testing.TB, what string, want, got map[string]float64) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}
