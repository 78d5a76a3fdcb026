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
		SELECT t.`+pq.QuoteIdentifier(c.names()[0])+`::text AS id, t.`+pq.QuoteIdentifier(c.Status)+`::text AS status FROM ONLY `+relation+` t
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

// names are the columns that name the business of a row, the most precise first.
func (c Columns) names() []string {
	var names []string
	for _, n := range []string{c.CallID, c.Key, c.BizID} {
		if n != "" {
			names = append(names, n)
		}
	}
	return names
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
	var (
		conditions, columns []string
		args                []any
	)
	for _, of := range []struct {
		column string
		id     func(openCall) string
	}{
		{a.cfg.Columns.CallID, func(c openCall) string { return c.CallID }},
		{a.cfg.Columns.Key, func(c openCall) string { return c.Key }},
		{a.cfg.Columns.BizID, func(c openCall) string { return c.BizID }},
	} {
		if of.column == "" {
			continue
		}
		ids := make(pq.StringArray, len(calls))
		for i, c := range calls {
			ids[i] = of.id(c)
		}
		args = append(args, ids)
		column := `t.` + pq.QuoteIdentifier(of.column) + `::text`
		columns = append(columns, `coalesce(`+column+`, '')`)
		conditions = append(conditions, fmt.Sprintf(`%s = ANY($%d)`, column, len(args)))
	}
	var row pq.StringArray
	err := a.read(ctx, func(tx *sqlx.Tx) error {
		name, err := lockByOID(ctx, tx, oid, "ACCESS SHARE")
		if err != nil {
			return err
		}
		return tx.GetContext(ctx, &row, `SELECT ARRAY[`+strings.Join(columns, ", ")+`] FROM ONLY `+name+` t
			WHERE `+strings.Join(conditions, " OR ")+` LIMIT 1`, args...)
	})
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return nil
	case err != nil:
		return fmt.Errorf("looking for what open calls refer to: %w", err)
	}
	for _, c := range calls {
		for _, id := range row {
			if id != "" && (id == c.CallID && a.cfg.Columns.CallID != "" || id == c.Key && a.cfg.Columns.Key != "" || id == c.BizID && a.cfg.Columns.BizID != "") {
				return &Held{ReasonOpenCall, fmt.Sprintf("call %s is %s and refers to %s", printable.ID(c.CallID), c.Status, printable.ID(id))}
			}
		}
	}
	return &Held{ReasonOpenCall, "an open call refers to " + printable.ID(row[0])}
}
