package demo

import (
	"context"
	"sync"

	"github.com/callreceipt/reconciler/toolcall"
)

// outage waits until each of some calls has been refused a connection.
type outage struct {
	mu      sync.Mutex
	waiting map[string]bool // by callId
	over    chan struct{}   // closed when none waits any more
}

func newOutage(intents [][]Call) *outage {
	u := &outage{waiting: map[string]bool{}, over: make(chan struct{})}
	for _, intent := range intents {
		u.waiting[intent[0].CallID] = true
	}
	if len(intents) == 0 {
		close(u.over)
	}
	return u
}

// observe is told of every step of every call.
func (u *outage) observe(e toolcall.Event) {
	if e.Step.Result != toolcall.ResultNotConnected {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if !u.waiting[e.CallID] {
		return
	}
	delete(u.waiting, e.CallID)
	if len(u.waiting) == 0 {
		close(u.over)
	}
}

func (u *outage) wait(ctx context.Context) error {
	select {
	case <-u.over:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
