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

// URL makes a database that lives as long as the test, with the tables of the sets; of the reconciler's when none is named.
func URL(t testing.TB, sets ...migrations.Set) string {
	t.Helper()
	if len(sets) == 0 {
		sets = []migrations.Set{migrations.Reconciler}
	}
	key := ""
	for _, s := range sets {
		key += s.Key()
	}
	return localpg.NewDatabase(t, localpg.Migration{Key: key, Apply: func(ctx context.Context, dsn string) error { return migrate(ctx, dsn, sets) }})
}

// New opens a database as URL makes it.
func New(t testing.TB, sets ...migrations.Set) *sqlx.DB {
	t.Helper()
	return Open(t, URL(t, sets...))
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

func migrate(ctx context.Context, dsn string, sets []migrations.Set) error {
	db, err := database.Open(dsn)
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }()
	for _, s := range sets {
		if _, err := s.Up(ctx, db.DB); err != nil {
			return err
		}
	}
	return nil
}
