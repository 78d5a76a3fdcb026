package main

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

// nobody is an address at which connections are refused.
const nobody = "http://127.0.0.1:1"

// While a downstream is away, calls that wait to be sent again keep waiting. When it comes back at half its capacity, they come no
// faster than it bears, and each ends as the rules say.
func TestAfterAnOutageTheCallsThatWaitedComeNoFasterThanTheRate(t *testing.T) {
	t.Parallel()
	const (
		rate, burst  = 100, 1
		concurrency  = 2
		away         = 3 // runs
		refusals     = 3 // of every second send
		mostAttempts = 3
	)
	limits := fmt.Sprintf("batch_size: 250, concurrency: %d, retries: 0, rate: %d", concurrency, rate)
	attempts := fmt.Sprintf("max_attempts: %d", mostAttempts)
	s, shop := newStage(t), newShop(t)
	s.configure(dispatching("charge", nobody, limits, attempts))
	s.parkUnsent("charge", outageCalls)
	s.db.MustExec(`UPDATE reconciler.pending_confirmations SET status = 'RETRY', reason = 'not_found', retry_before = now() + interval '167 hours'`)
	for range away {
		p := s.start("run", "--log-level", "error")
		if code := p.exit(); code != exitPartial {
			t.Fatalf("exit code %d, want 3; %s%s", code, &p.stdout, &p.stderr)
		}
	}
	spent := one[int](s, `SELECT count(*) FROM reconciler.call_events WHERE kind = 'sent'`)
	if open := s.open(); open != outageCalls || spent > away*concurrency {
		t.Errorf("after %d runs against nobody %d of %d calls are open and %d attempts spent", away, open, outageCalls, spent)
	}

	s.configure(shop.tool("charge", limits, attempts))
	shop.steerBy(func(a *arrival) {
		if a.n%2 == 0 && a.n <= 2*refusals {
			a.refuse()
			return
		}
		a.answer()
	})
	s.untilNoneIsOpen()
	lost, calls := s.judge(shop, mostAttempts)
	got := status(calls)
	if settled := got["SUCCESS receipt_success"]; lost != spent || settled+got["MANUAL attempts_exhausted"] != outageCalls || settled < outageCalls-spent-refusals {
		t.Errorf("%v of %d calls, and of %d attempts spent in the outage %d never came", got, outageCalls, spent, lost)
	}
	most := mostInASecond(shop.requests)
	t.Logf("at most %d requests in a second, %d attempts spent in the outage, %v", most, spent, got)
	// However busy the machine, each worker can be late with no more than the one request that it has in hand.
	if most > rate+burst+concurrency {
		t.Errorf("%d requests came in one second, the rate is %d", most, rate)
	}
}

// mostInASecond is the most requests in any window of one second.
func mostInASecond(at []time.Time) (most int) {
	slices.SortFunc(at, time.Time.Compare)
	for from, to := 0, 0; to < len(at); to++ {
		for at[to].Sub(at[from]) >= time.Second {
			from++
		}
		most = max(most, to-from+1)
	}
	return most
}
