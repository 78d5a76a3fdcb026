package receipt

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"
	"unicode"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/callreceipt/reconciler/internal/printable"
)

// Attempt is one send of a call. All of it but Number is the same in every send.
type Attempt struct {
	CallID         string
	BizID          string
	Operation      string
	IdempotencyKey string
	Number         int             // of this send, from 1
	IssuedAt       time.Time       // when the call was first issued
	Request        json.RawMessage // the caller's own body, a JSON object
}

// Send makes one attempt with exactly one HTTP request, which nothing below repeats or redirects: the caller's own body
// with the ids of the call set in it, and the header Idempotency-Key. Receipt is set only when the answer is a 2xx whose
// body is one well-formed receipt of this call and says SUCCESS or FAILED. Anything else is an *Error, and decides
// nothing: unless its Connected is false, the attempt may have been executed.
func (c *Client) Send(ctx context.Context, a Attempt) (Receipt, error) {
	body, err := a.body()
	if err != nil {
		return Receipt{}, c.told(ctx, &Error{Kind: KindSetup, Err: err})
	}
	header := http.Header{}
	if !strings.ContainsFunc(a.IdempotencyKey, unicode.IsControl) { // no header can carry those; the body does
		header.Set("Idempotency-Key", a.IdempotencyKey)
	}
	reply, trouble := c.post(ctx, body, header)
	if trouble == nil && reply.status/100 != 2 {
		trouble = reply.trouble(c.now())
	}
	if trouble != nil {
		return Receipt{}, c.told(ctx, trouble)
	}
	r, err := decodeOne(reply.body, c.limits)
	if err == nil {
		err = a.answeredBy(r)
	}
	if err != nil {
		return Receipt{}, c.told(ctx, reply.with(&Error{Kind: KindMalformed, Err: err}))
	}
	return r, nil
}

// Reach finds out whether somebody listens at the endpoint, so that no attempt is spent on nobody. Behind a proxy it cannot
// tell and says nothing. The error is an *Error.
func (c *Client) Reach(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	if proxy, err := c.transport.Proxy(&http.Request{URL: c.url}); err != nil || proxy != nil {
		return nil //nolint:nilerr // a proxy that cannot be found out shows at the send
	}
	port := c.url.Port()
	if port == "" {
		port = c.url.Scheme // the name of the service: http or https
	}
	conn, err := c.transport.DialContext(ctx, "tcp", net.JoinHostPort(c.url.Hostname(), port))
	if err != nil {
		return c.told(ctx, &Error{Kind: wireKind(err, false), Err: err})
	}
	return conn.Close()
}

// body is the stored request with the fields of DESIGN section 7 set. What it held in their place does not matter: a
// request that names another call is sent as this one.
func (a Attempt) body() ([]byte, error) {
	fields := map[string]json.RawMessage{}
	if err := json.Unmarshal(a.Request, &fields); err != nil || fields == nil {
		return nil, errors.New("the stored request is no JSON object")
	}
	for name, value := range map[string]any{
		nameCallID: a.CallID, nameBizID: a.BizID, nameOperation: a.Operation, nameKey: a.IdempotencyKey,
		nameAttempt: a.Number, "timestamp": a.IssuedAt.UTC().Format(time.RFC3339Nano),
	} {
		text, err := json.Marshal(value)
		if err != nil {
			return nil, fmt.Errorf("writing %s: %w", name, err)
		}
		fields[name] = text
	}
	var body bytes.Buffer
	enc := json.NewEncoder(&body)
	enc.SetEscapeHTML(false) // or a page full of < would be six times as large as its caller thinks
	if err := enc.Encode(fields); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(body.Bytes(), []byte("\n")), nil
}

func (a Attempt) answeredBy(r Receipt) error {
	switch {
	case r.CallID != a.CallID || r.BizID != a.BizID:
		return fmt.Errorf("a receipt of call %s of bizId %s", printable.Quote(r.CallID), printable.Quote(r.BizID))
	case r.Status != StatusSuccess && r.Status != StatusFailed:
		return fmt.Errorf("the call is %s", r.Status)
	}
	return nil
}

// decodeOne reads a body that is one receipt and nothing else, as strictly as Decode.
func decodeOne(body []byte, lim Limits) (Receipt, error) {
	if lim.Depth == 0 {
		lim.Depth = DefaultDepth
	}
	d := &decoder{body: body, dec: jsontext.NewDecoder(bytes.NewBuffer(body)), lim: lim, item: -1, spot: scan(body, lim.Depth)}
	bizID, r, err := d.receipt()
	if err != nil {
		return Receipt{}, err
	}
	if _, err := d.dec.ReadToken(); !errors.Is(err, io.EOF) {
		return Receipt{}, d.fault(d.dec.InputOffset(), "data after the end")
	}
	r.BizID = string(bizID)
	return r, nil
}
