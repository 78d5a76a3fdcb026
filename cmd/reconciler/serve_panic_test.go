package main

import (
	"bytes"
	"context"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/callreceipt/reconciler/internal/eventually"
)

// trap is a stderr that panics, once each, when a line with one of these words is written. So a panic comes to pass in the middle of
// what the daemon does, and no hook for it stands in the program.
type trap struct {
	*logbook
	mu    sync.Mutex
	words []string
}

func (tr *trap) Write(p []byte) (int, error) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	for i, words := range tr.words {
		if words != "" && bytes.Contains(p, []byte(words)) {
			tr.words[i] = ""
			panic("sprung by " + words)
		}
	}
	return tr.logbook.Write(p)
}

// A panic ends the run in which it happens, whether a pass or a delivery. The next ones take place, and the process goes on.
func TestServeOutlivesAPanicInARunAndInADelivery(t *testing.T) {
	t.Parallel()
	s, r := newStage(t), newReceiver(t)
	s.downstream = newDownstream(t)
	s.configure(s.asking("charge", s.downstream) + "    " + r.notify() + "\n")
	s.park("charge", 4)

	stderr := &trap{logbook: newLogbook(), words: []string{"pass over", "verdicts delivered"}}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan int, 1)
	go func() {
		ended <- run(ctx, []string{"serve", "--log-format", "json"}, stdio{out: &bytes.Buffer{}, err: stderr}, []string{
			"RECONCILER_DATABASE_URL=" + s.url, "RECONCILER_CONFIG=" + s.config, "RECONCILER_SERVER_LISTEN=127.0.0.1:0",
			"RECONCILER_RECONCILE_SCHEDULE=@every 5s",
		})
	}()
	eventually.True(t, "it has started", func() bool { return len(stderr.saying("started")) == 1 })
	d := &served{program: &program{t: t, over: make(chan struct{})}, log: stderr.logbook, url: "http://" + stderr.saying("started")[0]["listen"].(string)}
	d.shows(`reconciler_run_panics_total{task="reconcile",tool="charge"}`, 1)
	d.shows(`reconciler_run_panics_total{task="notify",tool="charge"}`, 1)

	s.parkOne("charge", "S-next")
	s.untilSettled("charge")
	eventually.True(t, "every verdict is delivered", func() bool { return len(r.kept()) == 5 })
	if code, _ := d.get("/livez"); code != http.StatusOK {
		t.Errorf("/livez answers %d", code)
	}
	eventually.True(t, "the log shows both panics with their stacks", func() bool {
		shown := 0
		for _, line := range stderr.saying("panic") {
			if stack, _ := line["stack"].(string); strings.Contains(stack, "trap") && line["level"] == "ERROR" {
				shown++
			}
		}
		return shown == 2
	})
	stop()
	if code := await(t, ended, "the end"); code != exitDone {
		t.Errorf("exit code %d, want 0", code)
	}
}
