package idempotency

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/callreceipt/reconciler/receipt"
)

var (
	someID = rapid.OneOf(rapid.SampledFrom(slices.Concat(hostile, control)), rapid.StringN(1, 20, 200))
	// A result may be anything that PostgreSQL takes for json.
	someResult = rapid.OneOf(
		rapid.SampledFrom([]string{``, `null`, ` [1] `, `{"a":1,"a":2}`, `"\u0000"`, `"\ud800"`, `"\udc00\ud800"`, `1e999999`, `-0`, `"` + strings.Repeat("x", mostResult) + `"`, strings.Repeat("[", 70) + strings.Repeat("]", 70)}),
		rapid.Custom(func(t *rapid.T) string {
			text, err := json.Marshal(rapid.MapOf(rapid.String(), rapid.String()).Draw(t, "object"))
			if err != nil {
				t.Fatal(err)
			}
			return string(text)
		}),
	)
)

func TestWhateverIsInTheTableTheStrictReaderReads(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	rapid.Check(t, func(t *rapid.T) {
		d.MustExec(`DELETE FROM idempotency.receipts`)
		var bizIDs, callIDs []string
		held := map[string]int{}
		for range rapid.IntRange(0, 6).Draw(t, "receipts") {
			biz, call := someID.Draw(t, "biz"), someID.Draw(t, "call")
			status := rapid.SampledFrom([]string{"SUCCESS", "FAILED", "PROCESSING"}).Draw(t, "status")
			if d.hold(t, call, biz, status, someResult.Draw(t, "result")) != nil {
				continue // the table does not take it
			}
			if !slices.Contains(callIDs, call) {
				held[biz]++
				callIDs = append(callIDs, call)
			}
			bizIDs = append(bizIDs, biz)
		}
		bizIDs = append(bizIDs, "nothing of this one")
		a, err := d.Query(context.Background(), bizIDs)
		if err != nil || a.Unasked+a.Duplicates != 0 {
			t.Fatalf("%q: %+v, %v", bizIDs, a, err)
		}
		for id, e := range a.Of {
			if len(e.Receipts) != held[id] || e.Presence == receipt.Unknown {
				t.Fatalf("%q: %d receipts, %d are held", id, len(e.Receipts), held[id])
			}
		}
		if len(callIDs) == 0 {
			return
		}
		a, err = d.QueryCalls(context.Background(), callIDs)
		if err != nil || a.Unasked+a.Duplicates != 0 {
			t.Fatalf("%q: %+v, %v", callIDs, a, err)
		}
		for id, e := range a.Of {
			if e.Presence != receipt.Present || e.Receipts[0].CallID != id {
				t.Fatalf("%q: %+v", id, e)
			}
		}
	})
}
