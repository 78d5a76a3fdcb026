package idempotency

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/callreceipt/reconciler/internal/database"
	"github.com/callreceipt/reconciler/internal/printable"
	"github.com/callreceipt/reconciler/receipt"
)

// Config is what a Guard needs to know. One Guard serves all operations that have the same rules.
type Config struct {
	// DB is the database of the business, with the tables of schema idempotency in it, opened with lib/pq. Required. Three statements are
	// prepared on each of its connections, so a pooler in between has to keep prepared statements.
	DB *sqlx.DB
	// RerunFailed lets a key whose result is FAILED be executed anew, for another callId or a later attempt.
	RerunFailed bool
	// Wait is how long an arrival waits for another one that is executing the same key; 0 means 1 s, at most 1 m.
	Wait time.Duration
	// Remember is how long a key is remembered at least; 0 means 168 h. It is noted with the key, for whoever archives.
	Remember time.Duration
	// Log gets the panics of business functions, and what Handler answers with 500. Nil discards.
	Log *slog.Logger
}

const (
	defaultWait     = time.Second
	mostWait        = time.Minute
	defaultRemember = 168 * time.Hour
)

// Guard executes every intent once. It is safe for concurrent use and keeps everything in the database, so any number of processes may
// have one each.
type Guard struct {
	db          *sqlx.DB
	rerunFailed bool
	waitMS      int64
	remember    string // an interval of PostgreSQL
	log         *slog.Logger
	prepared    atomic.Pointer[statements] // nil until the first arrival
}

// New checks cfg and names the value that is wrong. It connects to nothing.
func New(cfg Config) (*Guard, error) {
	switch {
	case cfg.DB == nil:
		return nil, errors.New("Config.DB is missing")
	case cfg.Wait < 0 || cfg.Wait > mostWait:
		return nil, fmt.Errorf("Config.Wait: %s, must be from 0 (%s) to %s", cfg.Wait, defaultWait, mostWait)
	case cfg.Remember < 0:
		return nil, fmt.Errorf("Config.Remember: %s, must not be negative", cfg.Remember)
	}
	if cfg.Wait == 0 {
		cfg.Wait = defaultWait
	}
	if cfg.Remember == 0 {
		cfg.Remember = defaultRemember
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &Guard{
		db:          cfg.DB,
		rerunFailed: cfg.RerunFailed,
		waitMS:      max(1, cfg.Wait.Milliseconds()),
		remember:    strconv.FormatInt(cfg.Remember.Microseconds(), 10) + " microseconds",
		log:         cfg.Log,
	}, nil
}

// Do executes the business function once for the key of the request, and answers with the receipt of this call: with the result of
// the first execution, whoever made it, byte for byte. The function's writes, the key and the receipt are one transaction (READ
// COMMITTED): they are there together or not at all, also when the context ends in the middle.
//
// The function writes through tx alone, neither commits nor rolls back, and returns one JSON value, or nil for none. It may run more
// than once, but only one run is ever committed. When it returns a *Refusal (see Refuse), its writes are rolled back, and the receipt
// says FAILED with a nil error. When it returns another error, panics (which is logged), or brings a result that no receipt can carry,
// nothing is left, and the next arrival of the key executes.
//
// The errors to branch on are ErrProcessing, which comes with a receipt that says PROCESSING, ErrOtherPayload, ErrExpired and
// ErrIssuedInFuture. After any other, ask for the receipt or send again: if its text says that the outcome of the COMMIT is unknown,
// the call may have been executed.
func (g *Guard) Do(ctx context.Context, r Request, fn func(ctx context.Context, tx *sqlx.Tx) (json.RawMessage, error)) (receipt.Receipt, error) {
	a, err := g.answer(ctx, r, func(tx *sqlx.Tx) (ending, error) {
		result, err := g.call(ctx, tx, r, fn)
		return ending{receipt.StatusSuccess, result}, err
	})
	if refusal, ok := errors.AsType[*Refusal](err); ok {
		// Those that succeed pay for no savepoint, so the whole transaction is gone and the claim with it. If somebody else has
		// executed the key since, theirs is the answer.
		a, err = g.answer(ctx, r, func(*sqlx.Tx) (ending, error) { return ending{receipt.StatusFailed, refusal.Result}, nil })
	}
	return a.receipt, err
}

// call makes an error of a panic. What net/http means by http.ErrAbortHandler is kept, and so is a runtime.Goexit; the transaction is
// rolled back with all of them.
func (g *Guard) call(ctx context.Context, tx *sqlx.Tx, r Request, fn func(context.Context, *sqlx.Tx) (json.RawMessage, error)) (result json.RawMessage, err error) {
	defer func() {
		switch p := recover(); p {
		case nil:
		case http.ErrAbortHandler:
			panic(p)
		default:
			err = &panicked{printable.Text(fmt.Sprint(p))}
			g.log.ErrorContext(ctx, prefix(r)+" the business function panicked, its transaction is rolled back",
				"error", err, "stack", string(debug.Stack()))
		}
	}()
	return fn(ctx, tx)
}

// answer is what became of an arrival.
type answer struct {
	receipt   receipt.Receipt
	executed  bool      // by this very arrival
	createdAt time.Time // of the key; only with executed, as xid
	xid       string    // of the transaction that claimed the key
}

// ending is how an execution ended.
type ending struct {
	status receipt.Status
	result json.RawMessage
}

// answer answers an arrival; work runs only if its key is to be executed.
func (g *Guard) answer(ctx context.Context, r Request, work func(tx *sqlx.Tx) (ending, error)) (answer, error) {
	r, err := r.checked()
	if err != nil {
		return answer{}, err
	}
	a, err := g.transaction(ctx, r, work)
	if errors.Is(err, errNoPartition) {
		if err = g.ensurePartitions(ctx); err == nil {
			a, err = g.transaction(ctx, r, work)
		}
	}
	if errors.Is(err, database.ErrCommitUnknown) {
		a, err = g.reread(ctx, r, a, err)
	}
	if err == nil && a.receipt.Status == receipt.StatusProcessing && !a.executed {
		err = ErrProcessing
	}
	switch {
	case errors.Is(err, ErrProcessing):
		return a, named(r, err)
	case err != nil:
		return answer{}, named(r, cut(ctx, err))
	}
	return a, nil
}

// transaction is one try.
func (g *Guard) transaction(ctx context.Context, r Request, work func(tx *sqlx.Tx) (ending, error)) (answer, error) {
	var a answer
	if err := g.prepare(ctx); err != nil {
		return a, err
	}
	err := database.InTx(ctx, readCommitted{g.db}, func(tx *sqlx.Tx) (err error) {
		if a, err = g.arrive(ctx, tx, r); err != nil || !a.executed {
			return err
		}
		end, err := work(tx)
		if err != nil {
			return err
		}
		a.receipt, err = g.settle(ctx, tx, r, a, end)
		return err
	})
	return a, err
}

// ensurePartitions makes the partitions that a running reconciler would have made ahead of time.
func (g *Guard) ensurePartitions(ctx context.Context) error {
	err := database.InTx(ctx, g.db, func(tx *sqlx.Tx) error {
		_, err := tx.ExecContext(ctx, `SELECT idempotency.ensure_partitions()`)
		return err
	})
	if err != nil {
		return fmt.Errorf("%w, and making it failed (run as the owner of the schema: SELECT idempotency.ensure_partitions()): %w", errNoPartition, err)
	}
	return nil
}

// named says which call an error is about.
func named(r Request, err error) error {
	return fmt.Errorf("call %s with key %s: %w", printable.ID(r.CallID), printable.ID(r.IdempotencyKey), err)
}

// cut adds why the context ended: what comes from the driver then does not tell.
func cut(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
		return fmt.Errorf("%w: %w", cause, err)
	}
	return err
}
