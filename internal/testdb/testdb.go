// Package testdb gives every test a database of its own with our tables in it, on a real PostgreSQL.
package testdb

import (
	"context"
	"testing"

	"github.com/jmoiron/sqlx"

	"github.com/callreceipt/reconciler/internal/database"
	"github.com/callreceipt/reconciler/internal/localpg"
	"github.com/callreceipt/reconciler/migrations"
)

// URL makes a migrated database that lives as long as the test.
func URL(t testing.TB) string {
	t.Helper()
	return localpg.NewDatabase(t, localpg.Migration{Key: migrations.Reconciler.Key(), Apply: migrate})
}

// New opens a migrated database.
func New(t testing.TB) *sqlx.DB {
	t.Helper()
	return Open(t, URL(t))
}

// Open connects to a database until the test ends.
func Open(t testing.TB, dsn string) *sqlx.DB {
	t.Helper()
	db, err := database.Open(dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

func migrate(ctx context.Context, dsn string) error {
	db, err := database.Open(dsn)
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }()
	_, err = migrations.Reconciler.Up(ctx, db.DB)
	return err
}
