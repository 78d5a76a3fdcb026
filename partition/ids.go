package partition

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/jmoiron/sqlx"
	"github.com/lib/pq"
)

// idColumn is a column that has an id of calls in it.
type idColumn struct {
	name   string
	of     func(openCall) string  // what it is compared with
	normal func(id string) string // an id as PostgreSQL writes it in the column's type
}

// ids are the columns that name the business of a row, the most precise first.
func (a *Archiver) ids() []idColumn {
	var columns []idColumn
	for _, c := range []idColumn{
		{name: a.cfg.Columns.CallID, of: func(c openCall) string { return c.CallID }},
		{name: a.cfg.Columns.Key, of: func(c openCall) string { return c.Key }},
		{name: a.cfg.Columns.BizID, of: func(c openCall) string { return c.BizID }},
	} {
		if c.name != "" {
			columns = append(columns, c)
		}
	}
	return columns
}

// typed finds out how the ids of calls, which are texts, are compared with the values of the columns. One id may be written in several
// ways, and a call that is overlooked may be executed twice: a type of which we do not know them all is a *Problem.
func typed(ctx context.Context, q sqlx.QueryerContext, table uint32, columns []idColumn) error {
	names := make(pq.StringArray, len(columns))
	for i, c := range columns {
		names[i] = c.name
	}
	var types []struct {
		Name, Type string
		Enum       bool
	}
	err := sqlx.SelectContext(ctx, q, &types, `
		WITH RECURSIVE base AS (
			SELECT attname, atttypid AS type FROM pg_attribute WHERE attrelid = $1 AND attname = ANY($2) AND attnum > 0 AND NOT attisdropped
			UNION ALL
			SELECT attname, typbasetype FROM base JOIN pg_type ON pg_type.oid = type WHERE typtype = 'd')
		SELECT attname AS name, format_type(type, NULL) AS type, typtype = 'e' AS enum FROM base JOIN pg_type ON pg_type.oid = type WHERE typtype <> 'd'`, table, names)
	if err != nil {
		return fmt.Errorf("reading the types of the columns: %w", err)
	}
	normal := map[string]func(string) string{}
	for _, t := range types {
		switch {
		case t.Enum:
			normal[t.Name] = asItIs
		case normals[t.Type] == nil:
			return &Problem{"column " + t.Name, fmt.Sprintf("its type is %s, and the ids of calls are compared with text, uuid and integers only; name another column, or none", t.Type)}
		default:
			normal[t.Name] = normals[t.Type]
		}
	}
	for i, c := range columns {
		if columns[i].normal = normal[c.name]; columns[i].normal == nil {
			return &Problem{"column " + c.name, "the table has no such column"}
		}
	}
	return nil
}

// normals are the types that ids are compared with.
var normals = map[string]func(id string) string{
	"text": asItIs, "character varying": asItIs, "name": asItIs,
	"character": func(id string) string { return strings.TrimRight(id, " ") },
	"uuid":      normalUUID,
	"smallint":  normalInteger, "integer": normalInteger, "bigint": normalInteger,
}

func asItIs(id string) string { return id }

// normalUUID takes the forms that PostgreSQL reads: in any case, in braces, with a hyphen after any four digits or without.
func normalUUID(id string) string {
	hex := strings.ToLower(strings.NewReplacer("-", "", "{", "", "}", "").Replace(id))
	if len(hex) != 32 {
		return id // no uuid
	}
	return hex[:8] + "-" + hex[8:12] + "-" + hex[12:16] + "-" + hex[16:20] + "-" + hex[20:]
}

func normalInteger(id string) string {
	n, err := strconv.ParseInt(strings.TrimSpace(id), 10, 64)
	if err != nil {
		return id // no integer
	}
	return strconv.FormatInt(n, 10)
}
