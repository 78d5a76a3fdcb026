package idempotency

import (
	"bytes"
	"context"
	"crypto/sha256"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/lib/pq"
	"github.com/lib/pq/pqerror"

	"github.com/callreceipt/reconciler/receipt"
)

// readCommitted opens transactions of that level, whatever the default of the database is: arrive waits for the other arrival and then
// sees what it did, where the stricter levels would refuse.
type readCommitted struct{ db *sqlx.DB }

func (r readCommitted) BeginTxx(ctx context.Context, _ *sql.TxOptions) (*sqlx.Tx, error) {
	return r.db.BeginTxx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
}

// statements are what every execution needs. Without them lib/pq prepares each anew for every use, which is a round trip more and costs
// the server as much as the work itself.
type statements struct{ claim, arrive, settle *sql.Stmt }

// prepare is called before a transaction is opened: with one open, it could wait for the very connection that the transaction holds.
// Of several at once each prepares for itself and one is kept: who waited for another would outlast his own context.
func (g *Guard) prepare(ctx context.Context) error {
	if g.prepared.Load() != nil {
		return nil
	}
	s, err := newStatements(ctx, g.db)
	if err == nil && g.prepared.CompareAndSwap(nil, s) {
		return nil
	}
	for _, stmt := range []*sql.Stmt{s.claim, s.arrive, s.settle} {
		if stmt != nil {
			_ = stmt.Close() // at the latest it ends with its connection
		}
	}
	return err
}

func newStatements(ctx context.Context, db *sqlx.DB) (s *statements, err error) {
	s = &statements{}
	// The first arrival of a key gets a row: what idempotency.arrive does for it under the same conditions, for half the cost. It never
	// waits for another arrival, since whoever may execute the key holds its advisory lock. The watermark is read before the claim is made,
	// so settle reads it again. The digest is made of the bytes that were sent; where the database keeps text in an encoding that may
	// change them, only idempotency.arrive knows it. The type of the answer is not the table's, which somebody may change.
	s.claim, err = db.PrepareContext(ctx, `
		INSERT INTO idempotency.claims (key_digest, created_at)
		SELECT $1::bytea, date_trunc('milliseconds', greatest(clock_timestamp(), $2::timestamptz) + interval '1 millisecond')
		WHERE pg_try_advisory_xact_lock(idempotency.key_lock($1::bytea)) AND $2::timestamptz <= clock_timestamp() + interval '5 minutes'
			AND NOT EXISTS (SELECT FROM idempotency.watermarks w WHERE w.table_name = 'idempotency.keys' AND $2::timestamptz < w.watermark)
			AND NOT EXISTS (SELECT FROM idempotency.receipts r WHERE r.call_id = $3::text)
			AND getdatabaseencoding() IN ('UTF8', 'SQL_ASCII')
		ON CONFLICT DO NOTHING RETURNING created_at::timestamptz, pg_current_xact_id()::text`)
	switch {
	case pq.As(err, pqerror.UndefinedFunction) != nil:
		return s, fmt.Errorf("schema idempotency is older than this library, run 'reconciler migrate up --for downstream': %w", err)
	case err != nil:
		return s, fmt.Errorf("preparing the claim of a key: %w", err)
	}
	// A function in FROM would cost the server a tuple store; OFFSET keeps it from being called for each column.
	s.arrive, err = db.PrepareContext(ctx, `
		SELECT (a).outcome, (a).created_at, (a).status, (a).result, (a).answered_attempt, (a).processed_at, pg_current_xact_id()::text
		FROM (SELECT idempotency.arrive($1, $2, $3, $4, $5, $6, $7, $8, $9) AS a OFFSET 0) AS arrival`)
	if err != nil {
		return s, fmt.Errorf("preparing idempotency.arrive: %w", err)
	}
	// As idempotency.settle, which looks for the claim instead of the transaction that made it. No row comes back when the watermark has
	// passed the call since, or when this is another transaction; and false when a receipt of the call was there.
	s.settle, err = db.PrepareContext(ctx, `
		WITH key AS (
			INSERT INTO idempotency.keys (idempotency_key, biz_id, operation, call_id, attempt, status, result, request_hash, issued_at,
				created_at, completed_at, expires_at)
			SELECT $1::text, $2::text, $3::text, $4::text, $5::integer, $9::text, $10::json, $7::bytea, $6::timestamptz, $8::timestamptz,
				CASE WHEN $9::text <> 'PROCESSING' THEN statement_timestamp() END, $8::timestamptz + $11::interval
			WHERE pg_current_xact_id()::text = $12
				AND NOT EXISTS (SELECT FROM idempotency.watermarks w WHERE w.table_name = 'idempotency.keys' AND $6::timestamptz < w.watermark)
			RETURNING statement_timestamp() AS at
		), kept AS (
			INSERT INTO idempotency.receipts (call_id, biz_id, operation, idempotency_key, status, result, attempt, processed_at)
			SELECT $4::text, $2::text, $3::text, $1::text, $9::text, $10::json, $5::integer, at FROM key
			ON CONFLICT DO NOTHING RETURNING true
		)
		SELECT at, EXISTS (SELECT FROM kept) FROM key`)
	if err != nil {
		return s, fmt.Errorf("preparing the settlement of a key: %w", err)
	}
	return s, nil
}

// proof is what the database has of a call.
type proof struct {
	Status      sql.NullString `db:"status"`
	Result      []byte         `db:"result"`
	Attempt     sql.NullInt32  `db:"attempt"`
	ProcessedAt sql.NullTime   `db:"processed_at"`
}

// receipt is the proof as a receipt of the request's call.
func (r Request) receipt(p proof) receipt.Receipt {
	answer := receipt.Receipt{
		CallID: r.CallID, BizID: r.BizID, Operation: r.Operation, IdempotencyKey: r.IdempotencyKey,
		Status: receipt.Status(p.Status.String), Result: p.Result, Attempt: int(p.Attempt.Int32),
	}
	if p.ProcessedAt.Valid {
		answer.ProcessedAt = p.ProcessedAt.Time.UTC()
	}
	return answer
}

// processing is the receipt of a call whose key is being executed.
func (r Request) processing() receipt.Receipt {
	return receipt.Receipt{
		CallID: r.CallID, BizID: r.BizID, Operation: r.Operation, IdempotencyKey: r.IdempotencyKey,
		Status: receipt.StatusProcessing, Attempt: r.Attempt,
	}
}

// arrive asks what to do with the request. Like settle it leaves it to the transaction to watch ctx, which it does from its beginning: a
// watcher more for each statement would cost what a statement costs the server.
func (g *Guard) arrive(ctx context.Context, tx *sqlx.Tx, r Request) (answer, error) {
	var (
		createdAt sql.NullTime
		xid       string
	)
	digest := sha256.Sum256([]byte(r.IdempotencyKey))
	err := tx.StmtContext(ctx, g.prepared.Load().claim).QueryRowContext(context.WithoutCancel(ctx), //nolint:sqlclosecheck // it ends with the transaction
		digest[:], r.IssuedAt, r.CallID).Scan(&createdAt, &xid)
	switch {
	case err == nil:
		return answer{executed: true, createdAt: createdAt.Time, xid: xid}, nil
	case !errors.Is(err, sql.ErrNoRows):
		return answer{}, fmt.Errorf("claiming the key: %w", err)
	}
	var (
		outcome string
		p       proof
	)
	err = tx.StmtContext(ctx, g.prepared.Load().arrive).QueryRowContext(ctx, //nolint:sqlclosecheck // it ends with the transaction
		r.IdempotencyKey, r.BizID, r.Operation, r.CallID, r.Attempt, r.IssuedAt, r.Hash, g.rerunFailed, g.waitMS).
		Scan(&outcome, &createdAt, &p.Status, &p.Result, &p.Attempt, &p.ProcessedAt, &xid)
	switch {
	case pq.As(err, pqerror.LockNotAvailable) != nil:
		return answer{receipt: r.processing()}, ErrProcessing
	case otherIntent(err):
		return answer{}, ErrOtherPayload
	case err != nil:
		return answer{}, fmt.Errorf("idempotency.arrive: %w", err)
	}
	switch outcome {
	case "EXECUTE":
		return answer{executed: true, createdAt: createdAt.Time, xid: xid}, nil
	case "REPEAT":
		return answer{receipt: r.receipt(p)}, nil
	case "PROCESSING": // and that is on record
		return answer{receipt: r.processing()}, nil
	case "OTHER_PAYLOAD":
		return answer{}, ErrOtherPayload
	case "EXPIRED":
		return answer{}, ErrExpired
	case "IN_FUTURE":
		return answer{}, ErrIssuedInFuture
	}
	return answer{}, fmt.Errorf("idempotency.arrive says %q, which this version does not know", outcome)
}

// settle records how an execution ended that arrive gave to this transaction.
func (g *Guard) settle(ctx context.Context, tx *sqlx.Tx, r Request, a answer, end ending) (receipt.Receipt, error) {
	end, err := end.checked(r)
	if err != nil {
		return receipt.Receipt{}, err
	}
	var (
		at   time.Time
		kept bool
	)
	err = tx.StmtContext(ctx, g.prepared.Load().settle).QueryRowContext(context.WithoutCancel(ctx), //nolint:sqlclosecheck // it ends with the transaction
		r.IdempotencyKey, r.BizID, r.Operation, r.CallID, r.Attempt, r.IssuedAt, r.Hash, a.createdAt, end.status, end.text(), g.remember, a.xid).
		Scan(&at, &kept)
	if err == nil && !kept {
		err = tx.GetContext(ctx, &kept, `SELECT idempotency.keep_receipt($1, $2, $3, $4, $5, $6, $7, $8)`,
			r.CallID, r.BizID, r.Operation, r.IdempotencyKey, end.status, end.text(), r.Attempt, at)
	}
	switch {
	case noPartition(err):
		return receipt.Receipt{}, errNoPartition
	case otherIntent(err):
		return receipt.Receipt{}, ErrOtherPayload
	case errors.Is(err, sql.ErrNoRows):
		return receipt.Receipt{}, notSettled(ctx, tx, a)
	case errors.Is(err, sql.ErrTxDone) && ctx.Err() == nil:
		return receipt.Receipt{}, fmt.Errorf("the business function ended the transaction itself, and what it wrote may be there without a receipt: %w", err)
	case err != nil:
		return receipt.Receipt{}, fmt.Errorf("settling the key: %w", err)
	case !kept: // committed, the effect would have a receipt that speaks of another execution
		return receipt.Receipt{}, fmt.Errorf("settling the key: the call has a receipt of attempt %d or a later one already", r.Attempt)
	}
	answer := r.processing()
	answer.Status, answer.Result, answer.ProcessedAt = end.status, end.result, at.UTC()
	return answer, nil
}

// notSettled tells why a key was not settled.
func notSettled(ctx context.Context, tx *sqlx.Tx, a answer) error {
	var same bool
	if err := tx.GetContext(ctx, &same, `SELECT pg_current_xact_id()::text = $1`, a.xid); err != nil {
		return fmt.Errorf("settling the key: %w", err)
	}
	if same {
		return ErrExpired
	}
	return errors.New("settling the key: the business function ended the transaction itself; nothing is settled, and what it wrote after a COMMIT of its own may be there without a receipt")
}

// checked trims the white space around the result, and refuses one that a receipt cannot carry to its reader. It is tried in the longest
// receipt that it will stand in: later attempts, and calls with other ids, are answered with it as well.
func (e ending) checked(r Request) (ending, error) {
	if e.result == nil {
		return e, nil
	}
	if e.result = bytes.Trim(e.result, " \t\r\n"); len(e.result) == 0 {
		return ending{}, errors.New("the result of the business function is empty, which is no JSON; nil is no result")
	}
	longest := r.processing()
	longest.Status, longest.Result, longest.Attempt = e.status, e.result, math.MaxInt32
	longest.ProcessedAt = time.Date(9999, 12, 31, 23, 59, 59, 999_999_000, time.UTC)
	if len(e.result) > 128<<10 { // a small one has room for any id
		longest.CallID = strings.Repeat(`"`, receipt.MaxCallID)
	}
	if err := longest.Check(); err != nil {
		return ending{}, fmt.Errorf("no receipt can carry the result of the business function: %w", err)
	}
	return e, nil
}

// text passes the result as text: lib/pq sends []byte as bytea when binary parameters are on.
func (e ending) text() sql.NullString {
	return sql.NullString{String: string(e.result), Valid: e.result != nil}
}

// reread finds out what became of a transaction whose COMMIT brought no answer. What is on record of the call is the answer, whoever put
// it there; if nothing is, the COMMIT may still be on its way.
func (g *Guard) reread(ctx context.Context, r Request, a answer, unknown error) (answer, error) {
	var p proof
	err := g.db.GetContext(ctx, &p, `
		SELECT status, result, attempt, processed_at FROM idempotency.receipts
		WHERE call_id = $1 AND (idempotency_key, biz_id, operation) = ($2, $3, $4) AND attempt >= $5`,
		r.CallID, r.IdempotencyKey, r.BizID, r.Operation, r.Attempt)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return answer{}, unknown
	case err != nil:
		return answer{}, fmt.Errorf("%w, and reading again failed: %w", unknown, err)
	}
	found := r.receipt(p)
	// Two arrivals of one attempt may both have begun the key; the instant tells whose COMMIT it was.
	a.executed = a.executed && found.Status == a.receipt.Status && found.ProcessedAt.Equal(a.receipt.ProcessedAt)
	a.receipt = found
	return a, nil
}
