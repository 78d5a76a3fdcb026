package partition

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/callreceipt/reconciler/internal/database"
)

// entry is the row of a partition in the journal.
type entry struct {
	ID          int64          `db:"id"`
	OID         uint32         `db:"partition_oid"`
	Name        string         `db:"partition_name"` // schema.name
	Bounds      string         `db:"bounds"`
	Lower       string         `db:"lower_bound"`
	Upper       string         `db:"upper_bound"`
	Step        Step           `db:"step"` // the last that was begun
	Done        bool           `db:"done"` // and whether it ended
	HeldReason  sql.NullString `db:"held_reason"`
	HeldExample sql.NullString `db:"held_example"`
	HeldSince   *time.Time     `db:"held_since"`
	Rows        sql.NullInt64  `db:"rows"`
	Bytes       sql.NullInt64  `db:"bytes"`
	Digest      sql.NullString `db:"digest"`
	Object      sql.NullString `db:"object"`
	LastError   sql.NullString `db:"last_error"`
	UpdatedAt   time.Time      `db:"updated_at"`
	Age         float64        `db:"age"`          // seconds since updated_at, by the clock of the journal
	DetachedAge float64        `db:"detached_age"` // seconds since the detach
	Version     int64          `db:"version"`
}

const entryColumns = `id, partition_oid, partition_name, bounds, lower_bound, upper_bound, step, done, held_reason, held_example, held_since,
	rows, bytes, digest, object, last_error, updated_at, extract(epoch FROM clock_timestamp() - updated_at)::float8 AS age,
	coalesce(extract(epoch FROM clock_timestamp() - detached_at), 0)::float8 AS detached_age, version`

// reached is the last step that ended.
func (e *entry) reached() Step {
	if e.Done || e.Step == StepReattached || e.Step == StepRestored {
		return e.Step
	}
	order := []Step{StepDue, StepFrozen, StepExported, StepVerified, StepWatermark, StepDetached, StepDropped}
	return order[max(slices.Index(order, e.Step)-1, 0)]
}

// ended reports that a step was begun and came to its end.
func (e *entry) ended(s Step) bool { return e.Step == s && e.Done }

// errOvertaken means that somebody else wrote the entry since it was read. Whoever is overtaken changes nothing more.
var errOvertaken = errors.New("another archiver has gone on with this partition")

// entries reads the journal of the table: what was not dropped, and with dropped what was, oldest first.
func (a *Archiver) entries(ctx context.Context, dropped bool) ([]entry, error) {
	var all []entry
	err := a.cfg.Control.SelectContext(ctx, &all, `
		SELECT `+entryColumns+` FROM reconciler.partition_archives
		WHERE table_name = $1 AND database = $2 AND ($3 OR step <> 'dropped' OR NOT done) ORDER BY id`, a.cfg.Table, a.cfg.Database, dropped)
	if err != nil {
		return nil, fmt.Errorf("reading the journal of %s: %w", a.cfg.Table, err)
	}
	return all, nil
}

// open returns the entry of a partition, which it makes when there is none.
func (a *Archiver) open(ctx context.Context, p Partition) (e entry, err error) {
	err = database.InTx(ctx, a.cfg.Control, func(tx *sqlx.Tx) error {
		_, err := tx.ExecContext(ctx, `
			INSERT INTO reconciler.partition_archives (table_name, database, partition_oid, partition_name, bounds, lower_bound, upper_bound, holder)
			VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
			ON CONFLICT (table_name, database, partition_oid) WHERE step <> 'dropped' DO UPDATE -- renamed, or attached with other bounds
			SET partition_name = excluded.partition_name, bounds = excluded.bounds, lower_bound = excluded.lower_bound,
				upper_bound = excluded.upper_bound, version = partition_archives.version + 1
			WHERE (partition_archives.partition_name, partition_archives.bounds) <> (excluded.partition_name, excluded.bounds)`,
			a.cfg.Table, a.cfg.Database, p.OID, p.Schema+"."+p.Name, p.Bounds, p.Range.Lower.String(), p.Range.Upper.String(), a.cfg.Holder)
		if err != nil {
			return err
		}
		return tx.GetContext(ctx, &e, `
			SELECT `+entryColumns+` FROM reconciler.partition_archives
			WHERE table_name = $1 AND database = $2 AND partition_oid = $3 AND step <> 'dropped'`, a.cfg.Table, a.cfg.Database, p.OID)
	})
	if err != nil {
		return entry{}, fmt.Errorf("writing %s.%s into the journal: %w", p.Schema, p.Name, err)
	}
	return e, nil
}

// write stores the entry if nobody else did since it was read.
func (a *Archiver) write(ctx context.Context, e *entry) error {
	err := database.InTx(ctx, a.cfg.Control, func(tx *sqlx.Tx) error {
		return tx.GetContext(ctx, e, `
			UPDATE reconciler.partition_archives SET step = $3, done = $4, held_reason = $5, held_example = $6,
				held_since = CASE WHEN $5::text IS NULL THEN NULL WHEN held_reason = $5 THEN held_since ELSE clock_timestamp() END,
				rows = $7, bytes = $8, digest = $9, object = $10, last_error = $11, partition_oid = $12, partition_name = $13, holder = $14,
				detached_at = CASE WHEN $3 = 'detached' AND $4 AND NOT (step = 'dropped' OR step = 'detached' AND done) THEN clock_timestamp() ELSE detached_at END,
				dropped_at = CASE WHEN $3 = 'dropped' AND $4 THEN clock_timestamp() ELSE dropped_at END,
				updated_at = clock_timestamp(), version = version + 1
			WHERE id = $1 AND version = $2 RETURNING `+entryColumns,
			e.ID, e.Version, e.Step, e.Done, e.HeldReason, e.HeldExample, e.Rows, e.Bytes, e.Digest, e.Object, e.LastError, e.OID, e.Name, a.cfg.Holder)
	})
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return errOvertaken
	case err != nil:
		return fmt.Errorf("writing %s into the journal: %w", e.Name, err)
	}
	return nil
}

// begin records that a step begins, before it does.
func (a *Archiver) begin(ctx context.Context, e *entry, s Step) error {
	e.Step, e.Done = s, false
	e.HeldReason, e.HeldExample, e.LastError = sql.NullString{}, sql.NullString{}, sql.NullString{}
	return a.write(ctx, e)
}

// end records that the step that was begun has ended.
func (a *Archiver) end(ctx context.Context, e *entry) error {
	e.Done = true
	return a.write(ctx, e)
}

// hold records why a partition stays where it is. Since when is kept while the reason is the same.
func (a *Archiver) hold(ctx context.Context, e *entry, h *Held) error {
	e.HeldReason, e.HeldExample = text(string(h.Reason)), text(h.Example)
	return a.write(ctx, e)
}

func text(s string) sql.NullString { return sql.NullString{String: s, Valid: s != ""} }
