package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/jmoiron/sqlx"

	"github.com/callreceipt/reconciler/internal/eventually"
	"github.com/callreceipt/reconciler/internal/testdb"
	"github.com/callreceipt/reconciler/migrations"
	"github.com/callreceipt/reconciler/partition"
)

// newArchive is a scene whose database has the keys of a downstream as well, and the directory of an archive.
func newArchive(t *testing.T) (s *scene, dir string) {
	t.Helper()
	s = &scene{t: t, url: testdb.URL(t, migrations.Reconciler, migrations.Downstream), downstream: newDownstream(t)}
	s.db = testdb.Open(t, s.url)
	dir = t.TempDir()
	s.config = filepath.Join(dir, "reconciler.yaml")
	return s, filepath.Join(dir, "archive")
}

// oldKeys makes partitions of keys for the days 10, 11 … ago, with so many keys of a business that is over in each.
func oldKeys(db *sqlx.DB, days, keys int) {
	for day := 10; day < 10+days; day++ {
		db.MustExec(fmt.Sprintf(`
			SET TimeZone = 'UTC'; DO $$ DECLARE today timestamptz := date_trunc('day', now()); BEGIN
				EXECUTE format('CREATE TABLE idempotency.days_ago_%[1]d PARTITION OF idempotency.keys FOR VALUES FROM (%%L) TO (%%L)',
					today - interval '%[1]d days', today - interval '%[1]d days' + interval '1 day');
			END $$`, day))
		db.MustExec(`
			INSERT INTO idempotency.keys
			SELECT b || ':charge', b, 'charge', b || '-0001', 1, 'SUCCESS', to_json(repeat(md5(b), 50)), sha256('x'), at, at, at, at + interval '7 days'
			FROM (SELECT 'B' || $1::int || '-' || n AS b, date_trunc('day', now(), 'UTC') - $1::int * interval '24 hours' + n * interval '1 ms' AS at
				FROM generate_series(1, $2) n) made`, day, keys)
	}
}

// archived is the configuration of a table with the usual columns, and further keys.
func archived(table, dir string, keys ...string) string {
	return fmt.Sprintf("  - {%s}\n", strings.Join(append([]string{"table: " + table, fmt.Sprintf("archive: {dir: %q}", dir)}, keys...), ", "))
}

// The first run is overdue when the daemon starts, and begins one partition; the second comes by the schedule. A table of the same name
// elsewhere is another one, and one that is not there is in nobody's way.
func TestServeArchivesTablesOnTheirSchedule(t *testing.T) {
	t.Parallel()
	s, dir := newArchive(t)
	oldKeys(s.db, 2, 5)
	elsewhere := testdb.URL(t, migrations.Downstream)
	oldKeys(testdb.Open(t, elsewhere), 1, 7)
	schedule := `schedule: "@every 5s"`
	keys := archived("idempotency.keys", dir, schedule, "max_per_run: 1")
	s.configure(s.asking("charge", s.downstream), "partitions:\n", keys, archived("public.absent", dir, schedule),
		archived("idempotency.keys", dir, schedule, fmt.Sprintf("database: {url: %q}", elsewhere)))
	d := s.serve()
	if said := d.says("the table cannot be looked after"); said["table"] != "public.absent" || !strings.Contains(said["error"].(string), "there is no such table") {
		t.Errorf("it says %v", said)
	}
	s.park("charge", 4)
	s.untilSettled("charge")
	if over := d.says("archive over"); over["detached"] != 1.0 || !strings.HasPrefix(over["table"].(string), "idempotency.keys") {
		t.Errorf("it says %v", over)
	}
	s.becomes("1 1", `SELECT string_agg(counts->>'detached', ' ' ORDER BY id) FROM reconciler.runs WHERE subject = 'idempotency.keys' AND counts->>'detached' <> '0'`)
	s.becomes("1", `SELECT max(counts->>'detached') FROM reconciler.runs WHERE task = 'archive' AND subject LIKE 'idempotency.keys@%'`)
	s.becomes("failed", `SELECT max(outcome) FROM reconciler.runs WHERE subject = 'public.absent'`)
	d.shows(`reconciler_archived_rows_total{table="idempotency.keys"}`, 10)
	d.shows(`reconciler_partitions_due{table="idempotency.keys"}`, 0)

	// A reload adds the ledger, and what is taken out leaves nothing in the metrics.
	s.configure(s.asking("charge", s.downstream), "partitions:\n", keys, archived("reconciler.call_events", dir))
	if code, text := d.reload(); code != http.StatusOK {
		t.Fatalf("%d %s", code, text)
	}
	s.becomes("success", `SELECT outcome FROM reconciler.runs WHERE subject = 'reconciler.call_events'`)
	d.shows(`reconciler_runs_total{outcome="success",task="archive",tool="reconciler.call_events"}`, 1)
	eventually.True(t, "the metrics of the absent tables are gone", func() bool {
		_, text := d.get("/metrics")
		return !strings.Contains(text, "public.absent") && !strings.Contains(text, "idempotency.keys@") && strings.Contains(text, `table="reconciler.call_events"`)
	})
	d.shows(`reconciler_archived_rows_total{table="idempotency.keys"}`, 10)
	if found, err := partition.VerifyTree(t.Context(), dir); err != nil || len(found) != 3 {
		t.Errorf("the archive: %v %v", found, err)
	}
}

func TestServeMakesPartitionsBetweenTheRuns(t *testing.T) {
	t.Parallel()
	s, dir := newArchive(t)
	s.db.MustExec(`INSERT INTO reconciler.runs (task, subject, holder, finished_at, outcome) VALUES ('archive', 'idempotency.keys', 'somebody', now(), 'success')`)
	s.configure(s.asking("charge", s.downstream), "partitions:\n", archived("idempotency.keys", dir, `schedule: "@every 300h"`, "premake: 30"))
	d := s.serve()
	if made := d.says("partitions made ahead"); made["made"].(float64) < 10 {
		t.Errorf("it says %v", made)
	}
	if runs := one[int](s, `SELECT count(*) FROM reconciler.runs WHERE task = 'archive'`); runs != 1 {
		t.Errorf("%d runs are on record, want the one before", runs)
	}
}

func TestServeBreaksOffAnExportOnSIGTERMAndTheNextRunGoesOn(t *testing.T) {
	t.Parallel()
	s, dir := newArchive(t)
	oldKeys(s.db, 1, 20_000)
	s.configure(s.asking("charge", s.downstream), "partitions:\n", archived("idempotency.keys", dir))
	d := s.serve()
	unfinished := func() []string { found, _ := filepath.Glob(filepath.Join(dir, "*", "*.tmp")); return found }
	eventually.True(t, "the export has begun", func() bool { return len(unfinished()) > 0 })
	d.signal(syscall.SIGTERM)
	if code := d.exit(); code != exitDone {
		t.Errorf("exit code %d, want 0; %s", code, d.log)
	}
	if got := one[string](s, `SELECT concat_ws(' ', outcome, counts->>'detached') FROM reconciler.runs WHERE task = 'archive'`); got != "partial 0" {
		t.Errorf("on record is %q", got)
	}
	if rows := one[int](s, `SELECT count(*) FROM idempotency.keys`); rows != 20_000 {
		t.Errorf("%d rows are seen through the table", rows)
	}

	p := s.start("archive", "-o", "json")
	if code := p.exit(); code != exitDone {
		t.Fatalf("exit code %d; %s", code, &p.stderr)
	}
	var rep archiveReport
	if err := json.Unmarshal(p.stdout.Bytes(), &rep); err != nil || rep.Tables[0].Detached != 1 {
		t.Errorf("stdout is %v, %s", err, &p.stdout)
	}
	if found, err := partition.VerifyTree(t.Context(), dir); err != nil || len(found) != 1 || !found[0].OK || found[0].Rows != 20_000 {
		t.Errorf("the archive: %v %v", found, err)
	}
	if left := unfinished(); len(left) > 0 {
		t.Errorf("left over: %v", left)
	}
}
