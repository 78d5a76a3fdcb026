package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"

	"github.com/jmoiron/sqlx"

	"github.com/callreceipt/reconciler/idempotency"
	"github.com/callreceipt/reconciler/internal/database"
	"github.com/callreceipt/reconciler/receipt"
)

const receiptsPath = "/receipts/query"

// downstream is the service that executes calls and proves it: POST /charge, /reserve and /send, and POST /receipts/query.
// It is on 127.0.0.1, behind a network that loses things.
type downstream struct {
	*service
	db      *sqlx.DB
	guard   *idempotency.Guard
	network *network
	end     context.CancelFunc
}

// newDownstream makes the tables of the business and binds; it does not listen yet.
func newDownstream(ctx context.Context, db *sqlx.DB, plan [][]Call, log *slog.Logger) (*downstream, error) {
	if err := makeEffects(ctx, db); err != nil {
		return nil, err
	}
	guard, err := idempotency.New(idempotency.Config{DB: db, Log: log})
	if err != nil {
		return nil, err
	}
	life, end := context.WithCancel(context.WithoutCancel(ctx)) // it works until close, whatever becomes of its callers
	d := &downstream{db: db, guard: guard, end: end}
	mux := http.NewServeMux()
	mux.Handle("POST "+receiptsPath, idempotency.NewReceipts(db, log))
	for _, tool := range Tools {
		mux.Handle("POST /"+tool.Operation, d.handler(tool))
	}
	d.network = newNetwork(life, mux, plan)
	if d.service, err = bind("the downstream", d.network); err != nil {
		end()
		return nil, err
	}
	return d, nil
}

// close ends the service and everything it is doing.
func (d *downstream) close(ctx context.Context) error {
	d.end()
	return d.service.close(ctx)
}

// handler executes the calls of one tool. What takes long, or is not guarded, has a way of its own.
func (d *downstream) handler(tool Tool) http.Handler {
	guarded := d.guard.Handler(d.executeOnce)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body) // the network has bounded it
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		switch {
		case !tool.Repeatable:
			answer(w, r, body, d.executeAlways)
		case work[accountOf(body)] > 0:
			answer(w, r, body, d.executeSlowly)
		default:
			r.Body = io.NopCloser(bytes.NewReader(body))
			guarded.ServeHTTP(w, r)
		}
	})
}

// executeOnce is called by the guard for the first arrival of a key, in the transaction of key and receipt.
func (d *downstream) executeOnce(ctx context.Context, tx *sqlx.Tx, call idempotency.Request) (json.RawMessage, error) {
	if accountOf(call.Body) == accountDeclined {
		return nil, idempotency.Refuse(nil)
	}
	return execute(ctx, tx, call)
}

// executeSlowly does work that goes on outside of a transaction: who asks meanwhile is told PROCESSING.
func (d *downstream) executeSlowly(ctx context.Context, call idempotency.Request) (receipt.Receipt, error) {
	claim, kept, err := d.guard.Begin(ctx, call)
	if err != nil || claim == nil {
		return kept, err
	}
	d.network.wait(nil, work[accountOf(call.Body)])
	var done json.RawMessage
	err = database.InTx(ctx, d.db, func(tx *sqlx.Tx) (err error) {
		done, err = execute(ctx, tx, call)
		return err
	})
	if err != nil {
		return receipt.Receipt{}, err
	}
	return d.guard.Complete(ctx, *claim, done)
}

// executeAlways is a service that knows no keys: it executes whatever arrives, and does no more than to keep the receipt. So it must
// never be sent a call twice. Its receipts have no result, since two different ones of one call would be refused, and the second
// execution be undone.
func (d *downstream) executeAlways(ctx context.Context, call idempotency.Request) (receipt.Receipt, error) {
	kept := receipt.Receipt{
		CallID: call.CallID, BizID: call.BizID, Operation: call.Operation, IdempotencyKey: call.IdempotencyKey, Attempt: call.Attempt,
		Status: receipt.StatusSuccess,
	}
	err := database.InTx(ctx, d.db, func(tx *sqlx.Tx) error {
		if accountOf(call.Body) == accountDeclined {
			kept.Status = receipt.StatusFailed
		} else if _, err := execute(ctx, tx, call); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, `SELECT idempotency.keep_receipt($1, $2, $3, $4, $5, NULL, $6, clock_timestamp())`,
			kept.CallID, kept.BizID, kept.Operation, kept.IdempotencyKey, kept.Status, kept.Attempt)
		return err
	})
	return kept, err
}

// answer does what a call asks for and answers with its receipt.
func answer(w http.ResponseWriter, r *http.Request, body []byte, execute func(context.Context, idempotency.Request) (receipt.Receipt, error)) {
	call, err := idempotency.ParseRequest(body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	kept, err := execute(r.Context(), call)
	if err != nil {
		status := http.StatusInternalServerError
		if errors.Is(err, idempotency.ErrProcessing) {
			status = http.StatusConflict
		}
		http.Error(w, err.Error(), status)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(kept) // a caller that has gone hears nothing
}

// accountOf reads what only the business understands.
func accountOf(body []byte) string {
	var request struct {
		Account string `json:"account"`
	}
	_ = json.Unmarshal(body, &request) // what is no request has no account, and is refused by whoever reads the rest
	return request.Account
}
