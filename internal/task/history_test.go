package task

import (
	"fmt"
	"testing"
	"time"

	"github.com/callreceipt/reconciler/internal/testdb"
)

func TestTheLastEndsAreThoseOfAnyProcess(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	db.MustExec(`
		INSERT INTO reconciler.runs (task, subject, holder, started_at, finished_at, outcome) VALUES
			('reconcile', 'charge', 'a', '2024-01-01', '2024-01-01 00:01', 'success'),
			('reconcile', 'charge', 'b', '2024-01-02', '2024-01-02 00:01', 'partial'),
			('reconcile', 'charge', 'c', '2024-01-03', '2024-01-03 00:01', 'skipped'),
			('reconcile', 'charge', 'd', '2024-01-04', NULL, 'running'),
			('archive', 'charge', 'd', '2024-01-05', '2024-01-05 00:01', 'success')`)
	ends, err := LastEnds(t.Context(), db, "reconcile", []string{"charge", "sms"})
	if err != nil || len(ends) != 2 {
		t.Fatalf("%+v, %v", ends, err)
	}
	if ends[0].Subject == "sms" {
		ends[0], ends[1] = ends[1], ends[0]
	}
	if e := ends[0]; e.Success.Format(time.DateOnly) != "2024-01-01" || e.Completion.Format(time.DateOnly) != "2024-01-02" {
		t.Errorf("%s %s", e.Success, e.Completion)
	}
	if e := ends[1]; e.Success != nil || e.Completion != nil {
		t.Errorf("%+v", e)
	}
}

func TestOldRunsAreDeletedButWhatIsStillNeeded(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	db.MustExec(`
		INSERT INTO reconciler.runs (task, subject, holder, started_at, outcome, policy) VALUES
			('reconcile', 'charge', '1 old rules',        now() - interval '9 days', 'success', '{"v": 1}'),
			('reconcile', 'charge', '2 old rules, last',  now() - interval '8 days', 'success', '{"v": 1}'),
			('reconcile', 'charge', '3',                  now() - interval '7 days', 'success', '{"v": 2}'),
			('reconcile', 'charge', '4 killed',           now() - interval '6 days', 'running', '{"v": 2}'),
			('reconcile', 'charge', '5 last success',     now() - interval '5 days', 'success', '{"v": 2}'),
			('reconcile', 'charge', '6 since then',       now() - interval '4 days', 'failed', '{"v": 2}'),
			('reconcile', 'sms',    '7 the only one',     now() - interval '9 days', 'failed', NULL)`)
	for i, want := range []int{2, 1, 0} {
		if n, err := DeleteRuns(t.Context(), db, 72*time.Hour, 2); err != nil || n != want {
			t.Errorf("batch %d deleted %d, want %d: %v", i, n, want, err)
		}
	}
	var left []string
	if err := db.Select(&left, `SELECT left(holder, 1) FROM reconciler.runs ORDER BY 1`); err != nil || fmt.Sprint(left) != "[2 5 6 7]" {
		t.Errorf("left are %v: %v", left, err)
	}
}

func TestAToolThatFailsForYearsLeavesNoMoreRunsThanOneThatWorks(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	db.MustExec(`
		INSERT INTO reconciler.runs (task, subject, holder, started_at, finished_at, outcome, policy)
		SELECT 'reconcile', subject, n::text, now() - n * interval '1 hour', now() - n * interval '1 hour', outcome, '{"v": 1}'
		FROM (VALUES ('fails', 'failed'), ('is partly done', 'partial'), ('is killed', 'running')) k (subject, outcome), generate_series(100, 149) n`)
	db.MustExec(`
		INSERT INTO reconciler.runs (task, subject, holder, started_at, finished_at, outcome, policy) VALUES
			('reconcile', 'is killed', 'its last end', now() - interval '150 hours', now() - interval '150 hours', 'failed', '{"v": 1}')`)
	if _, err := DeleteRuns(t.Context(), db, 72*time.Hour, 1000); err != nil {
		t.Fatal(err)
	}
	for subject, want := range map[string]int{"fails": 1, "is partly done": 1, "is killed": 51} {
		if n := value[int](t, db, `SELECT count(*) FROM reconciler.runs WHERE subject = '`+subject+`'`); n != want {
			t.Errorf("%d runs are left of a tool that %s, want %d", n, subject, want)
		}
	}
	ends, err := LastEnds(t.Context(), db, "reconcile", []string{"fails"})
	if err != nil || len(ends) != 1 || ends[0].Completion == nil {
		t.Errorf("when it last ended is not known any more: %+v, %v", ends, err)
	}
}
