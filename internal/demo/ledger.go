package demo

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/lib/pq"

	"github.com/callreceipt/reconciler/internal/database"
	"github.com/callreceipt/reconciler/receipt"
)

// ledgerSchema is the downstream's own. Nothing in it keeps an effect from being recorded twice, so that a second execution
// shows; what keeps it from happening is the claim.
const ledgerSchema = `
	CREATE SCHEMA demo_downstream;
	CREATE TABLE demo_downstream.claims (
		idempotency_key text PRIMARY KEY,
		call_id         text NOT NULL
	);
	CREATE TABLE demo_downstream.receipts (
		call_id         text PRIMARY KEY,
		biz_id          text NOT NULL,
		operation       text NOT NULL,
		idempotency_key text NOT NULL,
		status          text NOT NULL,
		attempt         integer NOT NULL,
		processed_at    timestamptz NOT NULL DEFAULT clock_timestamp()
	);
	CREATE INDEX ON demo_downstream.receipts (biz_id);
	CREATE TABLE demo_downstream.effects (
		call_id         text NOT NULL,
		idempotency_key text NOT NULL,
		attempt         integer NOT NULL,
		executed_at     timestamptz NOT NULL DEFAULT clock_timestamp()
	);`

// ledger is the downstream's memory: who claimed a key, what it answers for every call, and what it executed.
type ledger struct{ db *sqlx.DB }

// proof is a receipt as the protocol spells it.
type proof struct {
	CallID         string         `db:"call_id" json:"callId,omitempty"`
	BizID          string         `db:"biz_id" json:"bizId"`
	Operation      string         `db:"operation" json:"operation,omitempty"`
	IdempotencyKey string         `db:"idempotency_key" json:"idempotencyKey,omitempty"`
	Status         receipt.Status `db:"status" json:"status"`
	Attempt        int            `db:"attempt" json:"attempt,omitempty"`
	ProcessedAt    time.Time      `db:"processed_at" json:"processedAt,omitzero"`
}

const proofColumns = `r.call_id, r.biz_id, r.operation, r.idempotency_key, r.status, r.attempt, r.processed_at`

func newLedger(ctx context.Context, db *sqlx.DB) (*ledger, error) {
	err := database.InTx(ctx, db, func(tx *sqlx.Tx) error {
		_, err := tx.ExecContext(ctx, ledgerSchema)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("making the schema demo_downstream (the demo wants a database of its own): %w", err)
	}
	return &ledger{db: db}, nil
}

// arrive takes a call in: claim, receipt and effect are one transaction. With once, a key that was claimed before gives
// the receipt of the call that claimed it and does nothing; two arrivals at the same time wait for each other.
func (l *ledger) arrive(ctx context.Context, m message, status receipt.Status, once bool) (kept proof, fresh bool, err error) {
	err = database.InTx(ctx, l.db, func(tx *sqlx.Tx) error {
		if once {
			err := tx.GetContext(ctx, new(string), `
				INSERT INTO demo_downstream.claims (idempotency_key, call_id) VALUES ($1, $2)
				ON CONFLICT DO NOTHING RETURNING call_id`, m.IdempotencyKey, m.CallID)
			if errors.Is(err, sql.ErrNoRows) {
				return tx.GetContext(ctx, &kept, `
					SELECT `+proofColumns+` FROM demo_downstream.receipts r JOIN demo_downstream.claims c USING (call_id)
					WHERE c.idempotency_key = $1`, m.IdempotencyKey)
			}
			if err != nil {
				return err
			}
		}
		fresh = true
		err := tx.GetContext(ctx, &kept, `
			INSERT INTO demo_downstream.receipts AS r (call_id, biz_id, operation, idempotency_key, status, attempt)
			VALUES ($1, $2, $3, $4, $5, $6)
			ON CONFLICT (call_id) DO UPDATE SET status = excluded.status, attempt = excluded.attempt, processed_at = excluded.processed_at
			RETURNING `+proofColumns, m.CallID, m.BizID, m.Operation, m.IdempotencyKey, status, m.Attempt)
		if err != nil || status != receipt.StatusSuccess {
			return err
		}
		return execute(ctx, tx, m)
	})
	if err != nil {
		return proof{}, false, fmt.Errorf("taking call %s in: %w", m.CallID, err)
	}
	return kept, fresh, nil
}

// finish executes a call that was taken in as PROCESSING.
func (l *ledger) finish(ctx context.Context, m message) (kept proof, err error) {
	err = database.InTx(ctx, l.db, func(tx *sqlx.Tx) error {
		err := tx.GetContext(ctx, &kept, `
			UPDATE demo_downstream.receipts AS r SET status = 'SUCCESS', processed_at = clock_timestamp()
			WHERE call_id = $1 AND status = 'PROCESSING' RETURNING `+proofColumns, m.CallID)
		if err != nil {
			return err
		}
		return execute(ctx, tx, m)
	})
	if err != nil {
		return proof{}, fmt.Errorf("finishing call %s: %w", m.CallID, err)
	}
	return kept, nil
}

// execute is what the call is about. In the demo the row is the effect.
func execute(ctx context.Context, tx *sqlx.Tx, m message) error {
	_, err := tx.ExecContext(ctx, `
		INSERT INTO demo_downstream.effects (call_id, idempotency_key, attempt) VALUES ($1, $2, $3)`,
		m.CallID, m.IdempotencyKey, m.Attempt)
	return err
}

// receipts are all that the downstream holds of these bizIds.
func (l *ledger) receipts(ctx context.Context, bizIDs []string) ([]proof, error) {
	var held []proof
	err := l.db.SelectContext(ctx, &held, `
		SELECT `+proofColumns+` FROM demo_downstream.receipts r WHERE r.biz_id = ANY($1)`, pq.StringArray(bizIDs))
	if err != nil {
		return nil, fmt.Errorf("reading receipts: %w", err)
	}
	return held, nil
}

// effects are everything that was executed, in order.
func (l *ledger) effects(ctx context.Context) ([]Effect, error) {
	var all []Effect
	err := l.db.SelectContext(ctx, &all, `
		SELECT call_id, idempotency_key, attempt, executed_at FROM demo_downstream.effects ORDER BY executed_at, call_id`)
	if err != nil {
		return nil, fmt.Errorf("reading the downstream's ledger: %w", err)
	}
	return all, nil
}
