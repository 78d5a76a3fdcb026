package idempotency

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"unicode/utf8"

	"github.com/jmoiron/sqlx"

	"github.com/callreceipt/reconciler/internal/printable"
	"github.com/callreceipt/reconciler/receipt"
)

// Handler serves the retry protocol (docs/protocol.md): it reads the call, has the business function executed as Do does, and answers
// with the receipt.
//
//	200  the receipt, SUCCESS or FAILED
//	409  a receipt that says PROCESSING, and Retry-After: 1
//	400  no well-formed call, a header Idempotency-Key that differs from the body, or issued in the future
//	405, 413 (more than 1 MiB), 422 (ErrOtherPayload), 410 (ErrExpired)
//	500  anything else: it is logged, and not told
//
// All but the receipts are {"error":"…"}. Who asks again with the same callId and attempt gets the same bytes.
//
// A call is executed to its end also when its caller has gone: they will ask for the receipt. The context of the function ends with
// nothing, so set it a limit.
func (g *Guard) Handler(fn func(ctx context.Context, tx *sqlx.Tx, r Request) (json.RawMessage, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, ok := aCall.read(w, req)
		if !ok {
			return
		}
		r, err := ParseRequest(body)
		if err == nil {
			err = sameKey(req.Header, r)
		}
		if err != nil {
			deny(w, http.StatusBadRequest, err.Error())
			return
		}
		ctx := context.WithoutCancel(req.Context())
		answer, err := g.Do(ctx, r, func(ctx context.Context, tx *sqlx.Tx) (json.RawMessage, error) { return fn(ctx, tx, r) })
		g.reply(ctx, w, r, answer, err)
	})
}

// sameKey refuses a header that names another key than the body: what stands in between may have acted on it. A key with a control
// character has no header, and white space around it does not survive one.
func sameKey(header http.Header, r Request) error {
	for _, key := range header.Values("Idempotency-Key") {
		if key != "" && utf8.ValidString(key) && key != strings.Trim(r.IdempotencyKey, " \t") {
			return fmt.Errorf("the header Idempotency-Key is %s and the body's key is %s", printable.Quote(key), printable.Quote(r.IdempotencyKey))
		}
	}
	return nil
}

func (g *Guard) reply(ctx context.Context, w http.ResponseWriter, r Request, answer receipt.Receipt, err error) {
	status := http.StatusOK
	switch {
	case errors.Is(err, ErrProcessing):
		w.Header().Set("Retry-After", "1")
		status = http.StatusConflict
	case errors.Is(err, ErrOtherPayload):
		deny(w, http.StatusUnprocessableEntity, ErrOtherPayload.Error())
		return
	case errors.Is(err, ErrExpired):
		deny(w, http.StatusGone, ErrExpired.Error())
		return
	case errors.Is(err, ErrIssuedInFuture):
		deny(w, http.StatusBadRequest, ErrIssuedInFuture.Error())
		return
	case err != nil:
		if _, logged := errors.AsType[*panicked](err); !logged {
			g.log.ErrorContext(ctx, prefix(r)+" the call was answered with 500", "error", err)
		}
		deny(w, http.StatusInternalServerError, "the call was not executed, or nobody knows: ask for its receipt")
		return
	}
	body, err := answer.MarshalJSON()
	if err != nil {
		g.log.ErrorContext(ctx, prefix(r)+" the receipt cannot be written", "error", err)
		deny(w, http.StatusInternalServerError, "ask for the receipt")
		return
	}
	respond(w, status, body)
}
