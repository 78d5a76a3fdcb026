package partition

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jmoiron/sqlx"
	"github.com/lib/pq"
	"github.com/lib/pq/pqerror"

	"github.com/callreceipt/reconciler/internal/database"
	"github.com/callreceipt/reconciler/internal/testdb"
)

// numbers is a database with a table of so many rows.
func numbers(t testing.TB, rows int) (*sqlx.DB, source) {
	t.Helper()
	db := testdb.New(t)
	db.MustExec(`CREATE TABLE numbers (at timestamptz NOT NULL, n int NOT NULL);
		INSERT INTO numbers SELECT '2024-05-01 00:00+00'::timestamptz + n * interval '1 s', n FROM generate_series(1, ` + fmt.Sprint(rows) + `) n`)
	return db, sourceOf(t, db, "numbers", "public.all_numbers")
}

// exported exports, and fails the test if that does.
func exported(t testing.TB, db *sqlx.DB, src source, dir string) (path string, m Manifest) {
	t.Helper()
	m, err := export(t.Context(), db, src, dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	path = manifestIn(dir, m)
	if _, err := VerifyObject(path); err != nil {
		t.Fatal(err)
	}
	return path, m
}

// names are all files below dir, without the digest.
func names(t testing.TB, dir string) []string {
	t.Helper()
	var all []string
	if err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			all = append(all, filepath.Base(path))
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return all
}

func TestAnExportIsTwoFiles(t *testing.T) {
	t.Parallel()
	db, src := numbers(t, 25_000)
	src.Bounds = `FOR VALUES FROM ('2024-05-01 00:00:00+00') TO ('2024-05-02 00:00:00+00')`
	dir := filepath.Join(t.TempDir(), "not", "yet", "there")
	var seen []int64
	m, err := export(t.Context(), db, src, dir, func(rows int64) { seen = append(seen, rows) })
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(seen, []int64{10_000, 20_000, 25_000}) {
		t.Errorf("progress was told of %v rows", seen)
	}
	stem := "numbers.20240501T000000Z_20240502T000000Z." + digest12(m.Rows, m.Digest)
	if got, want := names(t, dir), []string{stem + ".jsonl.zst", stem + ".manifest.json"}; !slices.Equal(got, want) {
		t.Errorf("the files are %q, not %q", got, want)
	}
	if m.Rows != 25_000 || m.OID != src.OID || m.Bounds != src.Bounds || m.Partition != "public.numbers" || m.Table != "public.all_numbers" ||
		*m.Min != "2024-05-01 00:00:01+00" || *m.Max != "2024-05-01 06:56:40+00" || m.Server == "" || m.WrittenAt.IsZero() {
		t.Errorf("%+v", m)
	}
	for path, want := range map[string]fs.FileMode{
		filepath.Join(dir, "public.all_numbers"): fs.ModeDir | 0o750, manifestIn(dir, m): 0o640, objectOf(manifestIn(dir, m)): 0o640,
	} {
		info, err := os.Stat(path)
		if err != nil || info.Mode()&^want != 0 {
			t.Errorf("%s: %v, %v", path, info.Mode(), err)
		}
	}
}

func TestATableWithoutRowsIsExported(t *testing.T) {
	t.Parallel()
	db, src := numbers(t, 0)
	path, m := exported(t, db, src, t.TempDir())
	if m.Rows != 0 || m.Digest != "0" || m.Min != nil || m.Max != nil || m.RawBytes != 0 || m.Bytes == 0 {
		t.Errorf("%+v", m)
	}
	err := database.InTx(t.Context(), db, func(tx *sqlx.Tx) error {
		n, err := load(t.Context(), tx, "public.numbers", m, filepath.Dir(path))
		if n != 0 {
			t.Errorf("%d rows were loaded", n)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	// A crash of the machine may leave an empty file under the name.
	dir := filepath.Dir(filepath.Dir(path))
	rewrite(t, objectOf(path), nil)
	exported(t, db, src, dir)
	if got := names(t, dir); len(got) != 3 {
		t.Errorf("the files are %q", got)
	}
}

func TestASecondExportKeepsTheFilesOfTheFirst(t *testing.T) {
	t.Parallel()
	db, src := numbers(t, 100)
	dir := t.TempDir()
	path, first := exported(t, db, src, dir)
	before := []fs.FileInfo{stat(t, path), stat(t, objectOf(path))}
	_, second := exported(t, db, src, dir)
	if diff := cmp.Diff(first, second); diff != "" {
		t.Errorf("the manifest changed:\n%s", diff)
	}
	for i, info := range []fs.FileInfo{stat(t, path), stat(t, objectOf(path))} {
		if !os.SameFile(before[i], info) {
			t.Errorf("%s was written anew", info.Name())
		}
	}
	if got := names(t, dir); len(got) != 2 {
		t.Errorf("the files are %q", got)
	}
}

func stat(t testing.TB, path string) fs.FileInfo {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info
}

// Another version of the compressor makes other bytes of the same lines.
func TestAnObjectOfTheSameRowsIsKept(t *testing.T) {
	t.Parallel()
	db, src := numbers(t, 3)
	dir := t.TempDir()
	path, m := exported(t, db, src, dir)
	temp, err := createTemp(filepath.Join(dir, "x."))
	if err != nil {
		t.Fatal(err)
	}
	w, err := newObjectWriter(temp)
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range slices.Backward(linesThrough(t, objectOf(path), m)) {
		if err := w.line([]byte(line)); err != nil {
			t.Fatal(err)
		}
	}
	other, err := w.finish()
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Remove(path), os.Rename(temp.Name(), objectOf(path))); err != nil {
		t.Fatal(err)
	}
	before := stat(t, objectOf(path))
	_, m = exported(t, db, src, dir)
	if !os.SameFile(before, stat(t, objectOf(path))) || m.SHA256 != other.sha256 || m.Bytes != other.bytes {
		t.Errorf("the object was replaced, or the manifest is not about it: %+v, want %+v", m, other)
	}
}

func TestADifferentFileIsNeverOverwritten(t *testing.T) {
	t.Parallel()
	db, src := numbers(t, 100)
	dir := t.TempDir()
	path, _ := exported(t, db, src, dir)
	good := read(t, objectOf(path))
	other := func() []byte { // one that is whole, of other rows with the same columns
		from, _ := numbers(t, 99)
		path, _ := exported(t, from, sourceOf(t, from, "numbers", "public.all_numbers"), t.TempDir())
		return read(t, objectOf(path))
	}
	for n, content := range [][]byte{{}, []byte("a letter"), good[:len(good)-1], append(bytes.Clone(good), 'x'), other()} {
		for _, file := range []string{objectOf(path), path} {
			rewrite(t, file, content)
			exported(t, db, src, dir)
			if got := read(t, fmt.Sprintf("%s.damaged-%d", file, n+1)); !bytes.Equal(got, content) {
				t.Errorf("%s with %.20q became %.20q", filepath.Base(file), content, got)
			}
		}
	}
	if !bytes.Equal(read(t, objectOf(path)), good) {
		t.Error("the object is another one now")
	}
	found, err := VerifyTree(t.Context(), dir)
	if err != nil || len(found) != 1 || !found[0].OK {
		t.Errorf("%+v, %v", found, err)
	}
}

func TestAManifestThatSaysSomethingElseIsNotKept(t *testing.T) {
	t.Parallel()
	db, src := numbers(t, 100)
	dir := t.TempDir()
	path, want := exported(t, db, src, dir)
	lie(t, path, func(m *Manifest) { m.Bounds = "DEFAULT, or so" })
	if _, m := exported(t, db, src, dir); m.Bounds != want.Bounds {
		t.Errorf("%+v", m)
	}
	if !strings.Contains(string(read(t, path+".damaged-1")), "or so") {
		t.Error("the other one is lost")
	}
}

func TestAnExportAfterACrashGoesOn(t *testing.T) {
	t.Parallel()
	db, src := numbers(t, 100)
	dir := t.TempDir()
	path, _ := exported(t, db, src, dir)
	for name, crash := range map[string]func() error{
		"while it was streaming":       func() error { return os.Rename(objectOf(path), objectOf(path)+".abc.tmp") },
		"between link and unlink":      func() error { return os.Link(objectOf(path), strings.TrimSuffix(path, "manifest.json")+"abc.tmp") },
		"before the manifest":          func() error { return os.Remove(path) },
		"with the manifest half there": func() error { return os.Rename(path, path+".abc.tmp") },
		"and lost the object":          func() error { return os.Remove(objectOf(path)) },
	} {
		if err := crash(); err != nil {
			t.Fatal(err)
		}
		exported(t, db, src, dir)
		if got := names(t, dir); len(got) != 2 {
			t.Errorf("killed %s, there is %q", name, got)
		}
	}
}

func TestOtherRowsAreAnotherObject(t *testing.T) {
	t.Parallel()
	db, src := numbers(t, 100)
	dir := t.TempDir()
	before, _ := exported(t, db, src, dir)
	db.MustExec(`UPDATE numbers SET n = 0 WHERE n = 1`)
	after, _ := exported(t, db, src, dir)
	if before == after || len(names(t, dir)) != 4 {
		t.Errorf("the files are %q", names(t, dir))
	}
	if _, err := VerifyObject(before); err != nil {
		t.Error(err)
	}
}

// A partition that was restored has another oid, and the same rows.
func TestTheSameRowsOfAnotherTableAreTheSameObject(t *testing.T) {
	t.Parallel()
	db, src := numbers(t, 100)
	dir := t.TempDir()
	first, _ := exported(t, db, src, dir)
	db.MustExec(`ALTER TABLE numbers RENAME TO old; CREATE TABLE numbers AS SELECT * FROM old`)
	again := sourceOf(t, db, "numbers", "public.all_numbers")
	second, m := exported(t, db, again, dir)
	if first != second || m.OID != src.OID || src.OID == again.OID {
		t.Errorf("%s with oid %d, then %s with %d", first, src.OID, second, m.OID)
	}
}

func TestWhatCannotBeExportedIsAnError(t *testing.T) {
	t.Parallel()
	db, src := numbers(t, 3)
	db.MustExec(`CREATE TABLE parent (at timestamptz NOT NULL) PARTITION BY RANGE (at); CREATE TABLE without (); CREATE TABLE gone (at timestamptz)`)
	gone := sourceOf(t, db, "gone", "public.gone")
	db.MustExec(`DROP TABLE gone`)
	noKey := src
	noKey.Key = []string{"when"}
	for name, c := range map[string]struct {
		src  source
		word string
	}{
		"partitioned":     {sourceOf(t, db, "parent", "public.parent"), "public.parent holds no rows itself"},
		"without columns": {sourceOf(t, db, "without", "public.without"), "there are none"},
		"dropped":         {gone, "there is no table with oid"},
		"without its key": {noKey, `column t.when does not exist`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			_, err := export(t.Context(), db, c.src, dir, nil)
			if err == nil || !strings.Contains(err.Error(), c.word) || !strings.Contains(err.Error(), "exporting "+c.src.Schema+"."+c.src.Name) {
				t.Errorf("%v, want %q", err, c.word)
			}
			if left := names(t, dir); len(left) > 0 {
				t.Errorf("%q is left", left)
			}
		})
	}
}

func TestALockOfSomebodyElseIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	db, src := numbers(t, 3)
	err := database.InTx(t.Context(), db, func(tx *sqlx.Tx) error {
		tx.MustExec(`LOCK TABLE numbers IN ACCESS EXCLUSIVE MODE`)
		_, err := export(t.Context(), db, src, t.TempDir(), nil)
		return err
	})
	if !database.Busy(err) {
		t.Error(err)
	}
}

// Rows that the role may not see must not be taken for rows that are not there.
func TestRowSecurityIsAnErrorAndNoFilter(t *testing.T) {
	t.Parallel()
	db, src := numbers(t, 3)
	role := pq.QuoteIdentifier(fmt.Sprintf("reader_%d", src.OID))
	if _, err := db.Exec(`CREATE ROLE ` + role); err != nil {
		t.Skip(err) // on a server that was given to the tests
	}
	defer db.MustExec(`DROP OWNED BY ` + role + `; DROP ROLE ` + role)
	db.MustExec(`GRANT SELECT ON numbers TO ` + role + `; ALTER TABLE numbers ENABLE ROW LEVEL SECURITY; CREATE POLICY first ON numbers USING (n = 1)`)
	reading(t, db, func(ctx context.Context, tx *sqlx.Tx) {
		cols, err := columnsOf(ctx, tx, src.OID)
		if err != nil {
			t.Fatal(err)
		}
		tx.MustExec(`SAVEPOINT s; SET LOCAL ROLE ` + role)
		rows, _, err := digestOf(ctx, tx, "public.numbers", cols)
		if pq.As(err, pqerror.InsufficientPrivilege) == nil {
			t.Errorf("%d rows were seen: %v", rows, err)
		}
		tx.MustExec(`ROLLBACK TO s`)
	})
}

func TestAnExportThatIsCancelledLeavesNothing(t *testing.T) {
	t.Parallel()
	db, src := numbers(t, 100_000)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	dir := t.TempDir()
	_, err := export(ctx, db, src, dir, func(int64) { cancel() })
	if err == nil || len(names(t, dir)) > 0 {
		t.Errorf("%v, and %q is left", err, names(t, dir))
	}
}

func TestAFullDiskIsAnError(t *testing.T) {
	t.Parallel()
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip(err)
	}
	defer full.Close()
	w, err := newObjectWriter(full)
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range someLines(50_000) {
		if err = w.line([]byte(line)); err != nil {
			break
		}
	}
	if !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), "/dev/full") {
		t.Errorf("writing: %v", err)
	}
	if w, err = newObjectWriter(full); err != nil {
		t.Fatal(err)
	}
	if _, err = w.finish(); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("finishing: %v", err)
	}
}
