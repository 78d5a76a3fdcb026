package partition

import (
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"

	"github.com/jmoiron/sqlx"

	"github.com/callreceipt/reconciler/internal/database"
	"github.com/callreceipt/reconciler/internal/pause"
)

// lockAttempts is how often a lock is asked for in one run; whoever still has it then is left alone until the next run.
const lockAttempts = 5

// alter runs fn in a transaction.
func (a *Archiver) alter(ctx context.Context, fn func(tx *sqlx.Tx) error) error {
	return a.transact(ctx, readCommitted{a.cfg.DB}, fn)
}

// readCommitted opens transactions of that level, whatever the default of the database is: what is read after a lock was had has to be
// what is there then.
type readCommitted struct{ db *sqlx.DB }

func (r readCommitted) BeginTxx(ctx context.Context, _ *sql.TxOptions) (*sqlx.Tx, error) {
	return r.db.BeginTxx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
}

// transact runs fn in a transaction that writes every value in one way and waits no longer than LockTimeout for each lock, again and
// again for a while. Everybody who comes after us waits as long as we do, so the waits are short and there are pauses between them.
func (a *Archiver) transact(ctx context.Context, db database.Beginner, fn func(tx *sqlx.Tx) error) error {
	return a.patiently(ctx, func() error { return a.once(ctx, db, fn) })
}

// once is transact for those who go without when somebody has the lock.
func (a *Archiver) once(ctx context.Context, db database.Beginner, fn func(tx *sqlx.Tx) error) error {
	return database.InTx(ctx, db, func(tx *sqlx.Tx) error {
		if err := exact(ctx, tx); err != nil {
			return err
		}
		// A process that is stopped in the middle has its locks taken away by the server.
		if _, err := tx.ExecContext(ctx, `SELECT set_config('lock_timeout', $1, true), set_config('idle_in_transaction_session_timeout', '10s', true)`, a.lockTimeout()); err != nil {
			return err
		}
		return fn(tx)
	})
}

// patiently repeats fn while somebody else has the lock that it needs.
func (a *Archiver) patiently(ctx context.Context, fn func() error) error {
	for attempt := 1; ; attempt++ {
		err := fn()
		if err == nil || !database.Busy(err) {
			return err
		}
		if attempt == lockAttempts {
			return &Held{ReasonLocked, fmt.Sprintf("not had in %d attempts of %s: %v", attempt, a.cfg.LockTimeout, err)}
		}
		if err := pause.For(ctx, a.cfg.LockTimeout+rand.N(a.cfg.LockTimeout)); err != nil { //nolint:gosec // a jitter need not be secret
			return err
		}
	}
}

func (a *Archiver) lockTimeout() string { return fmt.Sprintf("%dms", a.cfg.LockTimeout.Milliseconds()) }
