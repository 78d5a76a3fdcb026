package pending

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/callreceipt/reconciler/internal/database"
)

// Watermark is the instant up to which the idempotency keys of a table (schema.name) have been archived; zero means that none have.
func (s *Store) Watermark(ctx context.Context, table string) (time.Time, error) {
	var at time.Time
	err := s.db.GetContext(ctx, &at, `
		SELECT greatest(least(watermark, '9999-12-31Z'), '0001-01-02Z') FROM reconciler.archive_watermarks WHERE table_name = $1`, table)
	if errors.Is(err, sql.ErrNoRows) {
		return time.Time{}, nil
	}
	if err != nil {
		return time.Time{}, fmt.Errorf("reading the archive watermark of %s: %w", table, err)
	}
	return at.UTC(), nil // one text, and so one digest of the rules, whatever the session's zone
}

// endsAtOnce bounds the offers that one transaction ends.
const endsAtOnce = 10_000

// EndOffers ends the offers of a tool's calls that were first issued before the watermark, and returns how many there were. Whoever
// takes retries passes over them from now on, and the database refuses whoever sends without looking. They stay RETRY and are due at
// once: where they belong is for the next look to say. An offer that somebody takes at this moment is theirs.
func (s *Store) EndOffers(ctx context.Context, tool string, watermark time.Time) (ended int, err error) {
	for {
		var n int64
		err := database.InTx(ctx, s.db, func(tx *sqlx.Tx) error {
			res, err := tx.ExecContext(ctx, `
				WITH below AS MATERIALIZED (
					SELECT call_id FROM reconciler.pending_confirmations
					WHERE tool = $1 AND status = 'RETRY' AND least(issued_at, created_at) < $2::timestamptz
					  AND (retry_before IS NULL OR retry_before > clock_timestamp())
					LIMIT $3 FOR UPDATE SKIP LOCKED
				)
				UPDATE reconciler.pending_confirmations p SET
					retry_before = clock_timestamp(), next_check_at = least(p.next_check_at, clock_timestamp()), version = p.version + 1
				FROM below WHERE p.call_id = below.call_id`, tool, stamp(watermark), endsAtOnce)
			if err != nil {
				return err
			}
			n, err = res.RowsAffected()
			return err
		})
		if err != nil {
			return ended, fmt.Errorf("ending the offers of %s whose keys are archived: %w", tool, err)
		}
		if ended += int(n); n < endsAtOnce {
			return ended, nil
		}
	}
}
