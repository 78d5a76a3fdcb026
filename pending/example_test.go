package pending_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/callreceipt/reconciler/pending"
)

// What an orchestrator has: a context, a database, when it sent the call, and a way to send one again.
var (
	ctx  = context.Background()
	db   *sqlx.DB
	sent time.Time
	send = func(context.Context, pending.Retry) error { return nil }
)

// The time-out is noted and the call is parked together, or neither is.
func ExampleSuspend() {
	tx, err := db.BeginTxx(ctx, nil)
	if err != nil {
		log.Panic(err)
	}
	defer func() { _ = tx.Rollback() }()
	if _, err := tx.ExecContext(ctx, `UPDATE orders SET state = 'unknown' WHERE id = 'ORD-8'`); err != nil {
		log.Panic(err)
	}
	_, err = pending.Suspend(ctx, tx, pending.Suspension{
		CallID: "ORD-8-0001", BizID: "ORD-8", Tool: "payment.charge", Operation: "charge", IssuedAt: sent, LastSentAt: sent,
		Request: json.RawMessage(`{"amount": 1999}`), TimeoutKind: pending.TimeoutRead,
	})
	if errors.Is(err, pending.ErrOtherCall) {
		log.Panic("two business facts have one callId: ", err)
	}
	if err != nil {
		log.Panic(err)
	}
	if err := tx.Commit(); err != nil {
		log.Panic(err)
	}
}

// Each call is sent once, whatever comes back: the next look decides.
func ExampleTakeRetries() {
	calls, err := pending.TakeRetries(ctx, db, "payment.charge", 100)
	if err != nil {
		log.Panic(err) // send nothing
	}
	for _, call := range calls {
		if err := send(ctx, call); err != nil {
			log.Printf("call %s, attempt %d: %v", call.CallID, call.Attempt, err)
		}
	}
}

// A wait of an hour costs little: all who wait share one query.
func ExampleAwait() {
	ctx, cancel := context.WithTimeout(ctx, time.Hour)
	defer cancel()
	outcome, err := pending.Await(ctx, db, "ORD-8-0001")
	if err != nil {
		log.Panic(err) // no verdict within the hour, or ErrNoSuchCall
	}
	switch outcome.Status {
	case pending.StatusSuccess:
		fmt.Printf("charged: %s\n", outcome.Receipt)
	case pending.StatusFailed:
		fmt.Printf("declined: %s\n", outcome.Receipt)
	case pending.StatusManual:
		fmt.Printf("a person is needed: %s\n", outcome.Reason)
	case pending.StatusPending, pending.StatusRetry: // no verdict yet; never returned
	}
}
