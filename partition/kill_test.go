package partition

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/callreceipt/reconciler/internal/database"
	"github.com/callreceipt/reconciler/internal/task"
	"github.com/callreceipt/reconciler/internal/testdb"
	"github.com/callreceipt/reconciler/migrations"
)

// What a child process of a test is told.
const (
	childDSN  = "PARTITION_CHILD_DSN"
	childDir  = "PARTITION_CHILD_DIR"
	childVerb = "PARTITION_CHILD_VERB"
)

// child is the whole program of a process that archives, or restores, and is killed on the way.
func child(dsn string) {
	atFailpoint = killed
	db, err := database.Open(dsn)
	if err != nil {
		panic(err)
	}
	a, err := New(Config{
		Table: keysTable, DB: db, Control: db, Interval: Day, Premake: 16, Retention: 168 * time.Hour, DropAfter: time.Hour,
		Columns: Columns{Key: "idempotency_key", BizID: "biz_id", Status: "status"}, Terminal: []string{"SUCCESS", "FAILED"},
		Dir: os.Getenv(childDir), MaxPerRun: 100, Holder: task.NewHolder(),
	})
	if err != nil {
		panic(err)
	}
	if verb, name, _ := strings.Cut(os.Getenv(childVerb), " "); verb == "restore" {
		_, err = a.Restore(context.Background(), name)
	} else {
		_, err = a.RunOnce(context.Background(), Limits{})
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// killedAt runs a child that is killed at a failpoint, and reports whether it was: it may never come there.
func (h *house) killedAt(t testing.TB, failpoint, verb string) bool {
	t.Helper()
	var said bytes.Buffer
	c := exec.CommandContext(t.Context(), os.Args[0])
	c.Env = append(os.Environ(), childDSN+"="+h.dsn, childDir+"="+h.cfg.Dir, childVerb+"="+verb, "RECONCILER_FAILPOINT="+failpoint)
	c.Stderr = &said
	err := c.Run()
	status, _ := c.ProcessState.Sys().(syscall.WaitStatus)
	if !status.Signaled() && err != nil {
		t.Fatalf("%s: %v: %s", failpoint, err, &said)
	}
	return status.Signaled()
}

// state is all that a run leaves: which tables there are, frozen or not, what the journal says, what the guard and the decision see.
func (h *house) state(t testing.TB) string {
	t.Helper()
	return h.text(t, `SELECT concat_ws(E'\n',
		(SELECT string_agg(concat_ws(' ', c.relname, CASE WHEN c.relispartition THEN 'attached' ELSE 'alone' END,
				(SELECT string_agg(tgname, ',' ORDER BY tgname) FROM pg_trigger WHERE tgrelid = c.oid AND tgname LIKE 'reconciler%'),
				(SELECT string_agg(conname, ',') FROM pg_constraint WHERE conrelid = c.oid AND conname LIKE 'reconciler%')), E'\n' ORDER BY c.relname)
			FROM pg_class c WHERE c.relnamespace = 'idempotency'::regnamespace AND c.relkind = 'r' AND c.relname LIKE 'keys%' AND c.relname < 'keys_' || to_char(now(), 'YYYYMMDD')),
		(SELECT string_agg(concat_ws(' ', partition_name, step, done, coalesce(held_reason, '-'), rows, digest, object), E'\n' ORDER BY id) FROM reconciler.partition_archives),
		(SELECT string_agg(w::text, ' ') FROM (SELECT table_name, watermark FROM idempotency.watermarks UNION ALL SELECT table_name, watermark FROM reconciler.archive_watermarks) w),
		(SELECT count(*) FROM idempotency.claims), (SELECT count(*) FROM idempotency.keys))`)
}

// A run is killed at every point where it can be, and run again: the end is always that of a run that nobody killed.
func TestAKilledRunIsGoneOnWithFromAnyPoint(t *testing.T) {
	t.Parallel()
	build := func(t *testing.T) *house {
		h := &house{dsn: testdb.URL(t, migrations.Reconciler, migrations.Downstream)}
		h.db = testdb.Open(t, h.dsn)
		makeKeys(t, h.db, 9, 3)
		h.Archiver = archiver(t, h.db, t.TempDir(), func(c *Config) { c.DropAfter, c.Premake = time.Hour, 16 })
		return h
	}
	// A house goes through these: archiving, beside a sibling within the retention whose detach was interrupted; dropping; restoring. The
	// stage in which it is killed is gone through again, and is its last.
	life := func(t *testing.T, h *house, at string) (stages []string, killed bool) {
		h.interruptedDetach(t, day(3))
		for _, verb := range []string{"archive", "archive", "restore " + day(9)} {
			killed = h.killedAt(t, at, verb)
			if killed && verb != "archive" && h.text(t, `SELECT count(*) FROM pg_inherits WHERE inhrelid = to_regclass($1)`, day(9)) == "0" {
				if _, err := h.Restore(t.Context(), day(9)); err != nil {
					t.Fatal(err)
				}
			}
			if killed {
				h.run(t)
			}
			stages = append(stages, h.state(t))
			if killed {
				break
			}
			h.ageDays(t, 1)
		}
		h.verified(t)
		return stages, killed
	}
	var want []string
	t.Run("never killed", func(t *testing.T) { want, _ = life(t, build(t), "") })
	t.Log(strings.Join(want, "\n\n"))
	t.Run("killed", func(t *testing.T) {
		for i, at := range Failpoints {
			if testing.Short() && i%24 != 0 { // the race detector sees nothing of the children
				continue
			}
			t.Run(at, func(t *testing.T) {
				t.Parallel()
				got, killed := life(t, build(t), at)
				if !killed {
					t.Error("no run came there")
				}
				for i := range got {
					if got[i] != want[i] {
						t.Errorf("stage %d:\n%s\nwant\n%s", i, got[i], want[i])
					}
				}
			})
		}
	})
}

// interruptedDetach leaves a partition as DETACH CONCURRENTLY leaves it that was cancelled while it waited for a reader.
func (h *house) interruptedDetach(t testing.TB, name string) {
	t.Helper()
	reader, err := h.db.Connx(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = reader.Close() }()
	for _, q := range []string{`BEGIN`, `SELECT count(*) FROM idempotency.keys`} {
		if _, err := reader.ExecContext(t.Context(), q); err != nil {
			t.Fatal(err)
		}
	}
	hasty, err := h.db.Connx(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = hasty.Close() }()
	if _, err := hasty.ExecContext(t.Context(), `SET lock_timeout = '10ms'`); err != nil {
		t.Fatal(err)
	}
	if _, err := hasty.ExecContext(t.Context(), `ALTER TABLE idempotency.keys DETACH PARTITION `+name+` CONCURRENTLY`); err == nil {
		t.Fatal("the detach was not interrupted")
	}
	if _, err := hasty.ExecContext(t.Context(), `RESET lock_timeout`); err != nil {
		t.Fatal(err)
	}
	if _, err := reader.ExecContext(t.Context(), `ROLLBACK`); err != nil {
		t.Fatal(err)
	}
	if h.text(t, `SELECT inhdetachpending FROM pg_inherits WHERE inhrelid = $1::regclass`, name) != "true" {
		t.Fatal("no detach is pending")
	}
}
