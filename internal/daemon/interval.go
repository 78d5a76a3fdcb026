package daemon

import (
	"sort"
	"time"

	"github.com/robfig/cron/v3"
)

// Bounds of the search for the longest gap. The first ticks cover a day even of a schedule that fires every minute, so every gap
// within a day is among them. A longer one leaves out at least a day, and the probes stand closer than that.
const (
	gapHorizon = 400 * 24 * time.Hour
	gapTicks   = 1500
	gapProbes  = 500
)

// longestGap is the longest time between two consecutive ticks, the first of them within 400 days of from. It is 0 for a schedule
// that does not fire twice.
func longestGap(s cron.Schedule, from time.Time) time.Duration {
	end := from.Add(gapHorizon)
	tick, longest := s.Next(from), time.Duration(0)
	for range gapTicks {
		next := s.Next(tick)
		if tick.IsZero() || next.IsZero() {
			return longest
		}
		longest = max(longest, next.Sub(tick))
		if next.After(end) {
			return longest
		}
		tick = next
	}
	step := end.Sub(tick) / gapProbes
	for at := tick.Add(step); at.Before(end); at = at.Add(step) {
		next := s.Next(at)
		if next.IsZero() {
			break
		}
		// A tick in the time that would have to be free shows that this gap is no longer than the longest.
		if s.Next(next.Add(-longest - time.Second)).Before(next) {
			continue
		}
		// The gap began at the earliest second from which this tick is the next one.
		seconds := sort.Search(int(at.Sub(tick)/time.Second), func(i int) bool {
			return !s.Next(tick.Add(time.Duration(i) * time.Second)).Before(next)
		})
		longest = next.Sub(tick.Add(time.Duration(seconds) * time.Second))
	}
	return longest
}
