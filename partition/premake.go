package partition

import (
	"fmt"
	"hash/fnv"
	"slices"
	"strings"
	"time"
)

// Interval is the width of the partitions that are made ahead.
type Interval string

// Every interval. Without a partition to continue they are aligned to UTC.
const (
	Hour  Interval = "hour"
	Day   Interval = "day"
	Week  Interval = "week" // from Monday
	Month Interval = "month"
)

var intervals = []Interval{Hour, Day, Week, Month}

// alignment is the start of an hour, a day, a week and a month.
var alignment = time.Date(2001, 1, 1, 0, 0, 0, 0, time.UTC)

// Gaps is what no partition holds between the lowest and the highest bound. The default partition does not count, nor does one whose
// detach is pending: rows no longer find their way into it.
func Gaps(parts []Partition) []Range {
	held := reachable(parts)
	if len(held) == 0 {
		return nil
	}
	return gapsOf(held, held[0].Lower, slices.MaxFunc(held, func(r, s Range) int { return r.Upper.Compare(s.Upper) }).Upper)
}

// Horizon is up to where partitions hold the time from now on without a gap; now itself if none holds it. The same partitions count as
// for Gaps.
func Horizon(parts []Partition, now time.Time) Bound {
	end := Bound{kind: maxValue}
	if gaps := gapsOf(reachable(parts), boundAt(now), end); len(gaps) > 0 {
		return gaps[0].Lower
	}
	return end
}

// Premake is which partitions are missing, from the interval that holds now up to ahead intervals after it. A partition that ends is
// continued from its upper bound, whatever its alignment, by one interval of UTC; a gap is filled, and the last piece may be shorter. No
// range overlaps an existing partition or another range. Gaps that end before now stay.
func Premake(parts []Partition, now time.Time, every Interval, ahead int) []Range {
	now = now.UTC()
	taken := rangesOf(parts, func(Partition) bool { return true })
	until := boundAt(every.after(now, ahead))
	var made []Range
	for _, gap := range gapsOf(taken, boundAt(now), Bound{kind: maxValue}) {
		from := gap.Lower
		if from.Compare(boundAt(now)) == 0 { // nothing holds now: begin where the interval does
			from = boundAt(every.start(now, lastEnd(taken, now)))
		}
		for from.Compare(until) <= 0 && from.Compare(gap.Upper) < 0 {
			to := boundAt(every.after(from.at, 1))
			if to.Compare(gap.Upper) > 0 {
				to = gap.Upper
			}
			made = append(made, Range{Lower: from, Upper: to})
			from = to
		}
	}
	return made
}

// lastEnd is where the last partition before now ended: the alignment to go on with.
func lastEnd(taken []Range, now time.Time) time.Time {
	last := Bound{kind: minValue}
	for _, r := range taken {
		if r.Upper.Compare(boundAt(now)) <= 0 && r.Upper.Compare(last) > 0 {
			last = r.Upper
		}
	}
	if t, ok := last.Time(); ok {
		return t
	}
	return alignment
}

// gapsOf is what of from up to to is in none of the ranges, which are sorted by their lower bounds.
func gapsOf(taken []Range, from, to Bound) []Range {
	var gaps []Range
	for _, r := range append(slices.Clip(taken), Range{Lower: to, Upper: to}) {
		if from.Compare(r.Lower) < 0 {
			gaps = append(gaps, Range{Lower: from, Upper: r.Lower})
		}
		if from.Compare(r.Upper) < 0 {
			from = r.Upper
		}
	}
	return gaps
}

func reachable(parts []Partition) []Range {
	return rangesOf(parts, func(p Partition) bool { return !p.DetachPending })
}

// rangesOf are those of the partitions that count, but for the default one, sorted by their lower bounds.
func rangesOf(parts []Partition, counts func(Partition) bool) []Range {
	var all []Range
	for _, p := range parts {
		if !p.Range.Default && counts(p) {
			all = append(all, p.Range)
		}
	}
	slices.SortFunc(all, func(r, s Range) int { return r.Lower.Compare(s.Lower) })
	return all
}

// after is t and n intervals of UTC. The last day of a month is followed by the last day of the next, so that months that begin at
// midnight east of Greenwich stay whole.
func (i Interval) after(t time.Time, n int) time.Time {
	if i == Month {
		first := t.AddDate(0, n, 1-t.Day())
		day := first.AddDate(0, 1, -1).Day()
		if t.AddDate(0, 0, 1).Day() != 1 {
			day = min(day, t.Day())
		}
		return first.AddDate(0, 0, day-1)
	}
	hours := n * i.hours()
	return t.AddDate(0, 0, hours/24).Add(time.Duration(hours%24) * time.Hour) // a Duration ends after 292 years
}

// start is the start of the interval that holds t, where one of them starts at aligned.
func (i Interval) start(t, aligned time.Time) time.Time {
	n := 12*(t.Year()-aligned.Year()) + int(t.Month()-aligned.Month())
	if i != Month {
		n = int((t.Unix() - aligned.Unix()) / int64(i.hours()*60*60))
	}
	if start := i.after(aligned, n); !start.After(t) {
		return start
	}
	return i.after(aligned, n-1)
}

// hours is the width of an interval that always has the same.
func (i Interval) hours() int {
	switch i {
	case Hour:
		return 1
	case Week:
		return 7 * 24
	case Day, Month:
	}
	return 24
}

// partitionName names the partition of a range that Premake made: keys_20240501, for an hour keys_20240501_13 and for a month keys_202405.
// One that is not aligned to UTC has its lower bound in full, keys_20240501t1830. Where PostgreSQL would cut the name, at 63 bytes, the
// table's part is cut and ends in a hash of the whole.
func partitionName(table string, r Range, every Interval) string {
	const longest = 63
	suffix := "_" + lowerName(r.Lower.at, every)
	if len(table)+len(suffix) <= longest {
		return table + suffix
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(table)) // a hash never fails
	suffix = fmt.Sprintf("_%08x%s", h.Sum32(), suffix)
	return strings.ToValidUTF8(table[:longest-len(suffix)], "") + suffix
}

func lowerName(lower time.Time, every Interval) string {
	layout := map[Interval]string{Hour: "20060102_15", Day: "20060102", Week: "20060102", Month: "200601"}[every]
	switch {
	case every.start(lower, alignment).Equal(lower):
	case lower.Truncate(time.Minute).Equal(lower):
		layout = "20060102t1504"
	default:
		layout = "20060102t150405.999999"
	}
	return strings.ReplaceAll(lower.Format(layout), ".", "_")
}
