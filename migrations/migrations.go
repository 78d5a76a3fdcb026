// Package migrations holds the SQL of our tables and applies it: goose files, embedded in the binary.
//
// There are only steps up. A step down would drop open calls, and those are never deleted by anything.
package migrations

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"embed"
	"encoding/hex"
	"fmt"
	"io/fs"
	"path"
	"strings"
	"time"

	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"
)

//go:embed reconciler/*.sql idempotency/*.sql
var files embed.FS

// Set is one schema with its own history.
type Set struct {
	// Schema names the PostgreSQL schema and the folder of the SQL files.
	Schema string
}

// The sets. Reconciler is that of the reconciler's own database; Downstream is that of a service which executes calls, in the
// database of its business. They do not know each other and may share a database.
var (
	Reconciler = Set{Schema: "reconciler"}
	Downstream = Set{Schema: "idempotency"}
)

// MinServer is the oldest PostgreSQL that the SQL runs on, as server_version_num.
const MinServer = 140000

// Step is one migration and when it was applied.
type Step struct {
	Version   int64     `json:"version"`
	Name      string    `json:"name"`
	Applied   bool      `json:"applied"`
	AppliedAt time.Time `json:"applied_at,omitzero"`
}

// historyTable is goose's own table, kept inside the schema so that nothing lands in public.
func (s Set) historyTable() string { return s.Schema + ".schema_migrations" }

// Up applies what is missing and returns it. Concurrent callers wait for each other: one applies, the others
// find nothing to do. It needs the right to create the schema, or an existing schema that it owns.
func (s Set) Up(ctx context.Context, db *sql.DB) ([]Step, error) {
	if err := s.ensureSchema(ctx, db); err != nil {
		return nil, err
	}
	locker, err := lock.NewPostgresSessionLocker()
	if err != nil {
		return nil, err
	}
	provider, err := s.provider(db, goose.WithSessionLocker(locker))
	if err != nil {
		return nil, err
	}
	results, err := provider.Up(ctx)
	var done []Step
	for _, r := range results {
		done = append(done, Step{Version: r.Source.Version, Name: name(r.Source.Path), Applied: true})
	}
	if err != nil {
		return done, fmt.Errorf("migrating schema %s: %w", s.Schema, err)
	}
	return done, nil
}

// ensureSchema creates the schema before goose asks for its history table in it. It does not try when the
// schema exists, since CREATE SCHEMA IF NOT EXISTS wants the right to create even then.
func (s Set) ensureSchema(ctx context.Context, db *sql.DB) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("opening a transaction: %w", err)
	}
	defer func() { _ = tx.Rollback() }()
	var server int
	if err := tx.QueryRowContext(ctx, `SELECT current_setting('server_version_num')::int`).Scan(&server); err != nil {
		return fmt.Errorf("asking for the server version: %w", err)
	}
	if server < MinServer {
		return fmt.Errorf("the server is PostgreSQL %d, and %d or newer is needed", server/10000, MinServer/10000)
	}
	if _, err := tx.ExecContext(ctx, `SELECT pg_advisory_xact_lock(hashtext('reconciler.migrate'))`); err != nil {
		return fmt.Errorf("waiting for another migration: %w", err)
	}
	var exists bool
	if err := tx.QueryRowContext(ctx, `SELECT to_regnamespace($1) IS NOT NULL`, s.Schema).Scan(&exists); err != nil {
		return fmt.Errorf("looking for schema %s: %w", s.Schema, err)
	}
	if !exists {
		if _, err := tx.ExecContext(ctx, `CREATE SCHEMA `+s.Schema); err != nil {
			return fmt.Errorf("creating schema %s: %w", s.Schema, err)
		}
	}
	return tx.Commit()
}

// Status lists every step of this binary and whether the database has it. It only reads.
func (s Set) Status(ctx context.Context, db *sql.DB) ([]Step, error) {
	provider, err := s.provider(nil)
	if err != nil {
		return nil, err
	}
	applied, err := s.history(ctx, db)
	if err != nil {
		return nil, err
	}
	var steps []Step
	for _, src := range provider.ListSources() {
		at, ok := applied[src.Version]
		steps = append(steps, Step{Version: src.Version, Name: name(src.Path), Applied: ok, AppliedAt: at})
	}
	return steps, nil
}

// Pending returns the steps that the database lacks. Steps it has and this binary does not know are a newer
// binary's, made before a rolling upgrade, and are no reason to refuse.
func (s Set) Pending(ctx context.Context, db *sql.DB) ([]Step, error) {
	steps, err := s.Status(ctx, db)
	var pending []Step
	for _, step := range steps {
		if !step.Applied {
			pending = append(pending, step)
		}
	}
	return pending, err
}

// history reads goose's table itself, since goose would create it, and a status asks and changes nothing.
func (s Set) history(ctx context.Context, db *sql.DB) (map[int64]time.Time, error) {
	var exists bool
	err := db.QueryRowContext(ctx, `SELECT to_regclass($1) IS NOT NULL`, s.historyTable()).Scan(&exists)
	if err != nil {
		return nil, fmt.Errorf("looking for the history of schema %s: %w", s.Schema, err)
	}
	applied := map[int64]time.Time{}
	if !exists {
		return applied, nil
	}
	rows, err := db.QueryContext(ctx, `SELECT version_id, tstamp FROM `+s.historyTable()+` WHERE is_applied`)
	if err != nil {
		return nil, fmt.Errorf("reading the history of schema %s: %w", s.Schema, err)
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var version int64
		var at time.Time
		if err := rows.Scan(&version, &at); err != nil {
			return nil, fmt.Errorf("reading the history of schema %s: %w", s.Schema, err)
		}
		applied[version] = at
	}
	return applied, rows.Err()
}

// Key changes whenever a file of the set does; test databases are cloned from a template of that name.
func (s Set) Key() string {
	sum := sha256.New()
	names, _ := fs.Glob(files, s.Schema+"/*.sql") // the pattern is constant, so it cannot be malformed
	for _, n := range names {
		text, _ := files.ReadFile(n) // embedded: it exists
		fmt.Fprintf(sum, "%s %d\n", n, len(text))
		sum.Write(text)
	}
	return s.Schema + "_" + hex.EncodeToString(sum.Sum(nil))[:16]
}

func (s Set) provider(db *sql.DB, opts ...goose.ProviderOption) (*goose.Provider, error) {
	dir, err := fs.Sub(files, s.Schema)
	if err != nil {
		return nil, err
	}
	if db == nil { // goose wants a handle even to list its files; it is never used
		db = new(sql.DB)
	}
	opts = append(opts, goose.WithDisableGlobalRegistry(true), goose.WithTableName(s.historyTable()))
	return goose.NewProvider(goose.DialectPostgres, db, dir, opts...)
}

// name is the file name without folder, number and ending: 00001_pending_confirmations.sql says pending_confirmations.
func name(file string) string {
	_, name, _ := strings.Cut(strings.TrimSuffix(path.Base(file), ".sql"), "_")
	return name
}
