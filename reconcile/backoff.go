package reconcile

import (
	"hash/fnv"
	"strconv"
	"time"
)

// Backoff spaces the looks at one call: the first wait is about Initial, each further one twice as long, up to Max.
type Backoff struct {
	Initial time.Duration `json:"initial"`
	Max     time.Duration `json:"max"`
}

// Delay is the wait after n earlier looks, shortened by up to a quarter so that calls parked together do not
// come due together for ever. The same seed and n give the same wait: a decision can be replayed. Never above Max,
// for whatever n.
func (b Backoff) Delay(n int, seed string) time.Duration {
	delay := b.Max
	if n < 62 && b.Initial <= b.Max>>max(n, 0) {
		delay = b.Initial << max(n, 0)
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(seed)) // a hash never fails
	_, _ = h.Write(strconv.AppendInt(nil, int64(n), 10))
	return delay - time.Duration(float64(delay)/4*float64(h.Sum32())/(1<<32))
}
