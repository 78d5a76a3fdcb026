package chaos

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/callreceipt/reconciler/internal/testdb"
	"github.com/callreceipt/reconciler/migrations"
)

// A downstream that is killed at any moment leaves key, effect and receipt together or none of them, and whoever asks again gets
// the first result.
func TestKeyEffectAndReceiptAgreeHoweverOftenTheDownstreamIsKilled(t *testing.T) {
	t.Parallel()
	keys, requests, kills := size(200, 2000), size(2000, 20_000), size(4, 20)
	dsn := testdb.URL(t, migrations.Downstream)
	db := testdb.Open(t, dsn)
	db.MustExec(effectsSchema)
	victim := newMortal(t, dsn)

	ctx, stop := context.WithTimeout(t.Context(), 5*time.Minute)
	defer stop()
	results := newResults(keys)
	var clients errgroup.Group
	clients.SetLimit(32)
	over := make(chan struct{})
	go func() {
		defer close(over)
		victim.dieAndRise(ctx, kills, func() { disagreements(t, db) })
	}()
	for i := range requests {
		clients.Go(func() error {
			key := rand.IntN(keys)
			if i < keys {
				key = i // each at least once
			}
			answer, err := insist(ctx, victim.address, key, i)
			if err != nil {
				return err
			}
			return results.same(key, answer)
		})
	}
	if err := clients.Wait(); err != nil {
		t.Error(err)
	}
	<-over
	disagreements(t, db)
	refused := (keys + 9) / 10
	if got := number(t, db, `SELECT count(*) FROM effects`); got != keys-refused {
		t.Errorf("%d effects of %d intents, of which %d are to be refused", got, keys, refused)
	}
	t.Logf("%d requests on %d keys, %d kills: %d effects", requests, keys, kills, number(t, db, `SELECT count(*) FROM effects`))
}

// insist sends one call until it is answered with a receipt: an answer that was lost is asked for again by the same call.
func insist(ctx context.Context, address string, key, call int) (result string, err error) {
	biz, issued := fmt.Sprintf("ORD-%05d", key), time.Now().UTC().Format(time.RFC3339Nano)
	for attempt := 1; ; attempt++ {
		body := fmt.Sprintf(`{"callId":"%s-%06d","bizId":"%s","operation":"charge","idempotencyKey":"%s:charge","attempt":%d,"timestamp":%q,"refuse":%t}`,
			biz, call, biz, biz, attempt, issued, key%10 == 0)
		status, answer, err := post(ctx, "http://"+address+"/charge", body)
		switch {
		case ctx.Err() != nil:
			return "", context.Cause(ctx)
		case err != nil || status == http.StatusConflict || status >= 500:
			select { // a client's own pace
			case <-ctx.Done():
			case <-time.After(rand.N(20 * time.Millisecond)):
			}
			continue
		case status != http.StatusOK:
			return "", fmt.Errorf("call %d of key %d: %d %s", call, key, status, answer)
		}
		var r struct {
			Status string
			Result json.RawMessage
		}
		if err := json.Unmarshal([]byte(answer), &r); err != nil {
			return "", fmt.Errorf("call %d of key %d: %w in %q", call, key, err, answer)
		}
		return r.Status + " " + string(r.Result), nil
	}
}

func post(ctx context.Context, url, body string) (status int, answer string, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader([]byte(body)))
	if err != nil {
		return 0, "", err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(text), err
}

// results holds the first result of each key.
type results struct {
	first []chan string // of one element
}

func newResults(keys int) *results {
	r := &results{first: make([]chan string, keys)}
	for i := range r.first {
		r.first[i] = make(chan string, 1)
	}
	return r
}

var errOtherResult = errors.New("a repeat got another result")

func (r *results) same(key int, result string) error {
	select {
	case r.first[key] <- result:
		return nil
	case first := <-r.first[key]:
		r.first[key] <- first
		if first != result {
			return fmt.Errorf("key %d: %w: first %s, then %s", key, errOtherResult, first, result)
		}
		return nil
	}
}
