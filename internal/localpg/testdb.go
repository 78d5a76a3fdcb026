package localpg

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lib/pq"
)

// envTestDatabase names a server for the tests to use instead of one of their own. The role in it needs CREATEDB. The
// templates of the migration sets stay on that server, for the next run.
const envTestDatabase = "RECONCILER_TEST_DATABASE_URL"

// testLimit bounds the making and the dropping of one test's database.
const testLimit = 2 * time.Minute

// Migration is a set of migrations that test databases start from. The zero value is an empty database.
type Migration struct {
	// Key stands for the content of the set, normally a hash of it: equal keys share one template.
	Key string
	// Apply brings the empty database at dsn up to the set. It must close every connection it opens.
	Apply func(ctx context.Context, dsn string) error
}

// cluster is the one server of a test binary.
type cluster struct {
	server *Server // nil for a given server
	dsn    func(database string) string
	admin  *sql.DB // the maintenance database
	clone  string  // how CREATE DATABASE copies fastest here

	mu        sync.Mutex
	templates map[string]*template
}

var shared struct {
	once sync.Once
	*cluster
	err error
}

// Main runs the tests of a package and then ends the server that their first NewDatabase started, if any. It is what
// each package's TestMain hands to os.Exit.
func Main(m *testing.M) (code int) {
	defer func() {
		shared.once.Do(func() {}) // nobody starts one from here on
		if shared.cluster == nil {
			return
		}
		if err := shared.close(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = max(code, 1)
		}
	}()
	return m.Run()
}

// NewDatabase makes a database for one test, a copy of the set's template, and returns its URL. The database goes when
// the test ends, with every connection to it. Tests can run in parallel, also in several processes on a given server.
func NewDatabase(t testing.TB, set Migration) string {
	t.Helper()
	shared.once.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), fetchLimit+testLimit)
		defer cancel()
		shared.cluster, shared.err = openCluster(ctx, os.Getenv(envTestDatabase))
	})
	if shared.err != nil {
		t.Fatalf("no database for the tests: %v", shared.err)
	}
	if shared.cluster == nil {
		t.Fatal("no database for the tests: localpg.Main has ended, or an earlier start panicked")
	}
	return shared.newDatabase(t, set)
}

func (c *cluster) newDatabase(t testing.TB, set Migration) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testLimit)
	defer cancel()
	source := "template0"
	if set.Key != "" || set.Apply != nil {
		var err error
		if source, err = c.template(ctx, set); err != nil {
			t.Fatalf("making the template of migration set %q: %v", set.Key, err)
		}
	}
	name := "test_" + randomHex(8)
	t.Cleanup(func() {
		// The test's own context has ended by now.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), testLimit)
		defer cancel()
		if err := execOnce(ctx, c.admin, "DROP DATABASE IF EXISTS "+pq.QuoteIdentifier(name)+" WITH (FORCE)"); err != nil {
			t.Errorf("dropping the test's database: %v", err)
		}
	})
	create := "CREATE DATABASE " + pq.QuoteIdentifier(name) + " TEMPLATE " + pq.QuoteIdentifier(source) + c.clone
	if err := execOnce(ctx, c.admin, create); err != nil {
		t.Fatalf("copying %s for the test: %v", source, err)
	}
	return c.dsn(name)
}

// openCluster starts a server, or uses the given one.
func openCluster(ctx context.Context, given string) (*cluster, error) {
	c := &cluster{templates: map[string]*template{}}
	if given != "" {
		u, err := url.Parse(given)
		if err != nil || !strings.HasPrefix(u.Scheme, "postgres") || strings.Trim(u.Path, "/") == "" {
			return nil, fmt.Errorf("%s must be a URL with a database: postgres://user:password@host:port/database?sslmode=…", envTestDatabase)
		}
		c.dsn = func(database string) string {
			clone := *u
			if database != "" {
				clone.Path, clone.RawPath = "/"+database, ""
			}
			return clone.String()
		}
	} else {
		server, err := Start(ctx, Options{})
		if err != nil {
			return nil, err
		}
		c.server, c.dsn = server, server.DSN
	}
	if err := c.connect(ctx); err != nil {
		return nil, errors.Join(err, c.close())
	}
	return c, nil
}

func (c *cluster) connect(ctx context.Context) error {
	connector, err := pq.NewConnector(c.dsn(""))
	if err != nil {
		return fmt.Errorf("%s: %w", envTestDatabase, err)
	}
	c.admin = sql.OpenDB(connector)
	var (
		role    string
		creates bool
		version int
	)
	err = c.admin.QueryRowContext(ctx, `
		SELECT rolname, rolcreatedb OR rolsuper, current_setting('server_version_num')::int
		FROM pg_roles WHERE rolname = current_user`).Scan(&role, &creates, &version)
	if err != nil {
		return fmt.Errorf("connecting to the tests' PostgreSQL: %w", err)
	}
	if !creates {
		return fmt.Errorf("%s: role %q may not create databases, run: ALTER ROLE %s CREATEDB",
			envTestDatabase, role, pq.QuoteIdentifier(role))
	}
	if version/10000 < oldestMajor {
		return fmt.Errorf("%s: the server is PostgreSQL %d, at least %d is needed", envTestDatabase, version/10000, oldestMajor)
	}
	if version >= 150000 {
		// Measured on an idle machine: 16 ms, against 41 ms for wal_log, the default from 15 on. Version 14 knows nothing else.
		c.clone = " STRATEGY file_copy"
	}
	return nil
}

func (c *cluster) close() error {
	var errs []error
	if c.admin != nil {
		errs = append(errs, c.admin.Close())
	}
	if c.server != nil {
		errs = append(errs, c.server.Stop())
	}
	return errors.Join(errs...)
}

// execOnce sends one statement that cannot run in a transaction. It pins the connection: database/sql would run the
// statement a second time on another connection if this one broke.
func execOnce(ctx context.Context, db *sql.DB, statement string) error {
	conn, err := db.Conn(ctx)
	if err != nil {
		return err
	}
	_, err = conn.ExecContext(ctx, statement)
	return errors.Join(err, conn.Close())
}
