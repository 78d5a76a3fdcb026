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
)

// Client asks one downstream for receipts over HTTP. It is safe for concurrent use.
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
	if len(bizIDs) == 0 {
		return Answer{Of: map[string]Evidence{}}, nil
	}
	exchange, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	answer, trouble := c.exchange(exchange, bizIDs)
	if trouble == nil {
		return answer, nil
	}
	if onWire(trouble.Kind) && ctx.Err() != nil {
		trouble = &Error{Kind: KindCanceled, Err: ctx.Err()}
	}
	trouble.Err = &told{text: oneLine("POST "+c.shown+": "+trouble.Err.Error(), maxText), cause: trouble.Err}
	return Answer{}, trouble
}

// told is an error whose text is safe to log; errors.Is and errors.As see the cause.
type told struct {
	text  string
	cause error
}

func (t *told) Error() string { return t.text }
func (t *told) Unwrap() error { return t.cause }

// exchange makes the request and reads the answer.
func (c *Client) exchange(ctx context.Context, bizIDs []string) (Answer, *Error) {
	var badHandshake atomic.Bool // set by a goroutine of the transport, perhaps after we left
	req, trouble := c.request(httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		TLSHandshakeDone: onFailure(&badHandshake),
	}), bizIDs)
	if trouble != nil {
		return Answer{}, trouble
	}
	resp, err := c.transport.RoundTrip(req)
	if err != nil {
		return Answer{}, &Error{Kind: wireKind(err, badHandshake.Load()), Err: err}
	}
	defer func() {
		_, _ = io.CopyN(io.Discard, resp.Body, maxDrain) // only to keep the connection
		_ = resp.Body.Close()
	}()
	if resp.StatusCode != http.StatusOK {
		return Answer{}, statusError(resp, c.now())
	}
	answer, trouble := c.read(resp, bizIDs)
	if trouble != nil {
		trouble.Status = resp.StatusCode
		trouble.Err = fmt.Errorf("200 with %s: %w", contentType(resp), trouble.Err)
	}
	return answer, trouble
}

// request builds the request. It cannot be rewound, so the transport cannot send it a second time.
func (c *Client) request(ctx context.Context, bizIDs []string) (*http.Request, *Error) {
	body, err := question(bizIDs)
	if err != nil {
		return nil, &Error{Outcome: BadBatch, Kind: KindSetup, Err: err}
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url.String(), bytes.NewReader(body))
	if err != nil {
		return nil, &Error{Outcome: Misconfigured, Kind: KindSetup, Err: err}
	}
	req.GetBody = nil
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json")
	req.Header.Set("User-Agent", "reconciler")
	if user := c.url.User; user != nil {
		password, _ := user.Password()
		req.SetBasicAuth(user.Username(), password)
	}
	if c.tokenFile != "" {
		token, err := readToken(c.tokenFile)
		if err != nil {
			return nil, &Error{Outcome: Misconfigured, Kind: KindSetup, Err: err}
		}
		req.Header.Set("Authorization", "Bearer "+token)
	}
	return req, nil
}

// question is the body of a request. An id that JSON cannot carry makes the batch a bad one.
func question(bizIDs []string) ([]byte, error) {
	body := []byte(`{"bizIds":[`)
	for i, id := range bizIDs {
		if i > 0 {
			body = append(body, ',')
		}
		var err error
		if body, err = jsontext.AppendQuote(body, id); err != nil {
			return nil, fmt.Errorf("bizId %s is not valid UTF-8", quote(id))
		}
	}
	return append(body, `]}`...), nil
}

// read reads and decodes the body of a 200.
func (c *Client) read(resp *http.Response, bizIDs []string) (Answer, *Error) {
	if coding := resp.Header.Get("Content-Encoding"); coding != "" && !strings.EqualFold(coding, "identity") {
		return Answer{}, &Error{Kind: KindMalformed, Err: fmt.Errorf("Content-Encoding %s was not asked for", quote(coding))}
	}
	tooLarge := &Error{Outcome: BadBatch, Kind: KindTooLarge, Err: fmt.Errorf("more than %d bytes", c.maxBytes)}
	if resp.ContentLength > c.maxBytes {
		return Answer{}, tooLarge
	}
	var body bytes.Buffer
	if _, err := body.ReadFrom(io.LimitReader(resp.Body, c.maxBytes+1)); err != nil {
		return Answer{}, &Error{Kind: bodyKind(err), Err: err}
	}
	if int64(body.Len()) > c.maxBytes {
		return Answer{}, tooLarge
	}
	return decode(body.Bytes(), bizIDs, c.limits)
}

func contentType(resp *http.Response) string {
	if t := resp.Header.Get("Content-Type"); t != "" {
		return oneLine(t, maxQuote)
	}
	return "no Content-Type"
}
