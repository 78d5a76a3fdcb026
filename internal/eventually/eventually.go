// Package eventually waits in a test for what another process or session brings about, and for no longer than it takes.
package eventually

import (
	"testing"
	"time"
)

// True waits until the condition holds. After a minute the test fails and says what it waited for.
func True(t testing.TB, what string, condition func() bool) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	deadline := time.NewTimer(time.Minute)
	defer deadline.Stop()
	for !condition() {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("waited in vain until %s", what)
		}
	}
}
