// Package task is what every scheduled piece of work shares, whatever it does: it holds a lease while it works on its
// subject, and it leaves a row in the table of runs.
package task

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/callreceipt/reconciler/internal/database"
)

// LeaseTTL is how long a lease outlives its last renewal. It is renewed every third of it.
const LeaseTTL = 15 * time.Second

// grace is how long an acquirer waits for the session of a holder that was just killed to be noticed by the server.
const grace = 2 * time.Second

// HeldError says that somebody else works on it.
type HeldError struct {
	Name, Holder string
	ExpiresIn    time.Duration
}

func (e *HeldError) Error() string {
	return fmt.Sprintf("lease %s is held by %s for another %s", e.Name, e.Holder, e.ExpiresIn.Round(time.Second))
}

// ErrLeaseLost is the cause with which the work's context ends when the lease could not be renewed in time, or when
// somebody else has it.
var ErrLeaseLost = errors.New("the lease was lost")

// Hold runs work while it holds the lease, and gives it back afterwards. The context of work ends, with ErrLeaseLost as its
// cause, when the lease is lost; the lease is a courtesy that keeps two workers apart, and no write may rest on it.
//
// The lease is written and judged by the database clock alone, on a connection of its own. Should the holder die, that
// connection ends, and the next one need not wait for the expiry. *HeldError is returned when it is not to be had.
func Hold(ctx context.Context, db *sqlx.DB, log *slog.Logger, name, holder string, work func(ctx context.Context) error) error {
	l := lease{db: db, name: name, holder: holder, ttl: LeaseTTL}
	return l.hold(ctx, log, work)
}

type lease struct {
	db           *sqlx.DB
	conn         *sqlx.Conn
	name, holder string
	ttl          time.Duration
	fence        int64
}

func (l *lease) hold(ctx context.Context, log *slog.Logger, work func(ctx context.Context) error) (err error) {
	defer l.close()
	if err := l.acquire(ctx); err != nil {
		return err
	}
	held, lose := context.WithCancelCause(ctx)
	renewed := make(chan struct{})
	go func() {
		defer close(renewed)
		l.keep(held, lose)
	}()
	// Deferred, since the work may panic and the process go on: renewals that went on too would keep the lease for ever.
	defer func() {
		lose(nil)
		<-renewed
		if errors.Is(context.Cause(held), ErrLeaseLost) {
			err = errors.Join(err, fmt.Errorf("working on %s: %w", l.name, ErrLeaseLost))
			return
		}
		// The work may have ended because ctx did; the lease is given back all the same.
		free, cancel := context.WithTimeout(context.WithoutCancel(ctx), l.ttl/3)
		defer cancel()
		if err := l.release(free); err != nil {
			level := slog.LevelWarn
			if database.Unreachable(err) { // of which whoever scheduled the work says enough
				level = slog.LevelDebug
			}
			log.Log(free, level, "lease not given back, it will expire", "lease", l.name, "error", err)
		}
	}()
	return work(held)
}

// acquire takes the lease when it is free, expired, or held by a session that is gone. The server needs a moment to notice that
// a process was killed, so a held lease is asked for again for a short while.
func (l *lease) acquire(ctx context.Context) error {
	for waited := time.Duration(0); ; waited += grace / 10 {
		err := l.tryAcquire(ctx)
		var held *HeldError
		if !errors.As(err, &held) || waited >= grace {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(grace / 10):
		}
	}
}

// mySession identifies the connection that carries the lease. Pids are used again, so the start goes with it.
const mySession = `pg_backend_pid(), (SELECT backend_start FROM pg_stat_activity WHERE pid = pg_backend_pid())`

func (l *lease) tryAcquire(ctx context.Context) error {
	return l.inTx(ctx, func(tx *sqlx.Tx) error {
		err := tx.GetContext(ctx, &l.fence, `
			INSERT INTO reconciler.leases AS l (name, holder, fence, expires_at, backend_pid, backend_start)
			SELECT $1, $2, 1, clock_timestamp() + $3 * interval '1 second', `+mySession+`
			WHERE NOT current_setting('default_transaction_read_only')::boolean
			ON CONFLICT (name) DO UPDATE SET holder = excluded.holder, fence = l.fence + 1, expires_at = excluded.expires_at,
				backend_pid = excluded.backend_pid, backend_start = excluded.backend_start
			WHERE l.expires_at <= clock_timestamp() OR NOT EXISTS (
				SELECT FROM pg_stat_activity a WHERE a.pid = l.backend_pid
				AND coalesce(a.backend_start = l.backend_start, true)) -- the start is hidden from other roles
			RETURNING fence`, l.name, l.holder, l.ttl.Seconds())
		if !errors.Is(err, sql.ErrNoRows) {
			return wrap(err, "taking lease %s", l.name)
		}
		held := HeldError{Name: l.name}
		var seconds float64
		var readOnly bool
		err = tx.QueryRowxContext(ctx, `
			SELECT coalesce(l.holder, ''), coalesce(extract(epoch FROM l.expires_at - clock_timestamp()), 0)::float8,
				current_setting('default_transaction_read_only')::boolean
			FROM (SELECT) one LEFT JOIN reconciler.leases l ON l.name = $1`,
			l.name).Scan(&held.Holder, &seconds, &readOnly)
		if err == nil && readOnly {
			err = fmt.Errorf("%w: default_transaction_read_only is on", database.ErrReadOnly)
		}
		if err != nil {
			return fmt.Errorf("asking who holds lease %s: %w", l.name, err)
		}
		held.ExpiresIn = time.Duration(seconds * float64(time.Second))
		return &held
	})
}

// keep renews until ctx ends. A failed renewal is tried again until the lease would have expired by our own monotonic
// clock; from then on somebody else may hold it, and the work has to stop.
func (l *lease) keep(ctx context.Context, lose context.CancelCauseFunc) {
	ticker := time.NewTicker(l.ttl / 3)
	defer ticker.Stop()
	expired := time.NewTimer(l.ttl)
	defer expired.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-expired.C:
			lose(fmt.Errorf("%w: not renewed for %s", ErrLeaseLost, l.ttl))
			return
		case <-ticker.C:
		}
		once, cancel := context.WithTimeout(ctx, l.ttl/3)
		err := l.renewOnce(once)
		cancel()
		switch {
		case err == nil:
			expired.Reset(l.ttl)
		case errors.Is(err, ErrLeaseLost):
			lose(err)
			return
		}
	}
}

// renewOnce goes on with a new connection at once when the old one broke: until the new one carries the lease, anybody may
// take it.
func (l *lease) renewOnce(ctx context.Context) error {
	err := l.renew(ctx)
	if err != nil && !errors.Is(err, ErrLeaseLost) {
		err = l.renew(ctx)
	}
	return err
}

func (l *lease) renew(ctx context.Context) error {
	return l.inTx(ctx, func(tx *sqlx.Tx) error {
		res, err := tx.ExecContext(ctx, `
			UPDATE reconciler.leases SET expires_at = clock_timestamp() + $4 * interval '1 second',
				(backend_pid, backend_start) = (SELECT `+mySession+`)
			WHERE name = $1 AND holder = $2 AND fence = $3`, l.name, l.holder, l.fence, l.ttl.Seconds())
		if err != nil {
			return fmt.Errorf("renewing lease %s: %w", l.name, err)
		}
		if n, err := res.RowsAffected(); err != nil || n == 0 {
			return fmt.Errorf("%w: %s has another holder", ErrLeaseLost, l.name)
		}
		return nil
	})
}

func (l *lease) release(ctx context.Context) error {
	return l.inTx(ctx, func(tx *sqlx.Tx) error {
		_, err := tx.ExecContext(ctx, `
			UPDATE reconciler.leases SET expires_at = clock_timestamp() WHERE name = $1 AND holder = $2 AND fence = $3`,
			l.name, l.holder, l.fence)
		return wrap(err, "giving back lease %s", l.name)
	})
}

// inTx works on the lease's own connection, and on a new one when the old one broke.
func (l *lease) inTx(ctx context.Context, fn func(tx *sqlx.Tx) error) error {
	if l.conn == nil {
		conn, err := l.db.Connx(ctx)
		if err != nil {
			return fmt.Errorf("connecting for lease %s: %w", l.name, err)
		}
		l.conn = conn
	}
	err := database.InTx(ctx, l.conn, fn)
	var held *HeldError
	if err != nil && !errors.As(err, &held) && !errors.Is(err, ErrLeaseLost) {
		l.close()
	}
	return err
}

func (l *lease) close() {
	if l.conn != nil {
		_ = l.conn.Close()
		l.conn = nil
	}
}

func wrap(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf(format+": %w", append(args, err)...)
}
