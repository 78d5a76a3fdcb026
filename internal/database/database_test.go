package database_test

import (
	"context"
	"database/sql"
	"errors"
	"io"
	"net"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/lib/pq"

	"github.com/callreceipt/reconciler/internal/database"
	"github.com/callreceipt/reconciler/internal/localpg"
	"github.com/callreceipt/reconciler/internal/pgproxy"
	"github.com/callreceipt/reconciler/internal/testdb"
)

func TestMain(m *testing.M) { os.Exit(localpg.Main(m)) }

// numbers is a pool on a database with a table of three numbers, and the URL for it.
func numbers(t *testing.T) (*sqlx.DB, string) {
	t.Helper()
	dsn := localpg.NewDatabase(t, localpg.Migration{})
	db := testdb.Open(t, dsn)
	db.MustExec(`CREATE TABLE numbers (n int PRIMARY KEY, v int NOT NULL DEFAULT 0); INSERT INTO numbers VALUES (1), (2), (3)`)
	return db, dsn
}

// with adds a run-time parameter to a database URL.
func with(t *testing.T, dsn, name, text string) string {
	t.Helper()
	u, err := url.Parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	q := u.Query()
	q.Set(name, text)
	u.RawQuery = q.Encode()
	return u.String()
}

// inTx runs statements in one transaction.
func inTx(ctx context.Context, db database.Beginner, statements ...string) error {
	return database.InTx(ctx, db, func(tx *sqlx.Tx) error {
		for _, s := range statements {
			if _, err := tx.ExecContext(ctx, s); err != nil {
				return err
			}
		}
		return nil
	})
}

func count(t *testing.T, db *sqlx.DB) (n int) {
	t.Helper()
	if err := db.Get(&n, `SELECT count(*) FROM numbers`); err != nil {
		t.Fatal(err)
	}
	return n
}

// kind is one word for what is said of an error.
func kind(err error) string {
	var words []string
	if database.Busy(err) {
		words = append(words, "busy")
	}
	if state, ok := database.Refused(err); ok {
		words = append(words, "refused "+state)
	}
	if database.Unreachable(err) {
		words = append(words, "unreachable")
	}
	if errors.Is(err, database.ErrCommitUnknown) {
		words = append(words, "unknown")
	}
	return strings.Join(words, ", ")
}

func TestEveryErrorOfTheServerIsOfOneKindOrOfNone(t *testing.T) {
	t.Parallel()
	db, dsn := numbers(t)
	db.MustExec(`ALTER TABLE numbers ADD CONSTRAINT small CHECK (v < 100)`)
	held := db.MustBegin()
	defer func() { _ = held.Rollback() }()
	held.MustExec(`SELECT FROM numbers WHERE n = 1 FOR UPDATE`)
	hasty := testdb.Open(t, with(t, dsn, "lock_timeout", "50ms"))
	for _, tt := range []struct{ want, statement string }{
		{"busy", `UPDATE numbers SET v = 1 WHERE n = 1`},
		{"busy", `SELECT FROM numbers WHERE n = 1 FOR UPDATE NOWAIT`},
		{"busy", `DO $$ BEGIN RAISE SQLSTATE '40001'; END $$`},
		{"refused 23505", `INSERT INTO numbers VALUES (2)`},
		{"refused 23502", `INSERT INTO numbers VALUES (null)`},
		{"refused 23514", `UPDATE numbers SET v = 100 WHERE n = 2`},
		{"refused 22003", `SELECT '{"n":1e200000}'::jsonb`},
		{"refused 22003", `UPDATE numbers SET v = 2147483647 + 1`},
		{"refused 22P05", `SELECT '"\u0000"'::jsonb`},
		{"refused 22P02", `SELECT '{'::jsonb`},
		{"refused 22021", "SELECT E'\\xff'"},
		{"refused 54000", `SELECT tsvector(string_agg(n::text, ' ')) FROM generate_series(1, 300000) n`},
		{"", `SELECT FROM nothing`}, // a bug or a missing migration, which no other value mends
		{"", `SELECT FROM`},
		{"", `SET LOCAL statement_timeout = 20; SELECT pg_sleep(60)`},
		{"unreachable", `SELECT pg_terminate_backend(pg_backend_pid())`},
		{"unreachable", `DO $$ BEGIN RAISE SQLSTATE '53300'; END $$`},
		{"unreachable", `DO $$ BEGIN RAISE SQLSTATE '57P03'; END $$`},
		{"unreachable", `DO $$ BEGIN RAISE SQLSTATE '08006'; END $$`},
	} {
		err := inTx(t.Context(), hasty, tt.statement)
		if err == nil {
			t.Errorf("%s: no error", tt.statement)
		} else if got := kind(err); got != tt.want {
			t.Errorf("%s: %q, want %q: %v", tt.statement, got, tt.want, err)
		}
	}
}

func TestADeadlockIsBusy(t *testing.T) {
	t.Parallel()
	db, dsn := numbers(t)
	other := testdb.Open(t, with(t, dsn, "deadlock_timeout", "60s")).MustBegin()
	defer func() { _ = other.Rollback() }()
	other.MustExec(`UPDATE numbers SET v = 1 WHERE n = 2`)
	tx := testdb.Open(t, with(t, dsn, "deadlock_timeout", "50ms")).MustBegin()
	defer func() { _ = tx.Rollback() }()
	tx.MustExec(`UPDATE numbers SET v = 2 WHERE n = 1`)
	done := make(chan error, 1)
	go func() {
		_, err := other.Exec(`UPDATE numbers SET v = 1 WHERE n = 1`)
		done <- err
	}()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for waits := false; !waits; <-tick.C {
		if err := db.Get(&waits, `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database())`); err != nil {
			t.Fatal(err)
		}
	}
	_, err := tx.Exec(`UPDATE numbers SET v = 2 WHERE n = 2`)
	if e := pq.As(err); e == nil || e.Code != "40P01" || kind(err) != "busy" {
		t.Errorf("%q: %v", kind(err), err)
	}
	if err := tx.Rollback(); err != nil {
		t.Error(err)
	}
	if err := <-done; err != nil {
		t.Errorf("the other one: %v", err)
	}
}

func TestAServerThatIsNotThereIsUnreachable(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0") // it accepts and says nothing
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	for name, dsn := range map[string]string{
		"nobody listens":   "postgres://x@127.0.0.1:1/x?sslmode=disable",
		"no such host":     "postgres://x@nowhere.invalid/x?sslmode=disable",
		"it never answers": "postgres://x@" + silent.Addr().String() + "/x?sslmode=disable&connect_timeout=1",
		"no such socket":   "postgres:///x?host=/nowhere&user=x&sslmode=disable",
		"it hangs up":      "postgres://x@" + hangUp(t, "") + "/x?sslmode=disable",
		"before TLS":       "postgres://x@" + hangUp(t, "") + "/x?sslmode=require",
		"in TLS":           "postgres://x@" + hangUp(t, "S\x16\x03") + "/x?sslmode=require",
		"amid its message": "postgres://x@" + hangUp(t, "R\x00\x00") + "/x?sslmode=disable",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if err := inTx(t.Context(), testdb.Open(t, dsn), `SELECT 1`); kind(err) != "unreachable" {
				t.Errorf("%q: %v", kind(err), err)
			}
		})
	}
}

// hangUp is the address of a server that hears the client out, says a word and closes the connection.
func hangUp(t *testing.T, word string) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = c.Read(make([]byte, 1024))
			_, _ = io.WriteString(c, word)
			_ = c.Close()
		}
	}()
	return listener.Addr().String()
}

func TestWhatIsNotOfTheServerIsOfNoKind(t *testing.T) {
	t.Parallel()
	db, _ := numbers(t)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, dial := new(net.Dialer).DialContext(ended, "tcp", "127.0.0.1:1")
	var n int
	var scan struct{ N int }
	for name, err := range map[string]error{
		"nothing":           nil,
		"a canceled caller": inTx(ended, db, `SELECT 1`),
		"a canceled dial":   dial,
		"no row":            db.Get(&n, `SELECT n FROM numbers WHERE n = 99`),
		"a wrong type":      db.Get(&n, `SELECT 'x'`),
		"a missing field":   db.Get(&scan, `SELECT 1 AS other`),
		"our own":           errors.New("no"),
		"our own deadline":  context.DeadlineExceeded,
	} {
		if got := kind(err); got != "" || err == nil != (name == "nothing") {
			t.Errorf("%s: %q: %v", name, got, err)
		}
	}
}

func TestACallerThatStopsInTheMiddleOfAStatementIsOfNoKind(t *testing.T) {
	t.Parallel()
	db, _ := numbers(t)
	for name, ended := range map[string]func() (context.Context, context.CancelFunc){
		"a deadline": func() (context.Context, context.CancelFunc) {
			return context.WithTimeout(t.Context(), 200*time.Millisecond)
		},
		"a cancel": func() (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(200*time.Millisecond, cancel)
			return ctx, cancel
		},
	} {
		ctx, cancel := ended()
		err := inTx(ctx, db, `INSERT INTO numbers VALUES (4)`, `SELECT pg_sleep(60)`)
		if err == nil || kind(err) != "" || ctx.Err() == nil {
			t.Errorf("%s: %q: %v", name, kind(err), err)
		}
		cancel()
	}
	if n := count(t, db); n != 3 {
		t.Errorf("%d rows", n)
	}
}

func TestATransactionIsAllOrNothing(t *testing.T) {
	t.Parallel()
	db, _ := numbers(t)
	broken := errors.New("broken")
	err := database.InTx(t.Context(), db, func(tx *sqlx.Tx) error {
		tx.MustExec(`INSERT INTO numbers VALUES (4)`)
		return broken
	})
	if !errors.Is(err, broken) || count(t, db) != 3 {
		t.Errorf("%d rows, %v", count(t, db), err)
	}
	func() {
		defer func() { _ = recover() }()
		_ = database.InTx(t.Context(), db, func(tx *sqlx.Tx) error {
			tx.MustExec(`INSERT INTO numbers VALUES (4)`)
			panic("a bug")
		})
	}()
	if n := count(t, db); n != 3 || db.Stats().InUse != 0 {
		t.Errorf("after a panic: %d rows, %d connections in use", n, db.Stats().InUse)
	}
	if err := inTx(t.Context(), db, `INSERT INTO numbers VALUES (4)`); err != nil || count(t, db) != 4 {
		t.Errorf("%d rows, %v", count(t, db), err)
	}
	conn, err := db.Connx(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := inTx(t.Context(), conn, `INSERT INTO numbers VALUES (5)`); err != nil || count(t, db) != 5 {
		t.Errorf("on one connection: %d rows, %v", count(t, db), err)
	}
}

func TestACommitThatTheServerRefusesIsKnownNotToHaveHappened(t *testing.T) {
	t.Parallel()
	db, _ := numbers(t)
	db.MustExec(`CREATE TABLE children (n int REFERENCES numbers DEFERRABLE INITIALLY DEFERRED)`)
	err := inTx(t.Context(), db, `INSERT INTO numbers VALUES (4)`, `INSERT INTO children VALUES (99)`)
	if kind(err) != "refused 23503" || count(t, db) != 3 {
		t.Errorf("%q, %d rows: %v", kind(err), count(t, db), err)
	}
	for name, fn := range map[string]func(tx *sqlx.Tx) error{
		"a failure that was passed over": func(tx *sqlx.Tx) error {
			tx.MustExec(`INSERT INTO numbers VALUES (4)`)
			_, _ = tx.Exec(`SELECT 1/0`)
			return nil
		},
		"rolled back already": func(tx *sqlx.Tx) error {
			tx.MustExec(`INSERT INTO numbers VALUES (4)`)
			return tx.Rollback()
		},
	} {
		if err := database.InTx(t.Context(), db, fn); err == nil || kind(err) != "" || count(t, db) != 3 {
			t.Errorf("%s: %q, %d rows: %v", name, kind(err), count(t, db), err)
		}
	}
}

func TestACommitWhoseAnswerNeverCameIsUnknown(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		fate pgproxy.Fate
		rows int
	}{
		"it arrived":       {pgproxy.Fate{Arrives: true}, 4},
		"it never arrived": {pgproxy.Fate{}, 3},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, dsn := numbers(t)
			proxied := testdb.Open(t, pgproxy.URL(t, dsn, tt.fate))
			err := inTx(t.Context(), proxied, `INSERT INTO numbers VALUES (4)`)
			if !errors.Is(err, database.ErrCommitUnknown) || count(t, db) != tt.rows {
				t.Errorf("%d rows, want %d: %v", count(t, db), tt.rows, err)
			}
			if err := inTx(t.Context(), proxied, `INSERT INTO numbers VALUES (5)`); err != nil || count(t, db) != tt.rows+1 {
				t.Errorf("the next transaction: %d rows: %v", count(t, db), err)
			}
		})
	}
}

func TestASessionThatIsKilledBeforeTheCommitDidNothing(t *testing.T) {
	t.Parallel()
	db, _ := numbers(t)
	err := database.InTx(t.Context(), db, func(tx *sqlx.Tx) error {
		var pid int
		if err := tx.Get(&pid, `INSERT INTO numbers VALUES (4) RETURNING pg_backend_pid()`); err != nil {
			return err
		}
		_, err := db.Exec(`SELECT pg_terminate_backend($1, 60000)`, pid)
		return err
	})
	if !errors.Is(err, database.ErrCommitUnknown) || count(t, db) != 3 {
		t.Errorf("%d rows: %v", count(t, db), err)
	}
}

func TestAPoolIsBoundedAndAMalformedURLIsRefusedWithoutConnecting(t *testing.T) {
	t.Parallel()
	db, err := database.Open("postgres://x@127.0.0.1:1/x?sslmode=disable")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if n := db.Stats().MaxOpenConnections; n != database.MaxConns {
		t.Errorf("at most %d connections", n)
	}
	if _, err := database.Open("postgres://x:secret@127.0.0.1:port/x"); err == nil || !strings.HasPrefix(err.Error(), "reading the database URL: ") {
		t.Errorf("%v", err)
	}
	if err := inTx(t.Context(), db); errors.Is(err, sql.ErrNoRows) || err == nil || !strings.HasPrefix(err.Error(), "opening a transaction: ") {
		t.Errorf("%v", err)
	}
}
