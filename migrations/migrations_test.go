package migrations_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"

	"github.com/jmoiron/sqlx"
	"github.com/lib/pq"

	"github.com/callreceipt/reconciler/internal/eventually"
	"github.com/callreceipt/reconciler/internal/localpg"
	"github.com/callreceipt/reconciler/internal/testdb"
	"github.com/callreceipt/reconciler/migrations"
)

func TestMain(m *testing.M) { os.Exit(localpg.Main(m)) }

func TestSeveralProcessesMigrateAtOnceAndEachStepRunsOnce(t *testing.T) {
	t.Parallel()
	dsn := localpg.NewDatabase(t, localpg.Migration{})
	var mu sync.Mutex
	var applied int
	var group sync.WaitGroup
	for range 4 {
		db := testdb.Open(t, dsn)
		group.Go(func() {
			steps, err := migrations.Reconciler.Up(t.Context(), db.DB)
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			applied += len(steps)
			mu.Unlock()
		})
	}
	group.Wait()
	steps, err := migrations.Reconciler.Status(t.Context(), testdb.Open(t, dsn).DB)
	if err != nil {
		t.Fatal(err)
	}
	if applied != len(steps) || len(steps) == 0 {
		t.Errorf("%d steps were applied, there are %d", applied, len(steps))
	}
}

// Both waits end when the last transaction that was open before has ended, and nobody waits for them meanwhile.
func TestIndexesAreBuiltBesideTheTrafficWhateverTheLimitsOfASession(t *testing.T) {
	t.Parallel()
	dsn := testdb.URL(t)
	db := testdb.Open(t, dsn)
	db.MustExec(`DELETE FROM reconciler.schema_migrations WHERE version_id >= 5`)
	db.MustExec(`DROP INDEX reconciler.pending_confirmations_backlog`)
	db.MustExec(`DROP TABLE reconciler.partition_archives, reconciler.archive_watermarks`)
	park(t, db, "C1", "")
	traffic := db.MustBegin()
	defer func() { _ = traffic.Rollback() }()
	traffic.MustExec(`UPDATE reconciler.pending_confirmations SET reason = 'in the middle of something'`)
	hasty := testdb.Open(t, dsn+"&lock_timeout=50ms&statement_timeout=100ms")
	done := make(chan error, 1)
	go func() {
		_, err := migrations.Reconciler.Up(t.Context(), hasty.DB)
		done <- err
	}()
	eventually.True(t, "it has waited for longer than a session may", func() bool {
		var waits bool
		if err := db.Get(&waits, `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'CREATE INDEX%'
			AND wait_event_type = 'Lock' AND query_start < clock_timestamp() - interval '300 ms')`); err != nil {
			t.Fatal(err)
		}
		return waits || len(done) > 0
	})
	if err := traffic.Rollback(); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	var unlimited int
	if err := hasty.Get(&unlimited, `SELECT count(*) FROM pg_settings WHERE name IN ('lock_timeout', 'statement_timeout') AND setting = '0'`); err != nil || unlimited != 0 {
		t.Errorf("%d limits of the session are gone, %v", unlimited, err)
	}
}

func TestAStatusReadsAndChangesNothing(t *testing.T) {
	t.Parallel()
	db := testdb.Open(t, localpg.NewDatabase(t, localpg.Migration{}))
	steps, err := migrations.Reconciler.Pending(t.Context(), db.DB)
	if err != nil || len(steps) == 0 {
		t.Fatalf("an empty database lacks %d steps, %v", len(steps), err)
	}
	var schemas int
	if err := db.Get(&schemas, `SELECT count(*) FROM pg_namespace WHERE nspname = 'reconciler'`); err != nil || schemas != 0 {
		t.Errorf("asking for the status made the schema: %d, %v", schemas, err)
	}
}

func TestEveryInstantHasAZone(t *testing.T) {
	t.Parallel()
	db := testdb.New(t, migrations.Reconciler, migrations.Downstream)
	var naive []string
	err := db.Select(&naive, `SELECT table_schema || '.' || table_name || '.' || column_name FROM information_schema.columns
		WHERE table_schema IN ('reconciler', 'idempotency') AND table_name <> 'schema_migrations' AND data_type = 'timestamp without time zone'`)
	if err != nil || len(naive) > 0 {
		t.Errorf("without zone: %v, %v", naive, err)
	}
}

// park inserts one row with plain SQL, as a program in any language does.
func park(t *testing.T, db *sqlx.DB, id string, set string) {
	t.Helper()
	db.MustExec(`INSERT INTO reconciler.pending_confirmations (call_id, biz_id, tool, operation, request)
		VALUES ($1, 'B1', 'payment.charge', 'charge', '{}') ON CONFLICT (call_id) DO NOTHING`, id)
	if set != "" {
		db.MustExec(`UPDATE reconciler.pending_confirmations SET `+set+` WHERE call_id = $1`, id)
	}
}

func TestTheDatabaseRefusesWhatNoClientMayDo(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	for i, tt := range []struct{ name, before, statement string }{
		{"another callId", "", `UPDATE reconciler.pending_confirmations SET call_id = 'X' WHERE call_id = $1`},
		{"another bizId", "", `UPDATE reconciler.pending_confirmations SET biz_id = 'X' WHERE call_id = $1`},
		{"another tool", "", `UPDATE reconciler.pending_confirmations SET tool = 'X' WHERE call_id = $1`},
		{"another operation", "", `UPDATE reconciler.pending_confirmations SET operation = 'X' WHERE call_id = $1`},
		{"another idempotency key", "", `UPDATE reconciler.pending_confirmations SET idempotency_key = 'X' WHERE call_id = $1`},
		{"no idempotency key", "", `UPDATE reconciler.pending_confirmations SET idempotency_key = NULL WHERE call_id = $1`},
		{"another issued_at", "", `UPDATE reconciler.pending_confirmations SET issued_at = now() + interval '1s' WHERE call_id = $1`},
		{"out of SUCCESS", "status = 'SUCCESS'", `UPDATE reconciler.pending_confirmations SET status = 'PENDING' WHERE call_id = $1`},
		{"SUCCESS to FAILED", "status = 'SUCCESS'", `UPDATE reconciler.pending_confirmations SET status = 'FAILED' WHERE call_id = $1`},
		{"out of FAILED", "status = 'FAILED'", `UPDATE reconciler.pending_confirmations SET status = 'RETRY' WHERE call_id = $1`},
		{"a lower attempt", "attempt = 2", `UPDATE reconciler.pending_confirmations SET attempt = 1 WHERE call_id = $1`},
		{"a lower version", "", `UPDATE reconciler.pending_confirmations SET version = -1 WHERE call_id = $1`},
		{"deleting a PENDING row", "", `DELETE FROM reconciler.pending_confirmations WHERE call_id = $1`},
		{"deleting a RETRY row", "status = 'RETRY'", `DELETE FROM reconciler.pending_confirmations WHERE call_id = $1`},
		{"deleting a MANUAL row", "status = 'MANUAL'", `DELETE FROM reconciler.pending_confirmations WHERE call_id = $1`},
		{
			"sending again too late", "status = 'RETRY', retry_before = now() - interval '1s'",
			`UPDATE reconciler.pending_confirmations SET status = 'PENDING', attempt = attempt + 1 WHERE call_id = $1`,
		},
		{"an unknown status", "", `UPDATE reconciler.pending_confirmations SET status = 'DONE' WHERE call_id = $1`},
		{"emptying the table", "", `TRUNCATE reconciler.pending_confirmations -- $1`},
		{"changing the ledger", "", `WITH e AS (SELECT $1::text) UPDATE reconciler.call_events SET reason = 'x'`},
		{"shortening the ledger", "", `WITH e AS (SELECT $1::text) DELETE FROM reconciler.call_events`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			id := fmt.Sprint("C", i)
			park(t, db, id, tt.before)
			db.MustExec(`INSERT INTO reconciler.call_events (call_id, biz_id, kind, attempt, actor) VALUES ('E', 'B', 'sent', 1, 'test')`)
			args := []any{id}
			if tt.statement[:8] == "TRUNCATE" {
				args = nil
			}
			_, err := db.Exec(tt.statement, args...)
			var refused *pq.Error
			if !errors.As(err, &refused) || refused.Code.Class() != "23" {
				t.Errorf("not refused: %v", err)
			}
			t.Log(err)
		})
	}
}

func TestWhatIsAllowedStaysAllowed(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	park(t, db, "C1", "status = 'RETRY', retry_before = now() + interval '1h'")
	for _, statement := range []string{
		`UPDATE reconciler.pending_confirmations SET status = 'PENDING', attempt = attempt + 1 WHERE call_id = 'C1'`,
		`UPDATE reconciler.pending_confirmations SET status = 'MANUAL' WHERE call_id = 'C1'`,
		`UPDATE reconciler.pending_confirmations SET status = 'SUCCESS' WHERE call_id = 'C1'`,
		`UPDATE reconciler.pending_confirmations SET notified_at = now() WHERE call_id = 'C1'`,
		`DELETE FROM reconciler.pending_confirmations WHERE call_id = 'C1'`,
		`TRUNCATE reconciler.pending_confirmations`,
	} {
		if _, err := db.Exec(statement); err != nil {
			t.Errorf("%s: %v", statement, err)
		}
	}
}

func TestEveryWriteMovesTheVersionAlsoOneThatForgetsIt(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	park(t, db, "C1", "reason = 'by hand'")
	park(t, db, "C1", "version = version + 1")
	var version int
	if err := db.Get(&version, `SELECT version FROM reconciler.pending_confirmations`); err != nil || version != 2 {
		t.Errorf("after two writes the version is %d, %v", version, err)
	}
}

func TestWhoeverTakesARetryStartsANewSendWhateverTheStatementLeavesOut(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	park(t, db, "C1", `status = 'RETRY', reason = 'not_found', not_found_count = 2, not_found_since = now(), retry_before = now() + interval '1h',
		notify_at = now(), notify_version = 3, notify_since = now()`)
	// The statement of the contract, word by word.
	db.MustExec(`UPDATE reconciler.pending_confirmations SET status = 'PENDING', attempt = attempt + 1, last_sent_at = now(), version = version + 1
		WHERE call_id = 'C1' AND status = 'RETRY'`)
	var clean bool
	if err := db.Get(&clean, `SELECT not_found_count = 0 AND num_nulls(not_found_since, retry_before, reason, notify_at) = 4 FROM reconciler.pending_confirmations`); err != nil || !clean {
		t.Errorf("something of the send before is left: %v", err)
	}
}

func TestAVersionThatCannotBeCountedOnIsRefused(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	for _, version := range []string{"-1", "4611686018427387904", "9223372036854775807"} {
		if _, err := db.Exec(`INSERT INTO reconciler.pending_confirmations (call_id, biz_id, tool, operation, version) VALUES ('C', 'B', 'T', 'O', ` + version + `)`); err == nil {
			t.Errorf("%s was taken", version)
		}
	}
}

func TestIdsAreShortAndPlainAndTheKeyHasItsDefault(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	insert := `INSERT INTO reconciler.pending_confirmations (call_id, biz_id, tool, operation) VALUES ($1, $2, 'T', 'charge')`
	long := func(n int) string { return fmt.Sprintf("%0*d", n, 0) }
	for _, id := range []string{long(200), "a b", `a"b'c%../<script>=`, "\u00e9", "e\u0301"} {
		if _, err := db.Exec(insert, id, "B1"); err != nil {
			t.Errorf("%q: %v", id, err)
		}
	}
	for _, id := range []string{"", long(201), "a\nb", "a\tb", "a\x1b[31m", "a\u0085b", "a\x7fb"} {
		if _, err := db.Exec(insert, id, "B1"); err == nil {
			t.Errorf("%q was taken", id)
		}
	}
	var key string
	if err := db.Get(&key, `SELECT idempotency_key FROM reconciler.pending_confirmations WHERE call_id = 'a b'`); err != nil || key != "B1:charge" {
		t.Errorf("the key is %q, %v", key, err)
	}
}

func TestTheLedgerHasPartitionsForTodayAndTheDaysAheadWithoutHelp(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	for _, at := range []string{"now()", "now() + interval '13 days'"} {
		if _, err := db.Exec(`INSERT INTO reconciler.call_events (call_id, biz_id, at, kind, attempt, actor) VALUES ('C', 'B', ` + at + `, 'sent', 1, 'test')`); err != nil {
			t.Errorf("%s: %v", at, err)
		}
	}
	// Several callers at once, in any zone, make each partition once.
	var group sync.WaitGroup
	for _, zone := range []string{"Asia/Kolkata", "America/New_York", "UTC"} {
		group.Go(func() {
			tx := db.MustBeginTx(context.Background(), nil)
			defer func() { _ = tx.Rollback() }()
			tx.MustExec(`SET LOCAL TimeZone = '` + zone + `'`)
			if _, err := tx.Exec(`SELECT reconciler.ensure_event_partitions(30)`); err != nil {
				t.Errorf("%s: %v", zone, err)
			}
			if err := tx.Commit(); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	var partitions int
	if err := db.Get(&partitions, `SELECT count(*) FROM pg_inherits WHERE inhparent = 'reconciler.call_events'::regclass`); err != nil || partitions != 32 {
		t.Errorf("%d partitions, want yesterday, today and 30 days, %v", partitions, err)
	}
}
