package partition

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// at reads "2024-05-01" or "2024-05-01 18:30".
func at(t testing.TB, s string) time.Time {
	t.Helper()
	layout := "2006-01-02 15:04"[:len(s)]
	at, err := time.Parse(layout, s)
	if err != nil {
		t.Fatal(err)
	}
	return at
}

// partitionsOf makes partitions of texts such as "2024-05-01 - 2024-05-02 18:30", "MINVALUE - infinity" and "DEFAULT".
func partitionsOf(t testing.TB, texts ...string) []Partition {
	t.Helper()
	var parts []Partition
	for i, text := range texts {
		p := Partition{OID: uint32(i + 1), Schema: "s", Name: fmt.Sprint("p", i+1), Bounds: text, Kind: "r", Range: Range{Default: true}}
		if lower, upper, ok := strings.Cut(text, " - "); ok {
			p.Range = Range{Lower: boundOf(t, lower), Upper: boundOf(t, upper)}
		}
		parts = append(parts, p)
	}
	return parts
}

func boundOf(t testing.TB, s string) Bound {
	t.Helper()
	for word, k := range boundWords {
		if s == strings.Trim(word, "'") {
			return Bound{kind: k}
		}
	}
	return boundAt(at(t, s))
}

// shown is the inverse of partitionsOf, without times of day that are midnight.
func shown(ranges []Range) []string {
	var texts []string
	short := strings.NewReplacer("T00:00:00Z", "", ":00Z", "", "T", " ")
	for _, r := range ranges {
		texts = append(texts, short.Replace(r.Lower.String())+" - "+short.Replace(r.Upper.String()))
	}
	return texts
}

func TestPartitionsAreMadeFromTheIntervalOfNow(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		exist []string
		now   string
		every Interval
		ahead int
		want  []string
	}{
		"none exists, by hour": {
			nil, "2024-05-01 13:20", Hour, 1,
			[]string{"2024-05-01 13:00 - 2024-05-01 14:00", "2024-05-01 14:00 - 2024-05-01 15:00"},
		},
		"none exists, by day": {
			nil, "2024-02-28 13:20", Day, 2,
			[]string{"2024-02-28 - 2024-02-29", "2024-02-29 - 2024-03-01", "2024-03-01 - 2024-03-02"},
		},
		"none exists, by week": {nil, "2024-05-01 13:20", Week, 1, []string{"2024-04-29 - 2024-05-06", "2024-05-06 - 2024-05-13"}},
		"none exists, by month": {
			nil, "2024-01-31 13:20", Month, 2,
			[]string{"2024-01-01 - 2024-02-01", "2024-02-01 - 2024-03-01", "2024-03-01 - 2024-04-01"},
		},
		"a clock before the alignment":             {nil, "1969-12-31 23:00", Week, 1, []string{"1969-12-29 - 1970-01-05", "1970-01-05 - 1970-01-12"}},
		"now is the first instant of its interval": {nil, "2024-05-01", Day, 1, []string{"2024-05-01 - 2024-05-02", "2024-05-02 - 2024-05-03"}},
		"a running table": {
			[]string{"2024-04-30 - 2024-05-01", "2024-05-01 - 2024-05-02", "2024-05-02 - 2024-05-03"},
			"2024-05-01 13:20", Day, 2,
			[]string{"2024-05-03 - 2024-05-04"},
		},
		"now is where the newest ends": {
			[]string{"2024-04-30 - 2024-05-01"},
			"2024-05-01", Day, 1,
			[]string{"2024-05-01 - 2024-05-02", "2024-05-02 - 2024-05-03"},
		},
		"days of Kolkata": {
			[]string{"2024-04-30 18:30 - 2024-05-01 18:30"},
			"2024-05-01 13:20", Day, 2,
			[]string{"2024-05-01 18:30 - 2024-05-02 18:30", "2024-05-02 18:30 - 2024-05-03 18:30"},
		},
		"months of Kolkata": {
			[]string{"2023-12-31 18:30 - 2024-01-31 18:30"},
			"2024-01-15", Month, 3,
			[]string{"2024-01-31 18:30 - 2024-02-29 18:30", "2024-02-29 18:30 - 2024-03-31 18:30", "2024-03-31 18:30 - 2024-04-30 18:30"},
		},
		"months from the 30th": {[]string{"2023-12-30 - 2024-01-30"}, "2024-01-15", Month, 1, []string{"2024-01-30 - 2024-02-29"}},
		"days of New York, the last of 23 hours": {
			[]string{"2024-03-09 05:00 - 2024-03-10 05:00", "2024-03-10 05:00 - 2024-03-11 04:00"},
			"2024-03-10 12:00", Day, 2,
			[]string{"2024-03-11 04:00 - 2024-03-12 04:00", "2024-03-12 04:00 - 2024-03-13 04:00"},
		},
		"days of New York made by another tool across the 25 hours": {
			[]string{"2024-11-02 04:00 - 2024-11-03 04:00", "2024-11-04 05:00 - 2024-11-05 05:00"},
			"2024-11-02 12:00", Day, 2,
			[]string{"2024-11-03 04:00 - 2024-11-04 04:00", "2024-11-04 04:00 - 2024-11-04 05:00"},
		},
		"a hole over now": {
			[]string{"2024-04-27 - 2024-04-28", "2024-05-02 12:00 - 2024-05-03"},
			"2024-05-01 13:20", Day, 2,
			[]string{"2024-05-01 - 2024-05-02", "2024-05-02 - 2024-05-02 12:00", "2024-05-03 - 2024-05-04"},
		},
		"a hole over now that begins in its interval": {
			[]string{"2024-04-30 - 2024-05-01 12:00"},
			"2024-05-01 13:20", Day, 0,
			[]string{"2024-05-01 12:00 - 2024-05-02 12:00"},
		},
		"a gap before now stays": {
			[]string{"2024-04-27 - 2024-04-28", "2024-05-01 09:00 - 2024-05-02"},
			"2024-05-01 13:20", Day, 1,
			[]string{"2024-05-02 - 2024-05-03"},
		},
		"the newest ended years ago": {
			[]string{"1999-03-01 18:30 - 1999-03-02 18:30"},
			"2024-05-01 13:20", Hour, 1,
			[]string{"2024-05-01 12:30 - 2024-05-01 13:30", "2024-05-01 13:30 - 2024-05-01 14:30"},
		},
		"the newest ended two thousand years ago": {
			[]string{"0001-01-01 - 0001-01-02 00:30"},
			"2024-05-01 13:20", Hour, 0,
			[]string{"2024-05-01 12:30 - 2024-05-01 13:30"},
		},
		"early in a month of UTC":       {nil, "2024-05-01 03:00", Month, 0, []string{"2024-05-01 - 2024-06-01"}},
		"the newest ended in antiquity": {[]string{"MINVALUE - -infinity"}, "2024-05-01 13:20", Day, 0, []string{"2024-05-01 - 2024-05-02"}},
		"mixed widths": {
			[]string{"2024-04-01 - 2024-05-01", "2024-05-01 - 2024-05-01 12:00", "2024-05-01 12:00 - 2024-05-02", "2024-05-03 - 2024-05-10"},
			"2024-05-01 13:20", Day, 10,
			[]string{"2024-05-02 - 2024-05-03", "2024-05-10 - 2024-05-11", "2024-05-11 - 2024-05-12"},
		},
		"a wide partition over now reaches far enough": {[]string{"2024-01-01 - 2025-01-01"}, "2024-05-01 13:20", Day, 7, nil},
		"MAXVALUE holds all":                           {[]string{"2024-04-01 - 2024-05-02", "2024-05-02 - MAXVALUE"}, "2024-05-01 13:20", Day, 7, nil},
		"infinity holds all":                           {[]string{"MINVALUE - infinity"}, "2024-05-01 13:20", Day, 7, nil},
		"MAXVALUE after a gap": {
			[]string{"2024-05-01 - 2024-05-02", "2024-05-03 12:00 - MAXVALUE"},
			"2024-05-01 13:20", Day, 7,
			[]string{"2024-05-02 - 2024-05-03", "2024-05-03 - 2024-05-03 12:00"},
		},
		"the DEFAULT partition holds nothing": {[]string{"DEFAULT"}, "2024-05-01 13:20", Day, 0, []string{"2024-05-01 - 2024-05-02"}},
	} {
		parts := partitionsOf(t, c.exist...)
		for _, zone := range []*time.Location{time.UTC, time.FixedZone("east", 13*60*60), time.FixedZone("west", -12*60*60)} {
			made := Premake(parts, at(t, c.now).In(zone), c.every, c.ahead)
			if diff := cmp.Diff(c.want, shown(made)); diff != "" {
				t.Errorf("%s, with now in %s: (-want +got)\n%s", name, zone, diff)
			}
		}
	}
}

func TestGapsAndTheHorizonAreOfWhatRowsCanReach(t *testing.T) {
	t.Parallel()
	parts := partitionsOf(t, "2024-05-07 - infinity", "2024-05-02 - 2024-05-03", "DEFAULT", "2024-05-01 - 2024-05-02", "2024-05-04 - 2024-05-05", "2024-05-05 - 2024-05-06")
	if diff := cmp.Diff([]string{"2024-05-03 - 2024-05-04", "2024-05-06 - 2024-05-07"}, shown(Gaps(parts))); diff != "" {
		t.Error(diff)
	}
	parts[4].DetachPending = true
	if diff := cmp.Diff([]string{"2024-05-03 - 2024-05-05", "2024-05-06 - 2024-05-07"}, shown(Gaps(parts))); diff != "" {
		t.Error(diff)
	}
	for now, want := range map[string]string{
		"2024-05-01 13:20": "2024-05-03", "2024-05-02": "2024-05-03", "2024-05-03": "2024-05-03", "2024-05-04 12:00": "2024-05-04 12:00",
		"2024-04-01": "2024-04-01", "2030-01-01": "infinity",
	} {
		if got := Horizon(parts, at(t, now)); got != boundOf(t, want) {
			t.Errorf("at %s: %s, want %s", now, got, want)
		}
	}
	for _, made := range shown(Premake(parts, at(t, "2024-05-04 12:00"), Day, 0)) {
		t.Errorf("%s overlaps the partition whose detach is pending", made)
	}
	if got := Horizon(partitionsOf(t, "MINVALUE - MAXVALUE"), at(t, "2024-05-01")); got.kind != maxValue {
		t.Errorf("everything is held, and the horizon is %s", got)
	}
	if got := Gaps(partitionsOf(t, "DEFAULT")); got != nil {
		t.Errorf("%s between no partitions", shown(got))
	}
}

func TestAPartitionIsNamedAfterItsLowerBound(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("t", 50)
	for _, c := range []struct {
		table, lower string
		every        Interval
		want         string
	}{
		{"keys", "2024-05-01", Day, "keys_20240501"},
		{"keys", "2024-05-01 18:30", Day, "keys_20240501t1830"},
		{"keys", "2024-05-01", Hour, "keys_20240501_00"},
		{"keys", "2024-05-01 13:00", Hour, "keys_20240501_13"},
		{"keys", "2024-05-01 13:30", Hour, "keys_20240501t1330"},
		{"keys", "2024-05-06", Week, "keys_20240506"},
		{"keys", "2024-05-01", Week, "keys_20240501t0000"},
		{"keys", "2024-05-01", Month, "keys_202405"},
		{"keys", "2024-05-02", Month, "keys_20240502t0000"},
		{"1234_" + long[5:], "2024-05-01", Day, "1234_" + long[5:] + "_20240501"},
		{long + "12345", "2024-05-01", Day, long[:45] + "_8e27b148_20240501"},
		{long + "12346", "2024-05-01", Day, long[:45] + "_9127b601_20240501"},
	} {
		lower := boundOf(t, c.lower)
		if got := partitionName(c.table, Range{Lower: lower}, c.every); got != c.want || len(got) > 63 {
			t.Errorf("%s from %s by %s: %s, want %s", c.table, c.lower, c.every, got, c.want)
		}
	}
	lower := boundAt(at(t, "2024-05-01").Add(time.Second + time.Microsecond))
	if got := partitionName("keys", Range{Lower: lower}, Day); got != "keys_20240501t000001_000001" {
		t.Error(got)
	}
	if got := partitionName(strings.Repeat("é", 31), Range{Lower: lower}, Day); !utf8.ValidString(got) || len(got) > 63 {
		t.Errorf("%q", got)
	}
}

// somePartitions are of mixed widths and alignments, with gaps, and in any order.
func somePartitions(t *rapid.T) (parts []Partition, bounds []time.Time) {
	at := time.Date(2023, 12, 25, 0, 0, 0, 0, time.UTC).Add(time.Duration(rapid.SampledFrom([]int{0, 300, 1110}).Draw(t, "alignment")) * time.Minute)
	widths := []time.Duration{time.Microsecond, time.Hour, 90 * time.Minute, 23 * time.Hour, 24 * time.Hour, 25 * time.Hour, 7 * 24 * time.Hour, 31 * 24 * time.Hour}
	for i := range rapid.IntRange(0, 12).Draw(t, "partitions") {
		from := boundAt(at)
		if i == 0 {
			from = rapid.SampledFrom([]Bound{from, from, {kind: minValue}, {kind: negInfinity}}).Draw(t, "lowest")
		} else if rapid.IntRange(0, 3).Draw(t, "gap") == 0 {
			at = at.Add(rapid.SampledFrom(widths).Draw(t, "of"))
			from = boundAt(at)
		}
		at = at.Add(rapid.SampledFrom(widths).Draw(t, "width"))
		bounds = append(bounds, at)
		parts = append(parts, Partition{OID: uint32(i + 1), Name: fmt.Sprint("p", i), Kind: "r", Range: Range{Lower: from, Upper: boundAt(at)}})
	}
	if n := len(parts); n > 0 && rapid.IntRange(0, 3).Draw(t, "endless") == 0 {
		parts[n-1].Range.Upper = rapid.SampledFrom([]Bound{{kind: infinity}, {kind: maxValue}}).Draw(t, "highest")
	}
	if rapid.Bool().Draw(t, "default") {
		parts = append(parts, Partition{OID: 99, Name: "rest", Range: Range{Default: true}})
	}
	return rapid.Permutation(parts).Draw(t, "order"), append(bounds, at)
}

func someNow(t *rapid.T, bounds []time.Time) time.Time {
	now := rapid.SampledFrom(bounds).Draw(t, "near")
	return now.Add(rapid.SampledFrom([]time.Duration{
		0, 0, 1, -1, time.Hour, -time.Hour, 13 * time.Hour, 40 * 24 * time.Hour, -40 * 24 * time.Hour, 200 * 365 * 24 * time.Hour,
	}).Draw(t, "after"))
}

func holds(ranges []Range, b Bound) bool {
	return slices.ContainsFunc(ranges, func(r Range) bool { return r.Lower.Compare(b) <= 0 && b.Compare(r.Upper) < 0 })
}

func TestWhateverExistsPremakeCompletesItWithoutOverlap(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		parts, bounds := somePartitions(t)
		now, every, ahead := someNow(t, bounds), rapid.SampledFrom(intervals).Draw(t, "every"), rapid.IntRange(0, 20).Draw(t, "ahead")
		made := Premake(parts, now, every, ahead)

		var all []Range
		for _, p := range parts {
			if !p.Range.Default {
				all = append(all, p.Range)
			}
		}
		exist := slices.Clone(all)
		names := map[string]bool{}
		for i, r := range made {
			for _, s := range all {
				if r.Lower.Compare(s.Upper) < 0 && s.Lower.Compare(r.Upper) < 0 {
					t.Fatalf("%v overlaps %v", shown([]Range{r}), shown([]Range{s}))
				}
			}
			all = append(all, r)
			if r.Lower.Compare(r.Upper) >= 0 || r.Upper.Compare(boundAt(now)) <= 0 {
				t.Fatalf("%v is empty or ends before now", shown([]Range{r}))
			}
			whole := r.Upper == boundAt(every.after(r.Lower.at, 1))
			if !whole && !slices.ContainsFunc(exist, func(s Range) bool { return s.Lower == r.Upper }) {
				t.Fatalf("%v is cut short by nothing", shown([]Range{r}))
			}
			if name := partitionName("keys", r, every); names[name] {
				t.Fatalf("%s, made as number %d, is there twice", name, i)
			} else {
				names[name] = true
			}
		}

		// Ranges are closed below, so what has no hole at any bound has none at all.
		until := map[Interval]time.Time{
			Hour: now.Add(time.Duration(ahead) * time.Hour), Day: now.AddDate(0, 0, ahead), Week: now.AddDate(0, 0, 7*ahead),
			Month: time.Date(now.Year(), now.Month()+time.Month(ahead), min(now.Day(), 28), now.Hour(), now.Minute(), now.Second(), now.Nanosecond(), time.UTC),
		}[every]
		ends := []Bound{boundAt(now), boundAt(until)}
		for _, r := range all {
			ends = append(ends, r.Upper)
		}
		for _, b := range ends {
			if b.Compare(boundAt(now)) >= 0 && b.Compare(boundAt(until)) <= 0 && !holds(all, b) {
				t.Fatalf("nothing holds %s", b)
			}
		}
		if most := ahead + 2*len(parts) + 1; len(made) > most {
			t.Fatalf("%d partitions are more than %d", len(made), most)
		}
		for i, r := range made {
			parts = append(parts, Partition{OID: uint32(1000 + i), Range: r})
		}
		if again := Premake(parts, now, every, ahead); len(again) > 0 {
			t.Fatalf("it is not done: %v", shown(again))
		}
		if h := Horizon(parts, now); h.Compare(boundAt(until)) <= 0 {
			t.Fatalf("the horizon is %s", h)
		}
	})
}

func TestGapsAreExactlyWhatIsNotHeld(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		parts, _ := somePartitions(t)
		var held []Range
		for _, p := range parts {
			if !p.Range.Default {
				held = append(held, p.Range)
			}
		}
		gaps := Gaps(parts)
		for _, g := range gaps {
			if holds(held, g.Lower) || slices.ContainsFunc(held, func(r Range) bool { return g.Lower.Compare(r.Lower) < 0 && r.Lower.Compare(g.Upper) < 0 }) {
				t.Fatalf("%v is held in part", shown([]Range{g}))
			}
		}
		highest := Bound{kind: minValue}
		for _, r := range held {
			if r.Upper.Compare(highest) > 0 {
				highest = r.Upper
			}
		}
		for _, r := range held {
			if r.Upper != highest && !holds(held, r.Upper) && !holds(gaps, r.Upper) {
				t.Fatalf("%s is in no gap", r.Upper)
			}
		}
	})
}
