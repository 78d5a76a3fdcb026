// Command downstream is a payment service. It executes each charge once, however often and by whomever it is sent, and tells what
// became of it. The tables of its guard are made before, by "reconciler migrate up --for downstream".
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/jmoiron/sqlx"
	_ "github.com/lib/pq"

	"github.com/callreceipt/reconciler/idempotency"
)

// Nothing here makes a payment unique: the guard does.
const schema = `
CREATE TABLE IF NOT EXISTS payments (
    id     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    biz_id text   NOT NULL,
    amount bigint NOT NULL
)`

const limit = 1_000_000 // cents

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	if err := run(ctx, os.Getenv("DATABASE_URL"), os.Getenv("LISTEN"), log); err != nil {
		log.Error("the payment service ends", "error", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, databaseURL, listen string, log *slog.Logger) error {
	db, err := sqlx.ConnectContext(ctx, "postgres", databaseURL)
	if err != nil {
		return fmt.Errorf("opening DATABASE_URL: %w", err)
	}
	defer func() { _ = db.Close() }()
	db.SetMaxOpenConns(20)
	if _, err := db.ExecContext(ctx, schema); err != nil {
		return fmt.Errorf("making table payments: %w", err)
	}
	guard, err := idempotency.New(idempotency.Config{DB: db, Log: log})
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.Handle("/charge", guard.Handler(charge))
	mux.Handle("/receipts/query", idempotency.NewReceipts(db, log))
	return serve(ctx, &http.Server{Addr: listen, Handler: mux, ReadTimeout: 10 * time.Second, WriteTimeout: 30 * time.Second}, log)
}

// charge is the business. It runs in the transaction in which the guard writes the receipt, so that the payment and its proof
// are there together or not at all. The error of a refusal is a result, and is remembered; any other error is none, and the
// call may come again.
func charge(ctx context.Context, tx *sqlx.Tx, r idempotency.Request) (json.RawMessage, error) {
	var body struct {
		Amount int64 `json:"amount"`
	}
	if err := json.Unmarshal(r.Body, &body); err != nil || r.Operation != "charge" || body.Amount < 1 || body.Amount > limit {
		return nil, idempotency.Refuse(json.RawMessage(`{"code": "not_allowed"}`))
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second) // the guard sets none, not even when the caller has gone
	defer cancel()
	var id int64
	if err := tx.GetContext(ctx, &id, `INSERT INTO payments (biz_id, amount) VALUES ($1, $2) RETURNING id`, r.BizID, body.Amount); err != nil {
		return nil, fmt.Errorf("storing the payment: %w", err)
	}
	return fmt.Appendf(nil, `{"ref": "ch_%d"}`, id), nil
}

// serve runs the server until the context ends. Charges in hand are finished first; those that take longer are rolled back.
func serve(ctx context.Context, server *http.Server, log *slog.Logger) error {
	ended := make(chan error, 1)
	go func() { ended <- server.ListenAndServe() }()
	log.Info("the payment service listens", "address", server.Addr)
	select {
	case err := <-ended:
		return fmt.Errorf("listening on LISTEN: %w", err)
	case <-ctx.Done():
	}
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	err := server.Shutdown(grace)
	if errors.Is(err, context.DeadlineExceeded) {
		return server.Close()
	}
	return err
}
