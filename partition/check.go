package partition

import (
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/jmoiron/sqlx"
)

// Check reports what would keep the table from being archived at all: a table, a column or a right that is not there, or a directory that
// cannot be written to. It writes nothing.
func (a *Archiver) Check(ctx context.Context) error {
	v, err := a.look(ctx)
	if err != nil {
		return err
	}
	if err := a.read(ctx, func(tx *sqlx.Tx) error { return a.checkTable(ctx, tx, v.parent) }); err != nil {
		return err
	}
	info, err := os.Stat(a.cfg.Dir)
	switch {
	case os.IsNotExist(err):
		return nil // it is made when it is needed
	case err != nil:
		return &Problem{a.cfg.Dir, "the archive directory cannot be looked at: " + err.Error()}
	case !info.IsDir():
		return &Problem{a.cfg.Dir, "archive.dir is not a directory"}
	}
	return nil
}

func (a *Archiver) checkTable(ctx context.Context, q sqlx.QueryerContext, p parent) error {
	var table struct {
		Owner    string `db:"owner"`
		Mine     bool   `db:"mine"`
		Me       string `db:"me"`
		Deadlock int64  `db:"deadlock_ms"`
	}
	err := sqlx.GetContext(ctx, q, &table, `
		SELECT pg_get_userbyid(c.relowner) AS owner, pg_has_role(c.relowner, 'USAGE') AS mine, current_user AS me,
			(SELECT setting::bigint FROM pg_settings WHERE name = 'deadlock_timeout') AS deadlock_ms
		FROM pg_class c WHERE c.oid = $1`, p.OID)
	switch {
	case err != nil:
		return err
	case !table.Mine:
		return &Problem{a.cfg.Table, fmt.Sprintf("its owner is %s, and only the owner may attach and detach partitions; connect as %[1]s, or GRANT %[1]s TO %s", table.Owner, table.Me)}
	case p.KeyType == "date" && a.cfg.Interval == Hour:
		return &Problem{a.cfg.Table, "its partition key is a date, and partitions of an hour cannot be told apart by it; set interval to day or more"}
	case a.cfg.LockTimeout.Milliseconds() >= table.Deadlock:
		return &Problem{a.cfg.Table, fmt.Sprintf("lock waits of %s are not below the server's deadlock_timeout of %d ms, so somebody else might be ended by ours", a.cfg.LockTimeout, table.Deadlock)}
	}
	var columns []string
	if err := sqlx.SelectContext(ctx, q, &columns, `
		SELECT attname FROM pg_attribute WHERE attrelid = $1 AND attnum > 0 AND NOT attisdropped ORDER BY attnum`, p.OID); err != nil {
		return err
	}
	have := map[string]bool{}
	for _, c := range columns {
		have[c] = true
	}
	for _, c := range append(a.cfg.Columns.names(), a.cfg.Columns.Status) {
		if c != "" && !have[c] {
			return &Problem{a.cfg.Table, fmt.Sprintf("it has no column %q, which partitions[].columns names; it has %s", c, strings.Join(columns, ", "))}
		}
	}
	return nil
}
