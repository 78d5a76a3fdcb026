package partition

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jmoiron/sqlx"

	"github.com/callreceipt/reconciler/internal/database"
	"github.com/callreceipt/reconciler/internal/localpg"
)

// span is a range as a text: lower and upper bound, or DEFAULT.
func span(r Range) string {
	if r.Default {
		return "DEFAULT"
	}
	return r.Lower.String() + " " + r.Upper.String()
}

func TestABoundIsReadInEveryFormThatPostgreSQLWrites(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`FROM ('2024-01-01 00:00:00+00') TO ('2024-01-02 00:00:00+00')`:                 "2024-01-01T00:00:00Z 2024-01-02T00:00:00Z",
		`FROM ('2024-01-01 05:30:00+05:30') TO ('2024-01-01 20:00:00-04')`:              "2024-01-01T00:00:00Z 2024-01-02T00:00:00Z",
		`FROM ('2024-01-01 05:30:15+05:30:15') TO ('2024-01-01 20:29:30-03:30:30')`:     "2024-01-01T00:00:00Z 2024-01-02T00:00:00Z",
		`FROM ('2024-01-01 00:00:00') TO ('2024-01-01 00:00:00.5')`:                     "2024-01-01T00:00:00Z 2024-01-01T00:00:00.5Z",
		`FROM ('2024-02-29') TO ('2024-03-01')`:                                         "2024-02-29T00:00:00Z 2024-03-01T00:00:00Z",
		`FROM ('0044-03-15 BC') TO ('12000-01-01')`:                                     "0044-03-15T00:00:00Z BC 12000-01-01T00:00:00Z",
		`FROM ('0001-12-31 23:59:59.999999+00 BC') TO ('294276-12-31 23:59:59+00')`:     "0001-12-31T23:59:59.999999Z BC 294276-12-31T23:59:59Z",
		`FROM (MINVALUE) TO ('-infinity')`:                                              "MINVALUE -infinity",
		`FROM ('infinity') TO (MAXVALUE)`:                                               "infinity MAXVALUE",
		`FROM ('2024-01-01', MINVALUE) TO ('2024-01-02', MINVALUE)`:                     "2024-01-01T00:00:00Z 2024-01-02T00:00:00Z",
		`FROM ('2024-01-01', 'a') TO ('2024-01-02', 'x')`:                               "2024-01-01T00:00:00Z 2024-01-03T00:00:00Z",
		`FROM ('2024-01-01 00:00:00', 'a') TO ('2024-01-02 00:00:00', MAXVALUE)`:        "2024-01-01T00:00:00Z 2024-01-02T00:00:00.000001Z",
		`FROM ('2024-01-01', '') TO (') TO (''x', 'it''s, (', B'01', 5)) TO ('2024-01'`: "",
		`FROM ('2024-01-01', ') TO (''x', B'01') TO ('2024-01-02', MINVALUE, MINVALUE)`: "2024-01-01T00:00:00Z 2024-01-02T00:00:00Z",
		`FROM ('2024-01-01 00:00:00', 1) TO ('2024-01-01 00:00:00', '-5')`:              "2024-01-01T00:00:00Z 2024-01-01T00:00:00.000001Z",
		`FROM (MINVALUE, MINVALUE) TO (MAXVALUE, MAXVALUE)`:                             "MINVALUE MAXVALUE",
	} {
		got, err := ParseRange("FOR VALUES " + text)
		if want == "" {
			if err == nil {
				t.Errorf("%s: %s, and it is no bound", text, span(got))
			}
			continue
		}
		if err != nil || span(got) != want {
			t.Errorf("%s: %s, %v; want %s", text, span(got), err, want)
		}
	}
}

func TestABoundThatIsNoRangeOfTimeIsRefusedWithWhatItHasToBe(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		``,
		`FOR VALUES IN ('2024-01-01')`,
		`FOR VALUES WITH (modulus 4, remainder 0)`,
		`FOR VALUES FROM (1) TO (5)`,
		`FOR VALUES FROM ('a') TO ('b')`,
		`FOR VALUES FROM ('t1', '2024-01-01') TO ('t1', '2024-01-02')`,
		`FOR VALUES FROM ('01/02/2024') TO ('01/03/2024')`,                                                       // DateStyle SQL
		`FOR VALUES FROM ('01.02.2024 00:00:00 CET') TO ('01.03.2024 00:00:00 CET')`,                             // DateStyle German
		`FOR VALUES FROM ('Mon Jan 01 00:00:00 2024 UTC') TO ('Tue Jan 02 00:00:00 2024 UTC')`,                   // DateStyle Postgres
		`FOR VALUES FROM ('2023-02-29') TO ('2024-01-01')`,                                                       // no such day
		`FOR VALUES FROM ('2024-13-01') TO ('2026-01-01')`,                                                       // nor month
		`FOR VALUES FROM ('2024-01-01 24:00:00') TO ('2024-01-03')`,                                              // nor hour
		`FOR VALUES FROM ('2024-01-02') TO ('2024-01-01')`,                                                       // backwards
		`FOR VALUES FROM ('2024-01-01') TO ('2024-01-02')` + "\n",                                                // something after it
		`FOR VALUES FROM ('99999999-01-01') TO (MAXVALUE)`,                                                       // beyond PostgreSQL
		`FOR VALUES FROM ('2024-01-01 00:00:00+00') TO ('2024-01-02 00:00:00+00') TO ('2024-01-03 00:00:00+00')`, // one TO too many
	} {
		got, err := ParseRange(text)
		if err == nil || !strings.Contains(err.Error(), "must be partitioned BY RANGE of a timestamptz, timestamp or date") {
			t.Errorf("%q: %s, %v", text, span(got), err)
		}
	}
	if got, err := ParseRange("DEFAULT"); err != nil || got != (Range{Default: true}) {
		t.Errorf("DEFAULT: %+v, %v", got, err)
	}
}

func TestBoundsAreOrderedFromMinvalueToMaxvalue(t *testing.T) {
	t.Parallel()
	var order []Bound
	for _, text := range []string{
		"MINVALUE", "'-infinity'", "'4713-01-01 BC'", "'0001-01-01 BC'", "'0001-01-01'", "'2024-01-01 00:00:00'", "'2024-01-01 00:00:00.000001'",
		"'12000-01-01'", "'infinity'", "MAXVALUE",
	} {
		b, err := parseBound(text, false)
		if err != nil {
			t.Fatal(err)
		}
		order = append(order, b)
	}
	for i, b := range order {
		for j, c := range order {
			if got, want := b.Compare(c), cmpInt(i, j); got != want {
				t.Errorf("%s to %s: %d, want %d", b, c, got, want)
			}
		}
		_, instant := b.Time()
		if word := !strings.Contains(b.String(), "T0"); instant == word {
			t.Errorf("%s is an instant: %t", b, instant)
		}
	}
}

func cmpInt(i, j int) int { return max(-1, min(1, i-j)) }

// literal is a bound as it stands in a statement.
func literal(b Bound) string {
	if s := b.String(); s != "MINVALUE" && s != "MAXVALUE" {
		return "'" + s + "'"
	}
	return b.String()
}

func forValues(r Range) string {
	if r.Default {
		return "DEFAULT"
	}
	return fmt.Sprintf("FOR VALUES FROM (%s) TO (%s)", literal(r.Lower), literal(r.Upper))
}

// TestABoundMeansTheSameInEverySession has PostgreSQL write the bounds of every kind of key in many sessions, and read them back.
func TestABoundMeansTheSameInEverySession(t *testing.T) {
	t.Parallel()
	db, err := database.Open(localpg.NewDatabase(t, localpg.Migration{}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })

	whole := []string{
		"MINVALUE -infinity", "-infinity 4713-01-01T00:00:00Z BC", "4713-01-01T00:00:00Z BC 0044-03-15T00:00:00Z BC", "0044-03-15T00:00:00Z BC 0001-01-01T00:00:00Z",
		"2024-01-01T00:00:00Z 2024-02-29T00:00:00Z", "2024-02-29T00:00:00Z 2024-03-01T00:00:00Z", "2024-07-01T00:00:00Z 9999-12-31T00:00:00Z",
		"12000-01-01T00:00:00Z 200000-01-01T00:00:00Z", "200000-01-01T00:00:00Z infinity", "infinity MAXVALUE", "DEFAULT",
	}
	fine := append(slices.Clone(whole), "2024-03-10T04:30:00Z 2024-03-10T04:30:00.000001Z", "2024-03-31T01:00:00.25Z 2024-03-31T18:30:00Z")
	for _, key := range []struct {
		columns string
		spans   []string
	}{
		{"at timestamptz", fine},
		{"at timestamp", fine},
		{"at date", whole},
	} {
		name := strings.ReplaceAll(key.columns, " ", "_")
		run(t, db, `CREATE TABLE `+name+` (`+key.columns+`) PARTITION BY RANGE (at)`)
		for i, s := range key.spans {
			run(t, db, fmt.Sprintf(`CREATE TABLE %s_%d PARTITION OF %s %s`, name, i, name, forValues(rangeOf(t, s))))
		}
		everySession(t, db, name, key.spans)
	}

	run(t, db, `CREATE TABLE two (at timestamptz, who text) PARTITION BY RANGE (at, who)`)
	for i, bounds := range []string{
		`FROM (MINVALUE, MINVALUE) TO ('2024-01-01Z', MINVALUE)`,
		`FROM ('2024-01-01Z', MINVALUE) TO ('2024-01-02Z', ') TO (''2023-01-01')`,
		`FROM ('2024-01-02Z', ') TO (''2023-01-01') TO ('2024-01-03Z', MAXVALUE)`,
		`FROM ('2024-02-01Z', E'\\''') TO ('infinity', 'x')`,
		`FROM ('infinity', 'x') TO ('infinity', 'y')`,
	} {
		run(t, db, fmt.Sprintf(`CREATE TABLE two_%d PARTITION OF two FOR VALUES %s`, i, bounds))
	}
	everySession(t, db, "two", []string{
		"MINVALUE 2024-01-01T00:00:00Z", "2024-01-01T00:00:00Z 2024-01-02T00:00:00.000001Z", "2024-01-02T00:00:00Z 2024-01-03T00:00:00.000001Z",
		"2024-02-01T00:00:00Z infinity", "infinity infinity",
	})
}

func everySession(t *testing.T, db *sqlx.DB, table string, want []string) {
	t.Helper()
	for i, zone := range []string{
		"UTC", "Asia/Kolkata", "America/New_York", "America/St_Johns", "Asia/Kathmandu", "Pacific/Apia", "Europe/Amsterdam", "<-0930>09:30",
	} {
		style := []string{"ISO, MDY", "ISO, DMY", "ISO, YMD"}[i%3]
		var texts []string
		err := database.InTx(context.Background(), db, func(tx *sqlx.Tx) error {
			if _, err := tx.Exec(`SELECT set_config('TimeZone', $1, true), set_config('DateStyle', $2, true)`, zone, style); err != nil {
				return err
			}
			return tx.Select(&texts, `
				SELECT pg_get_expr(relpartbound, oid) FROM pg_class WHERE oid IN (SELECT inhrelid FROM pg_inherits WHERE inhparent = $1::regclass) ORDER BY oid`, table)
		})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, text := range texts {
			r, err := ParseRange(text)
			if err != nil {
				t.Error(err)
			}
			got = append(got, span(r))
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s in %s, %s: (-want +got)\n%s", table, zone, style, diff)
		}
	}
}

// rangeOf reads what span writes.
func rangeOf(t testing.TB, s string) Range {
	t.Helper()
	if s == "DEFAULT" {
		return Range{Default: true}
	}
	lower, upper, _ := strings.Cut(strings.ReplaceAll(s, " BC", "_BC"), " ")
	bound := func(s string) Bound {
		if s != "MINVALUE" && s != "MAXVALUE" {
			s = "'" + strings.NewReplacer("T", " ", "Z", "+00", "_", " ").Replace(s) + "'"
		}
		b, err := parseBound(s, false)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	return Range{Lower: bound(lower), Upper: bound(upper)}
}

func run(t testing.TB, db *sqlx.DB, query string) {
	t.Helper()
	err := database.InTx(context.Background(), db, func(tx *sqlx.Tx) error {
		_, err := tx.Exec(query)
		return err
	})
	if err != nil {
		t.Fatalf("%s: %v", query, err)
	}
}

// FuzzParseRange: whatever the text, a range that comes of it does not end before it begins, and is read the same when written again.
func FuzzParseRange(f *testing.F) {
	f.Add("DEFAULT")
	f.Add("FOR VALUES FROM (MINVALUE) TO ('infinity')")
	f.Add("FOR VALUES FROM ('2024-01-01 05:30:15.25+05:30:15', 'it''s') TO ('12000-01-02 00:00:00-04', MAXVALUE)")
	f.Add("FOR VALUES FROM ('0044-03-15 BC') TO ('2024-02-29', 5)")
	f.Fuzz(func(t *testing.T, text string) {
		r, err := ParseRange(text)
		if err != nil {
			if r != (Range{}) {
				t.Errorf("%q: an error and %s", text, span(r))
			}
			return
		}
		if r.Lower.Compare(r.Upper) > 0 {
			t.Errorf("%q ends before it begins: %s", text, span(r))
		}
		if strings.Contains(span(r), "10000000-") {
			return // beyond the years that PostgreSQL has
		}
		if again := rangeOf(t, span(r)); again != r {
			t.Errorf("%q: %s, then %s", text, span(r), span(again))
		}
	})
}
