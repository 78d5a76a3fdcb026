package main

import (
	"net/http"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/callreceipt/reconciler/internal/eventually"
)

func TestServeFinishesTheBatchInHandOnSIGTERMAndTheNextReplicaGoesOn(t *testing.T) {
	t.Parallel()
	s := newScene(t, "batch_size: 10, concurrency: 1, timeout: 30s, rate: 1000", "charge")
	s.park("charge", 30)
	arrived, proceed := s.downstream.atFirst()
	d := s.serve("RECONCILER_RECONCILE_SCHEDULE=@every 1h")
	inHand := await(t, arrived, "a request").bizIDs
	d.signal(syscall.SIGTERM)
	d.notReady("the daemon is stopping")
	if _, text := d.get("/metrics"); !strings.Contains(text, `reconciler_run_in_progress{task="reconcile",tool="charge"} 1`) {
		t.Error("what drains is not watched any more")
	}
	proceed()
	if code := d.exit(); code != exitDone {
		t.Errorf("exit code %d, want 0; %s", code, d.log)
	}
	before := s.settled()
	if !slices.Equal(before, slices.Sorted(slices.Values(inHand))) {
		t.Errorf("settled %v, in hand were %v", before, inHand)
	}
	// That of the clean-up may have been on its way to be taken; its session is gone, and anybody may take it.
	if free := one[bool](s, `SELECT expires_at <= clock_timestamp() FROM reconciler.leases WHERE name = 'reconcile:charge'`); !free {
		t.Error("the lease was not given back")
	}

	s.downstream.forget(nil)
	s.serve("RECONCILER_RECONCILE_SCHEDULE=@every 1h") // it does not wait for its first tick
	s.untilSettled("charge")
	s.askedAgain(before)
	s.becomes("partial 10 stopped by terminated, success 20", `
		SELECT string_agg(concat_ws(' ', outcome, counts->>'scanned', error), ', ' ORDER BY started_at)
		FROM reconciler.runs WHERE task = 'reconcile'`)
}

func TestServeEndsAtOnceOnTheSecondSignal(t *testing.T) {
	t.Parallel()
	s := newScene(t, "batch_size: 10, concurrency: 1, timeout: 30s", "charge")
	s.park("charge", 10)
	arrived, _ := s.downstream.atFirst()
	d := s.serve()
	await(t, arrived, "a request")
	d.signal(syscall.SIGTERM)
	d.says("stopping, the work in hand is finished")
	d.signal(syscall.SIGINT)
	if code := d.exit(); code != 128+int(syscall.SIGINT) {
		t.Errorf("exit code %d, want 130; %s", code, d.log)
	}
}

func TestServeWithNothingInHandEndsOnSIGTERM(t *testing.T) {
	t.Parallel()
	s := newScene(t, "batch_size: 10", "charge")
	d := s.serve()
	d.ready()
	d.signal(syscall.SIGTERM)
	if code := d.exit(); code != exitDone {
		t.Errorf("exit code %d, want 0; %s", code, d.log)
	}
	if got := d.log.troubles(); len(got) > 0 {
		t.Errorf("the log complains: %q", got)
	}
}

// A connection that is refused and a schema that is behind are no reasons not to start.
func TestServeWaitsForItsDatabaseAndForItsSchema(t *testing.T) {
	t.Parallel()
	s := newScene(t, "batch_size: 10", "charge")
	s.db.MustExec(`DROP TABLE reconciler.partition_archives, reconciler.archive_watermarks`) // what the last step made
	s.db.MustExec(`DELETE FROM reconciler.schema_migrations WHERE version_id = (SELECT max(version_id) FROM reconciler.schema_migrations)`)
	door := newDoor(t, s.url)
	d := s.serve("RECONCILER_DATABASE_URL=" + door.url)
	d.notReady("connection refused")
	s.park("charge", 10)

	door.open()
	d.notReady("run 'reconciler migrate up'")
	p := s.start("migrate", "up")
	if code := p.exit(); code != exitDone {
		t.Fatalf("exit code %d; %s", code, &p.stderr)
	}
	d.ready()
	s.untilSettled("charge")

	// It goes away and comes back.
	door.close()
	d.notReady("connection refused")
	eventually.True(t, "there are no numbers of the backlog, since none holds", func() bool {
		_, shown := d.metric(`reconciler_pending_calls{status="PENDING",tool="charge"}`)
		return !shown
	})
	s.parkOne("charge", "S-late")
	door.open()
	d.ready()
	s.untilSettled("charge")
	if code, _ := d.get("/livez"); code != http.StatusOK {
		t.Errorf("/livez answers %d", code)
	}
}
