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

const (
	// delay is how long a held-up request stays under way after its sender has gone.
	delay = 200 * time.Millisecond
	// longestDelay bounds the wait for a retry to catch up with.
	longestDelay = 10 * time.Second
	maxBody      = 64 << 10
)

// lookUp stands among the numbers of sends for a look-up of the receipt by the caller.
const lookUp = 0

// network stands before the downstream and does to each call, and to each look-up of its caller, what the plan says. The
// questions of the reconciler pass: they name no call.
type network struct {
	next http.Handler
	plan map[string]Call // by callId
	ctx  context.Context // ends every wait

	underWay atomic.Int64 // calls that the downstream has not finished with

	mu      sync.Mutex
	held    map[string]chan struct{} // requests that wait for their retry, by callId
	brought map[string]bool          // calls that the downstream was handed
	seen    map[string][]int         // what came by, by callId: the number of a send, or lookUp
}

func newNetwork(ctx context.Context, next http.Handler, plan [][]Call) *network {
	n := &network{
		next: next, ctx: ctx, plan: map[string]Call{}, held: map[string]chan struct{}{}, brought: map[string]bool{}, seen: map[string][]int{},
	}
	for _, intent := range plan {
		for _, c := range intent {
			n.plan[c.CallID] = c
		}
	}
	return n
}

// message is what the network understands of a request: a call, or a question about calls.
type message struct {
	CallID  string   `json:"callId"`
	Attempt int      `json:"attempt"`
	CallIDs []string `json:"callIds"`
}

func (n *network) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	question := r.URL.Path == receiptsPath
	if !question {
		n.underWay.Add(1)
		defer n.underWay.Add(-1)
	}
	// Once the body has been read the request has left its sender, and the sender's going away is noticed.
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		return // its sender went away in the middle of it: lost
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	var m message
	_ = json.Unmarshal(body, &m) // what is no call of the plan passes; the downstream says what it thinks of it
	if question {
		n.carryQuestion(w, r, m)
	} else {
		n.carry(w, r, m)
	}
}

// carryQuestion loses the look-up of a caller that is cut off.
func (n *network) carryQuestion(w http.ResponseWriter, r *http.Request, m message) {
	fault := Deliver
	for _, id := range m.CallIDs { // a caller asks about one call
		n.see(id, lookUp)
		fault = n.plan[id].LookUp
	}
	switch fault {
	case HangUp:
		panic(http.ErrAbortHandler)
	case Swallow:
		n.untilGone(r)
	case Deliver, CutAnswer, SwallowAnswer, Delay, DelayUntilResent: // a look-up is lost on its way, or not at all
		n.next.ServeHTTP(w, r)
	}
}

// carry does to a call what the plan says of this send.
func (n *network) carry(w http.ResponseWriter, r *http.Request, m message) {
	n.see(m.CallID, m.Attempt)
	fault := n.plan[m.CallID].Fault(m.Attempt)
	if m.Attempt > 1 && fault != HangUp {
		n.release(m.CallID)
	}
	switch fault {
	case Deliver:
		n.deliver(w, r, m)
	case CutAnswer:
		n.deliver(&nobody{}, r, m)
		panic(http.ErrAbortHandler)
	case SwallowAnswer:
		n.deliver(&nobody{}, r, m)
		n.untilGone(r)
	case Swallow:
		n.untilGone(r)
	case Delay:
		n.untilGone(r)
		n.wait(nil, delay)
		n.deliver(&nobody{}, r, m)
	case DelayUntilResent:
		n.wait(n.hold(m.CallID), longestDelay)
		n.deliver(&nobody{}, r, m)
	case HangUp:
		panic(http.ErrAbortHandler)
	}
}

func (n *network) see(callID string, what int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.seen[callID] = append(n.seen[callID], what)
}

// sightings are the sends and look-ups of a call that came by, in order, and whether the downstream was ever handed it.
func (n *network) sightings(callID string) (seen []int, brought bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.seen[callID]), n.brought[callID]
}

// deliver hands the request over. Its sender may be gone: the downstream finishes what it has begun.
func (n *network) deliver(w http.ResponseWriter, r *http.Request, m message) {
	if n.ctx.Err() != nil {
		return
	}
	n.mu.Lock()
	n.brought[m.CallID] = true
	n.mu.Unlock()
	n.next.ServeHTTP(w, r.WithContext(n.ctx))
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
