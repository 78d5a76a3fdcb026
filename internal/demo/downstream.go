package demo

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/callreceipt/reconciler/receipt"
)

const slowWork = 1200 * time.Millisecond // longer than any caller waits

// downstream is the service that executes calls and proves it: POST /charge, /reserve and /send, and POST /receipts/query.
// It listens on 127.0.0.1, behind a network that loses things.
type downstream struct {
	*service
	ledger  *ledger
	network *network
	end     context.CancelFunc
}

// message is a call on the wire; a retry differs from it in attempt alone.
type message struct {
	CallID         string    `json:"callId"`
	BizID          string    `json:"bizId"`
	Operation      string    `json:"operation"`
	Attempt        int       `json:"attempt"`
	Timestamp      time.Time `json:"timestamp"`
	IdempotencyKey string    `json:"idempotencyKey"`
	Account        string    `json:"account"`
}

func startDownstream(ctx context.Context, db *sqlx.DB, plan [][]Call) (*downstream, error) {
	ledger, err := newLedger(ctx, db)
	if err != nil {
		return nil, err
	}
	life, end := context.WithCancel(context.WithoutCancel(ctx)) // it works until close, whatever becomes of its callers
	d := &downstream{ledger: ledger, end: end}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /receipts/query", d.answerReceipts)
	for _, tool := range Tools {
		mux.HandleFunc("POST /"+tool.Operation, d.answerCall(tool))
	}
	d.network = newNetwork(life, mux, plan)
	if d.service, err = serve(ctx, "the downstream", d.network); err != nil {
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

// answerCall executes calls of one tool.
func (d *downstream) answerCall(tool Tool) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var m message
		if err := json.NewDecoder(r.Body).Decode(&m); err != nil || m.Operation != tool.Operation {
			http.Error(w, "this is no "+tool.Operation, http.StatusBadRequest)
			return
		}
		status := receipt.StatusSuccess
		switch m.Account {
		case accountDeclined:
			status = receipt.StatusFailed
		case accountSlow:
			status = receipt.StatusProcessing
		}
		kept, fresh, err := d.ledger.arrive(r.Context(), m, status, tool.Repeatable)
		if err == nil && fresh && status == receipt.StatusProcessing {
			d.network.wait(nil, slowWork)
			kept, err = d.ledger.finish(r.Context(), m)
		}
		reply(w, kept, err)
	}
}

// answerReceipts lists every receipt held for each bizId asked, or says NOT_FOUND of it.
func (d *downstream) answerReceipts(w http.ResponseWriter, r *http.Request) {
	var question struct {
		BizIDs []string `json:"bizIds"`
	}
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody)).Decode(&question); err != nil {
		http.Error(w, "this is no question for receipts", http.StatusBadRequest)
		return
	}
	held, err := d.ledger.receipts(r.Context(), question.BizIDs)
	known := map[string]bool{}
	for _, p := range held {
		known[p.BizID] = true
	}
	for _, id := range question.BizIDs {
		if !known[id] {
			known[id] = true
			held = append(held, proof{BizID: id, Status: receipt.StatusNotFound})
		}
	}
	reply(w, map[string]any{"receipts": held}, err)
}

func reply(w http.ResponseWriter, body any, err error) {
	if err != nil {
		http.Error(w, "the ledger cannot be reached", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(body) // a caller that has gone hears nothing
}
