package daemon

import (
	"math/rand/v2"
	"time"

	"github.com/callreceipt/reconciler/internal/task"
)

const (
	firstPause   = time.Second
	longestPause = 30 * time.Second
)

// backoff is how long to wait after n earlier failures: about 1, 2, 4 … 30 s. Jobs and replicas that failed together do not
// come back together.
func backoff(n int) time.Duration {
	d := longestPause
	if n < 5 {
		d = firstPause << n
	}
	return d - rand.N(d/4)
}

// standBy is how long to wait until the lease would have expired, were its holder dead, paused or cut off. A living one will
// have renewed it by then.
func standBy(held *task.HeldError) time.Duration {
	return min(max(held.ExpiresIn, time.Second), task.LeaseTTL) + rand.N(time.Second)
}
