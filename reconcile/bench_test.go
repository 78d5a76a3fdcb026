package reconcile

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/lib/pq"
	"golang.org/x/sync/errgroup"

	"github.com/callreceipt/reconciler/internal/testdb"
)

const (
	benchCalls       = 40_000
	benchBatch       = 500
	benchConcurrency = 4
)

// BenchmarkPass times a whole pass (HTTP, JSON, decision, ledger, every check) over calls that all have a SUCCESS receipt, and,
// in the same run, the least that any settling must do: a bare set-based UPDATE of as many rows in the same batches, one batch
// after the other as a script would (ratio), and over as many connections as the pass has (ratio-parallel). Those leave the other
// core idle or use it for nothing else; the downstream of the pass runs on the same cores.
func BenchmarkPass(b *testing.B) {
	d := newDownstream(b)
	for i := range benchCalls {
		d.say(fmt.Sprint("C", i), fmt.Sprint("B", i), "SUCCESS", `"operation":"charge"`, fmt.Sprintf(`"idempotencyKey":"B%d:charge"`, i),
			`"result":{"ref":"0123456789"}`, `"processedAt":"2026-01-01T10:00:00Z"`, `"attempt":1`)
	}
	var whole, bare, parallel time.Duration
	rounds := 0
	for b.Loop() {
		b.StopTimer()
		r := on(b, benchTable(b), d, func(c *Config) { c.BatchSize, c.Concurrency = benchBatch, benchConcurrency })
		b.StartTimer()
		began := time.Now()
		sum := runPass(b, r)
		whole += time.Since(began)
		b.StopTimer()
		if sum.Success != benchCalls || sum.Requests != benchCalls/benchBatch {
			b.Fatalf("%+v", sum)
		}
		bare += bareUpdates(b, benchTable(b), 1)
		parallel += bareUpdates(b, benchTable(b), benchConcurrency)
		rounds++
		b.StartTimer()
	}
	perSecond := func(d time.Duration) float64 { return float64(rounds*benchCalls) / d.Seconds() }
	b.ReportMetric(perSecond(whole), "calls/s")
	b.ReportMetric(perSecond(bare), "bare-calls/s")
	b.ReportMetric(perSecond(whole)/perSecond(bare), "ratio")
	b.ReportMetric(perSecond(whole)/perSecond(parallel), "ratio-parallel")
}

func benchTable(b *testing.B) *sqlx.DB {
	b.Helper()
	db := testdb.New(b)
	parkMany(b, db, benchCalls)
	db.MustExec(`VACUUM ANALYZE reconciler.pending_confirmations`)
	db.MustExec(`CHECKPOINT`)
	return db
}

func bareUpdates(b *testing.B, db *sqlx.DB, connections int) time.Duration {
	b.Helper()
	began := time.Now()
	var group errgroup.Group
	group.SetLimit(connections)
	for from := 0; from < benchCalls; from += benchBatch {
		group.Go(func() error {
			var ids, receipts pq.StringArray
			for i := from; i < from+benchBatch; i++ {
				ids = append(ids, fmt.Sprint("C", i))
				receipts = append(receipts, fmt.Sprintf(`{"callId":"C%d","bizId":"B%d","status":"SUCCESS","operation":"charge","idempotencyKey":"B%d:charge",`+
					`"result":{"ref":"0123456789"},"processedAt":"2026-01-01T10:00:00Z","attempt":1}`, i, i, i))
			}
			tx, err := db.BeginTxx(context.Background(), nil)
			if err != nil {
				return err
			}
			defer func() { _ = tx.Rollback() }()
			if _, err := tx.Exec(`
				UPDATE reconciler.pending_confirmations p
				SET status = 'SUCCESS', reason = 'receipt_success', receipt = d.receipt::jsonb, resolved_at = now(), version = version + 1
				FROM unnest($1::text[], $2::text[]) AS d(call_id, receipt) WHERE p.call_id = d.call_id`, ids, receipts); err != nil {
				return err
			}
			return tx.Commit()
		})
	}
	if err := group.Wait(); err != nil {
		b.Fatal(err)
	}
	return time.Since(began)
}
