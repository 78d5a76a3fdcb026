package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/callreceipt/reconciler/idempotency"
	"github.com/callreceipt/reconciler/internal/database"
)

// effectsSchema is the downstream's business. Nothing in it keeps an effect from being recorded twice, so that a second execution
// shows.
const effectsSchema = `
	CREATE SCHEMA demo_downstream;
	CREATE TABLE demo_downstream.effects (
		ref             uuid        NOT NULL DEFAULT gen_random_uuid(),
		call_id         text        NOT NULL,
		idempotency_key text        NOT NULL,
		attempt         integer     NOT NULL,
		executed_at     timestamptz NOT NULL DEFAULT clock_timestamp()
	);`

// Effect is one row of the downstream's business: something was executed.
type Effect struct {
	Ref            string    `db:"ref"`
	CallID         string    `db:"call_id"`
	IdempotencyKey string    `db:"idempotency_key"`
	Attempt        int       `db:"attempt"`
	ExecutedAt     time.Time `db:"executed_at"`
}

// result is what the downstream's work brings: the ref of the effect.
type result struct {
	Ref string `json:"ref"`
}

func makeEffects(ctx context.Context, db *sqlx.DB) error {
	err := database.InTx(ctx, db, func(tx *sqlx.Tx) error {
		_, err := tx.ExecContext(ctx, effectsSchema)
		return err
	})
	if err != nil {
		return fmt.Errorf("making the schema demo_downstream (the demo wants a database of its own): %w", err)
	}
	return nil
}

// execute is what a call is about. In the demo the row is the effect.
func execute(ctx context.Context, tx *sqlx.Tx, r idempotency.Request) (json.RawMessage, error) {
	var done result
	err := tx.GetContext(ctx, &done.Ref, `
		INSERT INTO demo_downstream.effects (call_id, idempotency_key, attempt) VALUES ($1, $2, $3) RETURNING ref`,
		r.CallID, r.IdempotencyKey, r.Attempt)
	if err != nil {
		return nil, fmt.Errorf("executing call %s: %w", r.CallID, err)
	}
	return json.Marshal(done)
}
