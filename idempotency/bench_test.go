package idempotency_test

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"
	"golang.org/x/sync/errgroup"

	"github.com/callreceipt/reconciler/idempotency"
	"github.com/callreceipt/reconciler/internal/database"
	"github.com/callreceipt/reconciler/internal/localpg"
	"github.com/callreceipt/reconciler/internal/testdb"
	"github.com/callreceipt/reconciler/migrations"
)

// The size of the benchmark; without it there is none. At full size, in about six minutes:
//
//	go test ./idempotency -run '^$' -bench Guard -bench-keys 3000000
var benchKeys = flag.Int("bench-keys", 0, "keys that are there when the benchmark begins")

const (
	benchClients = 8
	benchRounds  = 20
	benchRound   = time.Second
)

// durable are PostgreSQL's own defaults, which the server of the tests does not have. Where a COMMIT costs nothing, all that is measured
// is the number of statements.
var durable = map[string]string{"fsync": "on", "full_page_writes": "on", "wal_level": "replica", "max_wal_senders": "10", "max_wal_size": "4GB"}

// BenchmarkGuard compares a bare business transaction (BEGIN, one INSERT with parameters, COMMIT) with the same one guarded. Rounds of
// the two alternate on one server, so that both meet the same machine; the ratio is the median of what pairs of rounds have.
//
// Measured on two cores with 3,000,000 keys: 0.453 with 8 partitions and 0.456 with 31. The two round trips alone, with functions that do
// nothing, leave 0.62.
func BenchmarkGuard(b *testing.B) {
	if *benchKeys == 0 {
		b.Skip("no -bench-keys")
	}
	for _, days := range []int{8, 31} {
		b.Run(fmt.Sprintf("partitions=%d", days), func(b *testing.B) {
			db := rememberMany(b, days, *benchKeys)
			g, err := idempotency.New(idempotency.Config{DB: db})
			if err != nil {
				b.Fatal(err)
			}
			business := func(ctx context.Context, tx *sqlx.Tx, biz string) error {
				_, err := tx.ExecContext(ctx, `INSERT INTO effects (biz_id, amount) VALUES ($1, $2)`, biz, 1999)
				return err
			}
			bare := func(ctx context.Context, biz string) error {
				return database.InTx(ctx, db, func(tx *sqlx.Tx) error { return business(ctx, tx, biz) })
			}
			guarded := func(ctx context.Context, biz string) error {
				r := idempotency.Request{CallID: biz + "-0001", BizID: biz, Operation: "charge", IssuedAt: time.Now(), Hash: make([]byte, 32)}
				_, err := g.Do(ctx, r, func(ctx context.Context, tx *sqlx.Tx) (json.RawMessage, error) {
					return json.RawMessage(`{"ref":"ch_0123456789"}`), business(ctx, tx, biz)
				})
				return err
			}
			round(b, bare)
			round(b, guarded)
			var bares, guardeds int64
			var ratios []float64
			for b.Loop() {
				for range benchRounds {
					without, with := round(b, bare), round(b, guarded)
					bares, guardeds, ratios = bares+without, guardeds+with, append(ratios, float64(with)/float64(without))
				}
			}
			slices.Sort(ratios)
			perSecond := func(n int64) float64 { return float64(n) / (float64(len(ratios)) * benchRound.Seconds()) }
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(perSecond(bares), "bare/s")
			b.ReportMetric(perSecond(guardeds), "guarded/s")
			b.ReportMetric(ratios[len(ratios)/2], "ratio")
		})
	}
}

var benchOrders atomic.Int64

// round has all clients do one thing after another for the time of a round, and returns how many they did.
func round(b *testing.B, do func(ctx context.Context, biz string) error) int64 {
	b.Helper()
	var done atomic.Int64
	var clients errgroup.Group
	end := time.Now().Add(benchRound)
	for range benchClients {
		clients.Go(func() error {
			for time.Now().Before(end) {
				if err := do(b.Context(), fmt.Sprint("ORD-", benchOrders.Add(1))); err != nil {
					return err
				}
				done.Add(1)
			}
			return nil
		})
	}
	if err := clients.Wait(); err != nil {
		b.Fatal(err)
	}
	return done.Load()
}

// rememberMany makes a database with so many keys in so many partitions, the last of which is tomorrow's.
func rememberMany(b *testing.B, days, keys int) *sqlx.DB {
	b.Helper()
	server, err := localpg.Start(b.Context(), localpg.Options{Settings: durable})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := server.Stop(); err != nil {
			b.Error(err)
		}
	})
	db := testdb.Open(b, server.DSN(""))
	if _, err := migrations.Downstream.Up(b.Context(), db.DB); err != nil {
		b.Fatal(err)
	}
	began := time.Now()
	db.MustExec(`CREATE TABLE effects (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, biz_id text NOT NULL, amount bigint NOT NULL,
		at timestamptz NOT NULL DEFAULT now())`)
	db.MustExec(fmt.Sprintf(`DO $$ DECLARE p regclass; d date; BEGIN
		FOR p IN SELECT inhrelid FROM pg_inherits WHERE inhparent = 'idempotency.keys'::regclass LOOP EXECUTE 'DROP TABLE ' || p; END LOOP;
		FOR d IN SELECT (now() AT TIME ZONE 'UTC')::date + 2 - n FROM generate_series(1, %d) n LOOP
			EXECUTE format('CREATE TABLE idempotency.%%I PARTITION OF idempotency.keys FOR VALUES FROM (%%L) TO (%%L)', 'day_' || to_char(d, 'YYYYMMDD'),
				d::timestamp AT TIME ZONE 'UTC', (d + 1)::timestamp AT TIME ZONE 'UTC');
		END LOOP; END $$`, days))
	db.MustExec(`CREATE FUNCTION arrived(n int, days int) RETURNS timestamptz LANGUAGE sql STABLE AS
		$$ SELECT date_trunc('milliseconds', now()) - (n % (days - 1)) * interval '1 day' $$`)
	for _, load := range []string{
		`INSERT INTO idempotency.claims SELECT sha256(convert_to('OLD-' || n || ':charge', 'UTF8')), arrived(n, $1) FROM generate_series(1, $2) n`,
		`INSERT INTO idempotency.keys SELECT 'OLD-' || n || ':charge', 'OLD-' || n, 'charge', 'OLD-' || n || '-0001', 1, 'SUCCESS', '{"ref":"ch_0123456789"}',
			sha256(int4send(n)), arrived(n, $1), arrived(n, $1), arrived(n, $1), arrived(n, $1) + interval '7 days' FROM generate_series(1, $2) n`,
		`INSERT INTO idempotency.receipts SELECT 'OLD-' || n || '-0001', 'OLD-' || n, 'charge', 'OLD-' || n || ':charge', 'SUCCESS', '{"ref":"ch_0123456789"}', 1,
			arrived(n, $1) FROM generate_series(1, $2) n`,
	} {
		db.MustExec(load, days, keys)
	}
	db.MustExec(`VACUUM ANALYZE`)
	db.MustExec(`CHECKPOINT`)
	b.Logf("%d keys in %d partitions were made in %s", keys, days, time.Since(began).Round(time.Second))
	return db
}
