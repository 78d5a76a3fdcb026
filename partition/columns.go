package partition

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jmoiron/sqlx"
	"github.com/lib/pq"
	"github.com/lib/pq/oid"
)

// Column is how one column stands in the lines of an archive object.
type Column struct {
	Name string `json:"name"`
	// Type is the type as SQL, qualified unless it is PostgreSQL's own. It is for the reader: nothing is cast to it.
	Type      string   `json:"type"`
	Encoding  Encoding `json:"encoding"`
	Generated bool     `json:"generated,omitzero"` // computed by the table, and so not inserted by a restore
}

// Encoding is how the values of a column are written.
type Encoding string

// Every encoding. SQL NULL is null in both.
const (
	// EncodingJSON is the value as row_to_json writes it, and loses nothing.
	EncodingJSON Encoding = "json"
	// EncodingText is PostgreSQL's own text of the value, as a JSON string.
	EncodingText Encoding = "text"
)

// plain are the types whose JSON form loses nothing. char(n) is among them since its cast to text drops blanks. Of all others that form
// is not PostgreSQL's text: arrays lose their lower bounds, composites their types, json loses the difference of NULL and null.
var plain = []oid.Oid{
	oid.T_bool, oid.T_int2, oid.T_int4, oid.T_int8, oid.T_float4, oid.T_float8, oid.T_numeric,
	oid.T_text, oid.T_varchar, oid.T_bpchar, oid.T_name, oid.T_uuid, oid.T_bytea, oid.T_date, oid.T_time, oid.T_timestamp, oid.T_timestamptz,
}

// exact makes tx read and write every value without loss, and the same whatever the server, the database and the role have set. Row
// security is an error then, and never a silent filter. Statements may take as long as they want.
func exact(ctx context.Context, tx *sqlx.Tx) error {
	_, err := tx.ExecContext(ctx, `
		SET LOCAL search_path = '';
		SET LOCAL TimeZone = 'UTC';
		SET LOCAL DateStyle = 'ISO, YMD';
		SET LOCAL IntervalStyle = 'postgres';
		SET LOCAL bytea_output = 'hex';
		SET LOCAL extra_float_digits = 1;
		SET LOCAL lc_monetary = 'C';
		SET LOCAL xmloption = 'content';
		SET LOCAL array_nulls = on;
		SET LOCAL row_security = off;
		SET LOCAL statement_timeout = 0`)
	if err != nil {
		return fmt.Errorf("setting the formats of the transaction: %w", err)
	}
	return nil
}

// columnsOf lists the columns of a table in their order. The transaction must be exact.
func columnsOf(ctx context.Context, q sqlx.QueryerContext, table uint32) ([]Column, error) {
	// A domain is written as its base type is. An enum has the same form in both encodings, unless somebody made a cast to json.
	var cols []Column
	err := sqlx.SelectContext(ctx, q, &cols, `
		WITH RECURSIVE base AS (
			SELECT attnum, atttypid AS type FROM pg_attribute WHERE attrelid = $1 AND attnum > 0 AND NOT attisdropped
			UNION ALL
			SELECT attnum, typbasetype FROM base JOIN pg_type ON pg_type.oid = type WHERE typtype = 'd')
		SELECT attname AS name, format_type(atttypid, atttypmod) AS type, attgenerated <> '' AS generated,
			CASE WHEN type = ANY($2::oid[]) THEN $3
				WHEN typtype = 'e' AND NOT EXISTS (SELECT FROM pg_cast WHERE castsource = type AND casttarget = 'json'::regtype) THEN $3
				ELSE $4 END AS encoding
		FROM pg_attribute JOIN base USING (attnum) JOIN pg_type ON pg_type.oid = type
		WHERE attrelid = $1 AND typtype <> 'd'
		ORDER BY attnum`,
		table, pq.Array(plain), EncodingJSON, EncodingText)
	if err != nil {
		return nil, fmt.Errorf("reading the columns: %w", err)
	}
	if len(cols) == 0 {
		return nil, errors.New("reading the columns: there are none")
	}
	return cols, nil
}

// linesOf is the SQL that selects every row of relation as one JSON object, in a column named line. relation is a name as SQL. It is a
// query, and no expression over the row: a subquery is flattened into the scan, which a sublink of an expression is not, at a tenth of
// the time.
func linesOf(relation string, cols []Column) string {
	list := make([]string, len(cols))
	for i, c := range cols {
		name := pq.QuoteIdentifier(c.Name)
		list[i] = c.value("t."+name) + " AS " + name
	}
	return `SELECT row_to_json(r) AS line FROM (SELECT ` + strings.Join(list, ", ") + ` FROM ONLY ` + relation + ` t) r`
}

func (c Column) value(column string) string {
	switch {
	case c.Encoding == EncodingJSON:
		return column
	case strings.Contains(c.Type, "."):
		// A type that is not PostgreSQL's own may have a cast to text that loses something; format uses the output function. A row of
		// nulls IS NULL, and is a value.
		return `CASE WHEN ` + column + ` IS DISTINCT FROM NULL THEN format('%s', ` + column + `) END`
	default:
		return column + "::text"
	}
}
