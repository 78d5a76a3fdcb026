package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"slices"
	"sync/atomic"
	"time"

	"github.com/jmoiron/sqlx"
	"golang.org/x/sync/errgroup"

	"github.com/callreceipt/reconciler/internal/database"
	"github.com/callreceipt/reconciler/pending"
	"github.com/callreceipt/reconciler/receipt"
)

const (
	callTimeout  = 300 * time.Millisecond // how long the orchestrator waits for an answer
	callsAtOnce  = 64
	retriesAtOne = 100 // retries taken in one statement
)

// orchestrator is the caller: it sends, parks what times out, and sends again what is handed back to it. Of verdicts it is told by
// its webhook; for a few it waits on the spot.
type orchestrator struct {
	db     *sqlx.DB
	url    string
	client *http.Client
	clock  func() time.Time

	answers []receipt.Status // by Call.Index; "" was not answered
	parked  atomic.Int64
	waits   *waits
}

func newOrchestrator(ctx context.Context, db *sqlx.DB, url string, calls int, clock func() time.Time) *orchestrator {
	return &orchestrator{
		db: db, url: url, clock: clock, answers: make([]receipt.Status, calls), waits: newWaits(ctx, db, calls),
		client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: callsAtOnce}},
	}
}

func (o *orchestrator) close() {
	o.waits.close()
	o.client.CloseIdleConnections()
}

// sendAll sends every call of the plan once, and parks those without an answer.
func (o *orchestrator) sendAll(ctx context.Context, plan [][]Call, sent func(calls int)) error {
	group, each := errgroup.WithContext(ctx)
	group.SetLimit(callsAtOnce)
	for _, intent := range plan {
		if each.Err() != nil {
			break
		}
		group.Go(func() error {
			for _, c := range intent {
				if err := o.sendFirst(each, c); err != nil {
					return err
				}
			}
			sent(len(intent))
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	return context.Cause(ctx)
}

// sendFirst sends a call for the first time. Without an answer its outcome is unknown, and it is parked.
func (o *orchestrator) sendFirst(ctx context.Context, c Call) error {
	m := message{
		CallID: c.CallID, BizID: c.BizID, Operation: c.Tool.Operation, Attempt: 1, Timestamp: o.clock().UTC(),
		IdempotencyKey: c.Key(), Account: c.Account,
	}
	status, timedOut, err := o.send(ctx, m)
	if err != nil {
		return err
	}
	if status != "" {
		o.answers[c.Index] = status
		return nil
	}
	request, err := json.Marshal(m)
	if err != nil {
		return fmt.Errorf("call %s: %w", c.CallID, err)
	}
	err = database.InTx(ctx, o.db, func(tx *sqlx.Tx) error {
		_, err := pending.Suspend(ctx, tx, pending.Suspension{
			CallID: c.CallID, BizID: c.BizID, Tool: c.Tool.Name, Operation: c.Tool.Operation, IdempotencyKey: c.Key(),
			Attempt: 1, IssuedAt: m.Timestamp, LastSentAt: m.Timestamp, Request: request, TimeoutKind: timedOut,
		})
		return err
	})
	if err != nil {
		return err
	}
	o.parked.Add(1)
	if c.Awaited {
		o.waits.begin(c)
	}
	return nil
}

// resend takes the retries that are handed off and sends each once, under its original callId. Nothing needs to be done
// about one that times out again.
func (o *orchestrator) resend(ctx context.Context, tool Tool) error {
	for {
		taken, err := pending.TakeRetries(ctx, o.db, tool.Name, retriesAtOne)
		if err != nil {
			return err
		}
		var group errgroup.Group
		group.SetLimit(callsAtOnce / len(Tools))
		for _, retry := range taken {
			group.Go(func() error { return o.sendAgain(ctx, retry) })
		}
		if err := group.Wait(); err != nil || len(taken) < retriesAtOne {
			return err
		}
	}
}

func (o *orchestrator) sendAgain(ctx context.Context, r pending.Retry) error {
	var m message
	if err := json.Unmarshal(r.Request, &m); err != nil {
		return fmt.Errorf("reading the stored request of call %s: %w", r.CallID, err)
	}
	m.Attempt = r.Attempt
	_, _, err := o.send(ctx, m)
	return err
}

// send sends a call exactly once. The status is empty unless the answer is a well-formed receipt of this callId with
// SUCCESS or FAILED. The error is set only when the demo itself is being ended.
func (o *orchestrator) send(ctx context.Context, m message) (status receipt.Status, timedOut pending.TimeoutKind, err error) {
	body, err := json.Marshal(m)
	if err != nil {
		return "", "", fmt.Errorf("call %s: %w", m.CallID, err)
	}
	patience, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	var reached progressOfSend
	req, err := http.NewRequestWithContext(reached.trace(patience), http.MethodPost, o.url+"/"+m.Operation, bytes.NewReader(body))
	if err != nil {
		return "", "", fmt.Errorf("call %s: %w", m.CallID, err)
	}
	req.GetBody = nil // net/http would send it again by itself
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set(headerKey, m.IdempotencyKey)
	if resp, err := o.client.Do(req); err == nil {
		status = read(resp, m)
		_ = resp.Body.Close()
	}
	if status == "" && ctx.Err() != nil {
		return "", "", context.Cause(ctx)
	}
	return status, reached.kind(), nil
}

// read takes the outcome from an answer.
func read(resp *http.Response, m message) receipt.Status {
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxBody))
	if err != nil || resp.StatusCode != http.StatusOK {
		return ""
	}
	list := slices.Concat([]byte(`{"receipts":[`), body, []byte(`]}`))
	answer, err := receipt.Decode(list, []string{m.BizID}, receipt.Limits{})
	if err != nil || len(answer.Of[m.BizID].Receipts) != 1 {
		return ""
	}
	r := answer.Of[m.BizID].Receipts[0]
	if r.CallID != m.CallID || (r.Status != receipt.StatusSuccess && r.Status != receipt.StatusFailed) {
		return ""
	}
	return r.Status
}

// progressOfSend is how far a request came, which is all that a time-out tells.
type progressOfSend struct{ connected, written atomic.Bool }

func (p *progressOfSend) trace(ctx context.Context) context.Context {
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn:      func(httptrace.GotConnInfo) { p.connected.Store(true) },
		WroteRequest: func(info httptrace.WroteRequestInfo) { p.written.Store(info.Err == nil) },
	})
}

func (p *progressOfSend) kind() pending.TimeoutKind {
	switch {
	case p.written.Load():
		return pending.TimeoutRead
	case p.connected.Load():
		return pending.TimeoutWrite
	}
	return pending.TimeoutConnect
}
