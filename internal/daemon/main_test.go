package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	_ "time/tzdata" // the schedules are tested in zones that the machine need not have

	"github.com/robfig/cron/v3"
	"go.uber.org/goleak"

	"github.com/callreceipt/reconciler/internal/localpg"
	"github.com/callreceipt/reconciler/internal/task"
)

func TestMain(m *testing.M) {
	code := localpg.Main(m)
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// errAway is what the driver says of a server that is not there.
var errAway = fmt.Errorf("opening a transaction: %w", &net.OpError{Op: "dial", Net: "tcp", Err: errors.New("connection refused")})

// schedule reads a cron schedule in a zone, as the configuration does.
func schedule(t testing.TB, spec, zone string) cron.Schedule {
	t.Helper()
	s, err := cron.ParseStandard(spec)
	if err != nil {
		t.Fatal(err)
	}
	loc, err := time.LoadLocation(zone)
	if err != nil {
		t.Fatal(err)
	}
	return zoned{s, loc}
}

type zoned struct {
	schedule cron.Schedule
	loc      *time.Location
}

func (z zoned) Next(t time.Time) time.Time { return z.schedule.Next(t.In(z.loc)) }

// watch notes what it is told of, each with the time since it was made.
type watch struct {
	mu     sync.Mutex
	zero   time.Time
	events []string
	gaps   []time.Duration
}

func newWatch() *watch { return &watch{zero: time.Now()} }

func (w *watch) note(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.events = append(w.events, fmt.Sprintf("%s ", time.Since(w.zero).Round(time.Second))+fmt.Sprintf(format, args...))
}

func (w *watch) Skipped(reason SkipReason) { w.note("skipped %s", reason) }
func (w *watch) Panicked()                 { w.note("panicked") }

// around notes when a run began and how it ended; one that found the lease held as skipped.
func (w *watch) around(run func(context.Context) (task.Outcome, error)) func(context.Context) (task.Outcome, error) {
	return func(ctx context.Context) (outcome task.Outcome, err error) {
		w.note("began")
		began, shown := time.Now(), task.Failed // as which a panic leaves it
		defer func() { w.note("%s after %s", shown, time.Since(began)) }()
		outcome, err = run(ctx)
		if shown = outcome; errors.As(err, new(*task.HeldError)) {
			shown = task.Skipped
		}
		return outcome, err
	}
}

func (w *watch) Interval(d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.gaps = append(w.gaps, d)
}

// all is what was noted so far.
func (w *watch) all() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.events)
}

// count is how often something was noted.
func (w *watch) count(what string) (n int) {
	for _, e := range w.all() {
		if strings.Contains(e, what) {
			n++
		}
	}
	return n
}

// logbook keeps the lines of a log as "LEVEL message key=value …".
type logbook struct {
	slog.Handler // of the lines
	buffer       *lockedBuffer
}

type lockedBuffer struct {
	mu   sync.Mutex
	text strings.Builder
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func newLogbook(level slog.Level) *logbook {
	b := &lockedBuffer{}
	return &logbook{buffer: b, Handler: slog.NewTextHandler(b, &slog.HandlerOptions{Level: level, ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}})}
}

func (l *logbook) lines() []string {
	l.buffer.mu.Lock()
	defer l.buffer.mu.Unlock()
	return slices.Collect(strings.Lines(l.buffer.text.String()))
}

// matching are the lines with all of the words in them.
func (l *logbook) matching(words ...string) (found []string) {
	for _, line := range l.lines() {
		if !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(line, w) }) {
			found = append(found, line)
		}
	}
	return found
}

// never is a job's past without any run; ran is one with a run that ended well when it began.
func never(context.Context) (*task.Run, error) { return nil, nil }

func ran(at time.Time) func(context.Context) (*task.Run, error) {
	return func(context.Context) (*task.Run, error) {
		return &task.Run{ID: 1, StartedAt: at, FinishedAt: &at, Outcome: task.Success}, nil
	}
}

// justNow is the past of a job that is not overdue.
func justNow(context.Context) (*task.Run, error) { return ran(time.Now())(context.Background()) }

// serve runs a timetable in the background. The returned function ends it and waits.
func serve(t testing.TB, cfg Config) (stop func()) {
	t.Helper()
	for i, job := range cfg.Jobs {
		if w, ok := job.Watch.(*watch); ok {
			cfg.Jobs[i].Run = w.around(job.Run)
		}
	}
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.Run(ctx)
	}()
	return func() {
		cancel()
		<-ended
	}
}

// serveFor runs a timetable for so long.
func serveFor(t testing.TB, d time.Duration, cfg Config) {
	t.Helper()
	stop := serve(t, cfg)
	time.Sleep(d) // in a bubble
	stop()
}
