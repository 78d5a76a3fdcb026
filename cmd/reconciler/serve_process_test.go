package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"io"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/callreceipt/reconciler/internal/eventually"
)

// full makes the tests of the daemon as large as they are meant to be: go test -timeout 1h -run TestServe ./cmd/reconciler -full
var full = flag.Bool("full", false, "run the tests of the daemon at their full size")

// sized is the size of a test: the first one by default.
func sized[T any](small, large T) T {
	if *full {
		return large
	}
	return small
}

// served is "reconciler serve" as a process of its own.
type served struct {
	*program
	log *logbook
	url string // of its endpoint
}

// serve starts a daemon that passes over each tool at once and every five seconds, and waits until it listens.
func (s *scene) serve(env ...string) *served {
	s.t.Helper()
	return s.serveAs("reconciler", env...)
}

// serveAs starts a daemon by another name of the program.
func (s *scene) serveAs(name string, env ...string) *served {
	s.t.Helper()
	d := &served{log: newLogbook(), program: &program{
		t: s.t, cmd: exec.CommandContext(s.t.Context(), name, "serve", "--log-format", "json"), over: make(chan struct{}),
	}}
	d.cmd.Env = append([]string{
		"RECONCILER_DATABASE_URL=" + s.url, "RECONCILER_CONFIG=" + s.config, "RECONCILER_SERVER_LISTEN=127.0.0.1:0",
		"RECONCILER_RECONCILE_SCHEDULE=@every 5s", "GOCOVERDIR=" + os.Getenv("GOCOVERDIR"),
	}, env...)
	d.cmd.Stderr = d.log
	if err := d.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	go func() {
		_ = d.cmd.Wait() // its outcome is in ProcessState
		close(d.over)
	}()
	s.t.Cleanup(func() {
		_ = d.cmd.Process.Kill()
		<-d.over
		if log := d.log.String(); strings.Contains(log, "DATA RACE") || strings.Contains(log, "\ngoroutine ") {
			s.t.Error("it has a data race, or a panic that nobody caught")
		}
		if s.t.Failed() {
			s.t.Logf("the log of process %d:\n%s", d.cmd.Process.Pid, d.log)
		}
	})
	d.url = "http://" + d.says("started")["listen"].(string)
	return d
}

// says waits for a line of the log and returns its fields.
func (d *served) says(msg string) (fields map[string]any) {
	d.t.Helper()
	eventually.True(d.t, "the log says "+msg, func() bool {
		lines := d.log.saying(msg)
		if len(lines) > 0 {
			fields = lines[0]
		}
		select {
		case <-d.over:
			if fields == nil {
				d.t.Fatalf("it has ended, and never said %q", msg)
			}
		default:
		}
		return fields != nil
	})
	return fields
}

// ready waits until the daemon works.
func (d *served) ready() {
	d.t.Helper()
	eventually.True(d.t, "it is ready", func() bool { code, _ := d.get("/readyz"); return code == http.StatusOK })
}

// notReady waits until /readyz gives a reason with these words in it. Meanwhile and after, the process lives.
func (d *served) notReady(words string) {
	d.t.Helper()
	var code int
	var text string
	eventually.True(d.t, "/readyz says "+words, func() bool {
		code, text = d.get("/readyz?verbose")
		return code == http.StatusServiceUnavailable && strings.Contains(text, words)
	})
	if code, text := d.get("/livez"); code != http.StatusOK {
		d.t.Errorf("/livez answers %d %s", code, text)
	}
}

// get asks the endpoint; a code of 0 is no answer.
func (d *served) get(path string) (code int, text string) {
	d.t.Helper()
	req, err := http.NewRequestWithContext(d.t.Context(), http.MethodGet, d.url+path, nil)
	if err != nil {
		d.t.Fatal(err)
	}
	return do(req)
}

// reload asks for a reload, with further headers as name and value.
func (d *served) reload(headers ...string) (code int, text string) {
	d.t.Helper()
	req, err := http.NewRequestWithContext(d.t.Context(), http.MethodPost, d.url+"/-/reload", nil)
	if err != nil {
		d.t.Fatal(err)
	}
	for pair := range slices.Chunk(headers, 2) {
		req.Header.Set(pair[0], pair[1])
	}
	return do(req)
}

func do(req *http.Request) (code int, text string) {
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(resp.Body) // what came is shown
	return resp.StatusCode, string(body)
}

// metric is the value of a series, written as /metrics does it, if there is one.
func (d *served) metric(series string) (value float64, ok bool) {
	d.t.Helper()
	code, text := d.get("/metrics")
	if code != http.StatusOK {
		d.t.Fatalf("/metrics answers %d %s", code, text)
	}
	return valueOf(d.t, text, series)
}

func valueOf(t *testing.T, exposition, series string) (value float64, ok bool) {
	t.Helper()
	for line := range strings.Lines(exposition) {
		if text, found := strings.CutPrefix(strings.TrimSpace(line), series+" "); found {
			value, err := strconv.ParseFloat(text, 64)
			if err != nil {
				t.Fatalf("%s: %v", line, err)
			}
			return value, true
		}
	}
	return 0, false
}

// shows waits until a series has a value.
func (d *served) shows(series string, want float64) {
	d.t.Helper()
	eventually.True(d.t, series+" is "+strconv.FormatFloat(want, 'g', -1, 64), func() bool {
		value, ok := d.metric(series)
		return ok && value == want
	})
}

// logbook is the log of a process while it is written.
type logbook struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func newLogbook() *logbook { return &logbook{} }

func (l *logbook) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logbook) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// lines are the complete lines so far.
func (l *logbook) lines() (all []map[string]any) {
	for line := range strings.Lines(l.String()) {
		var fields map[string]any
		if json.Unmarshal([]byte(line), &fields) == nil { // what the Go runtime writes is no line of ours
			all = append(all, fields)
		}
	}
	return all
}

// saying are the lines whose message contains msg.
func (l *logbook) saying(msg string) (found []map[string]any) {
	for _, fields := range l.lines() {
		if text, _ := fields["msg"].(string); strings.Contains(text, msg) {
			found = append(found, fields)
		}
	}
	return found
}

// troubles are the messages of the lines at WARN and ERROR.
func (l *logbook) troubles() (msgs []string) {
	for _, fields := range l.lines() {
		if level := fields["level"]; level == "WARN" || level == "ERROR" {
			msgs = append(msgs, fields["msg"].(string))
		}
	}
	return msgs
}
