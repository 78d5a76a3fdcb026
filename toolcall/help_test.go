package toolcall

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/jmoiron/sqlx"

	"github.com/callreceipt/reconciler/receipt"
)

const (
	hasty   = 300 * time.Millisecond // for servers that let it pass
	patient = 30 * time.Second       // for those that do not
)

var (
	small  = json.RawMessage(`{"amount":1999}`)
	middle = bulky(2000)
	large  = bulky(256 << 10) // more than a connection holds unread, see smallWindow
)

func bulky(size int) json.RawMessage {
	return json.RawMessage(`{"amount":1999,"zz_bulk":"` + strings.Repeat("x", size) + `"}`)
}

// theTool is an ordinary tool, changed by edit.
func theTool(endpoint, receipts string, edit ...func(*Tool)) Tool {
	t := Tool{
		Name: "payment.charge", Operation: "charge", Retryable: true, Idempotent: true, NeedsReceipt: true,
		Endpoint: receipt.Config{URL: endpoint, Timeout: patient},
		Receipts: receipt.Config{URL: receipts, Timeout: patient},
	}
	for _, e := range edit {
		e(&t)
	}
	return t
}

// newClient makes a client that does not wait between its steps.
func newClient(t testing.TB, cfg Config) *Client {
	t.Helper()
	c, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	c.waits = func() backoff.BackOff { return backoff.NewConstantBackOff(time.Millisecond) }
	return c
}

func theCall(callID string, edit ...func(*Call)) Call {
	c := Call{Tool: "payment.charge", CallID: callID, BizID: "B1", Request: small}
	for _, e := range edit {
		e(&c)
	}
	return c
}

// rows lists what is parked.
func rows(t testing.TB, db *sqlx.DB) []string {
	t.Helper()
	found := []string{}
	err := db.Select(&found, `
		SELECT concat_ws(' ', call_id, biz_id, tool, operation, idempotency_key, status, attempt, coalesce(timeout_kind, '-'), coalesce(reason, '-'))
		FROM reconciler.pending_confirmations ORDER BY 1`)
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// told is the story of a call in one line, without the waits and how long anything took.
func told(steps []Step) string {
	var words []string
	for _, s := range steps {
		if s.Action == ActionWait && s.Result == "" {
			continue
		}
		s.Took = 0
		words = append(words, strings.TrimSuffix(s.String(), " 0s"))
	}
	return strings.Join(words, ", ")
}
