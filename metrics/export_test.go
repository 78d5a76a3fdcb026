package metrics

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
)

// oneOff is what a command has to tell when it ends.
func oneOff() prometheus.Gatherer {
	reg := NewRegistry()
	m := New(reg, Build{}, (&clock{at: noon}).now)
	m.Run(TaskReconcile, "T").Begin()(OutcomeSuccess)
	return reg
}

func TestATextfileHoldsOurMetricsAndIsReplacedInOneStep(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "reconciler.prom")
	if err := os.WriteFile(path, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	old, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer old.Close()
	if err := WriteTextfile(path, oneOff()); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(text), "\nreconciler_run_last_success_timestamp_seconds{task=\"reconcile\",tool=\"T\"} 1.7145648e+09\n") {
		t.Errorf("%s", text)
	}
	for line := range strings.Lines(string(text)) {
		if !strings.HasPrefix(strings.TrimPrefix(strings.TrimPrefix(line, "# HELP "), "# TYPE "), "reconciler_") {
			t.Errorf("not ours: %s", line)
		}
	}
	if info, err := os.Stat(path); err != nil || info.Mode() != 0o644 {
		t.Errorf("%v %v", info.Mode(), err)
	}
	if text, err := io.ReadAll(old); err != nil || string(text) != "old" {
		t.Errorf("who had it open reads %q %v", text, err)
	}
	if left := names(t, dir); len(left) != 1 {
		t.Errorf("in the folder: %v", left)
	}
}

func names(t *testing.T, dir string) (all []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		all = append(all, e.Name())
	}
	return all
}

func TestATextfileThatCannotBeWrittenLeavesTheOldOneAlone(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	broken := prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) { return nil, errNobody })
	taken := filepath.Join(dir, "taken.prom")
	if err := os.Mkdir(taken, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		path string
		from prometheus.Gatherer
		text string
	}{
		{filepath.Join(dir, "x.prom"), broken, errNobody.Error()},
		{filepath.Join(dir, "x.txt"), oneOff(), ".prom"},
		{filepath.Join(dir, "nowhere", "x.prom"), oneOff(), "no such file"},
		{taken, oneOff(), "taken.prom"},
	} {
		if err := WriteTextfile(c.path, c.from); err == nil || !strings.Contains(err.Error(), c.text) || !strings.Contains(err.Error(), c.path) {
			t.Errorf("%s: %v", c.path, err)
		}
	}
	if left := names(t, dir); len(left) != 1 {
		t.Errorf("in the folder: %v", left)
	}
}

func TestAPushBringsOurMetricsUnderOneJob(t *testing.T) {
	t.Parallel()
	got := map[string]bool{}
	gateway := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if user, password, _ := r.BasicAuth(); r.Method != "POST" || r.URL.Path != "/base/metrics/job/reconciler" || user != "me" || password != "s3cret" {
			t.Errorf("%s %s %s", r.Method, r.URL, user)
		}
		for d := expfmt.NewDecoder(r.Body, expfmt.ResponseFormat(r.Header)); ; {
			var f dto.MetricFamily
			if err := d.Decode(&f); err != nil {
				if !errors.Is(err, io.EOF) {
					t.Error(err)
				}
				break
			}
			got[f.GetName()] = true
		}
	}))
	defer gateway.Close()
	if err := Push(t.Context(), strings.Replace(gateway.URL, "//", "//me:s3cret@", 1)+"/base/", oneOff()); err != nil {
		t.Fatal(err)
	}
	if !got["reconciler_runs_total"] || got["go_goroutines"] {
		t.Errorf("%v", got)
	}
}

func TestAPushThatFailsSaysWhyAndTellsNoSecret(t *testing.T) {
	t.Parallel()
	gateway := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.HasPrefix(r.URL.Path, "/moved"):
			http.Redirect(w, r, "/elsewhere", http.StatusFound)
		case strings.HasPrefix(r.URL.Path, "/bad"):
			w.WriteHeader(http.StatusBadRequest)
			io.WriteString(w, "inconsistent\x1b"+strings.Repeat("x", 1<<20))
		case strings.HasPrefix(r.URL.Path, "/hangs"):
			_, _ = io.Copy(io.Discard, r.Body)
			<-r.Context().Done()
		}
	}))
	defer gateway.Close()
	base := strings.Replace(gateway.URL, "//", "//me:s3cret@", 1)
	ended, cancel := context.WithCancelCause(t.Context())
	cancel(errNobody)
	for _, c := range []struct {
		ctx       context.Context
		url, text string
	}{
		{t.Context(), base + "/moved", "the answer is 302"},
		{t.Context(), base + "/bad", `the answer is 400: inconsistent\x1bxxx`},
		{ended, base + "/hangs", errNobody.Error()},
		{t.Context(), "http://me:s3cret@127.0.0.1:1", "refused"},
		{t.Context(), "me:s3cret@gateway:9091", "http://pushgateway:9091"},
		{t.Context(), "http://me:s3cret@ga%zzteway", "http://pushgateway:9091"},
		{t.Context(), "ftp://me:s3cret@gateway", "http://pushgateway:9091"},
	} {
		err := Push(c.ctx, c.url, oneOff())
		if err == nil || !strings.Contains(err.Error(), c.text) || strings.Contains(err.Error(), "s3cret") || len(err.Error()) > 2000 {
			t.Errorf("%s: %v", c.url, err)
		}
	}
}
