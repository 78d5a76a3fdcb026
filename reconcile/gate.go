package reconcile

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/sony/gobreaker/v2"
	"golang.org/x/time/rate"

	"github.com/callreceipt/reconciler/internal/pause"
	"github.com/callreceipt/reconciler/metrics"
	"github.com/callreceipt/reconciler/receipt"
)

// How a downstream in trouble is treated.
const (
	breakerFailures = 10               // requests in a row without an answer, and the tool is left alone
	breakerCooldown = 3 * time.Second  // then one probe is let through, and again after as long
	breakerProbes   = 3                // failed probes after which a pass ends
	maxPause        = 30 * time.Second // the longest that a pass waits at the wish of a 429 or 503
	maxPutOff       = 3                // wishes for a longer pause after which a pass ends
	firstRepeat     = 200 * time.Millisecond
	longestRepeat   = 5 * time.Second
)

// errStopped and errBreakerOpen mean that the downstream was not asked. Nothing is then known about the bizIds and
// nothing may be written to their calls.
var (
	errStopped     = errors.New("the pass is ending")
	errBreakerOpen = errors.New("the downstream does not answer and is left alone for now")
	errPutOff      = errors.New("the downstream asks for a longer pause than a pass waits")
)

// gate stands between the passes over one tool and its downstream. It outlives a pass, so that the rate, the pause and
// the breaker hold across passes; the lease makes them hold across replicas.
type gate struct {
	source  Source
	metrics *metrics.Tool
	retries int
	limiter *rate.Limiter // of everything the tool is asked
	sending *rate.Limiter // of sends: the retry budget, lowered while the downstream refuses
	breaker *gobreaker.CircuitBreaker[receipt.Answer]
	clock   func() time.Time // only for waiting; nothing is decided by it

	requests atomic.Int64 // made since the start

	mu       sync.Mutex
	resumeAt time.Time     // paused until then
	opened   int           // how often the breaker has opened
	putOff   int           // how often a longer pause was asked for than a pass waits
	probeAt  time.Time     // while it is open: when it lets a probe through
	changed  chan struct{} // closed at the next change of the breaker
}

func newGate(cfg Config) *gate {
	g := &gate{
		source: cfg.Source, metrics: cfg.Metrics, retries: cfg.Retries, clock: cfg.Clock,
		limiter: rate.NewLimiter(rate.Limit(cfg.Rate), 1), sending: rate.NewLimiter(rate.Limit(cfg.Rate), 1), changed: make(chan struct{}),
	}
	g.breaker = gobreaker.NewCircuitBreaker[receipt.Answer](gobreaker.Settings{
		Name: cfg.Tool, MaxRequests: 1, Timeout: breakerCooldown,
		ReadyToTrip:   func(c gobreaker.Counts) bool { return c.ConsecutiveFailures >= breakerFailures },
		IsSuccessful:  func(err error) bool { return err == nil || alive(err) },
		IsExcluded:    func(err error) bool { e, ok := asError(err); return ok && e.Kind == receipt.KindCanceled },
		OnStateChange: func(_ string, _, to gobreaker.State) { g.stateChanged(to) },
	})
	return g
}

// alive reports that the downstream did answer, if only with nonsense or a refusal: that is no reason to leave it alone.
func alive(err error) bool {
	e, ok := asError(err)
	if !ok {
		return false
	}
	return e.Outcome != receipt.Unanswered || e.Kind == receipt.KindMalformed || (e.Kind == receipt.KindStatus && e.Status < 500)
}

func asError(err error) (*receipt.Error, bool) {
	var e *receipt.Error
	ok := errors.As(err, &e)
	return e, ok
}

func (g *gate) stateChanged(to gobreaker.State) {
	g.metrics.Breaker(breakerStates[to])
	g.mu.Lock()
	defer g.mu.Unlock()
	if to == gobreaker.StateOpen {
		g.opened++
		g.probeAt = g.clock().Add(breakerCooldown)
	}
	close(g.changed)
	g.changed = make(chan struct{})
}

// show tells the metrics the state of the breaker. A pass that ended under an earlier configuration may have told them its own.
func (g *gate) show() { g.metrics.Breaker(breakerStates[g.breaker.State()]) }

// change is closed at the breaker's next change of state.
func (g *gate) change() <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.changed
}

func (g *gate) timesPutOff() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.putOff
}

func (g *gate) timesOpened() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.opened
}

// query makes one request and repeats it a few times when it brought nothing. All waiting ends with soft; a request that is on
// its way ends with ctx. patience is how many openings of the breaker are sat out.
func (g *gate) query(ctx, soft context.Context, bizIDs []string, patience int) (receipt.Answer, error) {
	between := betweenRepeats()
	var last *receipt.Error // why the previous try brought nothing
	for try := 0; ; try++ {
		answer, err := g.once(ctx, soft, bizIDs, patience)
		if err == nil {
			return answer, nil
		}
		e, asked := asError(err)
		switch {
		case !asked && last != nil:
			return receipt.Answer{}, last // it was asked, only not again
		case !asked, e.Outcome == receipt.BadBatch, e.Outcome == receipt.Misconfigured, e.Kind == receipt.KindCanceled,
			e.Kind == receipt.KindMalformed && len(bizIDs) > 1: // smaller questions find the item that spoils the answer
			return receipt.Answer{}, err
		case e.Outcome == receipt.Throttled:
			g.pause(e.RetryAfter)
			if e.RetryAfter > maxPause {
				return receipt.Answer{}, e
			}
		}
		if last = e; try >= g.retries {
			return receipt.Answer{}, last
		}
		if pause.For(soft, between.NextBackOff()) != nil {
			return receipt.Answer{}, last
		}
	}
}

// betweenRepeats spaces the repeats of one request, with jitter.
func betweenRepeats() *backoff.ExponentialBackOff {
	b := backoff.NewExponentialBackOff()
	b.InitialInterval, b.MaxInterval = firstRepeat, longestRepeat
	return b
}

// once makes one request when the pause, the rate and the breaker allow it.
func (g *gate) once(ctx, soft context.Context, bizIDs []string, patience int) (receipt.Answer, error) {
	for {
		if err := g.ready(soft); err != nil {
			return receipt.Answer{}, err
		}
		changed := g.change() // before the breaker is asked, so that no change is missed
		answer, err := g.breaker.Execute(func() (receipt.Answer, error) {
			return g.ask(ctx, bizIDs)
		})
		if !errors.Is(err, gobreaker.ErrOpenState) && !errors.Is(err, gobreaker.ErrTooManyRequests) {
			return answer, err
		}
		if err := g.awaitProbe(soft, changed, patience); err != nil {
			return receipt.Answer{}, err
		}
	}
}

// ask makes the request and counts it.
func (g *gate) ask(ctx context.Context, bizIDs []string) (receipt.Answer, error) {
	g.requests.Add(1)
	began := g.clock()
	answer, err := g.source.Query(ctx, bizIDs)
	status, kind := http.StatusOK, ""
	if e, ok := asError(err); ok {
		status, kind = e.Status, string(e.Kind)
	}
	g.metrics.Request(status, kind, g.clock().Sub(began))
	return answer, err
}

// ready waits for the end of a pause and for a token of the rate.
func (g *gate) ready(soft context.Context) error {
	for {
		if left := g.pauseLeft(); left > 0 {
			if pause.For(soft, left) != nil {
				return errStopped
			}
			continue
		}
		if g.limiter.Wait(soft) != nil {
			return errStopped
		}
		if g.pauseLeft() <= 0 {
			return nil
		}
		// The downstream asked for a pause while the token was waited for. The token is given up: those who keep one
		// through the pause would all leave at its end.
	}
}

func (g *gate) pauseLeft() time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.resumeAt.Sub(g.clock())
}

// How the retry budget follows a downstream that is getting well: half at every refusal, a twentieth more at every answer.
const (
	leastSends  = 1 // a second
	shortPause  = time.Second
	sendsAnswer = 1.05
)

// readyToSend waits until a call may be sent again: a send is a request under the tool's rate, and within the retry budget.
func (g *gate) readyToSend(soft context.Context) error {
	if g.sending.Wait(soft) != nil {
		return errStopped
	}
	return g.ready(soft)
}

// sendAnswered raises the retry budget again, up to the tool's rate.
func (g *gate) sendAnswered() {
	g.sending.SetLimit(min(g.limiter.Limit(), g.sending.Limit()*sendsAnswer))
}

// sendRefused lowers the retry budget and pauses: a recovering downstream is not to be held down by retries.
func (g *gate) sendRefused(after time.Duration) {
	g.sending.SetLimit(max(min(leastSends, g.limiter.Limit()), g.sending.Limit()/2))
	g.pause(max(after, shortPause))
}

// pause holds back every further request. What a downstream asks for is bounded, whatever it says.
func (g *gate) pause(d time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if d > maxPause {
		d = maxPause
		g.putOff++
	}
	if until := g.clock().Add(d); until.After(g.resumeAt) {
		g.resumeAt = until
	}
}

// awaitProbe waits until the breaker may let a request through.
func (g *gate) awaitProbe(soft context.Context, changed <-chan struct{}, patience int) error {
	g.mu.Lock()
	opened, left := g.opened, g.probeAt.Sub(g.clock())
	g.mu.Unlock()
	if opened > patience {
		return errBreakerOpen
	}
	var timer <-chan time.Time
	if left > 0 {
		t := time.NewTimer(left)
		defer t.Stop()
		timer = t.C
	} // else a probe is on its way, and its end changes the breaker
	select {
	case <-soft.Done():
		return errStopped
	case <-changed:
	case <-timer:
	}
	return nil
}
