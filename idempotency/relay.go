package idempotency

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/lib/pq"

	"github.com/callreceipt/reconciler/internal/database"
	"github.com/callreceipt/reconciler/internal/printable"
)

// Relay brings receipts from the database of a service to the one where they are asked for, which has the same schema: from
// idempotency.receipt_outbox, the service's local message table, to idempotency.receipts.
//
// Each row is delivered at least once, in any order, and then deleted; a second delivery changes nothing. No transaction is open in
// one database while the other is at work. Several relays of one outbox do each other no harm, and no good either.
//
// The outbox is off until somebody relays. RunOnce says which statements turn it on and fill it with the receipts of before.
type Relay struct {
	From *sqlx.DB // where the service writes. Required.
	To   *sqlx.DB // where receipts are asked for. Required.
	// Log gets the rows that To refuses, and the troubles of Run. Nil discards.
	Log *slog.Logger
}

// What one transaction delivers at most; the first row of a batch may be larger by itself.
const (
	relayRows  = 500
	relayBytes = 4 << 20
	// batchLimit bounds one batch in both databases, also when one of them does not answer at all.
	batchLimit = time.Minute
)

// toStart notes receipts from now on, and then those of before. In this order, and each in its own transaction: then none is missed,
// and nobody waits while the table is copied.
const toStart = `ALTER TABLE idempotency.receipts ENABLE TRIGGER receipt_to_outbox; ` +
	`INSERT INTO idempotency.receipt_outbox (call_id, biz_id, operation, idempotency_key, status, result, attempt, processed_at) ` +
	`SELECT call_id, biz_id, operation, idempotency_key, status, result, attempt, processed_at FROM idempotency.receipts`

// RunOnce delivers what is in the outbox now, batch by batch, and returns how many rows it delivered, also with an error. What was
// delivered before an error may be delivered again.
//
// A row whose values To will never take is marked in column refused and logged, and the others proceed. It is left for a person,
// who sets refused to null again once the cause is gone.
func (r *Relay) RunOnce(ctx context.Context) (delivered int, err error) {
	if r.From == nil || r.To == nil {
		return 0, errors.New("Relay.From or Relay.To is missing")
	}
	last, err := r.latest(ctx)
	for after := int64(0); err == nil && after < last; {
		var n int
		n, after, err = r.batch(ctx, after, last)
		delivered += n
	}
	return delivered, err
}

// batch delivers the first rows after an id, and returns how many and the id of the last of them.
func (r *Relay) batch(ctx context.Context, after, last int64) (delivered int, upTo int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, batchLimit)
	defer cancel()
	rows, err := r.next(ctx, after, last)
	if err != nil || len(rows) == 0 {
		return 0, last, err
	}
	upTo = rows[len(rows)-1].ID
	// All relays lock the receipts of a batch in one order, so that no two wait for each other.
	slices.SortStableFunc(rows, func(a, b news) int { return cmp.Compare(a.CallID, b.CallID) })
	var d delivery
	err = r.deliver(ctx, rows, &d)
	if failure := r.clear(ctx, d); err == nil {
		err = failure
	}
	return len(d.kept), upTo, err
}

// news is a row of the outbox. Instants are text in the spelling of JSON, which no DateStyle changes.
type news struct {
	ID             int64          `db:"id"`
	CallID         string         `db:"call_id"`
	BizID          string         `db:"biz_id"`
	Operation      string         `db:"operation"`
	IdempotencyKey string         `db:"idempotency_key"`
	Status         string         `db:"status"`
	Result         sql.NullString `db:"result"`
	Attempt        int64          `db:"attempt"`
	ProcessedAt    string         `db:"processed_at"`
}

// delivery is what became of a batch, by id of the outbox.
type delivery struct {
	kept    []int64
	refused []refusal
}

type refusal struct {
	news
	why error
}

// latest is the highest id in the outbox now. Rows below it that are committed later are those of the next run.
func (r *Relay) latest(ctx context.Context) (id int64, err error) {
	var outbox struct {
		On     bool  `db:"is_on"`
		Latest int64 `db:"latest"`
	}
	err = r.From.GetContext(ctx, &outbox, `
		SELECT EXISTS (SELECT FROM pg_trigger WHERE tgrelid = 'idempotency.receipts'::regclass AND tgname = 'receipt_to_outbox'
		        AND tgenabled IN ('O', 'A')) AS is_on,
		    (SELECT coalesce(max(id), 0) FROM idempotency.receipt_outbox) AS latest`)
	if err == nil && !outbox.On {
		err = errors.New("no receipt is noted in the outbox; run in the service's database: " + toStart)
	}
	return outbox.Latest, relaying("looking at the outbox", err)
}

// next reads a batch. It locks nothing.
func (r *Relay) next(ctx context.Context, after, last int64) (batch []news, err error) {
	err = r.From.SelectContext(ctx, &batch, `
		SELECT id, call_id, biz_id, operation, idempotency_key, status, result, attempt, processed_at
		FROM (
		    SELECT id, call_id, biz_id, operation, idempotency_key, status, result, attempt, processed_at,
		        sum(octet_length(result)) OVER (ORDER BY id ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS bytes_before
		    FROM (
		        SELECT id, call_id, biz_id, operation, idempotency_key, status, result::text AS result, attempt,
		            to_json(processed_at) #>> '{}' AS processed_at
		        FROM idempotency.receipt_outbox WHERE refused IS NULL AND id > $1 AND id <= $2 ORDER BY id LIMIT $3
		    ) AS first
		) AS counted
		WHERE coalesce(bytes_before, 0) <= $4 ORDER BY id`, after, last, relayRows, relayBytes)
	return batch, relaying("reading the outbox", err)
}

// deliver hands the rows over in one transaction, and when one of them is refused each half in a transaction of its own.
func (r *Relay) deliver(ctx context.Context, rows []news, d *delivery) error {
	err := r.keep(ctx, rows)
	_, refused := database.Refused(err)
	switch {
	case err == nil:
		for _, n := range rows {
			d.kept = append(d.kept, n.ID)
		}
	case !refused:
		return relaying("delivering to the other database", err)
	case len(rows) == 1:
		d.refused = append(d.refused, refusal{rows[0], err})
	default:
		half := len(rows) / 2
		if err := r.deliver(ctx, rows[:half], d); err != nil {
			return err
		}
		return r.deliver(ctx, rows[half:], d)
	}
	return nil
}

func (r *Relay) keep(ctx context.Context, rows []news) error {
	var (
		callIDs, bizIDs, operations, keys, statuses, instants pq.StringArray
		results                                               []sql.NullString
		attempts                                              pq.Int64Array
	)
	for _, n := range rows {
		callIDs, bizIDs, operations = append(callIDs, n.CallID), append(bizIDs, n.BizID), append(operations, n.Operation)
		keys, statuses, instants = append(keys, n.IdempotencyKey), append(statuses, n.Status), append(instants, n.ProcessedAt)
		results, attempts = append(results, n.Result), append(attempts, n.Attempt)
	}
	return database.InTx(ctx, readCommitted{r.To}, func(tx *sqlx.Tx) error {
		_, err := tx.ExecContext(ctx, `
			SELECT idempotency.keep_receipt(call_id, biz_id, operation, idempotency_key, status, result::json, attempt, processed_at::timestamptz)
			FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::int[], $8::text[])
			    AS n (call_id, biz_id, operation, idempotency_key, status, result, attempt, processed_at)`,
			callIDs, bizIDs, operations, keys, statuses, pq.Array(results), attempts, instants)
		return err
	})
}

// clear deletes what was delivered and marks what was refused.
func (r *Relay) clear(ctx context.Context, d delivery) error {
	var marked pq.Int64Array
	var reasons pq.StringArray
	for _, f := range d.refused {
		marked, reasons = append(marked, f.ID), append(reasons, printable.Text(f.why.Error()))
	}
	err := database.InTx(ctx, readCommitted{r.From}, func(tx *sqlx.Tx) error {
		_, err := tx.ExecContext(ctx, `DELETE FROM idempotency.receipt_outbox WHERE id = ANY($1)`, pq.Int64Array(d.kept))
		if err != nil || len(marked) == 0 {
			return err
		}
		_, err = tx.ExecContext(ctx, `
			UPDATE idempotency.receipt_outbox AS o SET refused = n.why FROM unnest($1::bigint[], $2::text[]) AS n (id, why)
			WHERE o.id = n.id`, marked, reasons)
		return err
	})
	if err != nil {
		return relaying("clearing the outbox of what was delivered", err)
	}
	for _, f := range d.refused {
		r.log().ErrorContext(ctx, printable.Call(f.CallID, f.BizID, int(f.Attempt))+
			" the other database refuses this receipt; it stays in idempotency.receipt_outbox for a person, see its column refused",
			"id", f.ID, "error", f.why)
	}
	return nil
}

func (r *Relay) log() *slog.Logger {
	if r.Log == nil {
		return slog.New(slog.DiscardHandler)
	}
	return r.Log
}

func relaying(what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("relaying receipts: %s: %w", what, err)
}
