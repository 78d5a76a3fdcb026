// Package toolcall calls tools whose answers may be lost, and never executes one twice: what became of a call is told by a receipt,
// or the call is parked for the reconciler to settle.
//
//	             no connection: the same attempt again, 3 sends at most
//	               ┌──┐
//	               │  ▼
//	Do ─────────►  send ── receipt ───────────────────────────────► Success, Failed
//	 │             │  ▲ └─ no connection at all ──► NotSent, or park       ▲
//	 │     unknown │  │                             if it may be repeated   │
//	 │             ▼  │ not found, and it may be repeated: attempt+1       │
//	 └─ Sent > 0 ► ask ── receipt ─────────────────────────────────────────┘
//	               │  └─ processing, not answered: ask again
//	               ▼
//	               park ──► Suspended, or *NotParkedError
//
// A time-out means that the outcome is unknown, not that the call failed. The callId, the bizId, the operation, the idempotency key and the
// timestamp are the same in every send; attempt counts the sends that may have arrived. docs/calling.md has the whole table.
//
// The package is meant to be embedded: it imports no daemon code.
package toolcall

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/jmoiron/sqlx"

	"github.com/callreceipt/reconciler/internal/printable"
)

// Config is what a Client needs.
type Config struct {
	DB      *sqlx.DB         // with the pending table; may be nil if each call brings its Transaction
	Tools   []Tool           // each once
	Observe func(Event)      // for metrics, called from many goroutines at once; must not block; a panic is logged; optional
	Log     *slog.Logger     // nil discards
	Clock   func() time.Time // nil means time.Now
}

// Client calls the tools it was made with. It is safe for concurrent use.
type Client struct {
	db      *sqlx.DB
	tools   map[string]*tool
	observe func(Event)
	log     *slog.Logger
	now     func() time.Time
	waits   func() backoff.BackOff // between sends and asks of one call, and between tries to park it
}

// New checks cfg and names the first value that is wrong. It connects to nothing.
func New(cfg Config) (*Client, error) {
	registry, err := register(cfg.Tools)
	if err != nil {
		return nil, fmt.Errorf("toolcall: %w", err)
	}
	c := &Client{db: cfg.DB, tools: registry, observe: cfg.Observe, log: cfg.Log, now: cfg.Clock, waits: doubling}
	if c.observe == nil {
		c.observe = func(Event) {}
	}
	if c.log == nil {
		c.log = slog.New(slog.DiscardHandler)
	}
	if c.now == nil {
		c.now = time.Now //nolint:forbidigo // the default of Config.Clock
	}
	return c, nil
}

// doubling waits about 200, 400, 800, 800, … ms.
func doubling() backoff.BackOff {
	b := backoff.NewExponentialBackOff()
	b.InitialInterval, b.Multiplier, b.MaxInterval, b.RandomizationFactor = 200*time.Millisecond, 2, 800*time.Millisecond, 0.25
	return b
}

// tell tells Config.Observe, whose panic must not lose the call that it is told of.
func (c *Client) tell(e Event) {
	defer func() {
		if p := recover(); p != nil {
			c.log.Error("Config.Observe panicked", slog.String("error", printable.Text(fmt.Sprint(p))), slog.String("stack", string(debug.Stack())))
		}
	}()
	c.observe(e)
}

// Close closes the connections that are idle. Calls under way go on.
func (c *Client) Close() {
	for _, t := range c.tools {
		t.close()
	}
}

// Do makes a call and returns what became of it.
//
//   - Success, Failed: a receipt of the call says so. The error is nil.
//   - Suspended: the outcome is unknown and the call is parked. The error is nil, also when ctx has ended: look at ctx.
//   - NotSent: known not to have been executed. The error is nil when nobody could be reached (the last Step has the cause), and
//     otherwise says why nothing was tried: the error of ctx, ErrUnknownTool, or what is wrong with the call.
//   - no Status and a *NotParkedError: the outcome is unknown and nobody else knows of the call.
//
// The end of ctx stops everything but the parking, which has 5 seconds of its own, and another second when the database is silent.
func (c *Client) Do(ctx context.Context, in Call) (Outcome, error) {
	made, err := c.accept(in)
	if err != nil {
		return Outcome{Status: NotSent, CallID: in.CallID}, fmt.Errorf("toolcall: %w", err)
	}
	r := run{Client: c, tool: c.tools[in.Tool], call: made, wait: c.waits()}
	return r.do(ctx)
}

func (c *Client) accept(in Call) (call, error) {
	t := c.tools[in.Tool]
	switch {
	case t == nil:
		return call{}, unknownTool(in.Tool, c.tools)
	case c.db == nil && in.Transaction == nil:
		return call{}, fmt.Errorf("call %s: neither Config.DB nor Call.Transaction is set, so it could not be parked", shown(in.CallID))
	}
	return newCall(in, t, c.now())
}
