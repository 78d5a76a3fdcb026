package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"
)

// moment is where in its pass a run is killed, seen from the n-th request.
type moment string

const (
	onArrival    moment = "when it arrives"
	onceAnswered moment = "once it is answered"
	inTheWrite   moment = "while its verdicts are being written"
)

// After kill -9 at any point the next run goes on at once. Nothing is lost or decided twice, and what was settled before a kill is
// not asked about again after it.
func TestAPassThatIsKilledTenTimesIsFinishedByTheNextRun(t *testing.T) {
	t.Parallel()
	const calls = 2000
	s := newScene(t, "batch_size: 50, concurrency: 2, rate: 10000", "charge")
	s.park("charge", calls)
	moments := []moment{onArrival, onceAnswered, inTheWrite}
	for i := range 10 {
		before := s.settled()
		s.killedRun(2+i%4, moments[i%len(moments)])
		s.askedAgain(before)
	}

	before := s.settled()
	if len(before) == 0 || len(before) == calls {
		t.Fatalf("%d of %d calls settled after ten kills: the kills came too early or too late", len(before), calls)
	}
	s.downstream.forget(nil)
	p := s.start("run", "-o", "json")
	var rep report
	if code := p.exit(); code != exitDone {
		t.Fatalf("exit code %d, want 0; %s", code, &p.stderr)
	}
	if err := json.Unmarshal(p.stdout.Bytes(), &rep); err != nil {
		t.Fatalf("%v in %q", err, &p.stdout)
	}
	// It may be fewer: a COMMIT that was on its way when its sender was killed is carried out a moment later.
	if did := rep.Tools[0].Success + rep.Tools[0].Failed; did == 0 || did > calls-len(before) {
		t.Errorf("it settled %d calls; before it, %d of %d were", did, len(before), calls)
	}
	s.askedAgain(before)
	if wrong := one[int](s, `SELECT count(*) FROM reconciler.pending_confirmations
		WHERE status <> CASE left(biz_id, 1) WHEN 'S' THEN 'SUCCESS' ELSE 'FAILED' END OR receipt->>'callId' <> call_id OR version <> 1`); wrong != 0 {
		t.Errorf("%d calls have the wrong verdict, or more than one write", wrong)
	}
	if got := one[string](s, `SELECT count(*) || ' ' || count(DISTINCT call_id) FROM reconciler.call_events WHERE kind = 'verdict'`); got != fmt.Sprint(calls, calls) {
		t.Errorf("verdicts in the ledger and calls they are about: %s, want %d of each", got, calls)
	}
	if got := one[string](s, `SELECT count(*) || ' ' || count(finished_at) FROM reconciler.runs`); got != "11 1" {
		t.Errorf("runs begun and finished: %s, want 11 1", got)
	}
}

// killedRun starts a run and kills it at its n-th request. That it comes so far shows that it took the lease of its dead predecessor.
func (s *scene) killedRun(n int, at moment) {
	s.t.Helper()
	s.doomedRun(fmt.Sprintf("%s, request %d", at, n), func(kill func()) {
		s.downstream.forget(func(q query) {
			if q.n != n {
				q.answer()
				return
			}
			switch at {
			case onArrival:
				kill()
			case onceAnswered:
				q.answer()
				kill()
			case inTheWrite:
				unlock := s.lock(q.bizIDs[0])
				q.answer()
				s.untilSomebodyWaits()
				kill()
				unlock()
			}
		})
	})
}

// doomedRun starts a run that ends by kill and in no other way. steer hands kill to whoever the run will talk to; when it returns,
// the process has ended.
func (s *scene) doomedRun(when string, steer func(kill func())) {
	s.t.Helper()
	started, killed := make(chan *program, 1), make(chan struct{})
	steer(func() {
		p := <-started
		_ = p.cmd.Process.Kill() // if it has ended by itself, its exit code tells
		<-p.over
		close(killed)
	})
	p := s.start("run")
	started <- p
	if code := p.exit(); code != -1 {
		s.t.Fatalf("to be killed %s, it exited with %d; %s%s", when, code, &p.stdout, &p.stderr)
	}
	await(s.t, killed, "the end of the kill")
}

// lock keeps the rows of a bizId from being written until the returned function is called.
func (s *scene) lock(bizID string) (unlock func()) {
	tx := s.db.MustBegin()
	tx.MustExec(`SELECT FROM reconciler.pending_confirmations WHERE biz_id = $1 FOR UPDATE`, bizID)
	return func() { _ = tx.Rollback() }
}

// untilSomebodyWaits returns when a statement on this database waits for a lock. It runs outside of the test's goroutine.
func (s *scene) untilSomebodyWaits() {
	s.until("somebody waits for a lock", `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock')`)
}

// until returns when the query says true. It may run outside of the test's goroutine.
func (s *scene) until(what, query string, args ...any) {
	poll := time.NewTicker(5 * time.Millisecond)
	defer poll.Stop()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); <-poll.C {
		var yes bool
		if err := s.db.Get(&yes, query, args...); err != nil {
			s.t.Error(err)
			return
		}
		if yes {
			return
		}
	}
	s.t.Errorf("waited %s until %s", patience, what)
}

// askedAgain fails the test if the downstream was asked about a call that had been settled before.
func (s *scene) askedAgain(before []string) {
	s.t.Helper()
	_, asked := s.downstream.seen()
	for _, id := range asked {
		if _, was := slices.BinarySearch(before, id); was {
			s.t.Errorf("%s was settled, and was asked about again", id)
		}
	}
}
