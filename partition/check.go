package partition

import (
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/jmoiron/sqlx"
)

// Check reports what would keep the table from being archived at all: a table, a column or a right that is not there, or an archive
// directory that is none. It writes nothing, so whether the directory can be written to is seen by the first export.
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
		Create   bool   `db:"may_create"`
		Guard    bool   `db:"may_raise"`
		Claims   bool   `db:"may_forget"`
	}
	err := sqlx.GetContext(ctx, q, &table, `
		SELECT pg_get_userbyid(c.relowner) AS owner, pg_has_role(c.relowner, 'USAGE') AS mine, current_user AS me,
			(SELECT setting::bigint FROM pg_settings WHERE name = 'deadlock_timeout') AS deadlock_ms,
			has_schema_privilege(c.relnamespace, 'CREATE') AS may_create,
			coalesce((SELECT has_schema_privilege(w.relnamespace, 'USAGE') AND has_table_privilege(w.oid, 'SELECT') AND has_table_privilege(w.oid, 'INSERT') AND has_table_privilege(w.oid, 'UPDATE')
				FROM pg_class w WHERE w.relnamespace = to_regnamespace('idempotency') AND w.relname = 'watermarks'), true) AS may_raise,
			$2 <> $3 OR coalesce((SELECT has_table_privilege(w.oid, 'SELECT') AND has_table_privilege(w.oid, 'INSERT') AND has_table_privilege(w.oid, 'DELETE')
				FROM pg_class w WHERE w.relnamespace = to_regnamespace('idempotency') AND w.relname = 'claims'), true) AS may_forget
		FROM pg_class c WHERE c.oid = $1`, p.OID, a.cfg.Table, keysTable)
	switch {
	case err != nil:
		return err
	case !table.Mine:
		return &Problem{a.cfg.Table, fmt.Sprintf("its owner is %s, and only the owner may attach and detach partitions; connect as %[1]s, or GRANT %[1]s TO %s", table.Owner, table.Me)}
	case !table.Create:
		return &Problem{a.cfg.Table, fmt.Sprintf("%s may not create in schema %s, where partitions are made; GRANT CREATE ON SCHEMA %[2]s TO %[1]s", table.Me, a.schema)}
	case !table.Guard:
		return &Problem{a.cfg.Table, fmt.Sprintf("%s may not raise its watermark; GRANT USAGE ON SCHEMA idempotency TO %[1]s, GRANT SELECT, INSERT, UPDATE ON idempotency.watermarks TO %[1]s", table.Me)}
	case !table.Claims:
		return &Problem{a.cfg.Table, fmt.Sprintf("%s may not delete the claims of archived keys; GRANT SELECT, INSERT, DELETE ON idempotency.claims TO %[1]s", table.Me)}
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
	ids := a.ids()
	for _, c := range append(ids, idColumn{name: a.cfg.Columns.Status}) {
		if c.name != "" && !have[c.name] {
			return &Problem{a.cfg.Table, fmt.Sprintf("it has no column %q, which partitions[].columns names; it has %s", c.name, strings.Join(columns, ", "))}
		}
	}
	return typed(ctx, q, p.OID, ids)
}
