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
	// Each transaction goes on where the one before ended, or it would read again all that those before have ended. What is ended only
	// moves towards the beginning.
	last := struct {
		At string `db:"at"`
		ID string `db:"call_id"`
		N  int    `db:"n"`
	}{At: "-infinity"}
	for {
		err := database.InTx(ctx, s.db, func(tx *sqlx.Tx) error {
			return tx.GetContext(ctx, &last, `
				WITH below AS MATERIALIZED (
					SELECT next_check_at, call_id FROM reconciler.pending_confirmations
					WHERE tool = $1 AND status = 'RETRY' AND least(issued_at, created_at) < $2::timestamptz
					  AND (retry_before IS NULL OR retry_before > clock_timestamp())
					  AND (next_check_at, call_id) > ($4::timestamptz, $5) AND next_check_at >= $4::timestamptz
					ORDER BY next_check_at, call_id LIMIT $3 FOR UPDATE SKIP LOCKED
				), ended AS (
					UPDATE reconciler.pending_confirmations p SET
						retry_before = clock_timestamp(), next_check_at = least(p.next_check_at, clock_timestamp()), version = p.version + 1
					FROM below WHERE p.call_id = below.call_id
				)
				SELECT next_check_at::text AS at, call_id, (SELECT count(*) FROM below) AS n
				FROM below ORDER BY below.next_check_at DESC, call_id DESC LIMIT 1`, tool, stamp(watermark), endsAtOnce, last.At, last.ID)
		})
		if errors.Is(err, sql.ErrNoRows) {
			return ended, nil
		}
		if err != nil {
			return ended, fmt.Errorf("ending the offers of %s whose keys are archived: %w", tool, err)
		}
		if ended += last.N; last.N < endsAtOnce {
			return ended, nil
		}
	}
}
