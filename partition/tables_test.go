package partition

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/callreceipt/reconciler/internal/localpg"
	"github.com/callreceipt/reconciler/internal/task"
	"github.com/callreceipt/reconciler/internal/testdb"
	"github.com/callreceipt/reconciler/migrations"
)

// elsewhere is an archiver of a table in a database that has nothing of ours, made by statements.
func elsewhere(t testing.TB, table string, edit func(*Config), statements ...string) *house {
	t.Helper()
	h := &house{dsn: localpg.NewDatabase(t, localpg.Migration{})}
	h.db = testdb.Open(t, h.dsn)
	for _, s := range statements {
		h.db.MustExec(s)
	}
	h.Archiver = archiver(t, testdb.New(t, migrations.Reconciler), t.TempDir(), func(c *Config) {
		c.Table, c.Database, c.DB = table, "db.internal:5432/app", h.db
		edit(c)
	})
	return h
}

func (h *house) park(t testing.TB, callID, bizID, operation string) {
	t.Helper()
	h.cfg.Control.MustExec(`INSERT INTO reconciler.pending_confirmations (call_id, biz_id, tool, operation) VALUES ($1, $2, 'payment.charge', $3)`, callID, bizID, operation)
}

func (h *house) settle(t testing.TB) {
	t.Helper()
	h.cfg.Control.MustExec(`UPDATE reconciler.pending_confirmations SET status = 'FAILED', resolved_by = 'person:ann', version = version + 1 WHERE status = 'PENDING'`)
}

func TestATableOfAnotherDatabaseWithOtherNamesTypesAndWords(t *testing.T) {
	t.Parallel()
	h := elsewhere(t, "Pay.requests", func(c *Config) {
		c.Columns = Columns{Key: "request id", BizID: "order", Status: "state"}
		c.Terminal = []string{"done", "Refused"}
	}, `CREATE SCHEMA "Pay"`, `CREATE TYPE "Pay".state AS ENUM ('open', 'done', 'Refused')`,
		`CREATE TABLE "Pay".requests ("request id" varchar(40), "order" bigint, state "Pay".state, at timestamp NOT NULL, PRIMARY KEY ("request id", at)) PARTITION BY RANGE (at)`,
		`DO $$ BEGIN FOR n IN 1..12 LOOP
			EXECUTE format('CREATE TABLE "Pay".%I PARTITION OF "Pay".requests FOR VALUES FROM (%L) TO (%L)', 'Part ' || n, (now() AT TIME ZONE 'UTC')::date - n, (now() AT TIME ZONE 'UTC')::date - n + 1);
		END LOOP; END $$`,
		`INSERT INTO "Pay".requests SELECT 'R' || n, n, CASE WHEN n % 2 = 0 THEN 'done' ELSE 'Refused' END::"Pay".state, (now() AT TIME ZONE 'UTC')::date - n + interval '3 hours' FROM generate_series(1, 12) n`,
		`UPDATE "Pay".requests SET state = 'open' WHERE "order" = 9`, `UPDATE "Pay".requests SET state = NULL WHERE "order" = 10`)
	h.park(t, "C1", "11", "whatever")
	h.park(t, "C2", "elsewhere", "and not here")
	if err := h.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	sum := h.run(t)
	if sum.Detached != 2 || sum.Held != 3 || sum.Made != 8 || sum.Outcome != task.Success {
		t.Errorf("%+v", sum)
	}
	for n, want := range map[int]string{8: "detached ", 9: "not_terminal R9 is open", 10: "not_terminal R10 is null", 11: "open_call call C1 is PENDING and refers to 11", 12: "detached "} {
		x := h.explain(t)[fmt.Sprintf("Pay.Part %d", n)]
		got := strings.TrimPrefix(fmt.Sprintf("%s %s %s", x.State, x.Reason, x.Example), "held ")
		if strings.TrimSpace(got) != strings.TrimSpace(want) {
			t.Errorf("%d: %q, want %q", n, got, want)
		}
	}
	h.settle(t)
	h.db.MustExec(`UPDATE "Pay".requests SET state = 'done'`)
	if sum := h.run(t); sum.Detached != 3 {
		t.Errorf("%+v", sum)
	}
	h.ageDays(t, 8)
	if sum := h.run(t); sum.Dropped != 5 {
		t.Errorf("%+v", sum)
	}
	if done, err := h.Restore(t.Context(), "Part 9"); err != nil || done.Rows != 1 {
		t.Errorf("%+v, %v", done, err)
	}
	if n := h.text(t, `SELECT count(*) FROM "Pay".requests WHERE "order" = 9 AND state = 'done'`); n != "1" {
		t.Errorf("%s rows", n)
	}
}

func (h *house) ageDays(t testing.TB, days int) {
	t.Helper()
	h.cfg.Control.MustExec(`UPDATE reconciler.partition_archives SET detached_at = detached_at - $1 * interval '1 day'`, days)
}

// The ledger has neither a status nor keys: its calls are over or they are not.
func TestTheLedgerIsArchivedWhenItsCallsAreOver(t *testing.T) {
	t.Parallel()
	h := &house{dsn: testdb.URL(t)}
	h.db = testdb.Open(t, h.dsn)
	h.db.MustExec(`DO $$ BEGIN FOR n IN 2..40 LOOP
		EXECUTE format('CREATE TABLE reconciler.%I PARTITION OF reconciler.call_events FOR VALUES FROM (%L) TO (%L)', 'call_events_' || to_char((now() AT TIME ZONE 'UTC')::date - n, 'YYYYMMDD'),
			((now() AT TIME ZONE 'UTC')::date - n)::timestamp AT TIME ZONE 'UTC', ((now() AT TIME ZONE 'UTC')::date - n + 1)::timestamp AT TIME ZONE 'UTC');
	END LOOP; END $$`)
	h.db.MustExec(`INSERT INTO reconciler.call_events (call_id, biz_id, at, kind, attempt, actor, detail)
		SELECT 'C' || n, 'B' || n, ((now() AT TIME ZONE 'UTC')::date - n)::timestamp AT TIME ZONE 'UTC' + interval '5 hours', 'verdict', 1, 'reconciler', '{"status": null}' FROM generate_series(1, 40) n`)
	h.Archiver = archiver(t, h.db, t.TempDir(), func(c *Config) {
		c.Table, c.Columns, c.Terminal, c.Retention, c.DropAfter = "reconciler.call_events", Columns{CallID: "call_id"}, nil, 30*24*time.Hour, 0
	})
	h.park(t, "C35", "B36", "charge")
	if sum := h.run(t); sum.Due != 10 || sum.Held != 1 || sum.Dropped != 9 {
		t.Errorf("%+v", sum)
	}
	h.settle(t)
	if sum := h.run(t); sum.Dropped != 1 {
		t.Errorf("%+v", sum)
	}
	last := "call_events_" + time.Now().UTC().AddDate(0, 0, -35).Format("20060102")
	if done, err := h.Restore(t.Context(), last); err != nil || done.Rows != 1 {
		t.Errorf("%+v, %v", done, err)
	}
	if n := h.text(t, `SELECT count(*) FROM reconciler.call_events WHERE call_id = 'C35' AND detail = '{"status": null}'`); n != "1" {
		t.Errorf("%s rows", n)
	}
}

// pg_partman's own tables have a DEFAULT partition, which forbids CONCURRENTLY; rows in it are nobody's.
func TestATableOfPgPartman(t *testing.T) {
	t.Parallel()
	h := elsewhere(t, "public.events", func(c *Config) {
		c.Columns = Columns{Key: "id", Status: "status"}
	}, `CREATE TABLE public.events (id text NOT NULL, status text NOT NULL, at timestamptz NOT NULL) PARTITION BY RANGE (at)`)
	if h.text(t, `SELECT EXISTS (SELECT FROM pg_available_extensions WHERE name = 'pg_partman')`) != "true" {
		t.Skip("pg_partman is not installed (Debian: apt-get install postgresql-15-partman)")
	}
	h.db.MustExec(`CREATE SCHEMA partman`)
	h.db.MustExec(`CREATE EXTENSION pg_partman SCHEMA partman`)
	h.db.MustExec(`SELECT partman.create_parent('public.events', 'at', 'native', 'daily', p_premake := 3, p_start_partition := (now() - interval '12 days')::text)`)
	h.db.MustExec(`INSERT INTO public.events SELECT 'E' || n, 'SUCCESS', now() - n * interval '1 day' FROM generate_series(0, 12) n`)
	h.db.MustExec(`INSERT INTO public.events VALUES ('stray', 'SUCCESS', now() - interval '40 days')`)
	sum := h.run(t)
	if sum.Held != 0 || sum.Detached < 4 || sum.Made < 4 || sum.Outcome != task.Success {
		t.Errorf("%+v", sum)
	}
	if n := h.text(t, `SELECT count(*) FROM public.events WHERE at < date_trunc('day', now(), 'UTC') - interval '7 days'`); n != "1" {
		t.Errorf("%s old rows are seen", n)
	}
	h.db.MustExec(`CALL partman.run_maintenance_proc()`)
	if sum := h.run(t); sum.Due != 0 || sum.Made != 0 {
		t.Errorf("after its own maintenance: %+v", sum)
	}
	h.ageDays(t, 8)
	if sum := h.run(t); sum.Dropped != 0 && sum.Held != 0 {
		t.Errorf("%+v", sum)
	}
}

// CONCURRENTLY is refused beside a DEFAULT partition, so the detach is a plain one. What the DEFAULT partition holds is in no range.
func TestADefaultPartitionDoesNotKeepTheOthersFromBeingArchived(t *testing.T) {
	t.Parallel()
	h := elsewhere(t, "public.events", func(c *Config) { c.Columns = Columns{Key: "id", Status: "status"} },
		`CREATE TABLE public.events (id text NOT NULL, status text NOT NULL, at date NOT NULL) PARTITION BY RANGE (at)`,
		`CREATE TABLE public.old PARTITION OF public.events FOR VALUES FROM ('2024-01-01') TO ('2024-01-02')`,
		`CREATE TABLE public.older PARTITION OF public.events FOR VALUES FROM (MINVALUE) TO ('2023-01-01')`,
		`CREATE TABLE public.rest PARTITION OF public.events DEFAULT`,
		`INSERT INTO public.events VALUES ('E1', 'SUCCESS', '2024-01-01'), ('E0', 'SUCCESS', '1999-12-31'), ('E2', 'open', '2023-06-06')`)
	if sum := h.run(t); sum.Detached != 2 || sum.Held != 0 || sum.Rows != 2 {
		t.Errorf("%+v", sum)
	}
	if n := h.text(t, `SELECT string_agg(id, ' ') FROM public.events`); n != "E2" {
		t.Errorf("left are %s", n)
	}
	h.db.MustExec(`INSERT INTO public.events VALUES ('E3', 'SUCCESS', '2024-01-01')`)
	if _, err := h.Restore(t.Context(), "old"); err == nil || !strings.Contains(err.Error(), "default partition") {
		t.Errorf("%v", err)
	}
	h.db.MustExec(`DELETE FROM public.events WHERE id = 'E3'`)
	if done, err := h.Restore(t.Context(), "old"); err != nil || done.Rows != 1 {
		t.Errorf("%+v, %v", done, err)
	}
}

func TestAnArchiveIsTheSameUnderEveryTimeZone(t *testing.T) {
	t.Parallel()
	for _, zone := range []string{"Asia/Kolkata", "America/New_York"} {
		t.Run(zone, func(t *testing.T) {
			t.Parallel()
			h := keysOf(t, 10, 5, func(c *Config) { c.DropAfter = 0 })
			h.db.MustExec(`DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET TimeZone = ''` + zone + `''', current_database()); EXECUTE format('ALTER DATABASE %I SET DateStyle = ''SQL, DMY''', current_database()); END $$`)
			db := testdb.Open(t, h.dsn)
			h.db, h.Archiver = db, archiver(t, db, h.cfg.Dir, func(c *Config) { c.DropAfter = 0 })
			if sum := h.run(t); sum.Dropped != 3 || sum.Rows != 15 {
				t.Errorf("%+v", sum)
			}
			x := h.explain(t)[day(9)]
			if want := time.Now().UTC().AddDate(0, 0, -9).Format("2006-01-02") + "T00:00:00Z"; x.Lower != want {
				t.Errorf("%+v", x)
			}
			if done, err := h.Restore(t.Context(), day(9)); err != nil || done.Rows != 5 {
				t.Errorf("%+v, %v", done, err)
			}
			if n := h.text(t, `SELECT count(*) FROM idempotency.keys WHERE created_at >= date_trunc('day', now(), 'UTC') - interval '9 days' AND created_at < date_trunc('day', now(), 'UTC') - interval '8 days'`); n != "5" {
				t.Errorf("%s rows", n)
			}
		})
	}
}

// Whatever a column can hold is the same after it was exported, dropped and restored.
func TestADroppedPartitionComesBackToTheLastBit(t *testing.T) {
	t.Parallel()
	h := elsewhere(t, "public.odd", func(c *Config) {
		c.Columns, c.DropAfter = Columns{BizID: "id", Status: "mood"}, 0
		c.Terminal = []string{"fine"}
	},
		`CREATE TYPE mood AS ENUM ('fine', 'bad')`, `CREATE TYPE money_of AS (amount numeric, currency text)`, `CREATE DOMAIN short AS text CHECK (length(VALUE) < 9)`,
		`CREATE TABLE public.odd (id bigint GENERATED ALWAYS AS IDENTITY, at timestamptz NOT NULL, mood mood, raw bytea, doc jsonb, js json, tags text[], grid int[], amount numeric,
			ratio float8, until timestamptz, price money_of, prices money_of[], name short, fixed char(5), double_amount numeric GENERATED ALWAYS AS (amount * 2) STORED, span interval, net inet,
			CONSTRAINT positive CHECK (amount <> -1)) PARTITION BY RANGE (at)`,
		`CREATE INDEX ON public.odd (id)`,
		`CREATE TABLE public.old PARTITION OF public.odd FOR VALUES FROM ('2024-01-01') TO ('2024-02-01')`,
		`INSERT INTO public.odd (at, mood, raw, doc, js, tags, grid, amount, ratio, until, price, prices, name, fixed, span, net) VALUES
			('2024-01-01', 'fine', '\x00ff0a', '{"b": [1, null, 1e400], "a": "\u00e9"}', '{ "a" :  1, "a": 2 }', '{a,NULL,"x,y","{"}', '[0:1][2:3]={{1,2},{3,4}}', 'NaN', 'NaN', 'infinity', '(1.50,EUR)', '{"(1,\"a,b\")",NULL}', 'é', 'ab', '1 mon -3 days 00:00:01.5', '10.0.0.1/8'),
			('2024-01-31 23:59:59.999999', 'fine', '', 'null', 'null', '{}', NULL, 123456789012345678901234567890.12345678901234567890, '-0', '-infinity', '(,)', '{}', '', '', '-178000000 years', '::1'),
			('2024-01-02', 'fine', NULL, NULL, NULL, NULL, NULL, NULL, 5e-324, NULL, NULL, NULL, NULL, NULL, NULL, NULL),
			('2024-01-03', 'fine', '\x5c', '"line\nfeed"', E'[1,\n2]', E'{"\t"}', '{}', '-0.000', 'Infinity', '0044-03-15 12:00:00 BC', '(,"")', NULL, E'a\nb', E'\n', '0', NULL)`)
	const all = `SELECT string_agg(o::text, E'\n' ORDER BY id) FROM public.odd o`
	want := h.text(t, all)
	if sum := h.run(t); sum.Dropped != 1 || sum.Rows != 4 {
		t.Fatalf("%+v", sum)
	}
	if n := h.text(t, `SELECT count(*) FROM public.odd`); n != "0" {
		t.Fatalf("%s rows are left", n)
	}
	h.db.MustExec(`ALTER TABLE public.odd ADD COLUMN later text DEFAULT 'new'`)
	done, err := h.Restore(t.Context(), "old")
	if err != nil {
		t.Fatal(err)
	}
	if n := h.text(t, `SELECT count(*) FROM public.odd WHERE later = 'new'`); n != "4" {
		t.Errorf("%s rows have the default of a later column", n)
	}
	h.db.MustExec(`ALTER TABLE public.odd DROP COLUMN later`)
	if got := h.text(t, all); got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
	m, err := VerifyObject(manifestOf(h.objects() + "/" + done.Object))
	if err != nil || m.Digest != done.Digest || m.Rows != 4 {
		t.Errorf("%+v, %v", m, err)
	}
	if _, err := h.db.Exec(`INSERT INTO public.odd (at, amount) VALUES ('2024-01-05', -1)`); err == nil {
		t.Error("the constraint of the parent is gone")
	}
	h.db.MustExec(`INSERT INTO public.odd (at, amount) VALUES ('2024-01-05', 1)`)
	if n := h.text(t, `SELECT count(*) FROM pg_index i WHERE i.indrelid = 'public.old'::regclass`); n != "1" {
		t.Errorf("%s indexes", n)
	}
}

func TestPartitionsAreMadeOnceByWhomeverWantsThem(t *testing.T) {
	t.Parallel()
	h := elsewhere(t, "public.events", func(c *Config) { c.Columns, c.Premake = Columns{Key: "id"}, 12 },
		`CREATE TABLE public.events (id text NOT NULL, at timestamptz NOT NULL) PARTITION BY RANGE (at)`)
	var all errgroup.Group
	made := make([]Ensured, 4)
	for i := range made {
		all.Go(func() (err error) {
			made[i], err = h.Ensure(t.Context())
			return err
		})
	}
	if err := all.Wait(); err != nil {
		t.Error(err)
	}
	n := 0
	for _, m := range made {
		n += len(m.Made)
		if want := time.Now().UTC().AddDate(0, 0, 13).Format(time.DateOnly) + "T00:00:00Z"; m.Until != want {
			t.Errorf("until %s, want %s", m.Until, want)
		}
	}
	if n != 13 {
		t.Errorf("%d were made: %+v", n, made)
	}
}
