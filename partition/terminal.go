package partition

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"

	"github.com/jmoiron/sqlx"
	"github.com/lib/pq"

	"github.com/callreceipt/reconciler/internal/database"
	"github.com/callreceipt/reconciler/internal/printable"
)

// openCallsAtOnce is how many open calls are compared with a partition in one reading of it: some 30 MB of ids at their usual size.
const openCallsAtOnce = 50_000

// over reports with *Held why the business of a partition is not over: a row whose status is not final, or a call that is still open
// and refers to a row. What cannot be answered is held as well.
func (a *Archiver) over(ctx context.Context, oid uint32) error {
	err := a.read(ctx, func(tx *sqlx.Tx) error {
		name, err := lockByOID(ctx, tx, oid, "ACCESS SHARE")
		if err != nil {
			return err
		}
		return a.allFinal(ctx, tx, name)
	})
	if err == nil {
		err = a.unreferenced(ctx, oid)
	}
	if err == nil || asHeld(err) != nil || ctx.Err() != nil || database.Unreachable(err) {
		return err
	}
	return &Held{ReasonUnanswerable, err.Error()}
}

// allFinal reports the first row whose status is not final. A status that nobody listed is not final, nor is null.
func (a *Archiver) allFinal(ctx context.Context, q sqlx.QueryerContext, relation string) error {
	c := a.cfg.Columns
	if c.Status == "" {
		return nil
	}
	var row struct {
		ID     sql.NullString `db:"id"`
		Status sql.NullString `db:"status"`
	}
	err := sqlx.GetContext(ctx, q, &row, `
		SELECT t.`+pq.QuoteIdentifier(a.ids()[0].name)+`::text AS id, t.`+pq.QuoteIdentifier(c.Status)+`::text AS status FROM ONLY `+relation+` t
		WHERE t.`+pq.QuoteIdentifier(c.Status)+` IS NULL OR NOT (t.`+pq.QuoteIdentifier(c.Status)+`::text = ANY($1)) LIMIT 1`,
		pq.StringArray(a.cfg.Terminal))
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return nil
	case err != nil:
		return fmt.Errorf("looking for a status that is not final: %w", err)
	}
	status := "null"
	if row.Status.Valid {
		status = printable.Text(row.Status.String)
	}
	return &Held{ReasonNotTerminal, fmt.Sprintf("%s is %s", printable.ID(row.ID.String), status)}
}

// openCall is a call whose fate is not decided.
type openCall struct {
	CallID string `db:"call_id"`
	BizID  string `db:"biz_id"`
	Key    string `db:"idempotency_key"`
	Status string `db:"status"`
}

// unreferenced reports the first open call that refers to a row by its key, its bizId or its callId. Of those calls a page at a time is
// compared with the whole partition, so neither side needs an index, and memory is bounded however many there are.
func (a *Archiver) unreferenced(ctx context.Context, oid uint32) error {
	for after := ""; ; {
		var page []openCall
		err := a.cfg.Control.SelectContext(ctx, &page, `
			SELECT call_id, biz_id, idempotency_key, status FROM reconciler.pending_confirmations
			WHERE status IN ('PENDING', 'RETRY', 'MANUAL') AND call_id > $1 ORDER BY call_id LIMIT $2`, after, openCallsAtOnce)
		if err != nil {
			return fmt.Errorf("reading the open calls: %w", err)
		}
		if len(page) == 0 {
			return nil
		}
		if err := a.refersTo(ctx, oid, page); err != nil {
			return err
		}
		after = page[len(page)-1].CallID
	}
}

// refersTo looks for a row that one of the calls refers to.
func (a *Archiver) refersTo(ctx context.Context, oid uint32, calls []openCall) error {
	columns := a.ids()
	var row pq.StringArray
	err := a.read(ctx, func(tx *sqlx.Tx) error {
		name, err := lockByOID(ctx, tx, oid, "ACCESS SHARE")
		if err != nil {
			return err
		}
		if err := typed(ctx, tx, oid, columns); err != nil {
			return err
		}
		var conditions, values []string
		var args []any
		for _, c := range columns {
			ids := make(pq.StringArray, len(calls))
			for i, call := range calls {
				ids[i] = c.normal(c.of(call))
			}
			args = append(args, ids)
			column := `t.` + pq.QuoteIdentifier(c.name) + `::text`
			values = append(values, `coalesce(`+column+`, '')`)
			conditions = append(conditions, fmt.Sprintf(`%s = ANY($%d)`, column, len(args)))
		}
		return tx.GetContext(ctx, &row, `SELECT ARRAY[`+strings.Join(values, ", ")+`] FROM ONLY `+name+` t
			WHERE `+strings.Join(conditions, " OR ")+` LIMIT 1`, args...)
	})
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return nil
	case err != nil:
		return fmt.Errorf("looking for what open calls refer to: %w", err)
	}
	for _, call := range calls {
		for i, c := range columns {
			if id := c.of(call); row[i] == c.normal(id) {
				return &Held{ReasonOpenCall, fmt.Sprintf("call %s is %s and refers to %s", printable.ID(call.CallID), call.Status, printable.ID(id))}
			}
		}
	}
	return &Held{ReasonOpenCall, "an open call refers to " + printable.ID(row[0])}
}
