package metrics

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/callreceipt/reconciler/internal/printable"
)

// The bounds of /readyz.
const (
	checkLimit   = time.Second // of one check
	checkFresh   = time.Second // how long results are good for further probes
	maxCheckText = 300         // bytes of an error that are shown
)

// Check is one thing that must hold before the process does its work.
type Check struct {
	Name string // one word
	// Ready returns nil, or in one line why not. It gets one second, and is not called again before it has returned.
	Ready func(ctx context.Context) error
}

// readiness asks all checks at once and keeps the results for a second, so that a flood of probes is no flood of questions to
// the database.
type readiness struct {
	now func() time.Time

	mu      sync.Mutex // held while the checks are asked: whoever comes meanwhile gets the same results
	probes  []probe
	results []error
	at      time.Time // of the results; zero before the first
}

func newReadiness(checks []Check, now func() time.Time) *readiness {
	rd := &readiness{now: now}
	for _, c := range checks {
		rd.probes = append(rd.probes, probe{Check: c})
	}
	return rd
}

// ServeHTTP answers as the endpoints of Kubernetes do. The text of an error is for whoever asks for it by ?verbose.
func (rd *readiness) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	results := rd.ask()
	verbose := r.URL.Query().Has("verbose")
	ready := errors.Join(results...) == nil
	if ready && !verbose {
		plain(w, http.StatusOK, "ok\n")
		return
	}
	var b strings.Builder
	for i, err := range results {
		switch name := rd.probes[i].Name; {
		case err == nil:
			fmt.Fprintf(&b, "[+]%s ok\n", name)
		case verbose:
			fmt.Fprintf(&b, "[-]%s failed: %s\n", name, oneLine(err))
		default:
			fmt.Fprintf(&b, "[-]%s failed: see /readyz?verbose\n", name)
		}
	}
	if !ready {
		plain(w, http.StatusServiceUnavailable, b.String()+"not ready\n")
		return
	}
	plain(w, http.StatusOK, b.String()+"ready\n")
}

// ask returns one result for each check, at most a second old.
func (rd *readiness) ask() []error {
	rd.mu.Lock()
	defer rd.mu.Unlock()
	if age := rd.now().Sub(rd.at); !rd.at.IsZero() && age >= 0 && age < checkFresh {
		return rd.results
	}
	// No probe's own context: others get the same results.
	ctx, cancel := context.WithTimeout(context.Background(), checkLimit)
	defer cancel()
	results := make([]error, len(rd.probes)) // a new slice: the one before may still be read
	var asked sync.WaitGroup
	for i := range rd.probes {
		asked.Go(func() { results[i] = rd.probes[i].ask(ctx) })
	}
	asked.Wait()
	rd.results, rd.at = results, rd.now()
	return results
}

// probe is a check with its call that is under way.
type probe struct {
	Check
	running chan error // nil when there is none
}

// ask calls the check, and waits for it no longer than ctx. A check that does not return is not called a second time.
func (p *probe) ask(ctx context.Context) error {
	if p.running != nil && len(p.running) == 0 {
		return errors.New("an earlier check has not returned yet")
	} // a result that came too late is of no interest any more
	running := make(chan error, 1)
	p.running = running
	go func() {
		defer func() {
			if cause := recover(); cause != nil {
				running <- fmt.Errorf("panic: %v", cause)
			}
		}()
		running <- p.Ready(ctx)
	}()
	select {
	case err := <-running:
		p.running = nil
		return err
	case <-ctx.Done():
		return fmt.Errorf("no result within %s", checkLimit)
	}
}

// oneLine makes an error fit to be shown, whatever stands in it.
func oneLine(err error) string {
	text := printable.Text(err.Error())
	if len(text) > maxCheckText {
		text = strings.ToValidUTF8(text[:maxCheckText], "") + "…"
	}
	return text
}
