package receipt

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/callreceipt/reconciler/internal/printable"
	"github.com/callreceipt/reconciler/internal/secretfile"
)

// Client speaks to one endpoint of a downstream over HTTP. It is safe for concurrent use.
type Client struct {
	url       *url.URL
	shown     string // the URL as errors show it: without user information and query
	timeout   time.Duration
	tokenFile string
	maxBytes  int64
	limits    Limits
	transport *http.Transport
	now       func() time.Time
}

// maxDrain is how much of an answer nobody wants is still read, in bytes, so that its connection can be used again.
const maxDrain = 64 << 10

// Close closes the connections that are idle.
func (c *Client) Close() { c.transport.CloseIdleConnections() }

// Query asks for the receipts of bizIDs with exactly one HTTP request, which nothing below repeats or redirects;
// with none asked it makes no request. The error is always an *Error, and then nothing is known of any bizId.
func (c *Client) Query(ctx context.Context, bizIDs []string) (Answer, error) {
	return c.ask(ctx, "bizIds", bizIDs)
}

// QueryCalls asks for the receipts of the calls themselves, and of no other call of the same business: the precise look-up
// of a caller. Everything else is as with Query, and the entries of the Answer are by callId.
func (c *Client) QueryCalls(ctx context.Context, callIDs []string) (Answer, error) {
	return c.ask(ctx, "callIds", callIDs)
}

func (c *Client) ask(ctx context.Context, member string, ids []string) (Answer, error) {
	if len(ids) == 0 {
		return Answer{Of: map[string]Evidence{}}, nil
	}
	body, err := question(member, ids)
	if err != nil {
		return Answer{}, c.told(ctx, &Error{Outcome: BadBatch, Kind: KindSetup, Err: err})
	}
	reply, trouble := c.post(ctx, body, nil)
	if trouble == nil && reply.status != http.StatusOK {
		trouble = reply.trouble(c.now())
	}
	if trouble != nil {
		return Answer{}, c.told(ctx, trouble)
	}
	answer, trouble := decode(reply.body, ids, c.limits, member == "callIds")
	if trouble != nil {
		return Answer{}, c.told(ctx, reply.with(trouble))
	}
	return answer, nil
}

// told gives an error its text: one line that says whom we spoke to. What the caller's own context cut off says nothing
// of the downstream.
func (c *Client) told(ctx context.Context, trouble *Error) *Error {
	if onWire(trouble.Kind) && ctx.Err() != nil {
		trouble = &Error{Kind: KindCanceled, Connected: trouble.Connected, Written: trouble.Written, Err: ctx.Err()}
	}
	trouble.Err = &told{text: oneLine("POST "+c.shown+": "+trouble.Err.Error(), maxText), cause: trouble.Err}
	return trouble
}

// told is an error whose text is safe to log; errors.Is and errors.As see the cause.
type told struct {
	text  string
	cause error
}

func (t *told) Error() string { return t.text }
func (t *told) Unwrap() error { return t.cause }

// reply is what came back. Only the body of a 2xx is read.
type reply struct {
	status int
	header http.Header
	body   []byte
}

// with says which reply the trouble lies in.
func (r reply) with(trouble *Error) *Error {
	trouble.Status, trouble.Connected, trouble.Written = r.status, true, true
	trouble.Err = fmt.Errorf("%d with %s: %w", r.status, contentType(r.header), trouble.Err)
	return trouble
}

// trouble is what a status means that is not the one wanted.
func (r reply) trouble(now time.Time) *Error {
	e := statusError(r.status, r.header, now)
	e.Connected, e.Written = true, true
	return e
}

// post makes one request, bounded in time and bytes.
func (c *Client) post(ctx context.Context, body []byte, header http.Header) (reply, *Error) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	// They are set by goroutines of the transport, perhaps after we left.
	var badHandshake, connected, written atomic.Bool
	req, trouble := c.request(httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		TLSHandshakeDone: onFailure(&badHandshake),
		GotConn:          func(httptrace.GotConnInfo) { connected.Store(true) },
		WroteRequest:     func(w httptrace.WroteRequestInfo) { written.Store(w.Err == nil) },
	}), body, header)
	if trouble != nil {
		return reply{}, trouble
	}
	resp, err := c.transport.RoundTrip(req)
	if err != nil {
		return reply{}, &Error{Kind: wireKind(err, badHandshake.Load()), Connected: connected.Load(), Written: written.Load(), Err: err}
	}
	defer func() {
		_, _ = io.CopyN(io.Discard, resp.Body, maxDrain) // only to keep the connection
		_ = resp.Body.Close()
	}()
	r := reply{status: resp.StatusCode, header: resp.Header}
	if resp.StatusCode/100 == 2 {
		if r.body, trouble = c.read(resp); trouble != nil {
			return reply{}, r.with(trouble)
		}
	}
	return r, nil
}

// request builds the request. It cannot be rewound, so the transport cannot send it a second time.
func (c *Client) request(ctx context.Context, body []byte, header http.Header) (*http.Request, *Error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url.String(), bytes.NewReader(body))
	if err != nil {
		return nil, &Error{Outcome: Misconfigured, Kind: KindSetup, Err: err}
	}
	req.GetBody = nil
	for name, values := range header {
		req.Header[name] = values
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json")
	req.Header.Set("User-Agent", "reconciler")
	if user := c.url.User; user != nil {
		password, _ := user.Password()
		req.SetBasicAuth(user.Username(), password)
	}
	if c.tokenFile != "" {
		token, err := secretfile.ReadToken(c.tokenFile)
		if err != nil {
			return nil, &Error{Outcome: Misconfigured, Kind: KindSetup, Err: fmt.Errorf("the bearer token file %q %w", c.tokenFile, err)}
		}
		req.Header.Set("Authorization", "Bearer "+token)
	}
	return req, nil
}

// question is the body of a request. An id that JSON cannot carry makes the batch a bad one.
func question(member string, ids []string) ([]byte, error) {
	body := []byte(`{"` + member + `":[`)
	for i, id := range ids {
		if i > 0 {
			body = append(body, ',')
		}
		var err error
		if body, err = jsontext.AppendQuote(body, id); err != nil {
			return nil, fmt.Errorf("%s: %s is not valid UTF-8", member, printable.Quote(id))
		}
	}
	return append(body, `]}`...), nil
}

// read reads the body of an answer.
func (c *Client) read(resp *http.Response) ([]byte, *Error) {
	if coding := resp.Header.Get("Content-Encoding"); coding != "" && !strings.EqualFold(coding, "identity") {
		return nil, &Error{Kind: KindMalformed, Err: fmt.Errorf("Content-Encoding %s was not asked for", printable.Quote(coding))}
	}
	tooLarge := &Error{Outcome: BadBatch, Kind: KindTooLarge, Err: fmt.Errorf("more than %d bytes", c.maxBytes)}
	if resp.ContentLength > c.maxBytes {
		return nil, tooLarge
	}
	var body bytes.Buffer
	if _, err := body.ReadFrom(io.LimitReader(resp.Body, c.maxBytes+1)); err != nil {
		return nil, &Error{Kind: bodyKind(err), Err: err}
	}
	if int64(body.Len()) > c.maxBytes {
		return nil, tooLarge
	}
	return body.Bytes(), nil
}

func contentType(header http.Header) string {
	if t := header.Get("Content-Type"); t != "" {
		return oneLine(t, maxQuote)
	}
	return "no Content-Type"
}
