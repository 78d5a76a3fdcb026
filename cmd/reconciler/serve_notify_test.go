package main

import (
	"net/http"
	"testing"

	"github.com/callreceipt/reconciler/internal/eventually"
)

// Three replicas look for verdicts each second, and each of them may deliver. The lease makes one of them do it at a time, so a
// verdict is not told three times, and whoever tells it again does so under its webhook-id.
func TestServeDeliversVerdictsWhileItWorks(t *testing.T) {
	t.Parallel()
	calls := sized(60, 5000)
	s, r := newStage(t), newReceiver(t)
	d := newDownstream(t)
	s.configure(s.asking("charge", d, "batch_size: 10") + "    " + r.notify() + "\n")
	s.park("charge", calls)
	for range 3 {
		s.serve().ready()
	}
	s.untilAllIsDelivered()
	s.parkOne("charge", "S-late")
	eventually.True(t, "the late one is told", func() bool { return len(r.kept()) == calls+1 })
	s.untilAllIsDelivered()
	s.sameVerdicts(r.kept(), s.verdicts())
	if came := len(r.deliveries()); came > calls+calls/10+1 {
		t.Errorf("%d deliveries came of %d verdicts", came, calls+1)
	}
}

// untilAllIsDelivered waits until no verdict waits for its delivery.
func (s *scene) untilAllIsDelivered() {
	s.t.Helper()
	eventually.True(s.t, "every verdict is delivered", func() bool {
		return one[bool](s, `SELECT bool_and(status IN ('SUCCESS', 'FAILED') AND notified_at IS NOT NULL) AND count(notify_at) = 0
			FROM reconciler.pending_confirmations`)
	})
}

// The receiver of one tool refuses connections all the time.
func TestServeDelaysNothingButItsOwnNewsWhenAReceiverIsDead(t *testing.T) {
	t.Parallel()
	s, dead, alive := newStage(t), newReceiver(t), newReceiver(t)
	d := newDownstream(t)
	s.configure(s.asking("charge", d)+"    "+dead.notify()+"\n", s.asking("refund", d)+"    "+alive.notify()+"\n")
	dead.die()
	s.park("charge", 20)
	s.park("refund", 20)
	p := s.serve()
	s.untilSettled("charge")
	s.untilSettled("refund")
	eventually.True(t, "the other receiver is told", func() bool { return len(alive.kept()) == 20 })
	eventually.True(t, "the dead one has been tried several times", func() bool {
		failed, _ := p.metric(`reconciler_runs_total{outcome="failed",task="notify",tool="charge"}`)
		return failed >= 3
	})
	s.parkOne("charge", "S-late")
	s.untilSettled("charge")
	if got := len(p.log.saying("verdicts are not delivered")); got != 1 {
		t.Errorf("the log says %d times that the receiver takes nothing", got)
	}
	for _, class := range []string{"unreachable", "busy", "refused", "other"} {
		if n, _ := p.metric(`reconciler_db_errors_total{class="` + class + `"}`); n != 0 {
			t.Errorf("the receiver's refusals count as %v errors of the database, class %s", n, class)
		}
	}

	// It comes back at another address, and hears all of it.
	dead.live()
	s.configure(s.asking("charge", d)+"    "+dead.notify()+"\n", s.asking("refund", d)+"    "+alive.notify()+"\n")
	if code, text := p.reload(); code != http.StatusOK {
		t.Fatalf("%d %s", code, text)
	}
	s.tellAtOnce()
	s.untilAllIsDelivered()
	if told := dead.kept(); len(told) != 21 {
		t.Errorf("it was told of %d verdicts", len(told))
	}
}
