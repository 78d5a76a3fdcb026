package toolcall

import (
	"bufio"
	"context"
	"errors"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/jmoiron/sqlx"

	"github.com/callreceipt/reconciler/internal/database"
	"github.com/callreceipt/reconciler/internal/testdb"
	"github.com/callreceipt/reconciler/pending"
)

// At every stage of a call its caller's context may end.
func TestACallerThatGivesUpLosesNoCall(t *testing.T) {
	t.Parallel()
	notFound := func(callID string) func(http.ResponseWriter, *http.Request, int) {
		return func(w http.ResponseWriter, _ *http.Request, _ int) { list(w, receiptOf(callID, "NOT_FOUND")) }
	}
	internal := func(w http.ResponseWriter, _ *http.Request, _ int) { w.WriteHeader(http.StatusInternalServerError) }
	for _, tt := range []struct {
		name   string
		tool   func(t *testing.T, cancel func()) Tool
		call   func(c *Call, cancel func())
		on     func(e Event) bool // cancels when this step has ended
		status Status
		kind   pending.TimeoutKind
		story  string
	}{
		{
			name: "before anything",
			call: func(_ *Call, cancel func()) { cancel() },
			tool: func(t *testing.T, _ func()) Tool { return theTool(answers(t, internal).url, "http://127.0.0.1:1") }, status: NotSent,
		},
		{
			name: "before anything, of a call that an earlier process may have sent",
			call: func(c *Call, cancel func()) { c.Sent, c.IssuedAt = 1, time.Now(); cancel() },
			tool: func(t *testing.T, _ func()) Tool { return theTool(answers(t, internal).url, "http://127.0.0.1:1") }, status: Suspended, story: "park",
		},
		{
			name: "before it was connected", status: NotSent, story: "send 1 canceled",
			tool: func(t *testing.T, cancel func()) Tool { // the TLS handshake is not answered
				return theTool("https://"+hello(t, cancel), "http://127.0.0.1:1")
			},
		},
		{
			name: "between two sends that nobody took", status: NotSent, story: "send 1 not_connected, wait canceled",
			on:   func(e Event) bool { return e.Step.Result == ResultNotConnected },
			tool: func(t *testing.T, _ func()) Tool { return theTool(refusing(t), "http://127.0.0.1:1") },
		},
		{
			name: "while it was written", status: Suspended, kind: pending.TimeoutWrite, story: "send 1 write_interrupted, park",
			call: func(c *Call, _ func()) { c.Request = large },
			tool: func(t *testing.T, cancel func()) Tool {
				d := newDownstream(t, func(d *downstream, conn *net.TCPConn) []byte {
					raw := readBeginning(conn)
					cancel()
					<-d.ended
					return raw
				}, true)
				t.Cleanup(func() { d.seen() })
				return theTool(d.url, "http://127.0.0.1:1")
			},
		},
		{
			name: "while the answer was waited for", status: Suspended, kind: pending.TimeoutRead, story: "send 1 no_answer, park",
			tool: func(t *testing.T, cancel func()) Tool {
				endpoint := answers(t, func(w http.ResponseWriter, r *http.Request, n int) { cancel(); hangs(w, r, n) })
				return theTool(endpoint.url, "http://127.0.0.1:1")
			},
		},
		{
			name: "while the receipt was asked for", status: Suspended, kind: pending.TimeoutRead, story: "send 1 answered, ask canceled, park",
			tool: func(t *testing.T, cancel func()) Tool {
				return theTool(answers(t, internal).url, answers(t, func(w http.ResponseWriter, r *http.Request, n int) { cancel(); hangs(w, r, n) }).url)
			},
		},
		{
			name: "before the next send", status: Suspended, kind: pending.TimeoutRead, story: "send 1 answered, ask not_found, wait canceled, park",
			on: func(e Event) bool { return e.Step.Result == ResultNotFound },
			tool: func(t *testing.T, _ func()) Tool {
				return theTool(answers(t, internal).url, answers(t, notFound("before the next send")).url)
			},
		},
		{
			name: "while it was parked", status: Suspended, kind: pending.TimeoutReceipt, story: "send 1 answered, ask unanswered, ask unanswered, park",
			tool: func(t *testing.T, _ func()) Tool { return lost(t) },
			call: func(c *Call, cancel func()) {
				inner := c.Transaction
				c.Transaction = func(ctx context.Context, park func(sqlx.ExtContext) error) error {
					cancel()
					return inner(ctx, park)
				}
			},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			db := testdb.New(t)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			c := newClient(t, Config{DB: db, Tools: []Tool{tt.tool(t, cancel)}, Observe: func(e Event) {
				if tt.on != nil && tt.on(e) {
					cancel()
				}
			}})
			if strings.Contains(tt.story, "wait") {
				c.waits = func() backoff.BackOff { return backoff.NewConstantBackOff(time.Hour) }
			}
			call := theCall(tt.name)
			call.Transaction = func(ctx context.Context, park func(sqlx.ExtContext) error) error {
				return database.InTx(ctx, db, func(tx *sqlx.Tx) error { return park(tx) })
			}
			if tt.call != nil {
				tt.call(&call, cancel)
			}
			out, err := c.Do(ctx, call)
			if out.Status != tt.status || out.Timeout != tt.kind || told(out.Steps) != tt.story || errors.Is(err, context.Canceled) != (tt.status == NotSent) ||
				(err == nil) != (tt.status == Suspended) {
				t.Errorf("%s %q %s, %v", out.Status, out.Timeout, told(out.Steps), err)
			}
			if parked := len(rows(t, db)) == 1; parked != (tt.status == Suspended) {
				t.Errorf("parked: %v", rows(t, db))
			}
		})
	}
}

// hello is a server that reads the beginning of a TLS handshake, tells so, and says nothing.
func hello(t *testing.T, told func()) (address string) {
	t.Helper()
	d := newDownstream(t, func(d *downstream, conn *net.TCPConn) []byte {
		_, _ = bufio.NewReader(conn).ReadByte()
		told()
		<-d.ended
		return nil
	}, false)
	t.Cleanup(func() { d.seen() })
	return strings.TrimPrefix(d.url, "http://")
}

func TestACallThatWaitsForItsTurnIsNotSentWhenItsCallerGivesUp(t *testing.T) {
	t.Parallel()
	busy := make(chan struct{})
	endpoint := answers(t, func(w http.ResponseWriter, r *http.Request, n int) { close(busy); hangs(w, r, n) })
	db := testdb.New(t)
	c := newClient(t, Config{DB: db, Tools: []Tool{theTool(endpoint.url, endpoint.url, func(t *Tool) { t.Concurrency, t.NeedsReceipt, t.Retryable = 1, false, false })}})
	first, giveUp := context.WithCancel(t.Context())
	done := make(chan Outcome)
	go func() {
		out, _ := c.Do(first, theCall("C1"))
		done <- out
	}()
	<-busy
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	out, err := c.Do(ctx, theCall("C2"))
	if out.Status != NotSent || !errors.Is(err, context.DeadlineExceeded) || len(out.Steps) > 0 {
		t.Errorf("%+v, %v", out, err)
	}
	giveUp()
	if out := <-done; out.Status != Suspended {
		t.Errorf("%+v", out)
	}
	if n := len(endpoint.requests()); n != 1 {
		t.Errorf("%d requests", n)
	}
}

func TestADeadlineShorterThanEverythingParksWhatWasSent(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	reached := make(chan struct{})
	endpoint := answers(t, func(w http.ResponseWriter, r *http.Request, n int) { close(reached); hangs(w, r, n) })
	c := newClient(t, Config{DB: db, Tools: []Tool{theTool(endpoint.url, endpoint.url)}})
	// It ends as soon as the request is there, as a deadline does.
	ctx := &deadline{Context: t.Context(), over: reached}
	out, err := c.Do(ctx, theCall("C1"))
	if out.Status != Suspended || out.Timeout != pending.TimeoutRead || err != nil || told(out.Steps) != "send 1 no_answer, park" {
		t.Errorf("%+v, %v", out, err)
	}
	if n := len(rows(t, db)); n != 1 {
		t.Errorf("%d rows", n)
	}
}

// deadline is a context that ends with DeadlineExceeded when something happens.
type deadline struct {
	context.Context
	over <-chan struct{}
}

func (d *deadline) Done() <-chan struct{} { return d.over }

func (d *deadline) Err() error {
	select {
	case <-d.over:
		return context.DeadlineExceeded
	default:
		return nil
	}
}
