package idempotency

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/lib/pq"

	"github.com/callreceipt/reconciler/internal/database"
	"github.com/callreceipt/reconciler/internal/printable"
	"github.com/callreceipt/reconciler/receipt"
)

// What one answer may hold is what its reader takes.
const (
	mostReceipts = receipt.DefaultItems
	mostBytes    = receipt.DefaultBytes
	// mostResult is what is read of one result. A larger one is more than a whole receipt may have.
	mostResult = 256 << 10
	// queryLimit is for the server, in case it does not hear that whoever asked is gone.
	queryLimit = "30s"
)

// look is one of the two ways to ask.
type look struct {
	column string
	id     func(receipt.Receipt) string
	absent func(id string) receipt.Receipt
}

var (
	byBiz = look{
		column: "biz_id",
		id:     func(r receipt.Receipt) string { return r.BizID },
		absent: func(id string) receipt.Receipt { return receipt.Receipt{BizID: id, Status: receipt.StatusNotFound} },
	}
	byCall = look{
		column: "call_id",
		id:     func(r receipt.Receipt) string { return r.CallID },
		absent: func(id string) receipt.Receipt { return receipt.Receipt{CallID: id, Status: receipt.StatusNotFound} },
	}
)

// query reads the receipts of the ids $1, at most $2 of them, with results of at most $3 bytes. OFFSET keeps the look-up of one id by
// itself: with = ANY($1) the planner reads the whole table when it thinks that many receipts belong to an id.
func (l look) query() string {
	return `
		SELECT r.call_id, r.biz_id, r.operation, r.idempotency_key, r.status, r.attempt, r.processed_at, r.result, r.result_bytes
		FROM unnest($1::text[]) AS asked (id) CROSS JOIN LATERAL (
		    SELECT call_id, biz_id, operation, idempotency_key, status, attempt, processed_at,
		        CASE WHEN octet_length(result::text) <= $3 THEN result::text END AS result,
		        coalesce(octet_length(result::text), 0) AS result_bytes
		    FROM idempotency.receipts WHERE ` + l.column + ` = asked.id OFFSET 0
		) AS r
		LIMIT $2`
}

// stored is a row of the table.
type stored struct {
	CallID         string         `db:"call_id"`
	BizID          string         `db:"biz_id"`
	Operation      string         `db:"operation"`
	IdempotencyKey string         `db:"idempotency_key"`
	Status         receipt.Status `db:"status"`
	Attempt        int            `db:"attempt"`
	ProcessedAt    time.Time      `db:"processed_at"`
	Result         sql.NullString `db:"result"` // null also when it is too large
	ResultBytes    int            `db:"result_bytes"`
}

// answer returns the items of one answer, in the order in which they were asked for.
func (r *Receipts) answer(ctx context.Context, l look, ids []string) ([]receipt.Receipt, error) {
	ids = distinct(ids)
	all := room{receipts: mostReceipts, bytes: mostBytes - len(opening) - len(closing)}
	left := all
	held, err := r.read(ctx, l, ids, &left, mostResult)
	if errors.Is(err, ErrTooManyReceipts) && len(ids) == 1 { // who asks cannot ask for less
		r.log.ErrorContext(ctx, "the receipts of one id are more than an answer may hold, it is answered without their results", "id", printable.ID(ids[0]))
		left = all
		held, err = r.read(ctx, l, ids, &left, 0)
	}
	if err != nil {
		return nil, fmt.Errorf("reading the receipts of %d ids: %w", len(ids), err)
	}
	items := make([]receipt.Receipt, 0, len(ids))
	for _, id := range ids {
		of := held[id]
		if len(of) == 0 {
			absent := l.absent(id)
			if absent.Raw, err = absent.MarshalJSON(); err != nil {
				return nil, err
			}
			if !left.takes(absent) {
				return nil, ErrTooManyReceipts
			}
			of = []receipt.Receipt{absent}
		}
		slices.SortFunc(of, func(a, b receipt.Receipt) int { return cmp.Compare(a.CallID, b.CallID) })
		items = append(items, of...)
	}
	return items, nil
}

// distinct keeps the first of those that are equal.
func distinct(ids []string) []string {
	seen := make(map[string]bool, len(ids))
	return slices.DeleteFunc(slices.Clone(ids), func(id string) bool {
		again := seen[id]
		seen[id] = true
		return again
	})
}

// read returns the receipts that are held, by id, with results of at most so many bytes.
func (r *Receipts) read(ctx context.Context, l look, ids []string, left *room, longest int) (map[string][]receipt.Receipt, error) {
	held := make(map[string][]receipt.Receipt, len(ids))
	err := database.InTx(ctx, r.db, func(tx *sqlx.Tx) error {
		if _, err := tx.ExecContext(ctx, `SET LOCAL statement_timeout = '`+queryLimit+`'`); err != nil {
			return err
		}
		ctx, stop := context.WithCancel(ctx)
		defer stop()
		rows, err := tx.QueryxContext(ctx, l.query(), pq.StringArray(ids), mostReceipts+1, longest)
		if err != nil {
			return err
		}
		defer func() { _ = rows.Close() }()
		for rows.Next() {
			var s stored
			if err := rows.StructScan(&s); err != nil {
				return err
			}
			item, err := r.item(ctx, s)
			if err == nil && !left.takes(item) {
				err = ErrTooManyReceipts
			}
			if err != nil {
				stop() // or all rows that are left would be read
				return err
			}
			held[l.id(item)] = append(held[l.id(item)], item)
		}
		return rows.Err()
	})
	return held, err
}

// item is the row as it is sent. The constraints of the table see to it that all but the result can be read.
func (r *Receipts) item(ctx context.Context, s stored) (receipt.Receipt, error) {
	item := receipt.Receipt{
		CallID: s.CallID, BizID: s.BizID, Operation: s.Operation, IdempotencyKey: s.IdempotencyKey,
		Status: s.Status, Attempt: s.Attempt, ProcessedAt: s.ProcessedAt.UTC(),
	}
	var trouble error
	switch {
	case s.ResultBytes > mostResult:
		trouble = fmt.Errorf("%d bytes, more than the %d of a whole receipt", s.ResultBytes, mostResult)
	case s.Result.Valid:
		item.Result = []byte(s.Result.String)
		trouble = item.Check()
	}
	who := printable.Call(s.CallID, s.BizID, s.Attempt)
	if trouble != nil {
		r.log.ErrorContext(ctx, who+" nobody can read the result of this receipt, it is answered without", "error", trouble)
		item.Result = nil
	}
	if item.Result == nil {
		if err := item.Check(); err != nil {
			return receipt.Receipt{}, fmt.Errorf("%w: %s: %w", errUnreadable, who, err)
		}
	}
	raw, err := item.MarshalJSON()
	item.Raw = raw
	return item, err
}

// room is what may still be added to an answer.
type room struct{ receipts, bytes int }

func (r *room) takes(item receipt.Receipt) bool {
	r.receipts--
	r.bytes -= len(item.Raw) + len(",")
	return r.receipts >= 0 && r.bytes >= 0
}
