package partition

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/jmoiron/sqlx"
	"github.com/lib/pq"
)

// A batch of lines is one statement. A line that is larger than the bound is a batch of its own.
const (
	batchLines = 5000
	batchBytes = 4 << 20
)

// load inserts every line of an archive object into relation, a table's name as SQL, which is empty and has the columns of the manifest.
// Columns that it has besides get their defaults, and generated ones are computed. The object is verified on the way, so only after load
// has returned nil are the rows worth a COMMIT; the caller compares them by digestOf. load makes the transaction exact.
func load(ctx context.Context, tx *sqlx.Tx, relation string, m Manifest, dir string) (rows int64, err error) {
	rows, err = loadInto(ctx, tx, relation, m, filepath.Join(dir, m.Object))
	if err != nil {
		return 0, fmt.Errorf("loading %s into %s: %w", m.Object, relation, err)
	}
	return rows, nil
}

func loadInto(ctx context.Context, tx *sqlx.Tx, relation string, m Manifest, object string) (int64, error) {
	if err := m.check(); err != nil {
		return 0, fmt.Errorf("its manifest %w", err)
	}
	if err := exact(ctx, tx); err != nil {
		return 0, err
	}
	insert, err := insertLines(ctx, tx, relation, m.Columns)
	if err != nil {
		return 0, err
	}
	var batch bytes.Buffer
	var lines, loaded int64
	var whole int // bytes of the batch that are whole lines
	flush := func() error {
		text := strings.TrimSuffix(string(batch.Next(whole)), "\n")
		done, err := tx.ExecContext(ctx, insert, text)
		if err != nil {
			return fmt.Errorf("after %d rows: %w", loaded, err)
		}
		n, err := done.RowsAffected()
		if err != nil {
			return err
		}
		if n != lines {
			return fmt.Errorf("after %d rows %d of %d were inserted: a trigger or a rule suppresses some", loaded, n, lines)
		}
		loaded, lines, whole = loaded+n, 0, 0
		return nil
	}
	err = m.verify(ctx, object, func(piece []byte, end bool) error {
		batch.Write(piece)
		if end {
			batch.WriteByte('\n')
			lines, whole = lines+1, batch.Len()
		}
		if lines == batchLines || lines > 0 && batch.Len() >= batchBytes {
			return flush()
		}
		return nil
	})
	if err == nil && lines > 0 {
		err = flush()
	}
	return loaded, err
}

// insertLines is the statement that inserts lines, of which its parameter is a text. The types are those that relation has. A line has no
// newline in it, for JSON escapes them.
func insertLines(ctx context.Context, tx *sqlx.Tx, relation string, cols []Column) (string, error) {
	var there []Column
	if err := tx.SelectContext(ctx, &there, `
		SELECT attname AS name, format_type(atttypid, atttypmod) AS type, attgenerated <> '' AS generated
		FROM pg_attribute WHERE attrelid = to_regclass($1) AND attnum > 0 AND NOT attisdropped`, relation); err != nil {
		return "", fmt.Errorf("reading its columns: %w", err)
	}
	if len(there) == 0 {
		return "", errors.New("there is no such table")
	}
	var missing, names, values, texts []string
	for _, c := range cols {
		name := pq.QuoteIdentifier(c.Name)
		i := slices.IndexFunc(there, func(t Column) bool { return t.Name == c.Name })
		switch {
		case i < 0:
			missing = append(missing, name)
		case !there[i].Generated:
			names = append(names, name)
			values = append(values, "CAST(r."+name+" AS "+there[i].Type+")")
			texts = append(texts, name+" text")
		}
	}
	if len(missing) > 0 {
		return "", fmt.Errorf("the table has no column %s, which the object has", strings.Join(missing, ", "))
	}
	return `INSERT INTO ` + relation + ` (` + strings.Join(names, ", ") + `) OVERRIDING SYSTEM VALUE
		SELECT ` + strings.Join(values, ", ") + `
		FROM string_to_table($1, E'\n') line, json_to_record(line::json) AS r(` + strings.Join(texts, ", ") + `)`, nil
}
