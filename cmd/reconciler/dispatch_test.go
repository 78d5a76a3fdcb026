package main

import (
	"fmt"
	"maps"
	"strings"
	"testing"
)

// Sizes of the tests of dispatch, to be raised by hand for a longer look.
const (
	lossyCalls  = 1000
	killedCalls = 400
	killedRuns  = 20
	sharedCalls = 300
	outageCalls = 500
)

// fast is the limits of a shop that bears much.
const fast = "batch_size: 200, concurrency: 4, retries: 1, rate: 10000"

// newShopScene is a scene whose downstream is a shop, with one tool "charge".
func newShopScene(t *testing.T, receipts string, changed ...string) (*scene, *shop) {
	t.Helper()
	s, shop := newStage(t), newShop(t)
	s.configure(shop.tool("charge", receipts, changed...))
	return s, shop
}

// Of every other call not even the receipt is to be found after the first send, so that only its key keeps the second one from
// executing it again.
func TestADownstreamThatLosesEveryFirstAnswerExecutesEachCallOnce(t *testing.T) {
	t.Parallel()
	s, shop := newShopScene(t, fast)
	s.parkUnsent("charge", lossyCalls)
	shop.steerBy(func(a *arrival) {
		switch {
		case a.Attempt > 2:
			a.answer()
		case a.Amount%2 == 0:
			a.execute()
		default:
			a.executeUnseen("SUCCESS")
		}
	})
	s.untilNoneIsOpen()
	_, calls := s.judge(shop, 5)
	if got := status(calls); got["SUCCESS receipt_success"] != lossyCalls {
		t.Errorf("%v, want %d times success", got, lossyCalls)
	}
	again := 0
	for _, c := range calls {
		if c.Attempt > 2 {
			again++
		}
	}
	if again < lossyCalls/2 {
		t.Errorf("%d calls were sent more than once again, want at least %d", again, lossyCalls/2)
	}
}

func TestACallThatIsNeverFoundGoesToAPersonAfterItsLastAttempt(t *testing.T) {
	t.Parallel()
	s, shop := newShopScene(t, fast, "max_attempts: 3")
	s.parkUnsent("charge", 20)
	shop.steerBy(func(*arrival) {})
	s.untilNoneIsOpen()
	lost, calls := s.judge(shop, 3)
	if got := status(calls); got["MANUAL attempts_exhausted"] != 20 {
		t.Errorf("%v, want 20 times attempts_exhausted", got)
	}
	if got := len(shop.seen()); got != 40 || lost != 0 {
		t.Errorf("%d attempts came and %d were lost, want two of each call", got, lost)
	}
}

func TestACallThatMayNotBeSentAgainIsNotSent(t *testing.T) {
	t.Parallel()
	s, shop := newStage(t), newShop(t)
	s.configure(shop.tool("late", fast), shop.tool("offered", fast), shop.tool("fixed", fast, "retryable: false"), shop.tool("bare", fast),
		shop.tool("once", fast, "idempotent: false", "retry: {mode: handoff}"))
	for _, tool := range []string{"late", "offered", "fixed", "bare", "once"} {
		s.parkUnsent(tool, 3)
	}
	// Ids and instants of a row cannot be changed, so other ones are parked.
	s.db.MustExec(`
		INSERT INTO reconciler.pending_confirmations (call_id, biz_id, tool, operation, issued_at, last_sent_at, request, status, retry_before)
		SELECT 'x-' || tool, 'x-' || tool, tool, 'charge', now() - interval '169 hours', now() - interval '169 hours', '{}', status, before
		FROM (VALUES ('late', 'PENDING', NULL), ('offered', 'RETRY', now() - interval '1 hour')) v (tool, status, before)`)
	s.db.MustExec(`UPDATE reconciler.pending_confirmations SET request = NULL WHERE tool = 'bare'`)
	s.db.MustExec(`UPDATE reconciler.pending_confirmations SET attempt = 5 WHERE tool IN ('late', 'offered') AND call_id NOT LIKE 'x-%'`)
	s.untilNoneIsOpen()
	_, calls := s.judge(shop, 5)
	want := map[string]int{
		"MANUAL dedup_window_passed": 2, "MANUAL not_retryable": 6, "MANUAL request_missing": 3, "MANUAL attempts_exhausted": 6,
	}
	if got := status(calls); !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if got := shop.seen(); len(got) != 0 {
		t.Errorf("sent was %+v", got)
	}
}

func TestASecondSendThatCouldExecuteTwiceIsRefusedWithBothValues(t *testing.T) {
	t.Parallel()
	s, shop := newShopScene(t, fast, "idempotent: false")
	s.parkUnsent("charge", 1)
	p := s.start("run")
	if code := p.exit(); code != exitUsage {
		t.Errorf("exit code %d, want 2", code)
	}
	if told := p.stderr.String(); !strings.Contains(told, "tools.charge.retryable: is true and retry.url is set, but idempotent is false") {
		t.Errorf("stderr is %q", told)
	}
	if got := shop.seen(); len(got) != 0 || s.open() != 1 {
		t.Errorf("sent was %+v", got)
	}
}

// One of them holds the lease and the others contend for it. Twice the lease is taken away in the middle, so that in the end all
// three send at the same time, which may happen to nobody; even then no attempt is made twice.
func TestThreeProcessesAtOnceMakeNoAttemptTwice(t *testing.T) {
	t.Parallel()
	s, shop := newShopScene(t, "batch_size: 50, concurrency: 4, rate: 10000", "settle: 10s")
	s.parkUnsent("charge", sharedCalls)
	together := make(chan struct{})
	shop.steerBy(func(a *arrival) {
		if a.n == 10 {
			for runs := 2; runs <= 3; runs++ {
				s.db.MustExec(`UPDATE reconciler.leases SET expires_at = clock_timestamp()`)
				s.until(fmt.Sprintf("%d runs go on", runs), `SELECT count(*) >= $1 FROM reconciler.runs WHERE finished_at IS NULL`, runs)
			}
			close(together)
		}
		if a.n >= 10 {
			select {
			case <-together:
			case <-a.gone:
			}
		}
		a.answer()
	})
	ended := make(chan *program, 3)
	for range 3 {
		go func() {
			for {
				p := s.start("run", "--log-level", "error")
				<-p.over
				if p.cmd.ProcessState.ExitCode() != exitNotRun {
					ended <- p
					return
				}
			}
		}()
	}
	for range 3 {
		p := await(t, ended, "the end of a run")
		if code := p.exit(); code != exitDone && code != exitPartial {
			t.Errorf("exit code %d; %s%s", code, &p.stdout, &p.stderr)
		}
	}
	await(t, together, "three runs at once")
	s.untilNoneIsOpen()
	lost, calls := s.judge(shop, 5)
	if got := len(shop.seen()); got != sharedCalls || lost != 0 {
		t.Errorf("%d attempts came and %d were lost, want one of each call", got, lost)
	}
	if got := status(calls); got["SUCCESS receipt_success"] != sharedCalls {
		t.Errorf("%v, want %d times success", got, sharedCalls)
	}
}
