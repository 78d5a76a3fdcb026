package main

import (
	"syscall"
	"testing"

	"github.com/callreceipt/reconciler/internal/eventually"
)

func TestServeTakesTheSchedulesThatPeopleWrite(t *testing.T) {
	t.Parallel()
	s := newScene(t, "batch_size: 10", "charge")
	for schedule, seconds := range map[string]float64{"* * * * *": 60, "@every 10s": 10} {
		d := s.serve("RECONCILER_RECONCILE_SCHEDULE=" + schedule)
		d.shows(`reconciler_schedule_interval_seconds{task="reconcile",tool="charge"}`, seconds)
		d.signal(syscall.SIGTERM)
		if code := d.exit(); code != exitDone {
			t.Errorf("%s: exit code %d; %s", schedule, code, d.log)
		}
	}
}

func TestServeKeepsTheScheduleOfAToolWhileAnotherHangs(t *testing.T) {
	t.Parallel()
	const batch = "batch_size: 10, timeout: 30s"
	s := newStage(t)
	good, hanging := newDownstream(t), newDownstream(t)
	s.configure(s.asking("charge", good, batch), s.asking("hang", hanging, batch))
	s.park("hang", 10)
	s.park("charge", 10)
	arrived, proceed := hanging.atFirst()
	defer proceed()
	d := s.serve()
	await(t, arrived, "a request of the tool that hangs")
	eventually.True(t, "the other one has passed three times", func() bool {
		return one[int](s, `SELECT count(*) FROM reconciler.runs WHERE subject = 'charge' AND outcome = 'success'`) >= 3
	})
	if still := one[int](s, `SELECT count(*) FROM reconciler.runs WHERE subject = 'hang' AND finished_at IS NULL`); still != 1 {
		t.Errorf("%d passes of the tool that hangs are at work, want the first one", still)
	}
	d.shows(`reconciler_run_in_progress{task="reconcile",tool="hang"}`, 1)
	eventually.True(t, "its ticks are counted as skipped", func() bool {
		skipped, _ := d.metric(`reconciler_runs_skipped_total{reason="still_running",task="reconcile",tool="hang"}`)
		return skipped >= 1
	})
}
