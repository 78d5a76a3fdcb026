package partition

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jmoiron/sqlx"
	"github.com/lib/pq"

	"github.com/callreceipt/reconciler/internal/database"
	"github.com/callreceipt/reconciler/internal/testdb"
)

// everything has a column of each kind that is hard to write down.
const everything = `
	CREATE SCHEMA "odd schema";
	CREATE TYPE "odd schema".mood AS ENUM ('calm', 'a "b", \c', '');
	CREATE TYPE pair AS (a int, b text);
	CREATE DOMAIN positive AS int CHECK (VALUE > 0);
	CREATE DOMAIN document AS json;
	CREATE DOMAIN pairs AS pair[];
	CREATE TABLE "odd schema".parent (
		at timestamptz NOT NULL, gone int, id bigint GENERATED ALWAYS AS IDENTITY, "a b""c" text, "select" text, "q\uote" text, "é" int,
		small smallint, real4 real, real8 double precision, exactly numeric, cents numeric(12,2), flag boolean,
		fixed char(6), short varchar(40), single "char", label name, id16 uuid, bytes bytea,
		day date, clock time(3), clocktz timetz, local timestamp, span interval, money money,
		doc json, docb jsonb, ints int[], texts text[], composites pair[], composite pair, dom positive, domdoc document, dompairs pairs,
		feel "odd schema".mood, feels "odd schema".mood[], span2 int4range, spans tstzmultirange, ip inet, net cidr, bits bit varying(9), x xml,
		point point, words tsvector, lsn pg_lsn, doubled bigint GENERATED ALWAYS AS (small * 2) STORED
	) PARTITION BY RANGE (at);
	ALTER TABLE "odd schema".parent DROP COLUMN gone;
	CREATE TABLE "odd schema"."par.t" PARTITION OF "odd schema".parent DEFAULT;`

// values are what there is in it: each of them in a row that is NULL otherwise.
var values = map[string][]string{
	`"a b""c"`:   {`'plain'`, `''`, `E'line\nline\r\ttab'`, `E'"\\ \'quoted\' \\u0041 \\N'`, `U&'\2028\2029\FEFF'`, `'😀 é 漢'`, `repeat('x', 300000)`, `'null'`, `'NaN'`},
	`"select"`:   {`(SELECT string_agg(chr(n), '') FROM generate_series(1, 255) n)`, `chr(127)`, `'{"a": 1}'`, `chr(1114111)`},
	`"q\uote"`:   {`'"'`},
	`"é"`:        {`1`, `-2147483648`},
	`small`:      {`-32768`, `0`, `7`},
	`real4`:      {`'NaN'`, `'-0'`, `'infinity'`, `'-infinity'`, `1e-45`, `3.4028235e38`, `0.1`, `16777217`},
	`real8`:      {`'NaN'`, `'-0'`, `'infinity'`, `'-infinity'`, `5e-324`, `1.7976931348623157e308`, `0.1::float8 + 0.2::float8`, `9007199254740993`},
	`exactly`:    {`'NaN'`, `'infinity'`, `1234567890123456789012345678901234567890.0123456789`, `1e-40`, `1.500`, `-0.0`, `1e300`},
	`cents`:      {`0.10`, `-9999999999.99`},
	`flag`:       {`true`, `false`},
	`fixed`:      {`'a'`, `''`, `'ab  '`, `'      '`},
	`short`:      {`'trailing   '`, `''`},
	`single`:     {`'x'`, `''`, `'"'`},
	`label`:      {`'a name'`},
	`id16`:       {`'00000000-0000-0000-0000-00000000abcd'`},
	`bytes`:      {`'\x'`, `'\x00ff5c22'`, `decode(repeat('00ff', 5000), 'hex')`},
	`day`:        {`'infinity'`, `'-infinity'`, `'0044-03-15 BC'`, `'4714-11-24 BC'`, `'5874897-12-31'`, `'2024-02-29'`},
	`clock`:      {`'24:00'`, `'00:00:00.001'`},
	`clocktz`:    {`'12:00:00.123456+05:30'`, `'12:00:00-15:59:59'`},
	`local`:      {`'infinity'`, `'-infinity'`, `'0044-03-15 12:00 BC'`, `'4714-11-24 00:00 BC'`, `'294276-12-31 23:59:59.999999'`, `'10000-01-01'`, `'2024-03-10 02:30'`},
	`span`:       {`'1 mon -3 days +04:05:06.789'`, `'-1 year'`, `'0'`, `'178000000 years'`},
	`money`:      {`'-12.34'::numeric::money`, `1000000::money`},
	`doc`:        {`'null'`, `E'{ "a" :\n 1, "a": 2 , "u":"\\u0000" }'`, `'"text"'`, `' 7 '`},
	`docb`:       {`'null'`, `'{"b": 1, "a": [1.50, null, "\u2028"]}'`, `'"null"'`},
	`ints`:       {`'{}'`, `'[0:2]={1,2,3}'`, `'[-1:0][2:3]={{1,2},{3,NULL}}'`},
	`texts`:      {`ARRAY['NULL', NULL, '', 'a"b', E'\n', '{}', '\']`, `'{}'`},
	`composites`: {`ARRAY[(1, 'a,"b'), NULL, (NULL, NULL)]::pair[]`, `'[0:0]={"(1,)"}'`},
	`composite`:  {`ROW(1, '')`, `ROW(NULL, NULL)`, `ROW(2, E'a"\n)')`},
	`dom`:        {`5`},
	`domdoc`:     {`'null'`, `'{ }'`},
	`dompairs`:   {`ARRAY[(1, 'x')]::pair[]`},
	`feel`:       {`'calm'`, `E'a "b", \\c'`, `''`},
	`feels`:      {`ARRAY['calm', '', NULL]::"odd schema".mood[]`},
	`span2`:      {`'empty'`, `'(,5]'`, `'[1,)'`},
	`spans`:      {`'{[2024-01-01 00:00+02, infinity), (, 0044-01-01 00:00 BC)}'`, `'{}'`},
	`ip`:         {`'10.0.0.1'`, `'10.0.0.1/8'`, `'::1/128'`},
	`net`:        {`'10.0.0.0/8'`},
	`bits`:       {`B''`, `B'010'`},
	`x`:          {`xmlparse(content 'text <b>bold</b> only')`, `xmlparse(document '<?xml version="1.0" standalone="yes"?><a/>')`},
	`point`:      {`'(0.1,-0)'`, `'(NaN,Infinity)'`},
	`words`:      {`'a:1A b''c'`},
	`lsn`:        {`'16/B374D848'`},
	`at`:         {`'infinity'`, `'-infinity'`, `'0044-03-15 12:00 BC'`, `'294276-12-31 23:59:59.999999+00'`, `'2024-11-03 01:30:00.000001 America/New_York'`, `'1883-11-18 12:00 America/New_York'`},
}

func fillEverything(t testing.TB, db *sqlx.DB) source {
	t.Helper()
	db.MustExec(everything)
	for column, list := range values {
		for _, v := range list {
			cols, vals := `at, `+column, `'2024-05-01 12:00+00', `+v
			if column == "at" {
				cols, vals = column, v
			}
			if _, err := db.Exec(`INSERT INTO "odd schema".parent (` + cols + `) VALUES (` + vals + `)`); err != nil {
				t.Fatalf("%s %s: %v", column, v, err)
			}
		}
	}
	return sourceOf(t, db, `"odd schema"."par.t"`, "odd schema.parent")
}

// sourceOf is what export is told about a table.
func sourceOf(t testing.TB, db *sqlx.DB, relation, table string) source {
	t.Helper()
	src := source{Table: table, Bounds: "DEFAULT", Lower: "2024-05-01T00:00:00Z", Upper: "2024-05-02T00:00:00Z", Key: []string{"at"}}
	if err := db.QueryRow(`SELECT c.oid, n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace WHERE c.oid = $1::regclass`,
		relation).Scan(&src.OID, &src.Schema, &src.Name); err != nil {
		t.Fatal(err)
	}
	return src
}

// manifestIn is where export has put a manifest.
func manifestIn(dir string, m Manifest) string {
	schema, table, _ := strings.Cut(m.Table, ".")
	return manifestOf(filepath.Join(dir, escape(schema)+"."+escape(table), m.Object))
}

// reading runs fn in a transaction that reads exactly.
func reading(t testing.TB, db *sqlx.DB, fn func(ctx context.Context, tx *sqlx.Tx)) {
	t.Helper()
	err := database.InTx(t.Context(), db, func(tx *sqlx.Tx) error {
		if err := exact(t.Context(), tx); err != nil {
			return err
		}
		fn(t.Context(), tx)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestEveryValueComesBackFromTheArchive(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	comesBack(t, db, fillEverything(t, db), `"odd schema".parent`)
}

func TestTheValuesOfAnExtensionComeBack(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	if _, err := db.Exec(`CREATE EXTENSION hstore`); err != nil {
		t.Skip(err)
	}
	db.MustExec(`CREATE TABLE stores (at timestamptz, h hstore, hs hstore[]);
		INSERT INTO stores VALUES (now(), 'a=>1, "b c"=>NULL, "q\"\\"=>"=>"', NULL), (now(), '', ARRAY['a=>NULL'::hstore, NULL]), (now(), NULL, '{}')`)
	comesBack(t, db, sourceOf(t, db, "stores", "public.stores"), "stores")
}

// comesBack exports the table, verifies the object, loads it into another table like a third one, and compares the rows.
func comesBack(t *testing.T, db *sqlx.DB, src source, like string) {
	t.Helper()
	dir := t.TempDir()
	m, err := export(t.Context(), db, src, dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	verified, err := VerifyObject(manifestIn(dir, m))
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(read(t, manifestIn(dir, m))), `"generated": false`) {
		t.Error("the manifest says of plain columns that they are not generated")
	}
	if diff := cmp.Diff(m, verified); diff != "" {
		t.Errorf("the manifest that was written and the one that was read (-written +read):\n%s", diff)
	}
	db.MustExec(`CREATE TABLE back (LIKE ` + like + ` INCLUDING ALL)`)
	err = database.InTx(t.Context(), db, func(tx *sqlx.Tx) error {
		n, err := load(t.Context(), tx, "public.back", m, filepath.Dir(manifestIn(dir, m)))
		if err == nil && n != m.Rows {
			err = fmt.Errorf("%d rows came back of %d", n, m.Rows)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	there, back := pq.QuoteIdentifier(src.Schema)+"."+pq.QuoteIdentifier(src.Name), "public.back"
	reading(t, db, func(ctx context.Context, tx *sqlx.Tx) {
		for _, pair := range [][2]string{{there, back}, {back, there}} {
			rows, sum, err := digestOf(ctx, tx, pair[0], m.Columns)
			if err != nil {
				t.Fatal(err)
			}
			if rows != m.Rows || sum != m.Digest {
				t.Errorf("%s has %d rows with digest %s, the object %d with %s", pair[0], rows, sum, m.Rows, m.Digest)
			}
			var lost []string
			if err := tx.SelectContext(ctx, &lost, `SELECT t::text FROM `+pair[0]+` t EXCEPT ALL SELECT t::text FROM `+pair[1]+` t`); err != nil {
				t.Fatal(err)
			}
			if len(lost) > 0 {
				t.Errorf("%d rows of %s are not in %s, such as %.500s", len(lost), pair[0], pair[1], lost[0])
			}
		}
	})
}

func TestColumnsAreWrittenAsTextWhereJSONWouldLoseSomething(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	src := fillEverything(t, db)
	db.MustExec(`ALTER TABLE "odd schema".parent ADD feel2 "odd schema".mood;
		CREATE TYPE mood2 AS ENUM ('a');
		CREATE FUNCTION mood2_json(mood2) RETURNS json LANGUAGE sql AS $$ SELECT '{"lossy": true}'::json $$;
		CREATE CAST (mood2 AS json) WITH FUNCTION mood2_json(mood2);
		ALTER TABLE "odd schema".parent ADD cast_mood mood2`)
	var cols []Column
	reading(t, db, func(ctx context.Context, tx *sqlx.Tx) {
		var err error
		if cols, err = columnsOf(ctx, tx, src.OID); err != nil {
			t.Fatal(err)
		}
	})
	var text []string
	byName := map[string]Column{}
	for _, c := range cols {
		byName[c.Name] = c
		if c.Encoding == EncodingText {
			text = append(text, c.Name)
		}
	}
	want := strings.Fields(`single clocktz span money doc docb ints texts composites composite domdoc dompairs feels span2 spans ip net bits x point words lsn cast_mood`)
	if diff := cmp.Diff(want, text); diff != "" {
		t.Errorf("columns written as text (-want +got):\n%s", diff)
	}
	for _, c := range []Column{
		{Name: "doubled", Type: "bigint", Encoding: EncodingJSON, Generated: true},
		{Name: "cents", Type: "numeric(12,2)", Encoding: EncodingJSON},
		{Name: "feel", Type: `"odd schema".mood`, Encoding: EncodingJSON},
		{Name: "dom", Type: "public.positive", Encoding: EncodingJSON},
		{Name: "dompairs", Type: "public.pairs", Encoding: EncodingText},
		{Name: `a b"c`, Type: "text", Encoding: EncodingJSON},
	} {
		if byName[c.Name] != c {
			t.Errorf("column %s is %+v", c.Name, byName[c.Name])
		}
	}
	if _, there := byName["gone"]; there || strings.Contains(fmt.Sprint(cols), "dropped") {
		t.Error("a dropped column is still there")
	}
}

func TestACastOfOnesOwnToTextIsNotUsed(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	db.MustExec(`CREATE TYPE pair AS (a int, b text);
		CREATE FUNCTION pair_text(pair) RETURNS text LANGUAGE sql AS $$ SELECT 'lossy' $$;
		CREATE CAST (pair AS text) WITH FUNCTION pair_text(pair);
		CREATE TABLE t (at timestamptz, p pair);
		INSERT INTO t VALUES (now(), (1, 'x')), (now(), NULL), (now(), (NULL, NULL))`)
	m, err := export(t.Context(), db, sourceOf(t, db, "t", "public.t"), t.TempDir(), nil)
	if err != nil {
		t.Fatal(err)
	}
	var values []sql.NullString
	reading(t, db, func(ctx context.Context, tx *sqlx.Tx) {
		if err := tx.SelectContext(ctx, &values, `SELECT line->>'p' FROM (`+linesOf("public.t", m.Columns)+`) l`); err != nil {
			t.Fatal(err)
		}
	})
	if want := []sql.NullString{{String: "(1,x)", Valid: true}, {}, {String: "(,)", Valid: true}}; !cmp.Equal(want, values) {
		t.Errorf("the values are %v, not %v", values, want)
	}
}

func TestTheDigestDoesNotDependOnWhatTheDatabaseHasSet(t *testing.T) {
	t.Parallel()
	url := testdb.URL(t)
	src := fillEverything(t, testdb.Open(t, url))
	var digests []string
	for _, settings := range []string{
		``, `timezone = 'Asia/Kolkata'`, `timezone = 'America/New_York'`, `datestyle = 'German, DMY'`, `intervalstyle = 'iso_8601'`, `bytea_output = 'escape'`,
		`extra_float_digits = -5`, `search_path = 'odd schema'`, `quote_all_identifiers = on`, `xmloption = 'document'`, `synchronize_seqscans = off`,
	} {
		db := testdb.Open(t, url)
		if settings != "" {
			db.MustExec(`DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET ` + strings.ReplaceAll(settings, "'", "''") + `', current_database()); END $$`)
			db = testdb.Open(t, url)
		}
		dir := t.TempDir()
		m, err := export(t.Context(), db, src, dir, nil)
		if err != nil {
			t.Fatal(err)
		}
		reading(t, db, func(ctx context.Context, tx *sqlx.Tx) {
			rows, sum, err := digestOf(ctx, tx, `"odd schema"."par.t"`, m.Columns)
			if err != nil || rows != m.Rows || sum != m.Digest {
				t.Errorf("with %s the database has %d, %s (%v), the object %d, %s", settings, rows, sum, err, m.Rows, m.Digest)
			}
		})
		digests = append(digests, m.Digest+*m.Min+*m.Max)
		if digests[0] != digests[len(digests)-1] {
			t.Errorf("with %s the digest is %s, without %s", settings, m.Digest, digests[0])
		}
	}
}

// The SQL is that of docs/archive-format.md.
func TestTheDigestIsWhatTheDocumentSays(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	src, dir := fillEverything(t, db), t.TempDir()
	m, err := export(t.Context(), db, src, dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	doc, err := os.ReadFile("../docs/archive-format.md")
	if err != nil {
		t.Fatal(err)
	}
	_, statement, _ := strings.Cut(string(doc), "SELECT count(*)")
	statement, _, _ = strings.Cut(statement, "```")
	lines, err := json.Marshal(linesThrough(t, objectOf(manifestIn(dir, m)), m))
	if err != nil {
		t.Fatal(err)
	}
	var rows int64
	var sum string
	if err := db.QueryRow(`WITH lines AS (SELECT line FROM json_array_elements_text($1::json) line) SELECT count(*)`+strings.TrimSuffix(strings.TrimSpace(statement), ";"),
		string(lines)).Scan(&rows, &sum); err != nil {
		t.Fatal(err)
	}
	if rows != m.Rows || sum != m.Digest {
		t.Errorf("the document's SQL gives %d rows with %s, the manifest has %d with %s", rows, sum, m.Rows, m.Digest)
	}
}

func linesThrough(t testing.TB, object string, m Manifest) []string {
	t.Helper()
	var lines []string
	var line strings.Builder
	if err := m.verify(t.Context(), object, func(piece []byte, end bool) error {
		line.Write(piece)
		if end {
			lines = append(lines, line.String())
			line.Reset()
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return lines
}
