// Package database opens PostgreSQL and runs transactions the way money needs it: every write inside a
// transaction (database/sql silently repeats a bare Exec when a backend dies), and a COMMIT whose outcome is
// unknown is told apart from one that failed.
package database

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/lib/pq"
	"github.com/lib/pq/pqerror"
)

// MaxConns bounds the connections one process opens, unless it says otherwise.
const MaxConns = 25

// Open prepares a pool for dsn. It connects to nothing yet. On its connections no answer is waited for longer than statement_timeout of
// the dsn and a little more: a server that hangs, or whose host is gone without a word, is an error then.
func Open(dsn string) (*sqlx.DB, error) { return open(dsn, patience) }

// OpenForMigrations is Open for statements that set statement_timeout aside, such as building an index beside the traffic: they may
// take as long as they want.
func OpenForMigrations(dsn string) (*sqlx.DB, error) {
	return open(dsn, func(pq.Config) pq.Dialer { return nil })
}

// OpenPatient is Open for statements that read whole tables: they may take as long as they want, but a server that says nothing for so
// long is given up.
func OpenPatient(dsn string, silence time.Duration) (*sqlx.DB, error) {
	return open(dsn, func(pq.Config) pq.Dialer { return patient{silence} })
}

func open(dsn string, dialer func(pq.Config) pq.Dialer) (*sqlx.DB, error) {
	cfg, err := pq.NewConfig(dsn)
	if err != nil {
		return nil, fmt.Errorf("reading the database URL: %w", err)
	}
	connector, err := pq.NewConnectorConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("reading the database URL: %w", err)
	}
	if d := dialer(cfg); d != nil {
		connector.Dialer(d)
	}
	db := sqlx.NewDb(sql.OpenDB(connector), "postgres")
	db.SetMaxOpenConns(MaxConns)
	db.SetMaxIdleConns(MaxConns)
	db.SetConnMaxIdleTime(5 * time.Minute)
	return db, nil
}

// ErrCommitUnknown marks a COMMIT that was sent and whose answer never came: the transaction happened, or it
// did not. The caller reads the rows again before it decides anything.
var ErrCommitUnknown = errors.New("the outcome of the COMMIT is unknown")

// Beginner opens a transaction: a pool, or one pinned connection of it.
type Beginner interface {
	BeginTxx(ctx context.Context, opts *sql.TxOptions) (*sqlx.Tx, error)
}

// InTx runs fn in one transaction: COMMIT when it returns nil, ROLLBACK otherwise.
func InTx(ctx context.Context, db Beginner, fn func(tx *sqlx.Tx) error) error {
	tx, err := db.BeginTxx(ctx, nil)
	if err != nil {
		return fmt.Errorf("opening a transaction: %w", err)
	}
	defer func() { _ = tx.Rollback() }() // after a COMMIT this does nothing
	if err := fn(tx); err != nil {
		return err
	}
	err = tx.Commit()
	switch {
	case err == nil:
		return nil
	case pq.As(err) != nil, errors.Is(err, sql.ErrTxDone), errors.Is(err, pq.ErrInFailedTransaction):
		return fmt.Errorf("committing: %w", err) // the server said no, or the transaction had been rolled back
	default:
		return fmt.Errorf("%w: %w", ErrCommitUnknown, err)
	}
}

// Busy reports an error after which the same transaction may succeed when run again at once: a lock not had in
// time, a deadlock, a serialization failure.
func Busy(err error) bool {
	return pq.As(err, pqerror.TRSerializationFailure, pqerror.TRDeadlockDetected, pqerror.LockNotAvailable) != nil
}

// Refused reports that the server will never take these values: a data exception (22), a broken constraint (23), a limit (54).
// The SQLSTATE is returned for the reader.
func Refused(err error) (sqlstate string, ok bool) {
	e := pq.As(err)
	if e == nil {
		return "", false
	}
	class := e.Code.Class()
	return string(e.Code), class == pqerror.ClassDataException || class == pqerror.ClassIntegrityConstraintViolation ||
		class == pqerror.ClassProgramLimitExceeded
}

// ErrReadOnly says that an administrator has taken writes away from everybody: default_transaction_read_only is on. The driver
// opens transactions READ WRITE, which the server would let pass.
var ErrReadOnly = errors.New("the database is read-only")

// Unreachable reports that the server was not there, or went away in the middle: connection trouble, a shutdown,
// a start-up, no free slot, or that it takes no writes, as a standby does not. The statement did not take effect unless it was a
// COMMIT. A caller whose own context ended looks at that first: a dial that ran into its deadline looks like one that ran into
// connect_timeout.
func Unreachable(err error) bool {
	if errors.Is(err, ErrReadOnly) || pq.As(err, pqerror.ReadOnlySQLTransaction) != nil {
		return true
	}
	if e := pq.As(err); e != nil {
		switch e.Code.Class() {
		case pqerror.ClassConnectionException, pqerror.ClassOperatorIntervention, pqerror.ClassInsufficientResources:
			return e.Code != pqerror.QueryCanceled
		}
		return false
	}
	if errors.Is(err, context.Canceled) {
		return false
	}
	// A killed backend comes as a bare "driver: bad connection" without an SQLSTATE, and a server that hangs up during the
	// handshake as an EOF.
	_, network := errors.AsType[*net.OpError](err)
	return network || errors.Is(err, driver.ErrBadConn) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}
