package localpg

import (
	"context"
	"database/sql"
	"errors"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/lib/pq"
)

// letters is a migration set with one table and one row, and a count of how often it was applied.
func letters(key string) (Migration, *atomic.Int32) {
	applied := &atomic.Int32{}
	return Migration{Key: key, Apply: func(ctx context.Context, dsn string) error {
		applied.Add(1)
		return run(ctx, dsn, "CREATE TABLE letters (letter text); INSERT INTO letters VALUES ('a')")
	}}, applied
}

func run(ctx context.Context, dsn, statements string) (err error) {
	connector, err := pq.NewConnector(dsn)
	if err != nil {
		return err
	}
	db := sql.OpenDB(connector)
	defer func() { err = errors.Join(err, db.Close()) }()
	_, err = db.ExecContext(ctx, statements)
	return err
}

func mustRun(t *testing.T, dsn, statements string) {
	t.Helper()
	if err := run(t.Context(), dsn, statements); err != nil {
		t.Fatal(err)
	}
}

// given is a cluster on a server that was there before, as with RECONCILER_TEST_DATABASE_URL.
func given(t *testing.T, dsn string) *cluster {
	t.Helper()
	c, err := openCluster(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

func TestEachTestHasACopyOfItsOwn(t *testing.T) {
	t.Parallel()
	set, applied := letters("copies")
	for range 4 {
		t.Run("", func(t *testing.T) {
			t.Parallel()
			dsn := NewDatabase(t, set)
			mustRun(t, dsn, "INSERT INTO letters VALUES ('b')")
			if got := query(t, dsn, "SELECT string_agg(letter, '' ORDER BY letter) FROM letters"); got != "ab" {
				t.Errorf("the table holds %q", got)
			}
			if n := applied.Load(); n > 1 {
				t.Errorf("applied %d times", n)
			}
		})
	}
}

func TestWithoutMigrationsTheDatabaseIsEmpty(t *testing.T) {
	t.Parallel()
	dsn := NewDatabase(t, Migration{})
	if got := query(t, dsn, "SELECT count(*) FROM pg_class WHERE relnamespace = 'public'::regnamespace"); got != "0" {
		t.Errorf("%s relations", got)
	}
}

func TestADatabaseGoesWithItsTestAndWithWhoIsConnected(t *testing.T) {
	t.Parallel()
	var name string
	t.Run("a test", func(t *testing.T) {
		dsn := NewDatabase(t, Migration{})
		name = query(t, dsn, "SELECT current_database()")
		connector, err := pq.NewConnector(dsn)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := connector.Connect(t.Context()); err != nil { // and never closed
			t.Fatal(err)
		}
	})
	if got := query(t, shared.dsn(""), "SELECT count(*) FROM pg_database WHERE datname = '"+name+"'"); got != "0" || name == "" {
		t.Errorf("database %q is still there", name)
	}
}

func TestProcessesOnOneServerBuildATemplateOnce(t *testing.T) {
	t.Parallel()
	s := startTest(t, testLauncher(t), Options{})
	set, applied := letters("several processes")
	var wg sync.WaitGroup
	for range 3 {
		c := given(t, s.DSN("postgres"))
		wg.Go(func() {
			if _, err := c.template(t.Context(), set); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n := applied.Load(); n != 1 {
		t.Errorf("applied %d times", n)
	}
}

func TestATemplateThatWasNotFinishedIsBuiltAgain(t *testing.T) {
	t.Parallel()
	s := startTest(t, testLauncher(t), Options{})
	set, applied := letters("half done")
	broken := Migration{Key: set.Key, Apply: func(ctx context.Context, dsn string) error {
		return run(ctx, dsn, "CREATE TABLE letters (letter text); SELECT 1/0")
	}}
	_, err := given(t, s.DSN("")).template(t.Context(), broken)
	if err == nil || !strings.Contains(err.Error(), "division by zero") {
		t.Errorf("error: %v", err)
	}
	c := given(t, s.DSN(""))
	name, err := c.template(t.Context(), Migration{Key: "another", Apply: set.Apply})
	if err != nil {
		t.Fatal(err)
	}
	// What a builder killed in mid-work leaves:
	mustRun(t, s.DSN(""), "CREATE DATABASE "+templateName(set.Key)+"_unfinished TEMPLATE "+name)
	dsn := c.newDatabase(t, set)
	if got := query(t, dsn, "SELECT count(*) FROM letters"); got != "1" || applied.Load() != 2 {
		t.Errorf("%s letters, applied %d times", got, applied.Load())
	}
}

func TestARoleThatMayNotCreateDatabasesIsToldSo(t *testing.T) {
	t.Parallel()
	s := startTest(t, testLauncher(t), Options{})
	mustRun(t, s.DSN(""), "CREATE ROLE tester LOGIN PASSWORD 'x'")
	u, err := url.Parse(s.DSN(""))
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword("tester", "x")
	_, err = openCluster(t.Context(), u.String())
	if err == nil || !strings.Contains(err.Error(), `ALTER ROLE "tester" CREATEDB`) {
		t.Errorf("error: %v", err)
	}
	mustRun(t, s.DSN(""), "ALTER ROLE tester CREATEDB")
	set, _ := letters("of a role that is no superuser")
	t.Run("and with the right it goes", func(t *testing.T) {
		dsn := given(t, u.String()).newDatabase(t, set)
		if got := query(t, dsn, "SELECT letter FROM letters"); got != "a" {
			t.Errorf("the table holds %q", got)
		}
	})
}

func TestAGivenServerMustBeAURLWithADatabase(t *testing.T) {
	t.Parallel()
	for _, dsn := range []string{"host=localhost dbname=x", "postgres://localhost", "mysql://localhost/x", "://"} {
		if _, err := openCluster(t.Context(), dsn); err == nil || !strings.Contains(err.Error(), envTestDatabase) {
			t.Errorf("%q: %v", dsn, err)
		}
	}
}

func TestMainLeavesNothing(t *testing.T) {
	t.Parallel()
	p := startProgram(t, "", nil, envTestDatabase+"=")
	if err := p.Wait(); err != nil {
		t.Error(err)
	}
	nothingLeft(t, p.temp)
}
