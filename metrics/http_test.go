package metrics

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// serve runs the endpoints on a port of its own until the test ends, and returns their URL.
func serve(t *testing.T, cfg HandlerConfig) string {
	t.Helper()
	if cfg.Gatherer == nil {
		cfg.Gatherer = prometheus.NewRegistry()
	}
	if cfg.Log == nil {
		cfg.Log = quiet
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- Serve(ctx, l, Handler(cfg), quiet) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return "http://" + l.Addr().String()
}

type answer struct {
	status int
	header http.Header
	body   string
}

// ask makes one request on a connection of its own. Headers are name, value, name, value.
func ask(t *testing.T, method, url string, headers ...string) answer {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer{resp.StatusCode, resp.Header, string(body)}
}

func TestMetricsAreServedInBothFormats(t *testing.T) {
	t.Parallel()
	_, reg := announced()
	url := serve(t, HandlerConfig{Gatherer: reg})
	got := ask(t, "GET", url+"/metrics")
	if got.status != 200 || !strings.Contains(got.body, "\nreconciler_lost_races_total{tool=\"T\"} 0\n") ||
		!strings.Contains(got.body, "\nreconciler_oldest_pending_call_timestamp_seconds{tool=\"T\"} NaN\n") {
		t.Errorf("%d %s", got.status, got.body)
	}
	got = ask(t, "GET", url+"/metrics", "Accept", "application/openmetrics-text; version=1.0.0")
	if !strings.HasPrefix(got.header.Get("Content-Type"), "application/openmetrics-text") || !strings.HasSuffix(got.body, "\n# EOF\n") {
		t.Errorf("%s %s", got.header.Get("Content-Type"), got.body)
	}
}

func TestOnlyWhatWasAskedForIsServed(t *testing.T) {
	t.Parallel()
	bare := serve(t, HandlerConfig{})
	full := serve(t, HandlerConfig{Pprof: true, Reload: func() error { return nil }})
	for _, c := range []struct {
		base, method, path string
		status             int
		body               string
	}{
		{bare, "GET", "/livez", 200, "ok\n"},
		{bare, "GET", "/readyz", 200, "ok\n"},
		{bare, "GET", "/", 200, "reconciler\n\n/metrics\n/livez\n/readyz\n/readyz?verbose\n"},
		{full, "GET", "/", 200, "/readyz?verbose\n/debug/pprof/\n/-/reload (POST)\n"},
		{bare, "GET", "/healthz", 404, ""},
		{bare, "GET", "/metrics/x", 404, ""},
		{bare, "GET", "/debug/pprof/", 404, ""},
		{bare, "GET", "/debug/pprof/heap", 404, ""},
		{bare, "POST", "/-/reload", 404, ""},
		{bare, "POST", "/metrics", 405, ""},
		{bare, "HEAD", "/livez", 200, ""},
		{full, "GET", "/-/reload", 405, ""},
		{full, "POST", "/-/reload", 200, "reloaded\n"},
	} {
		if got := ask(t, c.method, c.base+c.path); got.status != c.status || !strings.HasSuffix(got.body, c.body) {
			t.Errorf("%s %s: %d %q", c.method, c.path, got.status, got.body)
		}
	}
}

func TestABrokenCollectorIsLoggedAndHidesNoOther(t *testing.T) {
	t.Parallel()
	m, reg, _ := newMetrics()
	m.Tool("T", charge)
	reg.MustRegister(broken{})
	var log bytes.Buffer
	got := ask(t, "GET", serve(t, HandlerConfig{Gatherer: reg, Log: slog.New(slog.NewTextHandler(&log, nil))})+"/metrics")
	if got.status != 200 || !strings.Contains(got.body, "reconciler_lost_races_total") {
		t.Errorf("%d %s", got.status, got.body)
	}
	if !strings.Contains(log.String(), "level=ERROR") || !strings.Contains(log.String(), errNobody.Error()) {
		t.Errorf("log: %s", log.String())
	}
}

type broken struct{}

var brokenDesc = prometheus.NewDesc("broken", "Broken.", nil, nil)

func (broken) Describe(ch chan<- *prometheus.Desc) { ch <- brokenDesc }

func (broken) Collect(ch chan<- prometheus.Metric) {
	ch <- prometheus.NewInvalidMetric(brokenDesc, errNobody)
}

func TestScrapesBeyondTheLimitAreSentAway(t *testing.T) {
	t.Parallel()
	entered, leave := make(chan struct{}), make(chan struct{})
	url := serve(t, HandlerConfig{Gatherer: prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) {
		entered <- struct{}{}
		<-leave
		return nil, nil
	})})
	var all sync.WaitGroup
	for range maxScrapes {
		all.Go(func() { ask(t, "GET", url+"/metrics") })
		<-entered
	}
	if got := ask(t, "GET", url+"/metrics"); got.status != 503 {
		t.Errorf("%d %s", got.status, got.body)
	}
	close(leave)
	all.Wait()
}

func TestServeFinishesWhatIsInHandAndCutsOffWhatDoesNotEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		l, ctx, stop := pipes(t)
		h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/hangs" {
				<-r.Context().Done() // only the end of its connection ends it
				return
			}
			time.Sleep(3 * time.Second)
			io.WriteString(w, "done")
		})
		var took time.Duration
		ended := make(chan error, 1)
		go func() {
			err := Serve(ctx, l, h, quiet)
			took = time.Since(began)
			ended <- err
		}()
		slow, hangs := l.dial(), l.dial()
		go io.WriteString(slow, "GET /slow HTTP/1.1\r\nHost: x\r\n\r\n")
		go io.WriteString(hangs, "GET /hangs HTTP/1.1\r\nHost: x\r\n\r\n")
		synctest.Wait()
		stop()
		if text, _ := io.ReadAll(slow); !strings.HasSuffix(string(text), "done") {
			t.Errorf("in hand: %q", text)
		}
		if text, _ := io.ReadAll(hangs); len(text) > 0 {
			t.Errorf("cut off: %q", text)
		}
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if took != shutdownLimit {
			t.Errorf("it ended after %s", took)
		}
	})
}

func TestAClientThatDripsItsHeadersIsCutOff(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		l, ctx, stop := pipes(t)
		ended := make(chan error, 1)
		go func() { ended <- Serve(ctx, l, http.NotFoundHandler(), quiet) }()
		conn := l.dial()
		go io.WriteString(conn, "GET / HTTP/1.1\r\nX-Slow: ")
		_, _ = io.ReadAll(conn)
		if took := time.Since(began); took != headerLimit {
			t.Errorf("cut off after %s", took)
		}
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

func TestHugeHeadersAreRefused(t *testing.T) {
	t.Parallel()
	if got := ask(t, "GET", serve(t, HandlerConfig{})+"/livez", "X-Huge", strings.Repeat("x", 64<<10)); got.status != 431 {
		t.Errorf("%d", got.status)
	}
}

func TestServeSaysWhichListenerFailed(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	if err := Serve(t.Context(), l, http.NotFoundHandler(), quiet); err == nil || !strings.Contains(err.Error(), l.Addr().String()) {
		t.Errorf("%v", err)
	}
}

// pipeListener serves connections in memory, which stand in the bubble of synctest with its clock.
type pipeListener struct {
	conns  chan net.Conn
	closed context.Context
	close  context.CancelFunc
}

func pipes(t *testing.T) (l *pipeListener, ctx context.Context, stop context.CancelFunc) {
	l = &pipeListener{conns: make(chan net.Conn)}
	l.closed, l.close = context.WithCancel(t.Context())
	ctx, stop = context.WithCancel(t.Context())
	return l, ctx, stop
}

func (l *pipeListener) dial() net.Conn {
	here, there := net.Pipe()
	l.conns <- there
	return here
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed.Done():
		return nil, errors.New("closed")
	}
}

func (l *pipeListener) Close() error   { l.close(); return nil }
func (l *pipeListener) Addr() net.Addr { return &net.UnixAddr{Name: "pipe"} }
