package task

import (
	"context"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/lib/pq"

	"github.com/callreceipt/reconciler/internal/database"
)

// Ends tells when runs of a task on a subject last ended, by whatever process; nil is never.
type Ends struct {
	Subject    string     `db:"subject"`
	Success    *time.Time `db:"success"`
	Completion *time.Time `db:"completion"` // of any outcome but skipped
}

// LastEnds reads the ends of one task on each of the subjects, in no order.
func LastEnds(ctx context.Context, db sqlx.QueryerContext, task string, subjects []string) ([]Ends, error) {
	var ends []Ends
	err := sqlx.SelectContext(ctx, db, &ends, `
		SELECT s.subject,
			(SELECT r.finished_at FROM reconciler.runs r WHERE r.task = $1 AND r.subject = s.subject AND r.outcome = 'success'
			 ORDER BY r.started_at DESC LIMIT 1) AS success,
			(SELECT r.finished_at FROM reconciler.runs r WHERE r.task = $1 AND r.subject = s.subject AND r.finished_at IS NOT NULL
				AND r.outcome <> 'skipped' ORDER BY r.started_at DESC LIMIT 1) AS completion
		FROM unnest($2::text[]) AS s(subject)`, task, pq.StringArray(subjects))
	return ends, wrap(err, "reading when %s last ended", task)
}

// DeleteRuns deletes up to limit runs that started longer ago than age, by the database clock, and returns how many. For each task
// and subject the last success stays, with all that came after it, and so does the last run under each set of rules: the ledger's
// verdicts are replayed by them.
func DeleteRuns(ctx context.Context, db *sqlx.DB, age time.Duration, limit int) (deleted int, err error) {
	err = database.InTx(ctx, db, func(tx *sqlx.Tx) error {
		res, err := tx.ExecContext(ctx, `
			DELETE FROM reconciler.runs WHERE id IN (
				SELECT r.id FROM reconciler.runs r
				WHERE r.started_at < clock_timestamp() - $1 * interval '1 second' AND EXISTS (
					SELECT FROM reconciler.runs n WHERE n.task = r.task AND n.subject = r.subject AND n.started_at > r.started_at
						AND n.outcome = 'success' AND n.policy IS NOT DISTINCT FROM r.policy)
				ORDER BY r.id LIMIT $2)`, age.Seconds(), limit)
		if err != nil {
			return err
		}
		n, err := res.RowsAffected()
		deleted = int(n)
		return err
	})
	return deleted, wrap(err, "deleting old runs")
}
