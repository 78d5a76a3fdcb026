//go:build linux && !race

package main

import (
	"syscall"
	"testing"
)

// A pass keeps one page and the batches in hand, however long the backlog. The race detector multiplies memory, so the test is not
// built with it.
func TestThePeakOfMemoryDoesNotGrowWithTheBacklog(t *testing.T) {
	t.Parallel()
	short, long := peakOfARun(t, 5_000), peakOfARun(t, 40_000)
	t.Logf("peak of 5,000 calls: %d MiB, of 40,000 calls: %d MiB", short>>20, long>>20)
	if bound := int64(100 << 20); short > bound || long > bound {
		t.Errorf("a peak of %d or %d bytes is more than %d", short, long, bound)
	}
	if long > 2*short {
		t.Errorf("eight times the calls raised the peak from %d to %d bytes", short, long)
	}
}

// peakOfARun settles so many calls in one run and returns the most memory that it had, in bytes. It is never below the true peak:
// Linux also counts what this process had when it started that one.
func peakOfARun(t *testing.T, calls int) int64 {
	t.Helper()
	s := newScene(t, "batch_size: 200, rate: 100000", "charge")
	s.park("charge", calls)
	p := s.start("run")
	if code := p.exit(); code != exitDone {
		t.Fatalf("exit code %d; %s", code, &p.stderr)
	}
	if settled := one[int](s, `SELECT count(*) FROM reconciler.pending_confirmations WHERE status IN ('SUCCESS', 'FAILED')`); settled != calls {
		t.Errorf("%d of %d calls are settled", settled, calls)
	}
	return p.cmd.ProcessState.SysUsage().(*syscall.Rusage).Maxrss << 10
}
