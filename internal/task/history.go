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
// and subject the last success under each set of rules stays, and so does the last run that ended: the ledger's verdicts are replayed
// by their rules, and the alerts ask for both ends. What has to stay is found in one reading of the table; asking for each run whether
// a later one exists takes longer than any limit where a tool failed for a month.
func DeleteRuns(ctx context.Context, db *sqlx.DB, age time.Duration, limit int) (deleted int, err error) {
	err = database.InTx(ctx, db, func(tx *sqlx.Tx) error {
		res, err := tx.ExecContext(ctx, `
			DELETE FROM reconciler.runs WHERE id IN (
				SELECT r.id FROM reconciler.runs r JOIN (
					SELECT task, subject, policy, max(started_at) FILTER (WHERE outcome NOT IN ('running', 'skipped')) AS ended,
						max(started_at) FILTER (WHERE outcome = 'success') AS succeeded
					FROM reconciler.runs GROUP BY task, subject, policy) kept
				ON kept.task = r.task AND kept.subject = r.subject AND kept.policy IS NOT DISTINCT FROM r.policy
				WHERE r.started_at < statement_timestamp() - $1 * interval '1 second' AND r.started_at < kept.ended
					AND (r.outcome <> 'success' OR r.started_at < kept.succeeded)
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
