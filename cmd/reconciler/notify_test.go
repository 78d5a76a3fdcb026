package main

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/callreceipt/reconciler/reconcile"
)

// notifiedCalls is the size of the tests of deliveries, to be raised by hand for a longer look.
const notifiedCalls = 60

// newNotifiedScene parks calls of which each gets its verdict in the first run: by the last figure of its number, 0 has had all of
// its attempts, 1 is declined, and the others are executed.
func newNotifiedScene(t *testing.T) (*scene, *shop, *receiver) {
	t.Helper()
	s, shop, r := newStage(t), newShop(t), newReceiver(t)
	s.configure(shop.tool("charge", fast, r.notify()))
	s.parkUnsent("charge", notifiedCalls)
	s.db.MustExec(`UPDATE reconciler.pending_confirmations SET attempt = 5 WHERE call_id LIKE '%0'`)
	shop.steerBy(func(a *arrival) {
		if a.Amount%10 == 1 {
			a.decline()
			return
		}
		a.answer()
	})
	return s, shop, r
}

func TestAReceiverThatFailsTwentyTimesIsToldEveryVerdictAndDelaysNone(t *testing.T) {
	t.Parallel()
	const failures = 20
	s, _, r := newNotifiedScene(t)
	r.steerBy(func(d *delivery) bool { return d.n > failures })

	p := s.start("run")
	if code := p.exit(); code != exitPartial {
		t.Errorf("exit code %d, want 3; %s%s", code, &p.stdout, &p.stderr)
	}
	want := map[string]int{
		"SUCCESS receipt_success": notifiedCalls * 8 / 10, "FAILED receipt_failed": notifiedCalls / 10, "MANUAL attempts_exhausted": notifiedCalls / 10,
	}
	if got := status(s.entries()); !maps.Equal(got, want) {
		t.Errorf("after the first run %v, want %v", got, want)
	}
	if told := one[int](s, `SELECT count(notified_at) FROM reconciler.pending_confirmations`); told != 0 {
		t.Errorf("%d calls are on record as told", told)
	}

	s.untilAllIsTold()
	if got := len(r.deliveries()); got != failures+notifiedCalls {
		t.Errorf("%d deliveries came, want %d that failed and %d", got, failures, notifiedCalls)
	}
	s.sameVerdicts(r.kept(), s.verdicts())
}

// The receiver dies with deliveries in hand, then the reconciler does; what both cannot know is delivered again under its
// webhook-id. A verdict that changes has another one.
func TestVerdictsAreKeptOnceByTheirWebhookIDWhoeverDies(t *testing.T) {
	t.Parallel()
	s, shop, r := newNotifiedScene(t)
	r.steerBy(func(d *delivery) bool {
		if d.n == notifiedCalls/4 {
			r.die()
		}
		return true
	})
	if p := s.start("run"); p.exit() != exitPartial {
		t.Errorf("it did not exit with 3; %s%s", &p.stdout, &p.stderr)
	}

	r.live()
	s.configure(shop.tool("charge", fast, r.notify()))
	s.tellAtOnce()
	inHand := ""
	s.doomedRun("once a delivery is taken", func(kill func()) {
		first := len(r.deliveries()) + 1
		r.steerBy(func(d *delivery) bool {
			if d.n == first {
				inHand = d.id
				unlock := s.lock(d.told.Data.BizID)
				d.taken()
				s.untilSomebodyWaits()
				kill()
				unlock()
			}
			return true
		})
	})
	r.steerBy(nil)
	s.untilAllIsTold()
	want := s.verdicts()
	s.sameVerdicts(r.kept(), want)
	if times := len(slices.DeleteFunc(slices.Clone(r.deliveries()), func(d delivery) bool { return d.id != inHand })); times < 2 {
		t.Errorf("%s came %d times, and its record had been prevented", inHand, times)
	}

	late := "charge-000010"
	c := s.entries()[late]
	(&arrival{shop: shop, sent: sent{CallID: late, BizID: c.BizID, Operation: c.Operation, IdempotencyKey: c.IdempotencyKey, Attempt: 1}}).execute()
	for deadline := time.Now().Add(patience); s.entries()[late].Status != "SUCCESS"; {
		if p := s.start("run"); p.exit() != exitDone || time.Now().After(deadline) {
			t.Fatalf("%s is still %s; %s%s", late, s.entries()[late].Status, &p.stdout, &p.stderr)
		}
	}
	s.untilAllIsTold()
	maps.Copy(want, s.verdicts())
	if len(want) != notifiedCalls+1 {
		t.Errorf("%d verdicts were given, want one more than calls", len(want))
	}
	s.sameVerdicts(r.kept(), want)

	before := len(r.deliveries())
	r.replay()
	if got := len(r.deliveries()); got != 2*before {
		t.Errorf("of %d deliveries %d came again", before, got-before)
	}
	s.sameVerdicts(r.kept(), want)
	t.Logf("%d deliveries of %d verdicts", before, len(want))
}

// tellAtOnce makes every delivery due that waits for its next try.
func (s *scene) tellAtOnce() {
	s.t.Helper()
	s.db.MustExec(`UPDATE reconciler.pending_confirmations SET notify_at = now() WHERE notify_at IS NOT NULL`)
}

// untilAllIsTold runs until every verdict has been delivered.
func (s *scene) untilAllIsTold() {
	s.t.Helper()
	for deadline := time.Now().Add(patience); one[int](s, `SELECT count(notify_at) FROM reconciler.pending_confirmations`) > 0; {
		s.tellAtOnce()
		p := s.start("run")
		if code := p.exit(); (code != exitDone && code != exitPartial) || time.Now().After(deadline) {
			s.t.Fatalf("not all is told, exit code %d; %s%s", code, &p.stdout, &p.stderr)
		}
	}
}

// verdicts is what was to be told of each call, by webhook-id.
func (s *scene) verdicts() map[string]string {
	s.t.Helper()
	all := map[string]string{}
	versions := map[string]int64{}
	var rows []struct {
		CallID  string     `db:"call_id"`
		Version int64      `db:"notify_version"`
		ToldAt  *time.Time `db:"notified_at"`
	}
	if err := s.db.Select(&rows, `SELECT call_id, coalesce(notify_version, 0) AS notify_version, notified_at FROM reconciler.pending_confirmations`); err != nil {
		s.t.Fatal(err)
	}
	for _, r := range rows {
		if versions[r.CallID] = r.Version; r.ToldAt == nil {
			s.t.Errorf("%s is not on record as told", r.CallID)
		}
	}
	for id, c := range s.entries() {
		all[reconcile.WebhookID(id, versions[id])] = verdict(c.CallID, c.BizID, c.Status, c.Reason, c.Attempt)
	}
	return all
}

func verdict(callID, bizID, status, reason string, attempt int) string {
	return fmt.Sprintf("call.%s %s of %s: %s after %d attempts", status, callID, bizID, reason, attempt)
}

// sameVerdicts fails the test unless the inbox holds these verdicts and nothing else.
func (s *scene) sameVerdicts(inbox map[string]reconcile.Message, want map[string]string) {
	s.t.Helper()
	got := map[string]string{}
	for id, m := range inbox {
		got[id] = verdict(m.Data.CallID, m.Data.BizID, string(m.Data.Status), m.Data.Reason, m.Data.Attempt)
	}
	if !maps.Equal(got, want) {
		s.t.Errorf("the inbox holds %v, want %v", got, want)
	}
}
