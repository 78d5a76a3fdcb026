package localpg

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"sync"

	"github.com/lib/pq"
)

// template is the database that the copies of one migration set are made from.
type template struct {
	once sync.Once
	name string
	err  error
}

// template returns the name of the set's template, which is built by whoever comes first in this process.
func (c *cluster) template(ctx context.Context, set Migration) (string, error) {
	if set.Key == "" || set.Apply == nil {
		return "", errors.New("a migration set needs both a Key and Apply, or neither")
	}
	c.mu.Lock()
	t := c.templates[set.Key]
	if t == nil {
		t = &template{name: templateName(set.Key)}
		c.templates[set.Key] = t
	}
	c.mu.Unlock()
	t.once.Do(func() { t.err = c.build(ctx, t.name, set) })
	return t.name, t.err
}

func templateName(key string) string {
	digest := sha256.Sum256([]byte(key))
	return "tpl_" + hex.EncodeToString(digest[:8])
}

// build makes the template unless it is there. Builders in other processes wait at an advisory lock. The work is done
// under another name, and the rename says that it is complete; what a killed builder left is removed by the next one.
// The lock has a pool of its own, whose end frees it also when something went wrong.
func (c *cluster) build(ctx context.Context, name string, set Migration) (err error) {
	connector, err := pq.NewConnector(c.dsn(""))
	if err != nil {
		return err
	}
	locked := sql.OpenDB(connector)
	defer func() { err = errors.Join(err, locked.Close()) }()
	locked.SetMaxOpenConns(1)
	conn, err := locked.Conn(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	if _, err := conn.ExecContext(ctx, `SELECT pg_advisory_lock(hashtextextended($1, 0))`, name); err != nil {
		return fmt.Errorf("waiting for another builder: %w", err)
	}
	var complete bool
	if err := conn.QueryRowContext(ctx, `SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)`, name).Scan(&complete); err != nil {
		return err
	}
	if complete {
		return nil
	}
	unfinished := name + "_unfinished"
	drop := "DROP DATABASE IF EXISTS " + pq.QuoteIdentifier(unfinished) + " WITH (FORCE)"
	if _, err := conn.ExecContext(ctx, drop); err != nil {
		return err
	}
	if _, err := conn.ExecContext(ctx, "CREATE DATABASE "+pq.QuoteIdentifier(unfinished)+" TEMPLATE template0"+c.clone); err != nil {
		return err
	}
	if err := set.Apply(ctx, c.dsn(unfinished)); err != nil {
		_, dropErr := conn.ExecContext(context.WithoutCancel(ctx), drop)
		return errors.Join(err, dropErr)
	}
	// Nobody can connect to the template from here on, so no copy can fail because somebody is in it.
	if _, err := conn.ExecContext(ctx, "ALTER DATABASE "+pq.QuoteIdentifier(unfinished)+" ALLOW_CONNECTIONS false"); err != nil {
		return err
	}
	if _, err := conn.ExecContext(ctx, "ALTER DATABASE "+pq.QuoteIdentifier(unfinished)+" RENAME TO "+pq.QuoteIdentifier(name)); err != nil {
		return fmt.Errorf("completing the template (did Apply leave a connection open?): %w", err)
	}
	return nil
}
