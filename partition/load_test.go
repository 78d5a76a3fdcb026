package partition

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/jmoiron/sqlx"

	"github.com/callreceipt/reconciler/internal/database"
)

func loadNumbers(t testing.TB, db *sqlx.DB, path string, m Manifest, relation string) error {
	t.Helper()
	return database.InTx(t.Context(), db, func(tx *sqlx.Tx) error {
		_, err := load(t.Context(), tx, relation, m, filepath.Dir(path))
		return err
	})
}

func TestManyRowsAreLoadedInBatches(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("one goroutine, in which the race detector sees nothing and takes long")
	}
	db, src := numbers(t, 2*batchLines+1)
	db.MustExec(`ALTER TABLE numbers ADD text text; UPDATE numbers SET text = repeat(chr(n), 3 * 1024 * 1024) WHERE n BETWEEN 65 AND 68;
		UPDATE numbers SET text = repeat('"', 10 * 1024 * 1024) WHERE n = 70`)
	path, m := exported(t, db, src, t.TempDir())
	db.MustExec(`CREATE TABLE back (later text DEFAULT 'a default', LIKE numbers)`)
	if err := loadNumbers(t, db, path, m, "public.back"); err != nil {
		t.Fatal(err)
	}
	var lost int
	if err := db.Get(&lost, `SELECT count(*) FROM (SELECT at, n, text, 'a default' FROM numbers EXCEPT ALL SELECT at, n, text, later FROM back) l`); err != nil || lost != 0 {
		t.Errorf("%d rows are not back: %v", lost, err)
	}
}

func TestWhatCannotBeLoadedIsAnErrorAndLoadsNothing(t *testing.T) {
	t.Parallel()
	db, src := numbers(t, 2*batchLines)
	path, m := exported(t, db, src, t.TempDir())
	db.MustExec(`CREATE TABLE narrow (at timestamptz); CREATE TABLE strict (LIKE numbers, CHECK (n < 7000)); CREATE TABLE back (LIKE numbers);
		CREATE TABLE suppressed (LIKE numbers); CREATE RULE nothing_at_all AS ON INSERT TO suppressed DO INSTEAD NOTHING`)
	for relation, word := range map[string]string{
		"public.narrow":     `no column "n"`,
		"public.strict":     `after 5000 rows: `,
		"public.missing":    `no such table`,
		"public.suppressed": `0 of 5000 were inserted`,
	} {
		err := loadNumbers(t, db, path, m, relation)
		if err == nil || !strings.Contains(err.Error(), word) || !strings.Contains(err.Error(), m.Object) {
			t.Errorf("%s: %v, want %q", relation, err, word)
		}
	}
	// All rows are in before the damage at the end is seen.
	object := read(t, objectOf(path))
	object[len(object)-1] ^= 1
	rewrite(t, objectOf(path), object)
	if err := loadNumbers(t, db, path, m, "public.back"); err == nil {
		t.Error("a damaged object was loaded")
	}
	var rows int
	if err := db.Get(&rows, `SELECT (SELECT count(*) FROM back) + (SELECT count(*) FROM strict) + (SELECT count(*) FROM narrow)`); err != nil || rows != 0 {
		t.Errorf("%d rows are there: %v", rows, err)
	}
}

// A manifest is a file that somebody may have changed: nothing of it becomes SQL.
func TestAManifestCannotInjectSQL(t *testing.T) {
	t.Parallel()
	db, src := numbers(t, 3)
	path, m := exported(t, db, src, t.TempDir())
	db.MustExec(`CREATE TABLE back (LIKE numbers)`)
	m.Columns[1].Type = `int); DROP TABLE numbers; --`
	m.Columns[0].Type = `x.y'; DROP TABLE numbers; --`
	if err := loadNumbers(t, db, path, m, "public.back"); err != nil {
		t.Error(err)
	}
	m.Columns[1].Name = `n"); DROP TABLE numbers; --`
	if err := loadNumbers(t, db, path, m, "public.back"); err == nil || !strings.Contains(err.Error(), `no column "n""); DROP TABLE numbers; --"`) {
		t.Error(err)
	}
}
