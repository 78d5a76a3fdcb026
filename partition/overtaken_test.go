package partition

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/callreceipt/reconciler/idempotency"
	"github.com/callreceipt/reconciler/internal/eventually"
	"github.com/callreceipt/reconciler/internal/testdb"
)

// when does something when this process comes to a failpoint, once. Such a test does not run beside others.
func when(t *testing.T, name string, do func()) {
	t.Helper()
	done := false
	atFailpoint = func(n string) {
		if n == name && !done {
			done = true
			do()
		}
	}
	t.Cleanup(func() {
		atFailpoint = nil
		if !done {
			t.Errorf("failpoint %s was never reached", name)
		}
	})
}

// events is a table with one old partition of one row.
func events(t *testing.T, edit func(*Config)) *house {
	t.Helper()
	return elsewhere(t, "public.events", func(c *Config) {
		c.Columns = Columns{Key: "id", Status: "status"}
		edit(c)
	}, `CREATE TABLE public.events (id text NOT NULL, status text NOT NULL, at timestamptz NOT NULL) PARTITION BY RANGE (at)`,
		`CREATE TABLE public.old PARTITION OF public.events FOR VALUES FROM ('2024-01-01Z') TO ('2024-01-02Z')`,
		`CREATE TABLE public.cur PARTITION OF public.events FOR VALUES FROM ('2024-01-02Z') TO ('2100-01-02Z')`,
		`INSERT INTO public.events VALUES ('E1', 'SUCCESS', '2024-01-01 05:00Z')`)
}

// another is an archiver of the same table in another process, which takes the lease as if we were stopped for longer than it lasts.
func (h *house) another(t *testing.T) *Archiver {
	t.Helper()
	h.cfg.Control.MustExec(`UPDATE reconciler.leases SET expires_at = now() - interval '1 second'`)
	return archiver(t, h.cfg.Control, h.cfg.Dir, func(c *Config) { *c = h.cfg; c.Holder = "another" })
}

func dropAtOnce(c *Config)   { c.DropAfter = 0 }
func dropInAnHour(c *Config) { c.DropAfter = time.Hour }

func TestATableThatTookTheNameIsNotDropped(t *testing.T) { //nolint:paralleltest // see when
	h := events(t, dropAtOnce)
	when(t, "drop:claims", func() {
		h.db.MustExec(`ALTER TABLE public.old RENAME TO kept`)
		h.db.MustExec(`CREATE TABLE public.old AS SELECT 'never archived' AS precious`)
	})
	h.run(t)
	if got := h.text(t, `SELECT concat_ws(' ', to_regclass('public.old'), to_regclass('public.kept'))`); got != "old kept" {
		t.Errorf("left are %q", got)
	}
}

func TestWhatIsAttachedAgainBeforeTheDropIsNotDropped(t *testing.T) { //nolint:paralleltest // see when
	for name, attach := range map[string]func(h *house) error{
		"by hand": func(h *house) error {
			_, err := h.db.Exec(`ALTER TABLE public.events ATTACH PARTITION public.old FOR VALUES FROM ('2024-01-01Z') TO ('2024-01-02Z')`)
			return err
		},
		"by a restore elsewhere": func(h *house) error {
			_, err := h.another(t).Restore(t.Context(), "old")
			return err
		},
		"to another table": func(h *house) error {
			_, err := h.db.Exec(`CREATE TABLE public.kept (LIKE public.events) PARTITION BY RANGE (at); ALTER TABLE public.kept ATTACH PARTITION public.old DEFAULT`)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) { //nolint:paralleltest // see when
			h := events(t, dropAtOnce)
			when(t, "drop:claims", func() {
				if err := attach(h); err != nil {
					t.Error(err)
				}
			})
			_, _ = h.RunOnce(t.Context(), Limits{}) // it may have lost its lease
			if n := h.text(t, `SELECT count(*) FROM public.old`); n != "1" {
				t.Errorf("%s rows are left", n)
			}
		})
	}
}

// The transaction of the drop sees what is there when it has its lock, whatever the default of the database is.
func TestARowThatIsCommittedWhileTheDropWaitsIsNotDropped(t *testing.T) { //nolint:paralleltest // see when
	h := events(t, dropInAnHour)
	h.run(t)
	h.ageDays(t, 1)
	h.db.MustExec(`ALTER TABLE public.old DISABLE TRIGGER ALL`)
	h.db.MustExec(`DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET default_transaction_isolation = ''repeatable read''', current_database()); END $$`)
	strict := testdb.Open(t, h.dsn)
	a := archiver(t, h.cfg.Control, h.cfg.Dir, func(c *Config) { *c = h.cfg; c.DB = strict })
	committed := make(chan error, 1)
	when(t, "drop:claims", func() {
		tx := h.db.MustBegin()
		tx.MustExec(`INSERT INTO public.old VALUES ('E2', 'SUCCESS', '2024-01-01 06:00Z')`)
		go func() {
			eventually.True(t, "the drop waits", func() bool {
				return h.text(t, `SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND mode = 'AccessExclusiveLock' AND relation = 'public.old'::regclass)`) == "true"
			})
			committed <- tx.Commit()
		}()
	})
	if sum, err := a.RunOnce(t.Context(), Limits{}); err != nil || sum.Dropped != 0 || sum.Held != 1 {
		t.Errorf("%+v, %v", sum, err)
	}
	if err := <-committed; err != nil {
		t.Error(err)
	}
	if n := h.text(t, `SELECT count(*) FROM public.old`); n != "2" {
		t.Errorf("%s rows are left", n)
	}
}

// executed sends a new call of a key that was executed before, and reports whether it was executed again.
func (h *house) executed(t *testing.T, bizID string) (again bool) {
	t.Helper()
	g, err := idempotency.New(idempotency.Config{DB: h.db})
	if err != nil {
		t.Fatal(err)
	}
	_, _ = g.Do(t.Context(), idempotency.Request{CallID: "again", BizID: bizID, Operation: "charge", IssuedAt: time.Now()},
		func(context.Context, *sqlx.Tx) (json.RawMessage, error) {
			again = true
			return nil, nil
		})
	return again
}

// The claims go before the table does. Whatever keeps the table from going, who restores it has the keys remembered again.
func TestAKeyThatIsRestoredIsNotExecutedAgain(t *testing.T) {
	t.Parallel()
	for name, interrupt := range map[string]func(t *testing.T, h *house){
		"after a kill before the drop": func(t *testing.T, h *house) {
			t.Helper()
			if !h.killedAt(t, "drop:claims", "archive") {
				t.Error("it was not killed")
			}
		},
		"when a view held the drop": func(t *testing.T, h *house) {
			t.Helper()
			h.db.MustExec(`CREATE VIEW report AS SELECT count(*) FROM ` + day(8))
			if sum := h.run(t); sum.Held != 1 || h.explain(t)[day(8)].Reason != "referenced" {
				t.Errorf("%+v", sum)
			}
		},
		"while an archiver that was stopped deletes claims": func(t *testing.T, h *house) {
			t.Helper()
			var e entry
			if err := h.db.Get(&e.OID, `SELECT $1::regclass::oid`, day(8)); err != nil {
				t.Error(err)
			}
			e.Name = day(8)
			h.run(t)
			if _, err := h.Restore(t.Context(), day(8)); err != nil {
				t.Error(err)
			}
			if err := (&pass{Archiver: h.Archiver}).forgetClaims(t.Context(), &e); err == nil {
				t.Error("it went by the name of a table that is gone")
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := keysOf(t, 8, 5, dropInAnHour)
			h.run(t)
			h.ageDays(t, 1)
			interrupt(t, h)
			if h.text(t, `SELECT count(*) FROM pg_inherits WHERE inhrelid = to_regclass($1)`, day(8)) == "0" {
				if _, err := h.Restore(t.Context(), day(8)); err != nil {
					t.Fatal(err)
				}
			}
			if h.executed(t, "B8-1") {
				t.Error("it was executed again")
			}
		})
	}
}

// The function of the triggers runs as whoever writes.
func TestAFunctionOfSomebodyElseIsNotTakenForOurs(t *testing.T) {
	t.Parallel()
	h := events(t, func(*Config) {})
	h.db.MustExec(`CREATE FUNCTION public.reconciler_refuse_write() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NEW; END $$`)
	h.db.MustExec(`DO $$ BEGIN CREATE ROLE partition_test_stranger; EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL; END $$`)
	h.db.MustExec(`GRANT ALL ON SCHEMA public TO partition_test_stranger`)
	h.db.MustExec(`ALTER FUNCTION public.reconciler_refuse_write() OWNER TO partition_test_stranger`)
	if _, err := h.RunOnce(t.Context(), Limits{}); err == nil || !strings.Contains(err.Error(), "belongs to another role") {
		t.Errorf("%v", err)
	}
	if n := h.text(t, `SELECT count(*) FROM pg_trigger WHERE tgname LIKE 'reconciler%'`); n != "0" {
		t.Errorf("%s triggers", n)
	}
}

// As when the disk is full: the trouble may last, and nobody waits for it with a partition that refuses writes.
func TestAPartitionIsNotLeftFrozenByAnErrorThatMayLast(t *testing.T) {
	t.Parallel()
	h := keysOf(t, 12, 5, func(c *Config) { c.MaxPerRun = 2 })
	if err := os.WriteFile(filepath.Join(h.cfg.Dir, "idempotency.keys"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	sum, err := h.RunOnce(t.Context(), Limits{})
	if err == nil || sum.Detached != 0 {
		t.Errorf("%+v, %v", sum, err)
	}
	if n := h.text(t, `SELECT count(*) FROM pg_trigger WHERE tgname LIKE 'reconciler%' AND tgenabled <> 'D'`); n != "0" {
		t.Errorf("%s triggers", n)
	}
	if x := h.explain(t)[day(12)]; x.Error == "" || x.State != "due" {
		t.Errorf("%+v", x)
	}
	if err := os.Remove(filepath.Join(h.cfg.Dir, "idempotency.keys")); err != nil {
		t.Fatal(err)
	}
	if sum := h.run(t); sum.Detached != 2 {
		t.Errorf("%+v", sum)
	}
}

func TestWhatIsAttachedByHandAndStaysTakesWritesAgain(t *testing.T) {
	t.Parallel()
	h := events(t, func(*Config) {})
	h.run(t)
	h.db.MustExec(`ALTER TABLE public.events ATTACH PARTITION public.old FOR VALUES FROM ('2024-01-01Z') TO ('2024-01-02Z')`)
	h.park(t, "late", "E1", "x")
	h.cfg.Columns.BizID = "id"
	if sum := h.run(t); sum.Held != 1 {
		t.Errorf("%+v", sum)
	}
	if _, err := h.db.Exec(`UPDATE public.events SET status = status`); err != nil {
		t.Errorf("it is held: %v", err)
	}
}

// A reader keeps nobody from writing to what is held after all.
func TestWhatIsHeldAfterTheFreezeTakesWritesAlsoWhileSomebodyReads(t *testing.T) { //nolint:paralleltest // see when
	h := events(t, func(c *Config) { c.LockTimeout, c.Columns.BizID = 50*time.Millisecond, "id" })
	reader := h.db.MustBegin()
	defer func() { _ = reader.Rollback() }()
	reader.MustExec(`LOCK TABLE public.old IN ACCESS SHARE MODE`)
	when(t, "freeze:done", func() { h.park(t, "late", "E1", "x") })
	if sum := h.run(t); sum.Held != 1 {
		t.Errorf("%+v", sum)
	}
	if _, err := h.db.Exec(`UPDATE public.events SET status = status`); err != nil {
		t.Error(err)
	}
	h.settle(t)
	atFailpoint = nil
	if err := reader.Rollback(); err != nil {
		t.Fatal(err)
	}
	if sum := h.run(t); sum.Detached != 1 {
		t.Errorf("%+v", sum)
	}
}

// It froze the partition, found a reason to hold it, and was stopped. Another one has verified the partition meanwhile.
func TestAnArchiverThatWasOvertakenUndoesNothing(t *testing.T) { //nolint:paralleltest // see when
	h := events(t, func(*Config) {})
	v, _, err := h.known(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	stale := &pass{Archiver: h.Archiver}
	e, err := h.open(t.Context(), v.partitions[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := stale.begin(t.Context(), &e, StepFrozen); err != nil {
		t.Fatal(err)
	}
	other := h.another(t)
	when(t, "watermark:done", func() {
		if err := stale.held(t.Context(), &e, &Held{ReasonOpenCall, ""}); err == nil {
			t.Error("it did not notice")
		}
		if _, err := h.db.Exec(`INSERT INTO public.events VALUES ('late', 'open', '2024-01-01 07:00Z')`); err == nil {
			t.Error("an open row got in between the verification and the detach")
		}
	})
	if sum, err := other.RunOnce(t.Context(), Limits{}); err != nil || sum.Detached != 1 {
		t.Errorf("%+v, %v", sum, err)
	}
}

func TestAnOpenCallIsRecognisedHoweverItsIDIsWritten(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ typ, row, id, held string }{
		{"uuid", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "{A0EEBC999C0B-4EF8BB6D6BB9BD380A11}", "open_call"},
		{"uuid", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "another", ""},
		{"bigint", "42", "0042", "open_call"},
		{"char(5)", "ab", "ab", "open_call"},
		{"numeric", "42", "42.0", "unanswerable"},
	} {
		t.Run(c.typ+" "+c.id, func(t *testing.T) {
			t.Parallel()
			h := elsewhere(t, "public.events", func(cfg *Config) { cfg.Columns = Columns{BizID: "biz", Status: "status"} },
				`CREATE TABLE public.events (biz `+c.typ+` NOT NULL, status text NOT NULL, at timestamptz NOT NULL) PARTITION BY RANGE (at)`,
				`CREATE TABLE public.old PARTITION OF public.events FOR VALUES FROM ('2024-01-01Z') TO ('2024-01-02Z')`,
				`CREATE TABLE public.cur PARTITION OF public.events FOR VALUES FROM ('2024-01-02Z') TO ('2100-01-02Z')`,
				fmt.Sprintf(`INSERT INTO public.events VALUES ('%s', 'SUCCESS', '2024-01-01 05:00Z')`, c.row))
			h.park(t, "C1", c.id, "charge")
			h.run(t)
			if x := h.explain(t)["public.old"]; x.Reason != c.held {
				t.Errorf("%+v", x)
			}
			if err := h.Check(t.Context()); (err != nil) != (c.held == "unanswerable") {
				t.Errorf("the check says %v", err)
			}
		})
	}
}

func TestPartitionsMadeAheadBelongToTheOwnerOfTheTable(t *testing.T) {
	t.Parallel()
	h := events(t, func(*Config) {})
	h.db.MustExec(`ALTER TABLE public.events DETACH PARTITION public.cur`)
	h.db.MustExec(`DO $$ BEGIN CREATE ROLE partition_test_owner; EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL; END $$`)
	h.db.MustExec(`ALTER TABLE public.events OWNER TO partition_test_owner`)
	if done, err := h.Ensure(t.Context()); err != nil || len(done.Made) != 8 {
		t.Fatalf("%+v, %v", done, err)
	}
	if n := h.text(t, `SELECT count(*) FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid WHERE c.relowner = 'partition_test_owner'::regrole`); n != "8" {
		t.Errorf("%s belong to it", n)
	}
}

func TestAPartitionThatIsDetachedOnPurposeStaysDetached(t *testing.T) {
	t.Parallel()
	h := keysOf(t, 5, 5)
	h.interruptedDetach(t, day(3))
	h.run(t)
	h.db.MustExec(`ALTER TABLE idempotency.keys DETACH PARTITION ` + day(3))
	h.run(t)
	if h.text(t, `SELECT count(*) FROM pg_inherits WHERE inhrelid = $1::regclass`, day(3)) != "0" {
		t.Error("it was attached again")
	}
}

func TestAPartitionCanBeRestoredAgainAfterItWasDroppedByHand(t *testing.T) {
	t.Parallel()
	h := events(t, dropAtOnce)
	h.run(t)
	for range 2 {
		if _, err := h.Restore(t.Context(), "old"); err != nil {
			t.Fatal(err)
		}
		h.db.MustExec(`DROP TABLE public.old`)
		h.run(t)
	}
}
