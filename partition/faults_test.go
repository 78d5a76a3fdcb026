package partition

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"
	"golang.org/x/sync/errgroup"

	"github.com/callreceipt/reconciler/idempotency"
	"github.com/callreceipt/reconciler/internal/eventually"
	"github.com/callreceipt/reconciler/internal/task"
)

// put writes one key straight into a partition.
const put = `INSERT INTO %s SELECT $1::text, $1::text, 'charge', $1::text, 1, $2::text, '1', NULL::bytea, at, at, at, at FROM (SELECT date_trunc('day', now(), 'UTC') - interval '9 days' + interval '9 hours' AS at) t`

// The row is written before the partition is looked at, and committed after.
func TestARowThatSlipsInBetweenTheCheckAndTheFreezeIsFound(t *testing.T) {
	t.Parallel()
	h := keysOf(t, 9, 5)
	tx := h.db.MustBegin()
	defer func() { _ = tx.Rollback() }()
	tx.MustExec(fmt.Sprintf(put, "idempotency.keys"), "slips", "PROCESSING")
	done := make(chan Summary, 1)
	go func() { done <- h.run(t) }()
	eventually.True(t, "the freeze waits for the writer", func() bool {
		return h.text(t, `SELECT EXISTS (SELECT FROM pg_locks WHERE mode = 'ShareRowExclusiveLock' AND NOT granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))`) == "true"
	})
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	if sum := <-done; sum.Held != 1 || sum.Detached != 1 {
		t.Errorf("%+v", sum)
	}
	if x := h.explain(t)[day(9)]; x.Reason != "not_terminal" || x.Example != "slips is PROCESSING" {
		t.Errorf("%+v", x)
	}
	h.db.MustExec(`UPDATE idempotency.keys SET status = 'SUCCESS' WHERE idempotency_key = 'slips'`) // so it is not frozen
	if sum := h.run(t); sum.Rows != 6 || sum.Detached != 1 {
		t.Errorf("%+v", sum)
	}
}

func TestAFrozenPartitionRefusesEveryWriteAndLetsReadersPass(t *testing.T) {
	t.Parallel()
	h := keysOf(t, 9, 5)
	if !h.killedAt(t, "frozen:ended", "archive") {
		t.Fatal("it was not killed")
	}
	frozen := day(9)
	for what, attempt := range map[string]func(tx *sqlx.Tx) error{
		"an insert through the parent": func(tx *sqlx.Tx) error { return write(tx, fmt.Sprintf(put, "idempotency.keys"), "late", "SUCCESS") },
		"an insert into the partition": func(tx *sqlx.Tx) error { return write(tx, fmt.Sprintf(put, frozen), "late", "SUCCESS") },
		"an update": func(tx *sqlx.Tx) error {
			return write(tx, `UPDATE idempotency.keys SET expires_at = now() WHERE biz_id = 'B9-1'`)
		},
		"a delete":                 func(tx *sqlx.Tx) error { return write(tx, `DELETE FROM idempotency.keys WHERE biz_id = 'B9-1'`) },
		"a truncate":               func(tx *sqlx.Tx) error { return write(tx, `TRUNCATE `+frozen) },
		"a truncate of the parent": func(tx *sqlx.Tx) error { return write(tx, `TRUNCATE idempotency.keys`) },
		"a write as replication does it": func(tx *sqlx.Tx) error {
			tx.MustExec(`SET LOCAL session_replication_role = replica`)
			return write(tx, `DELETE FROM idempotency.keys WHERE biz_id = 'B9-1'`)
		},
	} {
		tx := h.db.MustBegin()
		if err := attempt(tx); err == nil || !strings.Contains(err.Error(), "is being archived") {
			t.Errorf("%s: %v", what, err)
		}
		_ = tx.Rollback()
	}
	if n := h.text(t, `SELECT count(*) FROM idempotency.keys`); n != "45" {
		t.Errorf("%s rows are seen", n)
	}
	if sum := h.run(t); sum.Detached != 2 {
		t.Errorf("%+v", sum)
	}
}

func write(tx *sqlx.Tx, query string, args ...any) error {
	_, err := tx.Exec(query, args...)
	return err
}

// Somebody takes the triggers away and writes, at each point where that would lose the row.
func TestAWriteInSpiteOfTheFreezeIsNeverLost(t *testing.T) {
	t.Parallel()
	for _, at := range []string{"frozen:ended", "exported:ended", "verified:ended", "watermark:ended", "detached:ended"} {
		t.Run(at, func(t *testing.T) {
			t.Parallel()
			h := keysOf(t, 8, 5, func(c *Config) { c.DropAfter = 0 })
			if !h.killedAt(t, at, "archive") {
				t.Fatal("it was not killed")
			}
			h.db.MustExec(`ALTER TABLE ` + day(8) + ` DISABLE TRIGGER ALL`)
			h.db.MustExec(strings.Replace(fmt.Sprintf(put, day(8)), "9 days", "8 days", 1), "late", "SUCCESS")
			h.run(t)
			x := h.explain(t)[day(8)]
			there := h.text(t, `SELECT to_regclass($1) IS NOT NULL AND EXISTS (SELECT FROM idempotency.keys WHERE idempotency_key = 'late')`, day(8)) == "true"
			switch at {
			case "frozen:ended":
				if x.State != "dropped" || x.Rows != 6 {
					t.Errorf("%+v", x)
				}
			case "detached:ended":
				if x.State != "detached" || x.Reason != "changed_after_freeze" {
					t.Errorf("%+v", x)
				}
			default:
				if !there || x.Reason != "" && x.Reason != "changed_after_freeze" {
					t.Errorf("%+v", x)
				}
				h.run(t)
				if x := h.explain(t)[day(8)]; x.State != "dropped" || x.Rows != 6 {
					t.Errorf("the next run: %+v", x)
				}
			}
			h.verified(t)
		})
	}
}

func TestNothingIsDroppedWhoseObjectIsNotWhatWasWritten(t *testing.T) {
	t.Parallel()
	for what, spoil := range map[string]func(object, manifest string) error{
		"a flipped byte": func(object, _ string) error {
			b, err := os.ReadFile(object)
			b[len(b)/2] ^= 1
			return errors.Join(err, os.WriteFile(object, b, 0o600))
		},
		"a truncated object": func(object, _ string) error { return os.Truncate(object, 20) },
		"a missing object":   func(object, _ string) error { return os.Remove(object) },
		"a missing manifest": func(_, manifest string) error { return os.Remove(manifest) },
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			h := keysOf(t, 8, 5, func(c *Config) { c.DropAfter = time.Hour })
			h.run(t)
			manifests, err := filepath.Glob(filepath.Join(h.objects(), "*"+manifestSuffix))
			if err != nil || len(manifests) != 1 {
				t.Fatal(manifests, err)
			}
			if err := spoil(objectOf(manifests[0]), manifests[0]); err != nil {
				t.Fatal(err)
			}
			h.db.MustExec(`UPDATE reconciler.partition_archives SET detached_at = detached_at - interval '1 hour'`)
			if sum := h.run(t); sum.Dropped != 0 || sum.Held != 1 {
				t.Errorf("%+v", sum)
			}
			x := h.explain(t)[day(8)]
			if x.State != "detached" || x.Reason != "object_damaged" || !strings.Contains(x.Example, filepath.Base(strings.TrimSuffix(manifests[0], manifestSuffix))) {
				t.Errorf("%+v", x)
			}
			found, err := VerifyTree(t.Context(), h.cfg.Dir)
			if err != nil || len(found) != 1 || found[0].OK {
				t.Errorf("%+v, %v", found, err)
			}
			if n := h.text(t, `SELECT count(*) FROM `+day(8)); n != "5" {
				t.Errorf("%s rows are left", n)
			}
			// The rows are there, so it is attached again and archived anew.
			if _, err := h.Restore(t.Context(), day(8)); err == nil {
				t.Error("it was restored by a damaged object")
			}
		})
	}
}

// A reader of the old partition has it for the whole run; inserts go on all the while, and none waits longer than a lock may be waited for.
func TestAReaderOfAnOldPartitionDelaysNobodyButItsDetach(t *testing.T) {
	t.Parallel()
	h := keysOf(t, 8, 5, func(c *Config) { c.LockTimeout = 50 * time.Millisecond })
	reader := h.db.MustBegin()
	defer func() { _ = reader.Rollback() }()
	reader.MustExec(`SELECT count(*) FROM ` + day(8))
	reader.MustExec(`SELECT count(*) FROM idempotency.keys`)
	ctx, stop := context.WithCancel(t.Context())
	var writers errgroup.Group
	writers.Go(func() error {
		conn, err := h.db.Connx(t.Context())
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close() }()
		if _, err := conn.ExecContext(t.Context(), `SET lock_timeout = '100ms'`); err != nil {
			return err
		}
		for n := 0; ctx.Err() == nil; n++ {
			if _, err := conn.ExecContext(t.Context(), `INSERT INTO idempotency.keys SELECT 'now' || $1::int, 'now', 'charge', 'now', 1, 'SUCCESS', '1', NULL::bytea, now(), now(), now(), now()`, n); err != nil {
				return fmt.Errorf("insert %d: %w", n, err)
			}
		}
		return nil
	})
	sum := h.run(t)
	if sum.Outcome != task.Partial || sum.Detached != 0 || sum.Exported != 1 {
		t.Errorf("%+v", sum)
	}
	stop()
	if err := writers.Wait(); err != nil {
		t.Error(err)
	}
	if x := h.explain(t)[day(8)]; x.Reason != "locked" {
		t.Errorf("%+v", x)
	}
	if err := reader.Rollback(); err != nil {
		t.Fatal(err)
	}
	if sum := h.run(t); sum.Outcome != task.Success || sum.Detached != 1 || sum.Exported != 0 {
		t.Errorf("%+v", sum)
	}
}

func TestOfTwoArchiversOneWorks(t *testing.T) {
	t.Parallel()
	h := keysOf(t, 8, 5)
	var inner error
	other := archiver(t, h.db, h.cfg.Dir)
	var once sync.Once
	h.cfg.Progress = func(Progress) { once.Do(func() { _, inner = other.RunOnce(t.Context(), Limits{}) }) }
	if sum := h.run(t); sum.Detached != 1 {
		t.Errorf("%+v", sum)
	}
	if held, ok := errors.AsType[*task.HeldError](inner); !ok || held.Holder != h.cfg.Holder {
		t.Errorf("%v", inner)
	}
}

func TestALateCallIsRefusedByTheGuard(t *testing.T) {
	t.Parallel()
	h := keysOf(t, 9, 5, func(c *Config) { c.DropAfter = 0 })
	if sum := h.run(t); sum.Dropped != 2 {
		t.Fatalf("%+v", sum)
	}
	g, err := idempotency.New(idempotency.Config{DB: h.db})
	if err != nil {
		t.Fatal(err)
	}
	for what, r := range map[string]idempotency.Request{
		"a retry of an archived key":      {CallID: "B9-1-0001", BizID: "B9-1", Operation: "charge", Attempt: 2, IssuedAt: time.Now().AddDate(0, 0, -9)},
		"a new call that is issued below": {CallID: "new", BizID: "new", Operation: "charge", IssuedAt: time.Now().AddDate(0, 0, -9)},
	} {
		got, err := g.Do(t.Context(), r, func(context.Context, *sqlx.Tx) (json.RawMessage, error) {
			t.Errorf("%s was executed", what)
			return nil, nil
		})
		if !errors.Is(err, idempotency.ErrExpired) {
			t.Errorf("%s: %+v, %v", what, got, err)
		}
	}
}
