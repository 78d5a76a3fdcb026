package pending

import (
	"context"
	"fmt"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/lib/pq"

	"github.com/callreceipt/reconciler/internal/database"
)

// Backlog is what is open for one tool. Counts stop at the limit they were asked with.
type Backlog struct {
	Tool        string     `db:"tool"`
	Pending     int        `db:"pending"`
	Retry       int        `db:"retry"`
	Manual      int        `db:"manual"`
	Undelivered int        `db:"undelivered"` // verdicts that the orchestrator has not been told, those given up included
	Oldest      *time.Time `db:"oldest"`      // created_at of the oldest call in PENDING or RETRY; nil when there is none
}

// Backlogs counts what is open for each of the tools, in no order. It reads at most limit index entries for each number, however
// many there are.
func (s *Store) Backlogs(ctx context.Context, tools []string, limit int) ([]Backlog, error) {
	count := func(where string) string {
		return `(SELECT count(*) FROM (SELECT FROM reconciler.pending_confirmations p WHERE p.tool = t.tool AND ` + where + ` LIMIT $2) few)`
	}
	oldest := func(status string) string {
		return `(SELECT ` + within(`created_at`) + ` FROM reconciler.pending_confirmations p WHERE p.tool = t.tool AND p.status = '` + status + `'
			AND ` + open + ` ORDER BY p.created_at LIMIT 1)`
	}
	var all []Backlog
	err := s.db.SelectContext(ctx, &all, `
		SELECT t.tool, `+count(`p.status = 'PENDING' AND `+open)+` AS pending, `+count(`p.status = 'RETRY' AND `+open)+` AS retry,
			`+count(`p.status = 'MANUAL' AND `+open)+` AS manual, `+count(`p.notify_at IS NOT NULL`)+` AS undelivered,
			least(`+oldest(`PENDING`)+`, `+oldest(`RETRY`)+`) AS oldest
		FROM unnest($1::text[]) AS t(tool)`, pq.StringArray(tools), limit)
	if err != nil {
		return nil, fmt.Errorf("counting the backlog: %w", err)
	}
	return all, nil
}

// DeleteSettled deletes up to limit calls that reached SUCCESS or FAILED longer ago than age, by the database clock, and of which
// there is nothing left to tell. It returns how many it deleted; fewer than limit means that there are no more. Open calls are
// never deleted, by anything. The bound is statement_timestamp(), which an index can be searched for; for clock_timestamp() every
// settled call is read to find that none is old.
func (s *Store) DeleteSettled(ctx context.Context, age time.Duration, limit int) (deleted int, err error) {
	err = database.InTx(ctx, s.db, func(tx *sqlx.Tx) error {
		res, err := tx.ExecContext(ctx, `
			DELETE FROM reconciler.pending_confirmations p USING (
				SELECT call_id FROM reconciler.pending_confirmations
				WHERE status IN ('SUCCESS', 'FAILED') AND notify_at IS NULL AND resolved_at < statement_timestamp() - $1 * interval '1 second'
				ORDER BY resolved_at LIMIT $2 FOR UPDATE SKIP LOCKED) old
			WHERE p.call_id = old.call_id AND p.status IN ('SUCCESS', 'FAILED')`, age.Seconds(), limit)
		if err != nil {
			return err
		}
		n, err := res.RowsAffected()
		deleted = int(n)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("deleting settled calls: %w", err)
	}
	return deleted, nil
}
