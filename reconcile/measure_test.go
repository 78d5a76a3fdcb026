package reconcile

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/callreceipt/reconciler/metrics"
)

// measured gives a reconciler metrics of its own and returns a function that lists the counters above zero.
func measured(t testing.TB) (edit func(*Config), shown func() []string) {
	reg := prometheus.NewRegistry()
	m := metrics.New(reg, metrics.Build{}, time.Now)
	edit = func(c *Config) {
		c.Metrics, c.Runs = m.Tool(c.Tool, MeasuredAs(false)), m.Run(metrics.TaskReconcile, c.Tool)
	}
	return edit, func() (lines []string) {
		families, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			for _, one := range f.Metric {
				var labels []string
				for _, l := range one.Label {
					if l.GetName() != "tool" && l.GetName() != "task" {
						labels = append(labels, l.GetValue())
					}
				}
				n := one.Counter.GetValue() + float64(one.Histogram.GetSampleCount())
				if f.GetType() == dto.MetricType_GAUGE {
					n = one.Gauge.GetValue()
				}
				if name := strings.TrimPrefix(f.GetName(), "reconciler_"); n > 0 && !strings.HasSuffix(name, "timestamp_seconds") {
					lines = append(lines, strings.Join(append([]string{name}, labels...), " ")+fmt.Sprintf(" %g", n))
				}
			}
		}
		return lines
	}
}

func TestWhatAPassDidShowsInTheMetrics(t *testing.T) {
	t.Parallel()
	db, d := open(t)
	parkMany(t, db, 8)
	d.say("C0", "B0", "SUCCESS")
	d.say("C1", "B1", "FAILED")
	d.say("C2", "B2", "PROCESSING")
	d.say("", "B3", "NOT_FOUND")
	d.say("other-C4", "B4", "SUCCESS", `"operation":"charge"`)
	d.say("C5", "B5", "SUCCESS")
	d.say("C5", "B5", "FAILED")
	d.say("C6", "B6", "SUCCESS")
	d.say("C6", "B6", "SUCCESS") // and B7 is not mentioned
	d.say("C99", "B0", "SUCCESS")
	edit, shown := measured(t)
	runPass(t, on(t, db, d, edit))
	want := []string{
		"anomalies_total call_id_changed 1", "anomalies_total conflicting_receipts 1", "anomalies_total duplicate_receipt 1",
		"breaker_state closed 1",
		"build_info    1",
		"looks_total answered 7", "looks_total unanswered 1",
		"receipt_request_duration_seconds 1", "receipt_requests_total 200 1", "resolution_seconds 4", "run_duration_seconds 1", "runs_total partial 1",
		"verdicts_total conflicting_receipts manual 1", "verdicts_total not_found retry 1", "verdicts_total receipt_failed failed 1",
		"verdicts_total receipt_success success 2", "verdicts_total settled_by_other_call success 1",
	}
	if got := shown(); !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestADryRunCountsNoVerdicts(t *testing.T) {
	t.Parallel()
	db, d := open(t)
	parkMany(t, db, 1)
	d.say("C0", "B0", "SUCCESS")
	edit, shown := measured(t)
	if _, err := on(t, db, d, edit).RunOnce(context.Background(), Limits{DryRun: true}); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(shown(), "\n"); regexp.MustCompile(`verdicts|looks|runs`).MatchString(got) {
		t.Errorf("got\n%s", got)
	}
}

// A verdict whose word metrics does not know would be counted as "other", and no alert would see it.
func TestEveryVerdictHasItsWordInTheMetrics(t *testing.T) {
	t.Parallel()
	known := map[string]bool{}
	for _, words := range MeasuredAs(false).Reasons {
		for _, w := range words {
			known[w] = true
		}
	}
	for _, r := range []Reason{
		ReasonConflictingReceipts, ReasonReceiptSuccess, ReasonReceiptFailed, ReasonFailedRetryable, ReasonStaleFailure, ReasonProcessingTooLong,
		ReasonSettledByOtherCall, ReasonUnmatchedReceipts, ReasonSentInFuture, ReasonNotFound, ReasonNotRetryable, ReasonAttemptsExhausted,
		ReasonDedupWindowPassed, ReasonRequestMissing, ReasonUnwritable,
	} {
		if !known[string(r)] {
			t.Errorf("%s has none", r)
		}
	}
}
