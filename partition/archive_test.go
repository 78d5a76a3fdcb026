package partition

import (
	"flag"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/callreceipt/reconciler/internal/task"
	"github.com/callreceipt/reconciler/internal/testdb"
	"github.com/callreceipt/reconciler/migrations"
)

// house is a database with the guard's keys of many days, the pending table, and an archiver of the keys.
type house struct {
	*Archiver
	db  *sqlx.DB
	dsn string
}

// keysOf makes a house with so many daily partitions before today and so many final keys in each.
func keysOf(t testing.TB, days, rows int, edit ...func(*Config)) *house {
	t.Helper()
	h := &house{dsn: testdb.URL(t, migrations.Reconciler, migrations.Downstream)}
	h.db = testdb.Open(t, h.dsn)
	makeKeys(t, h.db, days, rows)
	h.Archiver = archiver(t, h.db, t.TempDir(), edit...)
	return h
}

func makeKeys(t testing.TB, db *sqlx.DB, days, rows int) {
	t.Helper()
	db.MustExec(fmt.Sprintf(`SET TimeZone = 'UTC'; DO $$ DECLARE d date; BEGIN
		FOR d IN SELECT (now() AT TIME ZONE 'UTC')::date - n FROM generate_series(2, %d) n LOOP
			EXECUTE format('CREATE TABLE idempotency.%%I PARTITION OF idempotency.keys FOR VALUES FROM (%%L) TO (%%L)', 'keys_' || to_char(d, 'YYYYMMDD'),
				d::timestamp AT TIME ZONE 'UTC', (d + 1)::timestamp AT TIME ZONE 'UTC');
		END LOOP; END $$`, days))
	for _, table := range []string{
		`INSERT INTO idempotency.keys SELECT k, b, 'charge', b || '-0001', 1, 'SUCCESS', '{"ref": "ch_1"}', sha256('x'), at, at, at, at + interval '7 days'`,
		`INSERT INTO idempotency.claims SELECT sha256(convert_to(k, 'UTF8')), at`,
		`INSERT INTO idempotency.receipts SELECT b || '-0001', b, 'charge', k, 'SUCCESS', '{"ref": "ch_1"}', 1, at`,
	} {
		db.MustExec(table+` FROM (SELECT 'B' || d || '-' || n AS b, 'B' || d || '-' || n || ':charge' AS k,
			(now() AT TIME ZONE 'UTC')::date::timestamp AT TIME ZONE 'UTC' - d * interval '1 day' + n * interval '1 second' AS at
			FROM generate_series(1, $1) d, generate_series(1, $2) n) made`, days, rows)
	}
}

func archiver(t testing.TB, db *sqlx.DB, dir string, edit ...func(*Config)) *Archiver {
	t.Helper()
	cfg := Config{
		Table: keysTable, DB: db, Control: db, Interval: Day, Premake: 7, Retention: 168 * time.Hour, DropAfter: 168 * time.Hour,
		Columns: Columns{Key: "idempotency_key", BizID: "biz_id", Status: "status"}, Terminal: []string{"SUCCESS", "FAILED"},
		Dir: dir, MaxPerRun: 100, Holder: task.NewHolder(), Log: slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn})),
	}
	for _, e := range edit {
		e(&cfg)
	}
	a, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// run runs once and fails unless it went well.
func (h *house) run(t testing.TB) Summary {
	t.Helper()
	sum, err := h.RunOnce(t.Context(), Limits{})
	if err != nil {
		t.Fatalf("%+v: %v", sum, err)
	}
	return sum
}

// day is the name of the partition of so many days ago.
func day(ago int) string {
	return "idempotency.keys_" + time.Now().UTC().AddDate(0, 0, -ago).Format("20060102")
}

func (h *house) text(t testing.TB, query string, args ...any) (s string) {
	t.Helper()
	if err := h.db.Get(&s, query, args...); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return s
}

func (h *house) explain(t testing.TB) map[string]Explained {
	t.Helper()
	all, err := h.Explain(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	of := map[string]Explained{}
	for _, x := range all {
		of[x.Partition] = x
	}
	return of
}

// verified fails unless every object is whole, and returns how many there are.
func (h *house) verified(t testing.TB) int {
	t.Helper()
	all, err := VerifyTree(t.Context(), h.cfg.Dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range all {
		if !v.OK {
			t.Errorf("%+v", v)
		}
	}
	return len(all)
}

// The size of the test of what is held and what is not. At full size, in about a minute:
//
//	go test ./partition -run TestWhatIsHeld -days 40 -rows 50000
var (
	manyDays = flag.Int("days", 20, "daily partitions, at least 20")
	manyRows = flag.Int("rows", 50, "keys in each of them")
)

func TestWhatIsHeldStaysAndEverythingElseThatIsDueIsArchived(t *testing.T) {
	t.Parallel()
	h := keysOf(t, *manyDays, *manyRows)
	tx := h.db.MustBegin()
	tx.MustExec(`SET LOCAL session_replication_role = replica`) // SUCCESS is final
	tx.MustExec(`UPDATE idempotency.keys SET status = 'PROCESSING' WHERE idempotency_key = 'B12-7:charge'`)
	tx.MustExec(`ALTER DOMAIN idempotency.status DROP CONSTRAINT status_is_known`)
	tx.MustExec(`UPDATE idempotency.keys SET status = 'HALF' WHERE idempotency_key = 'B13-1:charge'`)
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	h.db.MustExec(`INSERT INTO reconciler.pending_confirmations (call_id, biz_id, tool, operation, status) VALUES ('late', 'B14-3', 'payment.charge', 'refund', 'MANUAL')`)
	h.db.MustExec(`CREATE TABLE shipments (id int, k text, at timestamptz, FOREIGN KEY (k, at) REFERENCES ` + day(15) + ` (idempotency_key, created_at))`)

	sum := h.run(t)
	due := *manyDays - 7
	if sum.Due != due || sum.Held != 4 || sum.Exported != due-4 || sum.Detached != due-4 || sum.Dropped != 0 || sum.Rows != int64((due-4)**manyRows) || sum.Outcome != task.Success {
		t.Errorf("%+v", sum)
	}
	for name, want := range map[string]string{
		day(12): "held not_terminal B12-7:charge is PROCESSING",
		day(13): "held not_terminal B13-1:charge is HALF",
		day(14): "held open_call call late is MANUAL and refers to B14-3",
		day(15): "held inbound_foreign_key constraint shipments_k_at_fkey of public.shipments",
		day(16): "detached  ", day(8): "detached  ", day(20): "detached  ", day(7): "live young ", day(0): "live young ",
	} {
		x := h.explain(t)[name]
		if got := fmt.Sprintf("%s %s %s", x.State, x.Reason, x.Example); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
		if x.State == string(StateHeld) && x.Since == nil {
			t.Errorf("%s: it is not said since when it is held", name)
		}
	}
	if n := h.verified(t); n != due-4 {
		t.Errorf("%d objects", n)
	}

	h.db.MustExec(`UPDATE idempotency.keys SET status = 'FAILED' WHERE idempotency_key IN ('B12-7:charge', 'B13-1:charge')`)
	h.db.MustExec(`UPDATE reconciler.pending_confirmations SET status = 'FAILED', resolved_by = 'person:ann', version = version + 1`)
	h.db.MustExec(`DROP TABLE shipments`)
	if sum := h.run(t); sum.Due != 4 || sum.Held != 0 || sum.Detached != 4 {
		t.Errorf("after their causes were settled: %+v", sum)
	}
	if sum := h.run(t); sum.Due != 0 || sum.Detached+sum.Exported != 0 {
		t.Errorf("nothing was left to do: %+v", sum)
	}
	if got := h.text(t, `SELECT watermark = date_trunc('day', now(), 'UTC') - interval '7 days' FROM idempotency.watermarks`) +
		h.text(t, `SELECT watermark = date_trunc('day', now(), 'UTC') - interval '7 days' FROM reconciler.archive_watermarks WHERE table_name = 'idempotency.keys'`); got != "truetrue" {
		t.Errorf("the watermarks: %s", got)
	}
}

func TestWhatWasDetachedLongEnoughAgoIsDroppedWithItsClaims(t *testing.T) {
	t.Parallel()
	h := keysOf(t, 9, 20, func(c *Config) { c.DropAfter = time.Hour })
	// Executed anew since: its claim names a later row.
	h.db.MustExec(`UPDATE idempotency.claims SET created_at = now() WHERE key_digest = sha256('B9-3:charge')`)
	if sum := h.run(t); sum.Detached != 2 || sum.Dropped != 0 {
		t.Fatalf("%+v", sum)
	}
	if n := h.text(t, `SELECT count(*) FROM idempotency.claims`); n != "180" {
		t.Errorf("%s claims before the drop", n)
	}
	h.db.MustExec(`UPDATE reconciler.partition_archives SET detached_at = detached_at - interval '1 hour'`)
	if sum := h.run(t); sum.Dropped != 2 || sum.Outcome != task.Success {
		t.Fatalf("%+v", sum)
	}
	if n := h.text(t, `SELECT count(*) FROM idempotency.claims`); n != "141" {
		t.Errorf("%s claims after it", n)
	}
	if x := h.explain(t)[day(9)]; x.State != "dropped" || x.Rows != 20 {
		t.Errorf("%+v", x)
	}
	if h.text(t, `SELECT coalesce(to_regclass($1)::text, 'none')`, day(9)) != "none" {
		t.Error("the table is there")
	}
	h.verified(t)
	done, err := h.Restore(t.Context(), strings.TrimPrefix(day(9), "idempotency."))
	if err != nil || done.Rows != 20 {
		t.Fatalf("%+v, %v", done, err)
	}
	if n := h.text(t, `SELECT count(*) FROM idempotency.keys WHERE biz_id LIKE 'B9-%' AND result::text = '{"ref": "ch_1"}'`); n != "20" {
		t.Errorf("%s rows through the parent", n)
	}
	if n := h.text(t, `SELECT count(*) FROM idempotency.claims`); n != "160" {
		t.Errorf("%s claims after the restore", n)
	}
	if sum := h.run(t); sum.Due != 0 {
		t.Errorf("what was just brought back is archived again: %+v", sum)
	}
	h.db.MustExec(`UPDATE reconciler.partition_archives SET updated_at = updated_at - interval '1 hour'`)
	if sum := h.run(t); sum.Detached != 1 {
		t.Errorf("and never archived again: %+v", sum)
	}
	if states := slices.Sorted(slices.Values([]string{h.explain(t)[day(9)].State, h.explain(t)[day(8)].State})); fmt.Sprint(states) != "[detached dropped]" {
		t.Errorf("%v", states)
	}
}
