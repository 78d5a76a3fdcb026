package partition

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/jmoiron/sqlx"
	"github.com/lib/pq"
)

// progressRows is after how many rows an export tells how far it is.
const progressRows = 10_000

// source is a partition to be exported.
type source struct {
	OID             uint32
	Table, Database string // as in Config
	Schema, Name    string
	Bounds          string // as SQL
	Lower, Upper    string // as Bound.String says them
	Key             []string
}

// export writes the rows of a partition as an archive object below dir, and then the manifest. When it returns, both are safe on disk. It
// may be killed and begun anew at any point. A file that has the name of one of them stays if it is the same, and is renamed if not; so
// the manifest that is returned may be that of an earlier export. Only one process at a time may export the same partition.
func export(ctx context.Context, db *sqlx.DB, src source, dir string, progress func(rows int64)) (Manifest, error) {
	m, err := exportTo(ctx, db, src, dir, progress)
	if err != nil {
		return Manifest{}, fmt.Errorf("exporting %s.%s: %w", src.Schema, src.Name, err)
	}
	return m, nil
}

func exportTo(ctx context.Context, db *sqlx.DB, src source, dir string, progress func(rows int64)) (Manifest, error) {
	failpoint("export:begun")
	schema, table, _ := strings.Cut(src.Table, ".")
	dir = filepath.Join(dir, escape(schema)+"."+escape(table))
	if err := makeDir(dir); err != nil {
		return Manifest{}, fmt.Errorf("making the directory of the archive: %w", err)
	}
	prefix := filepath.Join(dir, escape(src.Name)+"."+boundInName(src.Lower)+"_"+boundInName(src.Upper)+".")
	if err := removeTemps(prefix); err != nil {
		return Manifest{}, fmt.Errorf("removing what an earlier export has left: %w", err)
	}
	temp, err := createTemp(prefix)
	if err != nil {
		return Manifest{}, err
	}
	defer func() {
		_ = temp.Close()           // the bytes are on disk since finish, or it has failed already
		_ = os.Remove(temp.Name()) // there only after an error, and then the next export removes it
	}()

	m, err := stream(ctx, db, src, temp, progress)
	if err != nil {
		return Manifest{}, err
	}
	object := prefix + digest12(m.Rows, m.Digest) + objectSuffix
	m.Object = filepath.Base(object)
	failpoint("export:before-rename")
	if err := m.placeObject(ctx, temp.Name(), object); err != nil {
		return Manifest{}, fmt.Errorf("naming the archive object: %w", err)
	}
	failpoint("export:after-rename")
	return m.place(prefix, manifestOf(object))
}

// stream writes the rows into file, and says all about them but the name.
func stream(ctx context.Context, db *sqlx.DB, src source, file *os.File, progress func(rows int64)) (Manifest, error) {
	ctx, cancel := context.WithCancel(ctx)
	name, err := relationOf(ctx, db, src.OID)
	if err != nil {
		cancel()
		return Manifest{}, err
	}
	tx, err := db.BeginTxx(ctx, &sql.TxOptions{Isolation: sql.LevelRepeatableRead, ReadOnly: true})
	if err != nil {
		cancel()
		return Manifest{}, fmt.Errorf("opening a transaction: %w", err)
	}
	defer func() { _ = tx.Rollback() }()
	defer cancel() // before the rows are closed, which would read all that is left
	if err := exact(ctx, tx); err != nil {
		return Manifest{}, err
	}
	// The lock comes before the snapshot of the transaction, which the first query takes: the snapshot of a table that is truncated or
	// rewritten in between would show it empty.
	if _, err := tx.ExecContext(ctx, fmt.Sprintf(`SET LOCAL lock_timeout = %d; LOCK TABLE ONLY %s IN ACCESS SHARE MODE`,
		defaultLockTimeout.Milliseconds(), name)); err != nil {
		return Manifest{}, fmt.Errorf("locking %s: %w", name, err)
	}
	m := Manifest{
		Format: format, Table: src.Table, Database: src.Database, Partition: src.Schema + "." + src.Name, OID: src.OID,
		Bounds: src.Bounds, Lower: src.Lower, Upper: src.Upper, Key: src.Key,
	}
	var same bool
	if err := tx.QueryRowxContext(ctx, `SELECT to_regclass($1) = $2::oid, current_setting('server_version'), clock_timestamp()`, name, src.OID).
		Scan(&same, &m.Server, &m.WrittenAt); err != nil {
		return Manifest{}, fmt.Errorf("looking at %s again: %w", name, err)
	}
	m.WrittenAt = m.WrittenAt.UTC()
	if !same {
		return Manifest{}, fmt.Errorf("%s is another table now, not oid %d", name, src.OID)
	}
	if m.Columns, err = columnsOf(ctx, tx, src.OID); err != nil {
		return Manifest{}, err
	}
	if len(m.Key) > 0 && m.Key[0] != "" { // an expression has no name
		key := pq.QuoteIdentifier(m.Key[0])
		if err := tx.QueryRowxContext(ctx, `SELECT min(t.`+key+`)::text, max(t.`+key+`)::text FROM ONLY `+name+` t`).Scan(&m.Min, &m.Max); err != nil {
			return Manifest{}, fmt.Errorf("reading the range of %s: %w", key, err)
		}
	}
	c, err := writeLines(ctx, tx, linesOf(name, m.Columns), file, progress)
	if err != nil {
		return Manifest{}, err
	}
	m.set(c)
	return m, nil
}

// relationOf is the name of a plain table as SQL.
func relationOf(ctx context.Context, q sqlx.QueryerContext, table uint32) (string, error) {
	var r struct {
		Name, Kind string
	}
	err := sqlx.GetContext(ctx, q, &r, `SELECT format('%I.%I', n.nspname, c.relname) AS name, c.relkind AS kind
		FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = $1`, table)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return "", fmt.Errorf("there is no table with oid %d any more", table)
	case err != nil:
		return "", fmt.Errorf("looking up oid %d: %w", table, err)
	case r.Kind != "r":
		return "", fmt.Errorf("%s holds no rows itself: its relkind is %s", r.Name, r.Kind)
	}
	return r.Name, nil
}

// writeLines streams the lines that query selects into file.
func writeLines(ctx context.Context, tx *sqlx.Tx, query string, file *os.File, progress func(rows int64)) (content, error) {
	w, err := newObjectWriter(file)
	if err != nil {
		return content{}, err
	}
	rows, err := tx.QueryxContext(ctx, query)
	if err != nil {
		return content{}, fmt.Errorf("reading the rows: %w", err)
	}
	defer func() { _ = rows.Close() }()
	var line sql.RawBytes
	for rows.Next() {
		if err := rows.Scan(&line); err != nil {
			return content{}, fmt.Errorf("reading row %d: %w", w.digest.rows+1, err)
		}
		if err := w.line(line); err != nil {
			return content{}, err // names the file
		}
		if w.digest.rows == 1000 {
			failpoint("export:streaming")
		}
		if progress != nil && w.digest.rows%progressRows == 0 {
			progress(w.digest.rows)
		}
	}
	if err := rows.Err(); err != nil {
		return content{}, fmt.Errorf("reading the rows after %d: %w", w.digest.rows, err)
	}
	if w.digest.rows < 1000 {
		failpoint("export:streaming")
	}
	if progress != nil {
		progress(w.digest.rows)
	}
	return w.finish()
}

func (m *Manifest) set(c content) {
	m.Rows, m.Digest, m.RawBytes, m.Bytes, m.SHA256 = c.rows, c.digest, c.rawBytes, c.bytes, c.sha256
}

// placeObject gives the finished file its name. If that is taken by an object of the same rows, that one is kept, and its size and hash go
// into the manifest: another version of the compressor may have made it.
func (m *Manifest) placeObject(ctx context.Context, temp, object string) error {
	err := rename(temp, object)
	if !errors.Is(err, os.ErrExist) {
		return err
	}
	there, err := readObject(ctx, object, m.Columns, m.RawBytes, nil)
	if ctx.Err() != nil {
		return err
	}
	if err == nil && there.rows == m.Rows && there.digest == m.Digest {
		m.set(there)
		return errors.Join(syncFile(object), syncDir(filepath.Dir(object)))
	}
	if _, err := setAside(object); err != nil {
		return err
	}
	return rename(temp, object)
}

// place writes the manifest, which makes the export complete, and returns it. If its name is taken by one that says the same, that one
// is kept and returned.
func (m Manifest) place(prefix, path string) (Manifest, error) {
	there, err := readManifest(path)
	if err == nil && there.agrees(m) {
		return there, errors.Join(syncFile(path), syncDir(filepath.Dir(path)))
	}
	if !errors.Is(err, os.ErrNotExist) {
		if _, err := setAside(path); err != nil {
			return Manifest{}, fmt.Errorf("making room for the manifest: %w", err)
		}
	}
	text, err := m.marshal()
	if err != nil {
		return Manifest{}, fmt.Errorf("writing the manifest: %w", err)
	}
	temp, err := createTemp(prefix)
	if err != nil {
		return Manifest{}, err
	}
	defer func() { _ = os.Remove(temp.Name()) }() // as with the object
	_, err = temp.Write(text)
	if err := errors.Join(err, temp.Sync(), temp.Close()); err != nil {
		return Manifest{}, fmt.Errorf("writing the manifest: %w", err)
	}
	failpoint("export:before-manifest")
	if err := rename(temp.Name(), path); err != nil {
		return Manifest{}, fmt.Errorf("naming the manifest: %w", err)
	}
	failpoint("export:after-manifest")
	return m, nil
}
