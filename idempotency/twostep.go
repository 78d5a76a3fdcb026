package idempotency

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/callreceipt/reconciler/internal/database"
	"github.com/callreceipt/reconciler/receipt"
)

// Claim is a key that somebody is executing outside of the database. Its values are plain and can be stored; whoever has them may end it.
type Claim struct {
	IdempotencyKey string    `db:"idempotency_key"`
	BizID          string    `db:"biz_id"`
	Operation      string    `db:"operation"`
	CallID         string    `db:"call_id"` // the call that began it, and its attempt
	Attempt        int       `db:"attempt"`
	IssuedAt       time.Time `db:"issued_at"`
	CreatedAt      time.Time `db:"created_at"` // of the key; names its partition
}

// Begin is the first of two steps, for an effect outside of the database. It commits that the key is being executed, and only then
// returns a claim: the caller makes the effect, with a key of its own that the other side knows, and ends the claim with Complete or
// Fail. Until then every other arrival gets ErrProcessing. A nil claim without an error means that the key was settled before, and the
// receipt is the answer.
//
// After an error nothing may be done. The errors are those of Do. If the outcome of the COMMIT stays unknown, the claim may be in
// the table and nobody has it; Unfinished finds it.
func (g *Guard) Begin(ctx context.Context, r Request) (*Claim, receipt.Receipt, error) {
	a, err := g.answer(ctx, r, func(*sqlx.Tx) (ending, error) { return ending{status: receipt.StatusProcessing}, nil })
	if err != nil || !a.executed {
		return nil, a.receipt, err
	}
	return &Claim{
		IdempotencyKey: a.receipt.IdempotencyKey, BizID: r.BizID, Operation: r.Operation, CallID: r.CallID,
		Attempt: a.receipt.Attempt, IssuedAt: r.IssuedAt, CreatedAt: a.createdAt.UTC(),
	}, a.receipt, nil
}

// Complete ends a claim with SUCCESS, for the call that began it and for every call of the key that came meanwhile, and returns the
// receipt of the former. Ending it again with the same status and result changes nothing and returns the same. When it was ended
// otherwise, or the key has been executed anew since, the error is ErrNotYours. After any other error call it again.
func (g *Guard) Complete(ctx context.Context, c Claim, result json.RawMessage) (receipt.Receipt, error) {
	return g.end(ctx, c, ending{receipt.StatusSuccess, result})
}

// Fail ends a claim with FAILED, and is otherwise as Complete. It says that there is no effect and will be none.
func (g *Guard) Fail(ctx context.Context, c Claim, result json.RawMessage) (receipt.Receipt, error) {
	return g.end(ctx, c, ending{receipt.StatusFailed, result})
}

func (g *Guard) end(ctx context.Context, c Claim, end ending) (receipt.Receipt, error) {
	r, err := Request{
		CallID: c.CallID, BizID: c.BizID, Operation: c.Operation, IdempotencyKey: c.IdempotencyKey, Attempt: c.Attempt, IssuedAt: c.IssuedAt,
	}.checked()
	if err != nil {
		return receipt.Receipt{}, fmt.Errorf("the claim is not as Begin returned it: %w", err)
	}
	if end, err = end.checked(r); err != nil {
		return receipt.Receipt{}, named(r, err)
	}
	var p proof
	once := func() error {
		return database.InTx(ctx, readCommitted{g.db}, func(tx *sqlx.Tx) error {
			var at time.Time
			err := tx.GetContext(ctx, &at, `SELECT * FROM idempotency.complete($1, $2, $3, $4, $5, $6)`,
				c.IdempotencyKey, c.CreatedAt, c.CallID, c.Attempt, end.status, end.text())
			switch {
			case errors.Is(err, sql.ErrNoRows):
				return ErrNotYours
			case err != nil:
				return fmt.Errorf("idempotency.complete: %w", err)
			}
			return tx.GetContext(ctx, &p, `SELECT status, result, attempt, processed_at FROM idempotency.receipts WHERE call_id = $1`, c.CallID)
		})
	}
	if err = once(); errors.Is(err, database.ErrCommitUnknown) {
		err = once() // it changes nothing if it was done
	}
	if err != nil {
		return receipt.Receipt{}, named(r, cut(ctx, err))
	}
	return r.receipt(p), nil
}

// Unfinished returns claims that are older than so long, oldest first and at most limit of them: what a crash left PROCESSING. Their
// owner finds out what became of the effect, and calls Complete or Fail. Nothing here does that by itself, since nobody but the other
// side of the effect knows. olderThan must exceed the longest time that an effect can take.
func (g *Guard) Unfinished(ctx context.Context, olderThan time.Duration, limit int) ([]Claim, error) {
	var claims []Claim
	err := g.db.SelectContext(ctx, &claims, `
		SELECT idempotency_key, biz_id, operation, call_id, attempt, issued_at, created_at
		FROM idempotency.keys
		WHERE status = 'PROCESSING' AND created_at < clock_timestamp() - $1 * interval '1 microsecond'
		ORDER BY created_at, idempotency_key LIMIT $2`, olderThan.Microseconds(), limit)
	if err != nil {
		return nil, fmt.Errorf("looking for unfinished claims: %w", cut(ctx, err))
	}
	return claims, nil
}
