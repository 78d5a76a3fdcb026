package idempotency

import (
	"context"
	"errors"
	"log/slog"
	"net/http"

	"github.com/jmoiron/sqlx"

	"github.com/callreceipt/reconciler/receipt"
)

// Receipts says what became of calls, from the table idempotency.receipts. It is the http.Handler of the receipt query, and safe
// for concurrent use.
//
// It reads the database that receipts are written to, or the one that a Relay brings them to. A replica, or a relay, that is behind
// says NOT_FOUND of what was executed: its delay must be shorter than the time after which a NOT_FOUND counts (settle).
type Receipts struct {
	db  *sqlx.DB
	log *slog.Logger
}

// NewReceipts answers from db. A nil log discards.
func NewReceipts(db *sqlx.DB, log *slog.Logger) *Receipts {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Receipts{db: db, log: log}
}

// ErrTooManyReceipts means that the answer would hold more receipts, or more bytes, than its reader takes. Ask for fewer ids.
var ErrTooManyReceipts = errors.New("more receipts than one answer may hold, ask for fewer ids at once")

// errUnreadable means that the table holds a receipt that no strict reader takes, not even without its result.
var errUnreadable = errors.New("a receipt that nobody can read")

// ByBiz returns the items of the answer about bizIDs: for each of them every receipt that is held, also a PROCESSING one, or else
// one NOT_FOUND. Raw is the item as it is sent. A result that the strict reader would refuse is left out and logged: with it the
// whole answer would be refused, and its call never settled.
//
// It makes one query by index, of 30 seconds at most. The error is ErrTooManyReceipts above 50,000 items or 8 MiB. One bizId alone,
// whose receipts are that large, is asked for once more and answered without their results.
func (r *Receipts) ByBiz(ctx context.Context, bizIDs []string) ([]receipt.Receipt, error) {
	return r.answer(ctx, byBiz, bizIDs)
}

// ByCall is ByBiz for the calls themselves, and for no other call of the same business.
func (r *Receipts) ByCall(ctx context.Context, callIDs []string) ([]receipt.Receipt, error) {
	return r.answer(ctx, byCall, callIDs)
}

const opening, closing = `{"receipts":[`, `]}`

// ServeHTTP answers a POST of {"bizIds":[…]} or {"callIds":[…]}, up to 1,000 ids and 1 MiB, with 200 and {"receipts":[…]}. Whatever
// is wrong is said in one line of JSON, {"error":"…"}: 400 for a question that is none, 413 for one that is too large or whose
// answer would be, 422 for ids one of which has a receipt that nobody can read, 405, 503 when the request's context ended, and 500
// for trouble of our own, which is logged and not told.
func (r *Receipts) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, ok := aQuestion.read(w, req)
	if !ok {
		return
	}
	q, err := parseQuestion(body)
	switch {
	case errors.Is(err, errTooManyIDs):
		deny(w, http.StatusRequestEntityTooLarge, err.Error())
		return
	case err != nil:
		deny(w, http.StatusBadRequest, err.Error())
		return
	}
	items, err := r.answer(req.Context(), q.look, q.ids)
	switch {
	case errors.Is(err, ErrTooManyReceipts):
		deny(w, http.StatusRequestEntityTooLarge, ErrTooManyReceipts.Error())
	case errors.Is(err, errUnreadable):
		r.log.ErrorContext(req.Context(), "a receipt in the table cannot be read by anybody, its bizId is not answered", "error", err)
		deny(w, http.StatusUnprocessableEntity, errUnreadable.Error()+", ask for fewer ids at once")
	case err != nil && req.Context().Err() != nil: // whoever asked is gone, or out of time
		deny(w, http.StatusServiceUnavailable, "the question was given up")
	case err != nil:
		r.log.ErrorContext(req.Context(), "the receipt query was not answered", "error", err)
		deny(w, http.StatusInternalServerError, "the receipts cannot be read now")
	default:
		respond(w, http.StatusOK, encode(items))
	}
}

// encode is the body of the answer.
func encode(items []receipt.Receipt) []byte {
	size := len(opening) + len(closing)
	for _, item := range items {
		size += len(item.Raw) + len(",")
	}
	body := append(make([]byte, 0, size), opening...)
	for i, item := range items {
		if i > 0 {
			body = append(body, ',')
		}
		body = append(body, item.Raw...)
	}
	return append(body, closing...)
}
