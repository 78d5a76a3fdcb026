package pending

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/callreceipt/reconciler/internal/database"
)

// Retry is a call to be sent again, exactly once, under the ids it always had.
type Retry struct {
	CallID         string    `db:"call_id"`
	BizID          string    `db:"biz_id"`
	Operation      string    `db:"operation"`
	IdempotencyKey string    `db:"idempotency_key"`
	Attempt        int       `db:"attempt"` // the number of this send
	IssuedAt       time.Time `db:"issued_at"`
	LastSentAt     time.Time `db:"last_sent_at"` // of this send, by the database clock
	Request        JSON      `db:"request"`      // nil when none was stored
	Version        int64     `db:"version"`
}

// Spacing is how long after its latest send a call may be sent again at the earliest: Initial after the first, twice as long
// after each further one, at most Max, less up to a quarter so that calls do not move in step. The zero value is at once.
type Spacing struct{ Initial, Max time.Duration }

// TakeRetries takes up to n calls of a tool that may be sent again. Each is taken by exactly one caller: it is PENDING again,
// with its attempt raised and the send recorded in the ledger, before this function returns and so before the first byte can
// leave. Send each of them once, with its original callId; if that send times out as well, nothing needs to be done. A caller
// that dies in between has spent the attempt, and the next look decides.
//
// Calls past their retry_before are not handed out: the downstream may have forgotten their key. A pass of the reconciler moves that
// instant to now where the key is archived (see [Store.EndOffers]). Neither are calls handed out whose attempt cannot be counted any
// further, which would stop the others.
func TakeRetries(ctx context.Context, db database.Beginner, tool string, n int) ([]Retry, error) {
	taken, err := take(ctx, db, taking{tool: tool, most: n, actor: "orchestrator"})
	if err != nil {
		return nil, err // also of an unknown COMMIT: whoever cannot say that the send is on record must not send
	}
	return taken, nil
}

// TakeRetry takes one call for the reconciler itself to send, or nil when none may be sent now. It needs the stored request, so a
// call without one is left to the next look; so is a call that was first issued before the archive watermark of keys, the table of
// the downstream's idempotency keys ("" for none), as it stands when the call is taken. When the outcome of its COMMIT is unknown the
// row tells: it stands as it was taken, or the call was not taken.
func (s *Store) TakeRetry(ctx context.Context, tool, keys string, spacing Spacing) (*Retry, error) {
	taken, err := take(ctx, s.db, taking{tool: tool, keys: keys, most: 1, actor: "reconciler", needsRequest: true, spacing: spacing})
	if len(taken) == 0 || (err != nil && !errors.Is(err, database.ErrCommitUnknown)) {
		return nil, err
	}
	if err != nil {
		calls, again := s.Get(ctx, []string{taken[0].CallID})
		if again != nil {
			return nil, errors.Join(err, again)
		}
		if len(calls) == 0 || !taken[0].standsIn(calls[0]) {
			return nil, err
		}
	}
	return &taken[0], nil
}

// standsIn tells whether the row is as this send left it. The version alone does not tell: after a COMMIT that was lost, a person
// or another taker may have made the very next one.
func (r Retry) standsIn(c Call) bool {
	return c.Version == r.Version && c.Status == StatusPending && c.Attempt == r.Attempt && c.LastSentAt.Equal(r.LastSentAt)
}

// AnyRetry reports whether a call of the tool waits to be sent again, be it due or not.
func (s *Store) AnyRetry(ctx context.Context, tool string) (waiting bool, err error) {
	err = s.db.GetContext(ctx, &waiting, `
		SELECT EXISTS (SELECT FROM reconciler.pending_confirmations WHERE tool = $1 AND status = 'RETRY')`, tool)
	if err != nil {
		return false, fmt.Errorf("looking for calls of %s to be sent again: %w", tool, err)
	}
	return waiting, nil
}

// taking is whose calls are taken, by whom, and which of them.
type taking struct {
	tool, keys   string
	most         int
	actor        string
	needsRequest bool
	spacing      Spacing
}

const (
	takeHead = `
		WITH due AS (
			SELECT call_id FROM reconciler.pending_confirmations
			WHERE tool = $1 AND status = 'RETRY' AND (retry_before IS NULL OR retry_before > clock_timestamp())
			  AND last_sent_at <= clock_timestamp() - interval '1 second' *
				(least($5::float8, $4::float8 * power(2, least(attempt - 1, 60))) * (1 - abs(hashtext(call_id) % 1000) / 4000.0))
			  AND attempt < 2147483647 AND (request IS NOT NULL OR NOT $6)`
	// takeAbove is left out for an orchestrator, whose role need not read the table, and who does not know which keys they are.
	takeAbove = `
			  AND least(issued_at, created_at) >= coalesce((
				SELECT w.watermark FROM reconciler.archive_watermarks w WHERE w.table_name = $7), '-infinity')`
	takeTail = `
			ORDER BY next_check_at LIMIT $2 FOR UPDATE SKIP LOCKED
		), taken AS (
			UPDATE reconciler.pending_confirmations p SET
				status = 'PENDING', attempt = p.attempt + 1, last_sent_at = clock_timestamp(), next_check_at = clock_timestamp(),
				version = p.version + 1 -- a trigger clears what was learned of the send before
			FROM due WHERE p.call_id = due.call_id AND p.status = 'RETRY'
			RETURNING p.call_id, p.biz_id, p.operation, p.idempotency_key, p.attempt, p.issued_at, p.last_sent_at, p.request, p.version
		), noted AS (
			INSERT INTO reconciler.call_events (call_id, biz_id, kind, attempt, actor)
			SELECT call_id, biz_id, 'sent', attempt, $3::text FROM taken
		)
		SELECT call_id, biz_id, operation, idempotency_key, attempt,
			greatest(least(issued_at, '9999-12-31Z'), '0001-01-02Z') AS issued_at, last_sent_at, request, version
		FROM taken`
)

// take returns calls together with database.ErrCommitUnknown; with any other error it returns none.
func take(ctx context.Context, db database.Beginner, t taking) ([]Retry, error) {
	query := takeHead + takeTail
	args := []any{t.tool, t.most, t.actor, t.spacing.Initial.Seconds(), t.spacing.Max.Seconds(), t.needsRequest}
	if t.keys != "" {
		query, args = takeHead+takeAbove+takeTail, append(args, t.keys)
	}
	var taken []Retry
	err := database.InTx(ctx, db, func(tx *sqlx.Tx) error { return tx.SelectContext(ctx, &taken, query, args...) })
	if errors.Is(err, database.ErrCommitUnknown) {
		return taken, fmt.Errorf("taking calls of %s to be sent again: %w", t.tool, err)
	}
	if err != nil {
		return nil, fmt.Errorf("taking calls of %s to be sent again: %w", t.tool, err)
	}
	return taken, nil
}
