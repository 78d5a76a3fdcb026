package idempotency

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jmoiron/sqlx"
	"pgregory.net/rapid"
)

// act does one random thing that a service does with a key: one of two calls arrives, and whatever arrive says is done; or what is
// processing is ended.
func act(t *rapid.T, db *sqlx.DB, biz string) {
	key := biz + ":charge"
	call := fmt.Sprintf("%s-%d", biz, rapid.IntRange(1, 2).Draw(t, "call"))
	attempt := rapid.IntRange(1, 3).Draw(t, "attempt")
	status := rapid.SampledFrom([]string{"SUCCESS", "FAILED", "FAILED", "PROCESSING", "PROCESSING"}).Draw(t, "status")
	result := fmt.Sprintf(" %d ", rapid.IntRange(1, 1000).Draw(t, "result"))
	if rapid.IntRange(0, 3).Draw(t, "end") == 0 {
		db.MustExec(`SELECT idempotency.complete(idempotency_key, created_at, call_id, attempt, CASE $2 WHEN 'SUCCESS' THEN $2 ELSE 'FAILED' END, $3)
			FROM idempotency.keys WHERE idempotency_key = $1`, key, status, result)
		return
	}
	db.MustExec(`SELECT idempotency.settle($1, $2, 'charge', $3, $4, now(), NULL, a.created_at, $5, CASE WHEN $5 <> 'PROCESSING' THEN $6::json END)
		FROM idempotency.arrive($1, $2, 'charge', $3, $4, now(), NULL, $7) a WHERE a.outcome = 'EXECUTE'`,
		key, biz, call, attempt, status, result, rapid.Bool().Draw(t, "rerun"))
}

func TestNewsInAnyOrderAndAnyNumberOfTimesEndInTheServicesOwnReceipts(t *testing.T) {
	t.Parallel()
	r := newRoad(t)
	rapid.Check(t, func(t *rapid.T) {
		r.From.MustExec(`DELETE FROM idempotency.keys; DELETE FROM idempotency.claims; DELETE FROM idempotency.receipts; DELETE FROM idempotency.receipt_outbox`)
		r.To.MustExec(`DELETE FROM idempotency.receipts`)
		for range rapid.IntRange(1, 12).Draw(t, "acts") {
			act(t, r.From, rapid.SampledFrom([]string{"B1", "B2"}).Draw(t, "biz"))
		}
		batch, err := r.next(context.Background(), 0, 1<<40)
		if err != nil {
			t.Fatal(err)
		}
		again := rapid.SliceOf(rapid.SampledFrom(append(batch, news{}))).Draw(t, "again")
		again = slices.DeleteFunc(again, func(n news) bool { return n.CallID == "" })
		order := rapid.Permutation(slices.Concat(batch, again)).Draw(t, "order")
		for rows := range slices.Chunk(order, rapid.IntRange(1, 30).Draw(t, "at once")) {
			if err := r.keep(context.Background(), rows); err != nil {
				t.Fatal(err)
			}
		}
		if diff := cmp.Diff(rows(t, r.From), rows(t, r.To)); diff != "" {
			t.Fatalf("the databases differ (-service +other):\n%s", diff)
		}
	})
}
