package main

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// gateway is a Pushgateway as far as a push goes. It keeps what was pushed last, as text.
type gateway struct {
	*httptest.Server
	mu     sync.Mutex
	pushes int
	path   string
	text   string
	status int // what it answers
}

func newGateway(t *testing.T) *gateway {
	t.Helper()
	g := &gateway{status: http.StatusOK}
	g.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body) // a push that is broken off is none
		g.mu.Lock()
		defer g.mu.Unlock()
		g.pushes, g.path, g.text = g.pushes+1, r.Method+" "+r.URL.Path, string(body)
		w.WriteHeader(g.status)
	}))
	t.Cleanup(g.Close)
	return g
}

func (g *gateway) answers(status int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.status = status
}

// Nobody scrapes a process that has ended, so a run leaves its metrics where they are. A push replaces the series of all tools, so
// it has them all, with what the database knows of those that the run did not work on.
func TestRunLeavesItsMetricsBehind(t *testing.T) {
	t.Parallel()
	s, gateway := newScene(t, "batch_size: 10", "charge", "refund"), newGateway(t)
	s.park("charge", 4)
	s.park("refund", 6)
	file := filepath.Join(t.TempDir(), "reconciler.prom")
	if p := s.start("run", "--tool", "refund"); p.exit() != exitDone {
		t.Fatal(&p.stderr)
	}
	s.parkOne("refund", "P-1")

	p := s.start("run", "--tool", "charge", "--textfile", file, "--pushgateway", gateway.URL)
	if code := p.exit(); code != exitDone {
		t.Fatalf("exit code %d; %s", code, &p.stderr)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for series, want := range map[string]float64{
		`reconciler_verdicts_total{reason="receipt_success",tool="charge",verdict="success"}`: 2,
		`reconciler_verdicts_total{reason="receipt_success",tool="refund",verdict="success"}`: 0,
		`reconciler_pending_calls{status="PENDING",tool="charge"}`:                            0,
		`reconciler_pending_calls{status="PENDING",tool="refund"}`:                            1,
	} {
		if got, ok := valueOf(t, string(text), series); !ok || got != want {
			t.Errorf("%s is %v %v, want %v", series, got, ok, want)
		}
	}
	const ended = `reconciler_run_last_success_timestamp_seconds{task="reconcile",tool="refund"}`
	if got, _ := valueOf(t, string(text), ended); got == 0 {
		t.Error("the run before, of the other tool, has left no trace")
	}
	if gateway.pushes != 1 || gateway.path != "POST /metrics/job/reconciler" || len(gateway.text) == 0 {
		t.Errorf("%d pushes came, to %s with %d bytes", gateway.pushes, gateway.path, len(gateway.text))
	}

	// What the run did counts, whatever becomes of its metrics.
	for _, trouble := range []func(){func() { gateway.answers(http.StatusInternalServerError) }, gateway.Close} {
		trouble()
		p := s.start("run", "--pushgateway", gateway.URL, "--log-format", "json")
		if code := p.exit(); code != exitDone {
			t.Errorf("exit code %d; %s", code, &p.stderr)
		}
		log := newLogbook()
		_, _ = log.Write(p.stderr.Bytes())
		if len(log.saying("metrics were not pushed")) != 1 {
			t.Errorf("it says %s", &p.stderr)
		}
	}
}

func TestHealthcheckTellsWhetherTheDaemonLives(t *testing.T) {
	t.Parallel()
	s := newScene(t, "batch_size: 10", "charge")
	d := s.serve("RECONCILER_DATABASE_URL=postgres://nobody@127.0.0.1:1/none?sslmode=disable") // it says nothing of the database
	asked := func(listen string) (code int, said string) {
		var out bytes.Buffer
		code = run(t.Context(), []string{"healthcheck"}, stdio{out: &out, err: &out}, []string{
			"RECONCILER_CONFIG=" + s.config, "RECONCILER_SERVER_LISTEN=" + listen, "RECONCILER_DATABASE_URL=" + s.url,
		})
		return code, out.String()
	}
	_, port, _ := net.SplitHostPort(d.url[len("http://"):])
	for _, listen := range []string{"127.0.0.1:" + port, "0.0.0.0:" + port, ":" + port} {
		if code, said := asked(listen); code != exitDone || said != "" {
			t.Errorf("of a living one at %s: %d %s", listen, code, said)
		}
	}
	s.configure("  charge: {nonsense: true}\n")
	if code, said := asked("127.0.0.1:" + port); code != exitDone {
		t.Errorf("of a living one beside a file that it would refuse: %d %s", code, said)
	}
	if code, said := asked(port); code != exitUsage {
		t.Errorf("without a host: %d %s", code, said)
	}
	if code, said := asked(""); code != exitUsage {
		t.Errorf("with the broken file alone to go by: %d %s", code, said)
	}
	_ = d.cmd.Process.Kill()
	d.exit()
	if code, said := asked("127.0.0.1:" + port); code != exitFailed || !strings.Contains(said, "the daemon does not answer") {
		t.Errorf("of a dead one: %d %s", code, said)
	}
}
