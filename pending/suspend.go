package pending

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jmoiron/sqlx"
)

// TimeoutKind says where the call timed out; for people and statistics, nothing is decided by it.
type TimeoutKind string

// The kinds of time-outs.
const (
	TimeoutConnect TimeoutKind = "connect"
	TimeoutWrite   TimeoutKind = "write"
	TimeoutRead    TimeoutKind = "read"
	TimeoutReceipt TimeoutKind = "receipt" // the look-up of the receipt failed
)

// Suspension is a call to be parked.
type Suspension struct {
	CallID         string // 1 to 200 bytes, no control characters
	BizID          string
	Tool           string
	Operation      string
	IdempotencyKey string    // "" means BizID:Operation
	Attempt        int       // sends so far; 0 means 1
	IssuedAt       time.Time // when the call was first issued; zero means now, by the database clock
	LastSentAt     time.Time // when the latest attempt was sent; zero means now, by the database clock
	Request        json.RawMessage
	TimeoutKind    TimeoutKind // "" when unknown
}

// ErrOtherCall is returned by Suspend when the callId is parked already, but for another business fact or intent. One of the
// two calls would be lost, so the caller must look at how it makes its ids.
var ErrOtherCall = errors.New("this callId is parked already for another bizId, tool, operation or idempotency key")

// Suspend parks a call in the caller's own transaction (or on a plain handle, which is a transaction of its own).
// Parking the same call twice is one row: parked is false and nothing is changed the second time, whatever has become
// of the row meanwhile.
func Suspend(ctx context.Context, ext sqlx.ExtContext, s Suspension) (parked bool, err error) {
	res, err := ext.ExecContext(ctx, `
		INSERT INTO reconciler.pending_confirmations
			(call_id, biz_id, tool, operation, idempotency_key, attempt, issued_at, last_sent_at, request, timeout_kind)
		VALUES ($1, $2, $3, $4, nullif($5, ''), $6, coalesce($7, now()), coalesce($8, clock_timestamp()), $9::jsonb, nullif($10, ''))
		ON CONFLICT (call_id) DO NOTHING`,
		s.CallID, s.BizID, s.Tool, s.Operation, s.IdempotencyKey, max(s.Attempt, 1),
		nullTime(s.IssuedAt), nullTime(s.LastSentAt), nullJSON(s.Request), string(s.TimeoutKind))
	if err != nil {
		return false, fmt.Errorf("parking call %q: %w", s.CallID, err)
	}
	if n, err := res.RowsAffected(); err != nil || n == 1 {
		return n == 1, err
	}
	var same bool
	err = sqlx.GetContext(ctx, ext, &same, `
		SELECT (biz_id, tool, operation, idempotency_key) = ($2, $3, $4, coalesce(nullif($5, ''), $2 || ':' || $4))
		FROM reconciler.pending_confirmations WHERE call_id = $1`,
		s.CallID, s.BizID, s.Tool, s.Operation, s.IdempotencyKey)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return false, nil // it was settled and cleaned away between the two statements
	case err != nil:
		return false, fmt.Errorf("looking at the parked call %q: %w", s.CallID, err)
	case !same:
		return false, fmt.Errorf("parking call %q of %s for bizId %q: %w", s.CallID, s.Tool, s.BizID, ErrOtherCall)
	}
	return false, nil
}

func nullTime(t time.Time) sql.NullTime { return sql.NullTime{Time: t, Valid: !t.IsZero()} }

// nullJSON passes text, since lib/pq sends []byte as bytea when binary parameters are on.
func nullJSON(raw json.RawMessage) sql.NullString {
	return sql.NullString{String: string(raw), Valid: len(raw) > 0}
}
