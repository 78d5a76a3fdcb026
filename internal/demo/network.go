package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// headerKey tells calls from questions for receipts.
const headerKey = "Idempotency-Key"

const (
	// delay is how long a held-up request stays under way after its sender has gone.
	delay = 200 * time.Millisecond
	// longestDelay bounds the wait for a retry to catch up with.
	longestDelay = 10 * time.Second
	maxBody      = 64 << 10
)

// network stands between the callers and the downstream and does to each call what the plan says, whoever sends it. Questions
// for receipts pass.
type network struct {
	next  http.Handler
	fault func(callID string, attempt int) Fault
	ctx   context.Context // ends every wait

	underWay atomic.Int64 // calls that the downstream has not finished with

	mu      sync.Mutex
	held    map[string]chan struct{} // requests that wait for their retry, by callId
	brought map[string]bool          // intents that the downstream was handed
	seen    map[string][]int         // the sends that came by, by callId
}

func newNetwork(ctx context.Context, next http.Handler, plan [][]Call) *network {
	calls := map[string]Call{}
	for _, intent := range plan {
		for _, c := range intent {
			calls[c.CallID] = c
		}
	}
	return &network{
		next: next, ctx: ctx, held: map[string]chan struct{}{}, brought: map[string]bool{}, seen: map[string][]int{},
		fault: func(callID string, attempt int) Fault { return calls[callID].Fault(attempt) },
	}
}

func (n *network) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get(headerKey) == "" {
		n.next.ServeHTTP(w, r)
		return
	}
	n.underWay.Add(1)
	defer n.underWay.Add(-1)
	// Once the body has been read the request has left its sender, and the sender's going away is noticed.
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		return // its sender went away in the middle of it: lost
	}
	var m message
	if err := json.Unmarshal(body, &m); err != nil {
		n.deliver(w, r, body) // no call of the plan; the downstream says what it thinks of it
		return
	}
	n.see(m)
	fault := n.fault(m.CallID, m.Attempt)
	if m.Attempt > 1 && fault != HangUp {
		n.release(m.CallID)
	}
	switch fault {
	case Deliver:
		n.deliver(w, r, body)
	case CutAnswer:
		n.deliver(&nobody{}, r, body)
		panic(http.ErrAbortHandler)
	case SwallowAnswer:
		n.deliver(&nobody{}, r, body)
		n.untilGone(r)
	case Swallow:
		n.untilGone(r)
	case Delay:
		n.untilGone(r)
		n.wait(nil, delay)
		n.deliver(&nobody{}, r, body)
	case DelayUntilResent:
		n.wait(n.hold(m.CallID), longestDelay)
		n.deliver(&nobody{}, r, body)
	case HangUp:
		panic(http.ErrAbortHandler)
	}
}

func (n *network) see(m message) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.seen[m.CallID] = append(n.seen[m.CallID], m.Attempt)
}

// sends are the sends of a call that came by, in order.
func (n *network) sends(callID string) []int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.seen[callID])
}

// deliver hands the request over. Its sender may be gone: the downstream finishes what it has begun.
func (n *network) deliver(w http.ResponseWriter, r *http.Request, body []byte) {
	if n.ctx.Err() != nil {
		return
	}
	n.mu.Lock()
	n.brought[r.Header.Get(headerKey)] = true
	n.mu.Unlock()
	r = r.Clone(n.ctx)
	r.Body = io.NopCloser(bytes.NewReader(body))
	n.next.ServeHTTP(w, r)
}

// arrived reports whether the downstream was ever handed a call of this intent.
func (n *network) arrived(key string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.brought[key]
}

// untilGone says nothing until the sender has lost patience.
func (n *network) untilGone(r *http.Request) {
	select {
	case <-r.Context().Done():
	case <-n.ctx.Done():
	}
}

func (n *network) wait(event <-chan struct{}, atMost time.Duration) {
	t := time.NewTimer(atMost)
	defer t.Stop()
	select {
	case <-event:
	case <-t.C:
	case <-n.ctx.Done():
	}
}

func (n *network) hold(callID string) <-chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.held[callID] = make(chan struct{})
	return n.held[callID]
}

func (n *network) release(callID string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if resent, ok := n.held[callID]; ok {
		close(resent)
		delete(n.held, callID)
	}
}

// quiet waits until the downstream has finished with every call, also with those whose sender has gone.
func (n *network) quiet(ctx context.Context) error {
	look := time.NewTicker(10 * time.Millisecond)
	defer look.Stop()
	for n.underWay.Load() > 0 {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-look.C:
		}
	}
	return nil
}

// nobody takes the answer to a sender that will not hear it.
type nobody struct{ header http.Header }

func (w *nobody) Header() http.Header {
	if w.header == nil {
		w.header = http.Header{}
	}
	return w.header
}

func (w *nobody) Write(b []byte) (int, error) { return len(b), nil }
func (w *nobody) WriteHeader(int)             {}
