package demo

import (
	"context"
	"fmt"

	"github.com/jmoiron/sqlx"

	"github.com/callreceipt/reconciler/receipt"
)

// Books are what the downstream has on record, each by itself: what it executed, which keys it remembers, and what it proves.
type Books struct {
	Effects  []Effect // in order
	Keys     []Proof  // of the guard
	Receipts []Proof
}

// Proof is a key or a receipt: this call, executed with that result.
type Proof struct {
	CallID         string         `db:"call_id"`
	BizID          string         `db:"biz_id"`
	Operation      string         `db:"operation"`
	IdempotencyKey string         `db:"idempotency_key"`
	Status         receipt.Status `db:"status"`
	Attempt        int            `db:"attempt"`
	Ref            string         `db:"ref"` // of the effect; "" without one
}

const proofColumns = `call_id, biz_id, operation, idempotency_key, status, attempt, coalesce(result ->> 'ref', '') AS ref`

func readBooks(ctx context.Context, db *sqlx.DB) (b Books, err error) {
	for _, page := range []struct {
		into  any
		query string
	}{
		{&b.Effects, `SELECT ref, call_id, idempotency_key, attempt, executed_at FROM demo_downstream.effects ORDER BY executed_at, call_id`},
		{&b.Keys, `SELECT ` + proofColumns + ` FROM idempotency.keys ORDER BY idempotency_key`},
		{&b.Receipts, `SELECT ` + proofColumns + ` FROM idempotency.receipts ORDER BY call_id`},
	} {
		if err := db.SelectContext(ctx, page.into, page.query); err != nil {
			return Books{}, fmt.Errorf("reading the downstream's books: %w", err)
		}
	}
	return b, nil
}

// faultOfBooks compares the effect, the key and the receipt of a call with each other and with the verdict. It says what is wrong,
// or "".
func (j *judgement) faultOfBooks(o Outcome, verdict receipt.Status) string {
	key, remembered := j.keys[o.Call.Key()]
	own, kept := j.receipts[o.Call.CallID]
	switch {
	case kept != o.Brought:
		return fmt.Sprintf("%s; that the downstream was handed it is %t, and that it keeps a receipt %t", verdict, o.Brought, kept)
	case remembered != (o.Arrived && o.Call.Tool.Repeatable):
		return fmt.Sprintf("%s; that the intent arrived is %t, and that its key is remembered %t", verdict, o.Arrived, remembered)
	case kept && (own.BizID != o.Call.BizID || own.Operation != o.Call.Tool.Operation || own.IdempotencyKey != o.Call.Key()):
		return fmt.Sprintf("its receipt is one of %s", own.IdempotencyKey)
	case kept && own.Status != verdict:
		return fmt.Sprintf("%s, and its receipt says %s", verdict, own.Status)
	case remembered && key.Status != verdict:
		return fmt.Sprintf("%s, and its key says %s", verdict, key.Status)
	}
	effects := j.byKey[o.Call.Key()]
	if len(effects) != 1 {
		return "" // none, or a duplicate, which is counted as that
	}
	done := effects[0]
	if !o.Call.Tool.Repeatable {
		done.Ref = "" // its receipts have no result
	}
	switch {
	case o.Ref != done.Ref:
		return fmt.Sprintf("%s with the result %q, and the effect is %s", verdict, o.Ref, done.Ref)
	case kept && own.Ref != done.Ref:
		return fmt.Sprintf("its receipt has the result %q, and the effect is %s", own.Ref, done.Ref)
	case remembered && (key.Ref != done.Ref || key.CallID != done.CallID || key.Attempt != done.Attempt):
		return fmt.Sprintf("its key remembers send %d of call %s with the result %q, and the effect is %s of send %d of call %s",
			key.Attempt, key.CallID, key.Ref, done.Ref, done.Attempt, done.CallID)
	}
	return ""
}
