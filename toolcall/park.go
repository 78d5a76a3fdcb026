package toolcall

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/callreceipt/reconciler/internal/database"
	"github.com/callreceipt/reconciler/internal/printable"
	"github.com/callreceipt/reconciler/pending"
)

const (
	parkLimit = 5 * time.Second // for all tries together
	parkGrace = time.Second     // for the driver to notice that they are over
	parkTries = 6
)

// errNotCalled is a Transaction that reports success and has parked nothing.
var errNotCalled = errors.New("Call.Transaction returned nil and did not call park")

// park stores the call, whatever has become of the caller's context. Nil means that it is in the table. The error is a
// *NotParkedError, and has been logged: a call that is lost must leave a trace also where nobody looks at errors.
func (r *run) park(ctx context.Context, attempt int, kind pending.TimeoutKind) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), parkLimit)
	defer cancel()
	s := r.call.suspension(attempt, r.lastSent, kind)
	began := r.now()
	store := r.parkInOwn
	if r.call.transaction != nil {
		store = r.parkInTheirs
	}
	err := store(ctx, s)
	if err != nil && ctx.Err() != nil {
		err = fmt.Errorf("after the %s that parking may take: %w", parkLimit, err)
	}
	r.record(Step{Action: ActionPark, Took: r.now().Sub(began), Err: err})
	attrs := []any{slog.String("tool", s.Tool), slog.String("timeout_kind", string(kind)), slog.String("steps", fmt.Sprint(r.steps))}
	who := printable.Call(s.CallID, s.BizID, s.Attempt)
	if err != nil {
		r.log.ErrorContext(ctx, who+" the outcome is unknown, and the call could not be parked", append(attrs, slog.String("error", err.Error()))...)
		return &NotParkedError{CallID: s.CallID, Suspension: s, Err: err}
	}
	r.log.InfoContext(ctx, who+" the outcome is unknown, the call is parked", attrs...)
	return nil
}

// parkInOwn parks in a transaction of its own. Where a network or a server has fallen silent, the driver waits for an answer whatever
// ctx says, and is left behind. What it may still do is the same row.
func (r *run) parkInOwn(ctx context.Context, s pending.Suspension) error {
	ended := make(chan error, 1)
	go func() { ended <- r.tryToPark(ctx, s) }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	grace := time.NewTimer(parkGrace)
	defer grace.Stop()
	select {
	case err := <-ended:
		return err
	case <-grace.C:
		return fmt.Errorf("the database does not answer: %w", ctx.Err())
	}
}

// tryToPark tries again also after a COMMIT whose outcome is unknown, since parking twice is one row.
func (r *run) tryToPark(ctx context.Context, s pending.Suspension) error {
	wait := r.waits()
	for try := 1; ; try++ {
		err := database.InTx(ctx, r.db, func(tx *sqlx.Tx) error {
			_, err := pending.Suspend(ctx, tx, s)
			return err
		})
		if err == nil || !passing(err) || try == parkTries || ctx.Err() != nil {
			return err
		}
		timer := time.NewTimer(wait.NextBackOff())
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
	}
}

// passing tells whether the same transaction may succeed in a moment, or has succeeded already.
func passing(err error) bool {
	return database.Busy(err) || database.Unreachable(err) || errors.Is(err, database.ErrCommitUnknown)
}

// parkInTheirs parks in the caller's transaction. Whether to try again is the caller's to decide, who knows what else is in it. A panic
// there is an error here, or nobody would be told of the call.
func (r *run) parkInTheirs(ctx context.Context, s pending.Suspension) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("Call.Transaction panicked: %s", printable.Text(fmt.Sprint(p)))
			r.log.ErrorContext(ctx, printable.Call(s.CallID, s.BizID, s.Attempt)+" Call.Transaction panicked", slog.String("error", err.Error()), slog.String("stack", string(debug.Stack())))
		}
	}()
	parked := errNotCalled
	err = r.call.transaction(ctx, func(ext sqlx.ExtContext) error {
		_, parked = pending.Suspend(ctx, ext, s)
		return parked
	})
	if err == nil {
		err = parked // a Transaction that hides the error of park has not parked the call
	}
	return err
}
