package main

import (
	"fmt"
	"testing"
)

// sendMoment is where in its dispatch a run is killed, seen from its n-th send.
type sendMoment string

const (
	sendArrived    sendMoment = "when it arrives"
	sendAnswered   sendMoment = "once it is answered"
	verdictWritten sendMoment = "while its verdict is being written"
	nextCommitted  sendMoment = "while the next attempt is being committed"
)

// After kill -9 at any point of a send, whatever of it had arrived, no attempt is made twice and no call is executed twice. An
// attempt that was on record may never have come: one for each send that was under way.
func TestADispatchThatIsKilledTwentyTimesMakesNoAttemptTwice(t *testing.T) {
	t.Parallel()
	const concurrency, mostAttempts = 4, 20
	s, shop := newShopScene(t, fast, fmt.Sprintf("max_attempts: %d", mostAttempts))
	shop.cutQueries(5)
	s.parkUnsent("charge", killedCalls)
	s.db.MustExec(`
		CREATE FUNCTION gate() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_advisory_xact_lock_shared(1); RETURN NULL; END';
		CREATE CONSTRAINT TRIGGER gate AFTER UPDATE ON reconciler.pending_confirmations DEFERRABLE INITIALLY DEFERRED
			FOR EACH ROW WHEN (NEW.attempt > OLD.attempt) EXECUTE FUNCTION gate()`)

	moments := []sendMoment{sendArrived, sendAnswered, verdictWritten, nextCommitted}
	for i := range killedRuns {
		s.killedDispatch(shop, 1+i%7, moments[i%len(moments)])
	}
	if open := s.open(); open == 0 || open == killedCalls {
		t.Fatalf("%d of %d calls are open after the last kill: the kills came too early or too late", open, killedCalls)
	}
	shop.steerBy(unreliable)
	s.untilNoneIsOpen()
	lost, calls := s.judge(shop, mostAttempts)
	t.Logf("%d of %d attempts on record never came, after %d kills", lost, len(shop.seen())+lost, killedRuns)
	if most := killedRuns * concurrency; lost == 0 || lost > most {
		t.Errorf("%d attempts on record never came, want some and at most %d", lost, most)
	}
	if got := status(calls); got["SUCCESS receipt_success"] != killedCalls {
		t.Errorf("%v, want %d times success", got, killedCalls)
	}
}

// unreliable cuts every third connection after the request was read, and all that have carried a request before; half of what
// it cuts it has executed.
func unreliable(a *arrival) {
	switch cut := a.kept || a.n%3 == 0; {
	case !cut:
		a.answer()
	case a.Amount%2 == 0:
		a.execute()
	}
}

// killedDispatch starts a run and kills it at its n-th send.
func (s *scene) killedDispatch(shop *shop, n int, at sendMoment) {
	s.t.Helper()
	s.doomedRun(fmt.Sprintf("%s, send %d", at, n), func(kill func()) {
		shop.steerBy(func(a *arrival) {
			if a.n != n {
				unreliable(a)
				return
			}
			switch at {
			case sendArrived:
				kill()
				unreliable(a)
			case sendAnswered:
				a.answer()
				kill()
			case verdictWritten:
				unlock := s.lock(a.BizID)
				a.answer()
				s.untilSomebodyWaits()
				kill()
				unlock()
			case nextCommitted:
				tx := s.db.MustBegin()
				tx.MustExec(`SELECT pg_advisory_xact_lock(1)`)
				a.answer()
				s.untilSomebodyWaits()
				kill()
				tx.Rollback()
			}
		})
	})
}
