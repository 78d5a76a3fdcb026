package idempotency_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/callreceipt/reconciler/idempotency"
	"github.com/callreceipt/reconciler/internal/eventually"
	"github.com/callreceipt/reconciler/receipt"
)

// counter is a shop behind HTTP.
type counter struct {
	*shop
	url string
}

// do is what the business makes of a call by its body.
func serve(t testing.TB, do func(ctx context.Context, tx *sqlx.Tx, r idempotency.Request) (json.RawMessage, error), edit ...func(*idempotency.Config)) *counter {
	t.Helper()
	s := open(t, edit...)
	server := httptest.NewServer(s.Handler(do))
	t.Cleanup(server.Close)
	return &counter{s, server.URL}
}

func chargeOf(ctx context.Context, tx *sqlx.Tx, r idempotency.Request) (json.RawMessage, error) {
	var order struct {
		Amount float64 `json:"amount"`
		Card   string  `json:"card"`
	}
	if err := json.Unmarshal(r.Body, &order); err != nil {
		return nil, err
	}
	switch order.Card {
	case "declined":
		return refuse(`{"why":"declined"}`)(ctx, tx)
	case "broken":
		return nil, fmt.Errorf("the secret is %v", order.Amount)
	case "panic":
		panic("oh")
	case "abort":
		panic(http.ErrAbortHandler)
	}
	return charge(fmt.Sprintf(`{"charged": %v}`, order.Amount))(ctx, tx)
}

// body is a call on the wire; rest is the payload.
func body(callID string, attempt int, rest string) string {
	return fmt.Sprintf(`{"callId":%q,"bizId":"B1","operation":"charge","attempt":%d,"timestamp":%q%s}`,
		callID, attempt, time.Now().UTC().Format(time.RFC3339Nano), rest)
}

type answered struct {
	status int
	header http.Header
	body   string
}

func (c *counter) post(t testing.TB, body string, header ...string) answered {
	t.Helper()
	got, err := c.send(t.Context(), http.MethodPost, body, header...)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func (c *counter) send(ctx context.Context, method, body string, header ...string) (answered, error) {
	req, err := http.NewRequestWithContext(ctx, method, c.url, strings.NewReader(body))
	if err != nil {
		return answered{}, err
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Add(header[i], header[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return answered{}, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return answered{resp.StatusCode, resp.Header, string(text)}, err
}

func TestACallOverHTTPIsExecutedOnceAndAnsweredWithTheSameBytes(t *testing.T) {
	t.Parallel()
	c := serve(t, chargeOf)
	first := c.post(t, body("B1-0001", 1, `,"amount":5`), "Content-Type", "text/plain", "Idempotency-Key", "B1:charge")
	if first.status != 200 || first.header.Get("Content-Type") != "application/json" || !strings.Contains(first.body, `"result":{"charged": 5}`) {
		t.Errorf("%+v", first)
	}
	again := c.post(t, `{"amount" : 5.0, `+body("B1-0001", 1, ``)[1:])
	if again.status != 200 || again.body != first.body || c.effects(t) != 1 {
		t.Errorf("%+v with %d effects", again, c.effects(t))
	}
}

// What the reconciler sends is answered with what the reconciler takes.
func TestTheReconcilersOwnSendIsSettledByTheAnswer(t *testing.T) {
	t.Parallel()
	c := serve(t, chargeOf)
	client, err := receipt.NewClient(receipt.Config{URL: c.url, Timeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	for bizID, card := range map[string]string{"B1": "good", "B2": "declined", " é ": "good", "tab\there": "good"} {
		for attempt := 2; attempt < 4; attempt++ {
			got, err := client.Send(t.Context(), receipt.Attempt{
				CallID: fmt.Sprintf("%q-0001", bizID), BizID: bizID, Operation: "charge", IdempotencyKey: bizID + ":charge", Number: attempt, IssuedAt: time.Now(),
				Request: json.RawMessage(`{"card":"` + card + `","amount":1.00e0}`),
			})
			want := map[string]receipt.Status{"good": receipt.StatusSuccess, "declined": receipt.StatusFailed}[card]
			if bizID == "tab\there" && err != nil || got.Status != want || got.Attempt != attempt {
				t.Errorf("%q attempt %d: %+v, %v", bizID, attempt, got, err)
			}
		}
	}
}

func TestEveryOutcomeHasItsStatus(t *testing.T) {
	t.Parallel()
	c := serve(t, chargeOf)
	c.post(t, body("B1-0001", 1, `,"amount":5`))
	c.db.MustExec(`INSERT INTO idempotency.watermarks VALUES ('idempotency.keys', now() - interval '1 hour')`)
	at := func(d time.Duration) string {
		return fmt.Sprintf(`{"callId":"B2-0001","bizId":"B2","operation":"charge","timestamp":%q}`, time.Now().Add(d).Format(time.RFC3339))
	}
	other := func(card string) string {
		return strings.ReplaceAll(body("B1-0001", 1, `,"card":"`+card+`"`), "B1", "B-"+card)
	}
	for name, want := range map[string]struct {
		body   string
		header []string
		status int
		says   string
	}{
		"refused":                  {body: other("declined"), status: 200, says: `"status":"FAILED","result":{"why":"declined"}`},
		"another payload":          {body: body("B1-0001", 1, `,"amount":6`), status: 422, says: `{"error":"`},
		"expired":                  {body: at(-2 * time.Hour), status: 410, says: `{"error":"`},
		"in the future":            {body: at(time.Hour), status: 400, says: "5 minutes ahead"},
		"no JSON":                  {body: `<xml/>`, status: 400, says: `{"error":"`},
		"a name in another case":   {body: body("B1-0001", 1, `,"callID":"B1-0002"`), status: 400, says: `must be written callId`},
		"another key":              {body: body("B1-0001", 1, `,"amount":5`), header: []string{"Idempotency-Key", "B2:charge"}, status: 400, says: "Idempotency-Key"},
		"two keys, one of another": {body: body("B1-0001", 1, `,"amount":5`), header: []string{"Idempotency-Key", "B1:charge", "Idempotency-Key", "x"}, status: 400, says: "Idempotency-Key"},
		"a key that is no text":    {body: body("B1-0001", 1, `,"amount":5`), header: []string{"Idempotency-Key", "\xe9"}, status: 200, says: "SUCCESS"},
		"too large":                {body: body("B1-0001", 1, `,"amount":"`+strings.Repeat("x", 1<<20)+`"`), status: 413, says: "1048576"},
		"trouble":                  {body: other("broken"), status: 500, says: `{"error":"`},
		"a panic":                  {body: other("panic"), status: 500, says: `{"error":"`},
	} {
		got := c.post(t, want.body, want.header...)
		if got.status != want.status || !strings.Contains(got.body, want.says) || strings.Contains(got.body, "secret") || !json.Valid([]byte(got.body)) {
			t.Errorf("%s: %d %s", name, got.status, got.body)
		}
	}
	if said := c.said.String(); !strings.Contains(said, "[call=B-broken-0001][biz=B-broken][try=1]") || !strings.Contains(said, "the secret is") || strings.Count(said, "level=ERROR") != 2 {
		t.Errorf("the log: %s", said)
	}
	if got, err := c.send(t.Context(), http.MethodGet, ""); err != nil || got.status != 405 || got.header.Get("Allow") != "POST" {
		t.Errorf("GET: %+v, %v", got, err)
	}
	if got, err := c.send(t.Context(), http.MethodPost, other("abort")); err == nil {
		t.Errorf("an aborted answer came: %+v", got)
	}
	if c.effects(t) != 1 {
		t.Errorf("%d effects", c.effects(t))
	}
}

func TestAKeyThatIsBeingExecutedIsAnsweredWith409(t *testing.T) {
	t.Parallel()
	started, goOn := make(chan struct{}), make(chan struct{})
	c := serve(t, func(ctx context.Context, tx *sqlx.Tx, _ idempotency.Request) (json.RawMessage, error) {
		close(started)
		<-goOn
		return charge(`1`)(ctx, tx)
	}, waiting(time.Millisecond))
	first := make(chan answered, 1)
	go func() { first <- c.post(t, body("B1-0001", 1, ``)) }()
	soon(t, started)
	got := c.post(t, body("B1-0001", 2, ``))
	if got.status != 409 || got.header.Get("Retry-After") != "1" ||
		got.body != `{"callId":"B1-0001","bizId":"B1","operation":"charge","idempotencyKey":"B1:charge","status":"PROCESSING","attempt":2}` {
		t.Errorf("%+v", got)
	}
	close(goOn)
	if got := soon(t, first); got.status != 200 {
		t.Errorf("%+v", got)
	}
	if got := c.post(t, body("B1-0001", 2, ``)); got.status != 200 || c.effects(t) != 1 {
		t.Errorf("%+v with %d effects", got, c.effects(t))
	}
}

// The caller that times out is what all this is for: it will ask for the receipt, and find one.
func TestACallIsExecutedToItsEndThoughItsCallerHasGone(t *testing.T) {
	t.Parallel()
	gone := make(chan struct{})
	c := serve(t, func(ctx context.Context, tx *sqlx.Tx, _ idempotency.Request) (json.RawMessage, error) {
		<-gone
		return charge(`1`)(ctx, tx)
	})
	ctx, cancel := context.WithCancel(t.Context())
	went := make(chan error, 1)
	go func() {
		_, err := c.send(ctx, http.MethodPost, body("B1-0001", 1, ``))
		went <- err
	}()
	eventually.True(t, "the call is being executed", func() bool {
		return c.count(t, `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state = 'idle in transaction'`) == 1
	})
	cancel()
	if err := soon(t, went); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	close(gone)
	eventually.True(t, "the receipt is there", func() bool {
		return c.count(t, `SELECT count(*) FROM idempotency.receipts WHERE status = 'SUCCESS'`) == 1
	})
	if got := c.post(t, body("B1-0001", 2, ``)); got.status != 200 || c.effects(t) != 1 {
		t.Errorf("%+v with %d effects", got, c.effects(t))
	}
}
