package reconcile

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/callreceipt/reconciler/pending"
	"github.com/callreceipt/reconciler/receipt"
)

// sourceFunc answers in place of a downstream.
type sourceFunc func(ctx context.Context, bizIDs []string) (receipt.Answer, error)

func (f sourceFunc) Query(ctx context.Context, bizIDs []string) (receipt.Answer, error) {
	return f(ctx, bizIDs)
}

func TestRequestsToAToolStayUnderItsRateAlsoRightAfterAnOutage(t *testing.T) { // I11
	t.Parallel()
	db, d := open(t)
	parkMany(t, db, 60)
	var mu sync.Mutex
	var at []time.Time
	d.before = func(w http.ResponseWriter, _ []string) bool {
		mu.Lock()
		defer mu.Unlock()
		at = append(at, time.Now())
		if len(at) <= 5 { // the outage: failed requests and their repeats count as well
			w.WriteHeader(http.StatusBadGateway)
			return true
		}
		return false
	}
	for i := range 60 {
		d.say(fmt.Sprint("C", i), fmt.Sprint("B", i), "SUCCESS")
	}
	const perSecond = 50
	runPass(t, on(t, db, d, func(c *Config) { c.BatchSize, c.Rate, c.Retries = 2, perSecond, 2 }))
	// n requests need n-1 spaces; a late first arrival at the server may hide a few of them.
	took, least := at[len(at)-1].Sub(at[0]), time.Duration(len(at)-6)*time.Second/perSecond
	if len(at) < 30 || took < least {
		t.Errorf("%d requests came within %s, want at least %s", len(at), took, least)
	}
}

func TestOneToolsPauseDoesNotHoldUpAnother(t *testing.T) {
	t.Parallel()
	paused := newGate(Config{Tool: "slow", Source: sourceFunc(nil), Rate: 1000, Clock: time.Now})
	paused.pause(10 * 365 * 24 * time.Hour)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := paused.ready(ctx); !errors.Is(err, errStopped) {
		t.Errorf("a stop does not end the pause: %v", err)
	}
	if left := time.Until(paused.resumeAt); left > maxPause {
		t.Errorf("ten years are waited for %s", left)
	}
	free := newGate(Config{Tool: "fast", Source: sourceFunc(nil), Rate: 1000, Clock: time.Now})
	if err := free.ready(t.Context()); err != nil {
		t.Error(err)
	}
}

// Workers queue for the rate. A pause that begins meanwhile holds for them as well, and they do not leave all at once after it.
func TestAPauseHoldsForRequestsThatWaitForTheRateAlready(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGate(Config{Tool: "tool", Source: sourceFunc(nil), Rate: 1, Clock: time.Now})
		began := time.Now()
		left := make(chan time.Duration, 5)
		for range cap(left) {
			go func() {
				if g.ready(t.Context()) == nil {
					left <- time.Since(began)
				}
			}()
		}
		if first := <-left; first != 0 {
			t.Errorf("the first request left after %s", first)
		}
		synctest.Wait() // the others wait for the rate now
		g.pause(20 * time.Second)
		last := time.Duration(0)
		for range cap(left) - 1 {
			at := <-left
			if at < 20*time.Second || at < last+time.Second {
				t.Errorf("a request left after %s, in a pause of 20s at one a second; the last one after %s", at, last)
			}
			last = at
		}
	})
}

func TestNonsenseIsNoReasonToLeaveADownstreamAlone(t *testing.T) {
	t.Parallel()
	for _, e := range []*receipt.Error{
		{Kind: receipt.KindMalformed},
		{Outcome: receipt.BadBatch, Kind: receipt.KindStatus, Status: 400},
		{Kind: receipt.KindCanceled},
		{Outcome: receipt.Misconfigured, Kind: receipt.KindStatus, Status: 401},
		{Kind: receipt.KindStatus, Status: 409},
	} {
		g := newGate(Config{Tool: "tool", Source: sourceFunc(func(context.Context, []string) (receipt.Answer, error) { return receipt.Answer{}, e }), Rate: 100_000, Clock: time.Now})
		for range 3 * breakerFailures {
			if _, err := g.query(t.Context(), t.Context(), []string{"B"}, 0); !errors.Is(err, e) {
				t.Fatalf("%v after %v", err, e)
			}
		}
	}
	for _, e := range []*receipt.Error{{Kind: receipt.KindRefused}, {Kind: receipt.KindTimeout}, {Kind: receipt.KindStatus, Status: 500}} {
		asked := 0
		g := newGate(Config{Tool: "tool", Source: sourceFunc(func(context.Context, []string) (receipt.Answer, error) { asked++; return receipt.Answer{}, e }), Rate: 100_000, Clock: time.Now})
		for range 3 * breakerFailures {
			_, _ = g.query(t.Context(), t.Context(), []string{"B"}, 0)
		}
		if asked != breakerFailures {
			t.Errorf("asked %d times after %v, want %d", asked, e, breakerFailures)
		}
	}
}

func TestALogLineIsOneLineAndNoIdCanForgeAnother(t *testing.T) { // I14
	t.Parallel()
	var out bytes.Buffer
	log := slog.New(slog.NewTextHandler(&out, nil))
	evil := pending.Call{CallID: "x][biz=paid]\n[call=C1", BizID: "\x1b[2K\u2028\u202e", Attempt: 2}
	log.Info(Prefix(evil) + " settled")
	line := out.String()
	if strings.Count(line, "\n") != 1 || strings.Count(line, "[biz=") != 1 || strings.Contains(line, "[call=C1") || strings.ContainsAny(line, "\x1b\u2028\u202e") {
		t.Errorf("%s", line)
	}
	if got := Prefix(pending.Call{CallID: "ORD20240501-0001", BizID: "ORD20240501", Attempt: 2}); got != "[call=ORD20240501-0001][biz=ORD20240501][try=2]" {
		t.Error(got)
	}
}

func TestNobodyMissesThatTheBreakerHasClosed(t *testing.T) {
	t.Parallel()
	for range 200 {
		synctest.Test(t, func(t *testing.T) {
			down := true
			var mu sync.Mutex
			g := newGate(Config{Tool: "tool", Rate: 1e9, Clock: time.Now, Source: sourceFunc(func(ctx context.Context, _ []string) (receipt.Answer, error) {
				mu.Lock()
				defer mu.Unlock()
				if down {
					return receipt.Answer{}, &receipt.Error{Kind: receipt.KindRefused}
				}
				return receipt.Answer{}, nil
			})})
			for range breakerFailures {
				_, _ = g.query(t.Context(), t.Context(), []string{"B"}, 0)
			}
			mu.Lock()
			down = false
			mu.Unlock()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			var workers sync.WaitGroup
			for range 8 {
				workers.Go(func() {
					if _, err := g.query(ctx, ctx, []string{"B"}, breakerProbes); err != nil {
						t.Errorf("%v", err)
					}
				})
			}
			workers.Wait()
		})
	}
}

func TestALongPauseThatIsAskedForAgainAndAgainEndsThePass(t *testing.T) {
	t.Parallel()
	db, d := open(t)
	parkMany(t, db, 100)
	d.before = func(w http.ResponseWriter, _ []string) bool {
		w.Header().Set("Retry-After", "315360000") // ten years
		w.WriteHeader(http.StatusTooManyRequests)
		return true
	}
	r := on(t, db, d, func(c *Config) { c.Concurrency = 1 })
	r.gate.clock = skipping(time.Now()) // each look at the clock finds a minute gone by
	sum, err := r.RunOnce(context.Background(), Limits{})
	if !errors.Is(err, errPutOff) || sum.Requests != maxPutOff || sum.Unanswered != 10*maxPutOff {
		t.Errorf("%v, %+v", err, sum)
	}
}

func skipping(now time.Time) func() time.Time {
	var mu sync.Mutex
	return func() time.Time {
		mu.Lock()
		defer mu.Unlock()
		now = now.Add(time.Minute)
		return now
	}
}
