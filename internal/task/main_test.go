package task

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/callreceipt/reconciler/internal/database"
	"github.com/callreceipt/reconciler/internal/localpg"
)

// envHold makes the test binary play a process that holds a lease until it is killed; it names the database.
const envHold = "TASK_TEST_HOLD"

func TestMain(m *testing.M) {
	if dsn := os.Getenv(envHold); dsn != "" {
		fmt.Fprintln(os.Stderr, playHolder(dsn))
		os.Exit(1)
	}
	os.Exit(localpg.Main(m))
}

func playHolder(dsn string) error {
	db, err := database.Open(dsn)
	if err != nil {
		return err
	}
	return Hold(context.Background(), db, slog.New(slog.DiscardHandler), "reconcile:T", "doomed", func(ctx context.Context) error {
		fmt.Println("held")
		<-ctx.Done()
		return ctx.Err()
	})
}

var quiet = slog.New(slog.DiscardHandler)

// newLease is a lease of the test's own, with a short life where the test waits for a renewal.
func newLease(t testing.TB, db *sqlx.DB, holder string, ttl time.Duration) *lease {
	t.Helper()
	l := &lease{db: db, name: "reconcile:T", holder: holder, ttl: ttl}
	t.Cleanup(l.close)
	return l
}

func value[T any](t testing.TB, db *sqlx.DB, query string, args ...any) T {
	t.Helper()
	var v T
	if err := db.Get(&v, query, args...); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return v
}
