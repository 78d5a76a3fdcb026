// Command orchestrator charges the orders in its table, each of them once, through time-outs and through its own crashes. The tables
// in which it parks calls are made before, by "reconciler migrate up". One process of it runs at a time.
//
//	new ──► sending ─────────► paid, declined
//	           │                 ▲
//	           └──► waiting ─────┴──► manual    parked: the reconciler, or a person, settles it
package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/lib/pq"

	"github.com/callreceipt/reconciler/pending"
	"github.com/callreceipt/reconciler/receipt"
	"github.com/callreceipt/reconciler/toolcall"
)

const schema = `
CREATE TABLE IF NOT EXISTS orders (
    id        text   PRIMARY KEY,
    amount    bigint NOT NULL,
    state     text   NOT NULL DEFAULT 'new',
    call_id   text   UNIQUE,
    issued_at timestamptz,
    receipt   jsonb
)`

type order struct {
	ID       string    `db:"id"`
	Amount   int64     `db:"amount"`
	State    string    `db:"state"`
	CallID   string    `db:"call_id"`
	IssuedAt time.Time `db:"issued_at"`
}

type orchestrator struct {
	db     *sqlx.DB
	tools  *toolcall.Client
	log    *slog.Logger
	inHand sync.Map // ids of the orders that a goroutine is at
	hands  sync.WaitGroup
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	if err := run(ctx, os.Getenv("DATABASE_URL"), os.Getenv("PAYMENTS_URL"), log); err != nil {
		log.Error("the orchestrator ends", "error", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, databaseURL, payments string, log *slog.Logger) error {
	db, err := sqlx.ConnectContext(ctx, "postgres", databaseURL)
	if err != nil {
		return fmt.Errorf("opening DATABASE_URL: %w", err)
	}
	defer func() { _ = db.Close() }()
	db.SetMaxOpenConns(20)
	if _, err := db.ExecContext(ctx, schema); err != nil {
		return fmt.Errorf("making table orders: %w", err)
	}
	tools, err := toolcall.New(toolcall.Config{Log: log, Tools: []toolcall.Tool{{
		Name: "payment.charge", Operation: "charge", Retryable: true, Idempotent: true, NeedsReceipt: true,
		Endpoint: receipt.Config{URL: payments + "/charge", Timeout: 2 * time.Second},
		Receipts: receipt.Config{URL: payments + "/receipts/query", Timeout: 2 * time.Second},
	}}})
	if err != nil {
		return err
	}
	defer tools.Close()
	o := &orchestrator{db: db, tools: tools, log: log}
	defer o.hands.Wait()
	for {
		if err := o.takeOrders(ctx); err != nil && ctx.Err() == nil {
			log.Error("no orders were taken, the next round is in a second", "error", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(time.Second):
		}
	}
}

// takeOrders begins new orders, and goes on with those that an earlier process, or an earlier round, left unfinished.
func (o *orchestrator) takeOrders(ctx context.Context) error {
	taken := []string{}
	o.inHand.Range(func(id, _ any) bool { taken = append(taken, id.(string)); return true })
	var open []order
	err := o.db.SelectContext(ctx, &open, `
		SELECT id, amount, state, coalesce(call_id, '') AS call_id, coalesce(issued_at, now()) AS issued_at
		FROM orders WHERE state IN ('new', 'sending', 'waiting') AND id <> ALL($1) ORDER BY id LIMIT 100`, pq.Array(taken))
	for _, ord := range open {
		o.inHand.Store(ord.ID, true)
		o.hands.Go(func() {
			defer o.inHand.Delete(ord.ID)
			if err := o.charge(ctx, ord); err != nil && ctx.Err() == nil {
				o.log.Error("an order is not finished, a later round goes on with it", "order", ord.ID, "error", err)
			}
		})
	}
	return err
}

// charge takes an order from where it stands to its end. Wherever it stops, the row says how to go on.
func (o *orchestrator) charge(ctx context.Context, ord order) error {
	sent := 0
	switch ord.State {
	case "waiting":
		return o.await(ctx, ord)
	case "sending":
		sent = 1 // perhaps: so the receipt is asked for first. Never too high, or a FAILED receipt looks like one of an earlier send.
	default: // the callId is made once, and stored before the first send
		err := o.inTx(ctx, func(tx *sqlx.Tx) error {
			return tx.GetContext(ctx, &ord, `
				UPDATE orders SET state = 'sending', call_id = id || '-0001', issued_at = clock_timestamp()
				WHERE id = $1 AND call_id IS NULL
				RETURNING call_id, issued_at`, ord.ID)
		})
		if err != nil {
			return fmt.Errorf("storing the callId: %w", err)
		}
	}
	out, err := o.tools.Do(ctx, toolcall.Call{
		Tool: "payment.charge", CallID: ord.CallID, BizID: ord.ID, IssuedAt: ord.IssuedAt, Sent: sent,
		Request: fmt.Appendf(nil, `{"amount": %d}`, ord.Amount),
		Transaction: func(ctx context.Context, park func(sqlx.ExtContext) error) error {
			return o.inTx(ctx, func(tx *sqlx.Tx) error {
				if _, err := tx.ExecContext(ctx, `UPDATE orders SET state = 'waiting' WHERE id = $1`, ord.ID); err != nil {
					return err
				}
				return park(tx)
			})
		},
	})
	switch {
	case err != nil:
		return err
	case out.Status == toolcall.Suspended:
		return o.await(ctx, ord)
	case out.Status == toolcall.Success:
		return o.finish(ctx, ord, "paid", out.Receipt.Raw)
	case out.Status == toolcall.Failed:
		return o.finish(ctx, ord, "declined", out.Receipt.Raw)
	}
	return nil // NotSent: a later round goes on with it
}

// await waits for the verdict on a parked call. All orders that wait share one query.
func (o *orchestrator) await(ctx context.Context, ord order) error {
	verdict, err := pending.Await(ctx, o.db, ord.CallID)
	if err != nil {
		return err
	}
	states := map[pending.Status]string{pending.StatusSuccess: "paid", pending.StatusFailed: "declined", pending.StatusManual: "manual"}
	return o.finish(ctx, ord, states[verdict.Status], verdict.Receipt)
}

func (o *orchestrator) finish(ctx context.Context, ord order, state string, proof []byte) error {
	return o.inTx(ctx, func(tx *sqlx.Tx) error {
		_, err := tx.ExecContext(ctx, `UPDATE orders SET state = $2, receipt = nullif($3, '')::jsonb WHERE id = $1`, ord.ID, state, string(proof))
		return err
	})
}

// inTx runs fn in one transaction. Every write goes through it: outside of one, database/sql runs a statement a second time when
// its connection dies in the middle.
func (o *orchestrator) inTx(ctx context.Context, fn func(tx *sqlx.Tx) error) error {
	tx, err := o.db.BeginTxx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	if err := fn(tx); err != nil {
		return err
	}
	return tx.Commit()
}
