package task

import (
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/callreceipt/reconciler/internal/database"
)

// Outcome is how a run ended.
type Outcome string

// The outcomes of a run. Partial means that something is left to do and that it is safe to run again.
const (
	Success Outcome = "success"
	Partial Outcome = "partial"
	Failed  Outcome = "failed"
	Skipped Outcome = "skipped"
)

// Run is a row of the table of runs.
type Run struct {
	ID         int64           `db:"id" json:"id"`
	Task       string          `db:"task" json:"task"`
	Subject    string          `db:"subject" json:"subject"`
	Holder     string          `db:"holder" json:"holder"`
	StartedAt  time.Time       `db:"started_at" json:"started_at"`
	FinishedAt *time.Time      `db:"finished_at" json:"finished_at"`
	Outcome    Outcome         `db:"outcome" json:"outcome"` // also "running": in progress, or killed
	Counts     json.RawMessage `db:"counts" json:"counts"`   // "null" while it runs, or when it had none
	Error      *string         `db:"error" json:"error"`
}

// NewHolder names this process, unique among all replicas and restarts.
func NewHolder() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown-host"
	}
	return fmt.Sprintf("%s/%d/%s", host, os.Getpid(), rand.Text()[:8])
}

// Start records that a run began. policy is the JSON of the rules in force, or nil.
func Start(ctx context.Context, db *sqlx.DB, task, subject, holder string, policy []byte) (id int64, err error) {
	err = database.InTx(ctx, db, func(tx *sqlx.Tx) error {
		return tx.GetContext(ctx, &id, `
			INSERT INTO reconciler.runs (task, subject, holder, policy) VALUES ($1, $2, $3, nullif($4, '')::jsonb) RETURNING id`,
			task, subject, holder, string(policy))
	})
	return id, wrap(err, "recording the start of %s %s", task, subject)
}

// Finish records how it ended, once: the end of a run that has one is left as it is. Counts are a JSON document, or nil;
// they are recorded also when the run failed.
func Finish(ctx context.Context, db *sqlx.DB, id int64, outcome Outcome, counts []byte, failure error) error {
	var text sql.NullString
	if failure != nil {
		// What an outsider sent may stand in the error, and text takes neither a NUL nor invalid UTF-8.
		clean := strings.ToValidUTF8(strings.ReplaceAll(failure.Error(), "\x00", "?"), "?")
		text = sql.NullString{String: clean, Valid: true}
	}
	err := database.InTx(ctx, db, func(tx *sqlx.Tx) error {
		_, err := tx.ExecContext(ctx, `
			UPDATE reconciler.runs SET finished_at = clock_timestamp(), outcome = $2, counts = nullif($3, '')::jsonb, error = $4
			WHERE id = $1 AND finished_at IS NULL`, id, outcome, string(counts), text)
		return err
	})
	return wrap(err, "recording the end of run %d", id)
}

// Latest is the newest run of a task on a subject, or nil when there was none.
func Latest(ctx context.Context, db sqlx.QueryerContext, task, subject string) (*Run, error) {
	var r Run
	err := sqlx.GetContext(ctx, db, &r, `
		SELECT id, task, subject, holder, started_at, finished_at, outcome, coalesce(counts, 'null') AS counts, error
		FROM reconciler.runs WHERE task = $1 AND subject = $2 ORDER BY started_at DESC LIMIT 1`, task, subject)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading the runs of %s %s: %w", task, subject, err)
	}
	return &r, nil
}
