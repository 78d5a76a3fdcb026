package partition

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/lib/pq"
)

// parent is what the catalog says of the table itself.
type parent struct {
	OID        uint32
	Relation   string   // quoted, for SQL
	Key        []string // the columns of the partition key; an expression is ""
	KeyType    string   // of the first
	DefaultOID uint32   // of the DEFAULT partition, or 0
	Default    string   // its name, quoted
	Owner      string   // quoted
}

// view is the table at one instant of its database's clock.
type view struct {
	parent     parent
	partitions []Partition
	now        time.Time
}

// keyTypes are those whose values are instants. One without a zone is read as UTC.
var keyTypes = map[string]bool{"timestamp with time zone": true, "timestamp without time zone": true, "date": true}

// look reads the catalog. Nothing is taken from names: a partition is its oid.
func (a *Archiver) look(ctx context.Context) (v view, err error) {
	err = a.read(ctx, func(tx *sqlx.Tx) error {
		if err := tx.GetContext(ctx, &v.now, `SELECT now()`); err != nil {
			return err
		}
		if v.parent, err = a.parent(ctx, tx); err != nil {
			return err
		}
		v.partitions, err = children(ctx, tx, v.parent)
		return err
	})
	if err != nil {
		return view{}, fmt.Errorf("reading the partitions of %s: %w", a.cfg.Table, err)
	}
	return v, nil
}

// read runs fn in a transaction that sees one state and writes nothing.
func (a *Archiver) read(ctx context.Context, fn func(tx *sqlx.Tx) error) error {
	return a.transact(ctx, snapshot{a.cfg.DB}, fn)
}

type snapshot struct{ db *sqlx.DB }

func (r snapshot) BeginTxx(ctx context.Context, _ *sql.TxOptions) (*sqlx.Tx, error) {
	return r.db.BeginTxx(ctx, &sql.TxOptions{Isolation: sql.LevelRepeatableRead, ReadOnly: true})
}

func (a *Archiver) parent(ctx context.Context, q sqlx.QueryerContext) (parent, error) {
	var row struct {
		OID      uint32         `db:"oid"`
		Relation string         `db:"relation"`
		Strategy sql.NullString `db:"strategy"`
		Key      pq.StringArray `db:"key"`
		KeyType  sql.NullString `db:"key_type"`
		DefOID   sql.NullInt64  `db:"default_oid"`
		Default  sql.NullString `db:"default_name"`
		Owner    string         `db:"owner"`
	}
	err := sqlx.GetContext(ctx, q, &row, `
		SELECT c.oid, format('%I.%I', n.nspname, c.relname) AS relation, p.partstrat::text AS strategy,
			(SELECT array_agg(coalesce(a.attname, '') ORDER BY k.place) FROM unnest(p.partattrs) WITH ORDINALITY AS k(att, place)
				LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = k.att AND k.att > 0) AS key,
			(SELECT format_type(a.atttypid, NULL) FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum = p.partattrs[0]) AS key_type,
			nullif(p.partdefid, 0)::bigint AS default_oid,
			(SELECT format('%I.%I', dn.nspname, d.relname) FROM pg_class d JOIN pg_namespace dn ON dn.oid = d.relnamespace WHERE d.oid = p.partdefid) AS default_name,
			quote_ident(pg_get_userbyid(c.relowner)) AS owner
		FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace LEFT JOIN pg_partitioned_table p ON p.partrelid = c.oid
		WHERE n.nspname = $1 AND c.relname = $2`, a.schema, a.name)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return parent{}, &Problem{a.cfg.Table, "there is no such table; create it, or correct partitions[].table (schema.name, in the case in which the catalog has it)"}
	case err != nil:
		return parent{}, err
	case !row.Strategy.Valid:
		return parent{}, &Problem{a.cfg.Table, "the table is not partitioned; only a table PARTITION BY RANGE of a time can be archived by partitions"}
	case row.Strategy.String != "r":
		return parent{}, &Problem{a.cfg.Table, "the table is not partitioned by RANGE; only a range of a time tells which partitions are old"}
	case row.KeyType.Valid && !keyTypes[row.KeyType.String]:
		return parent{}, &Problem{a.cfg.Table, fmt.Sprintf("the partition key begins with column %s of type %s; it must be a time: timestamptz, timestamp or date", row.Key[0], row.KeyType.String)}
	}
	return parent{
		OID: row.OID, Relation: row.Relation, Key: row.Key, KeyType: row.KeyType.String,
		DefaultOID: uint32(row.DefOID.Int64), Default: row.Default.String, Owner: row.Owner, //nolint:gosec // an oid has 32 bits
	}, nil
}

// children reads the partitions, the DEFAULT one excepted.
func children(ctx context.Context, q sqlx.QueryerContext, of parent) ([]Partition, error) {
	var rows []struct {
		OID     uint32         `db:"oid"`
		Schema  string         `db:"schema"`
		Name    string         `db:"name"`
		Kind    string         `db:"kind"`
		Pending bool           `db:"pending"`
		Bounds  string         `db:"bounds"`
		Rows    int64          `db:"rows"`
		Inbound sql.NullString `db:"inbound"`
		Frozen  bool           `db:"frozen"`
	}
	err := sqlx.SelectContext(ctx, q, &rows, `
		SELECT c.oid, n.nspname AS schema, c.relname AS name, c.relkind::text AS kind, i.inhdetachpending AS pending,
			pg_get_expr(c.relpartbound, c.oid) AS bounds, greatest(c.reltuples, 0)::bigint AS rows,
			(SELECT format('constraint %I of %s', f.conname, f.conrelid::regclass) FROM pg_constraint f
				WHERE f.contype = 'f' AND f.confrelid = c.oid AND f.conrelid <> c.oid ORDER BY f.oid LIMIT 1) AS inbound,
			EXISTS (SELECT FROM pg_trigger g WHERE g.tgrelid = c.oid AND g.tgname IN ($3, $4) AND g.tgenabled <> 'D') AS frozen
		FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid JOIN pg_namespace n ON n.oid = c.relnamespace
		WHERE i.inhparent = $1 AND c.oid <> $2`, of.OID, of.DefaultOID, frozenRows, frozenAll)
	if err != nil {
		return nil, err
	}
	partitions := make([]Partition, len(rows))
	for i, r := range rows {
		within, err := ParseRange(r.Bounds)
		if err != nil {
			return nil, &Problem{r.Schema + "." + r.Name, err.Error()}
		}
		partitions[i] = Partition{
			OID: r.OID, Schema: r.Schema, Name: r.Name, Bounds: r.Bounds, Range: within, Kind: r.Kind, DetachPending: r.Pending,
			Rows: r.Rows, InboundKey: r.Inbound.String, Frozen: r.Frozen,
		}
	}
	return partitions, nil
}

// relation is the quoted name of a table by its oid, or "" when there is none any more. The name is good for as long as the
// transaction holds a lock on it; lockByOID takes one.
func relation(ctx context.Context, q sqlx.QueryerContext, oid uint32) (name string, err error) {
	err = sqlx.GetContext(ctx, q, &name, `
		SELECT format('%I.%I', n.nspname, c.relname) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = $1`, oid)
	if errors.Is(err, sql.ErrNoRows) {
		return "", nil
	}
	return name, err
}

// lockByOID locks a table that is known by its oid alone and returns its name, which cannot change until the transaction ends.
func lockByOID(ctx context.Context, tx *sqlx.Tx, oid uint32, mode string) (string, error) {
	name, err := relation(ctx, tx, oid)
	if err != nil {
		return "", err
	}
	if name == "" {
		return "", errGone
	}
	if _, err := tx.ExecContext(ctx, `LOCK TABLE ONLY `+name+` IN `+mode+` MODE`); err != nil {
		return "", err
	}
	var same bool
	if err := tx.GetContext(ctx, &same, `SELECT coalesce(to_regclass($1)::oid = $2, false)`, name, oid); err != nil {
		return "", err
	}
	if !same {
		return "", errGone
	}
	return name, nil
}

// errGone means that the table with the oid in hand was dropped or renamed meanwhile.
var errGone = errors.New("the partition is gone, or has another name now")
