package toolcall

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/callreceipt/reconciler/idempotency"
	"github.com/callreceipt/reconciler/internal/testdb"
)

// What the members of the protocol add, and how the request is written, must not make a body of it that the downstream refuses.
func TestTheLargestRequestIsOneThatAGuardReads(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	for name, char := range map[string]string{"letters": "x", "tags": "<", "line separators": "\u2028"} {
		a := answers(t, func(w http.ResponseWriter, _ *http.Request, _ int) { w.WriteHeader(http.StatusInternalServerError) })
		c := newClient(t, Config{DB: db, Tools: []Tool{theTool(a.url, "", func(t *Tool) { t.NeedsReceipt, t.Retryable = false, false })}})
		out, err := c.Do(t.Context(), theCall(name, func(c *Call) {
			// As JSON they are six times as long.
			c.BizID, c.Operation, c.IdempotencyKey = strings.Repeat("\x01", 1000), strings.Repeat("\x02", 200), strings.Repeat("\x03", 1500)
			c.Request = json.RawMessage(`{"t":"` + strings.Repeat(char, (MaxRequest-8)/len(char)) + `"}`)
		}))
		if err != nil || out.Status != Suspended || len(a.asked) != 1 {
			t.Fatalf("%s: %s, %v", name, out.Status, err)
		}
		if _, err := idempotency.ParseRequest([]byte(a.asked[0])); err != nil {
			t.Errorf("%s: the guard says %v", name, err)
		}
	}
}
