package main

import (
	"encoding/json"
	"maps"
	"testing"

	"github.com/callreceipt/reconciler/internal/eventually"
)

// parkHistory puts calls and runs into the tables as two months of work leave them; n calls are settled, told and old. Their tool is
// not configured, so no pass touches them.
func (s *scene) parkHistory(n int) {
	s.t.Helper()
	s.db.MustExec(`
		INSERT INTO reconciler.pending_confirmations (call_id, biz_id, tool, operation, status, reason, created_at, resolved_at, notify_at)
		SELECT kind || '-' || n, kind || '-' || n, 'elsewhere', 'charge', status, 'receipt_success', now() - age, now() - age, notify_at
		FROM (VALUES ('old', 'SUCCESS', interval '60 days', NULL::timestamptz, $1::int),
			('old-failed', 'FAILED', interval '60 days', NULL, 5),
			('young', 'SUCCESS', interval '29 days', NULL, 5),
			('given-up', 'SUCCESS', interval '60 days', 'infinity', 5),
			('untold', 'FAILED', interval '60 days', now() + interval '1 hour', 5)) k (kind, status, age, notify_at, many),
			generate_series(1, many) n`, n)
	s.db.MustExec(`
		INSERT INTO reconciler.pending_confirmations (call_id, biz_id, tool, operation, status, created_at, resolved_at)
		SELECT 'open-' || status, 'open', 'elsewhere', 'charge', status, now() - interval '1 year', now() - interval '1 year'
		FROM unnest(ARRAY['PENDING', 'RETRY', 'MANUAL']) status`)
	s.db.MustExec(`
		INSERT INTO reconciler.runs (task, subject, holder, started_at, finished_at, outcome)
		SELECT 'reconcile', 'elsewhere', 'somebody', now() - n * interval '1 day', now() - n * interval '1 day', 'success' FROM generate_series(25, 60) n`)
	// What is deleted by one statement is written down.
	s.db.MustExec(`
		CREATE TABLE deletions (n bigint);
		CREATE FUNCTION note_deletion() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN INSERT INTO deletions SELECT count(*) FROM gone; RETURN NULL; END';
		CREATE TRIGGER note_deletion AFTER DELETE ON reconciler.pending_confirmations REFERENCING OLD TABLE AS gone
			FOR EACH STATEMENT EXECUTE FUNCTION note_deletion()`)
}

// left is how many calls there are of each kind.
func (s *scene) left() map[string]int {
	s.t.Helper()
	var rows []struct {
		Kind  string
		Calls int
	}
	if err := s.db.Select(&rows, `
		SELECT regexp_replace(call_id, '-[^-]*$', '') AS kind, count(*) AS calls FROM reconciler.pending_confirmations GROUP BY 1`); err != nil {
		s.t.Fatal(err)
	}
	kinds := map[string]int{}
	for _, r := range rows {
		kinds[r.Kind] = r.Calls
	}
	return kinds
}

// No clean-up is on record, so the first one is overdue when the daemon starts.
func TestServeDeletesWhatIsSettledAndOldWhenNoPassIsAtWork(t *testing.T) {
	t.Parallel()
	old := sized(2500, 100_000)
	s := newScene(t, "batch_size: 10, timeout: 30s", "charge")
	s.parkHistory(old)
	s.park("charge", 10)
	arrived, proceed := s.downstream.atFirst()
	// The clean-up may look before the pass of the daemon has its lease, so another replica is at work already.
	s.db.MustExec(`INSERT INTO reconciler.leases (name, holder, fence, expires_at, backend_pid) VALUES ('reconcile:refund', 'another', 1, now() + interval '1 hour', 0)`)
	d := s.serve()
	await(t, arrived, "a request")
	eventually.True(t, "the clean-up has begun", func() bool {
		return one[int](s, `SELECT count(*) FROM reconciler.runs WHERE task = 'cleanup'`) == 1
	})
	if got := s.left()["old"]; got != old {
		t.Errorf("%d calls are left of %d while a pass is at work", got, old)
	}
	s.db.MustExec(`DELETE FROM reconciler.leases WHERE holder = 'another'`)
	proceed()
	done := d.says("settled calls and old runs deleted")
	if done["calls"] != float64(old+5) || done["runs"] != 31.0 {
		t.Errorf("it says %v", done)
	}
	want := map[string]int{"young": 5, "given-up": 5, "untold": 5, "open": 3}
	got := s.left()
	maps.DeleteFunc(got, func(kind string, _ int) bool { return kind[1] == '-' }) // those of the pass
	if !maps.Equal(got, want) {
		t.Errorf("left are %v, want %v", got, want)
	}
	if most := one[int](s, `SELECT max(n) FROM deletions`); most > cleanupBatch {
		t.Errorf("one statement deleted %d calls, want at most %d", most, cleanupBatch)
	}
	if kept := one[int](s, `SELECT count(*) FROM reconciler.runs WHERE subject = 'elsewhere'`); kept != 5 {
		t.Errorf("%d runs are kept, want the 5 young ones", kept)
	}
	s.becomes("success", `SELECT outcome FROM reconciler.runs WHERE task = 'cleanup'`)
	var counts map[string]int
	if err := json.Unmarshal([]byte(one[string](s, `SELECT counts FROM reconciler.runs WHERE task = 'cleanup'`)), &counts); err != nil || counts["calls"] != old+5 {
		t.Errorf("on record is %v, %v", counts, err)
	}
}

func TestServeKeepsEverythingWithoutARetention(t *testing.T) {
	t.Parallel()
	s := newScene(t, "batch_size: 10", "charge")
	s.configure(s.asking("charge", s.downstream), "reconcile: {retention: 0}\n")
	s.parkHistory(10)
	d := s.serve()
	d.shows(`reconciler_runs_total{outcome="success",task="reconcile",tool="charge"}`, 2)
	if got := s.left()["old"]; got != 10 {
		t.Errorf("%d calls are left of 10", got)
	}
	if begun := one[int](s, `SELECT count(*) FROM reconciler.runs WHERE task = 'cleanup'`); begun != 0 {
		t.Errorf("%d clean-ups are on record", begun)
	}
}
