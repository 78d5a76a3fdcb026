package idempotency

import (
	"context"
	"time"

	"github.com/cenkalti/backoff/v5"
)

// How long Run leaves a trouble alone: at first, and at most.
const (
	firstPause   = 500 * time.Millisecond
	longestPause = time.Minute
)

// Run delivers what comes into the outbox, a RunOnce every so often (0 means each second), until the context ends. After an error it
// tries again, later and later, up to a minute apart. A trouble is logged when it begins, when it turns into another, and when it is over.
func (r *Relay) Run(ctx context.Context, every time.Duration) {
	if every <= 0 {
		every = time.Second
	}
	pauses := backoff.NewExponentialBackOff()
	pauses.InitialInterval, pauses.MaxInterval = firstPause, longestPause
	trouble, failures := "", 0
	for {
		_, err := r.RunOnce(ctx)
		if ctx.Err() != nil {
			return
		}
		pause := every
		switch {
		case err != nil:
			failures++
			if text := err.Error(); text != trouble {
				trouble = text
				r.log().ErrorContext(ctx, "no receipts are relayed", "error", err)
			}
			pause = pauses.NextBackOff()
		case failures > 0:
			r.log().InfoContext(ctx, "receipts are relayed again", "failures", failures)
			trouble, failures = "", 0
			pauses.Reset()
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
	}
}
