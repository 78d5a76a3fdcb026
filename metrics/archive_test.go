package metrics

import (
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"
	"time"
)

func TestWhatHappensToPartitionsIsCountedForTheTable(t *testing.T) {
	t.Parallel()
	m, reg, _ := newMetrics()
	m.Archive("V")
	a := m.Archive("T")
	for _, c := range []struct {
		what string
		do   func()
		want map[string]float64
	}{
		{"a step", func() { a.Step("exported", false) }, map[string]float64{`archive_steps_total{result="done",step="exported",table="T"}`: 1}},
		{"a step that failed", func() { a.Step("detached", true) }, map[string]float64{`archive_steps_total{result="failed",step="detached",table="T"}`: 1}},
		{
			"a step nobody knows", func() { a.Step("<script>", true) },
			map[string]float64{`archive_steps_total{result="failed",step="other",table="T"}`: 1},
		},
		{"an object", func() { a.Archived(1000, 200) }, map[string]float64{`archived_rows_total{table="T"}`: 1000, `archived_bytes_total{table="T"}`: 200}},
		{"an object without rows", func() { a.Archived(0, 9); a.Archived(-1, -1) }, map[string]float64{`archived_bytes_total{table="T"}`: 209}},
		{
			"a table that is announced again", func() { m.Archive("T"); a.Step("exported", false) }, // the run began before the reload
			map[string]float64{`archive_steps_total{result="done",step="exported",table="T"}`: 2},
		},
	} {
		same(t, c.what, c.want, changes(t, reg, c.do))
	}
}

// stateOf is what one Set shows for T, with the given number of partitions held for each reason.
func stateOf(held map[string]float64) map[string]float64 {
	want := map[string]float64{
		`partitions{table="T"}`:                                 30,
		`partitions_due{table="T"}`:                             2,
		`partition_default_rows{table="T"}`:                     7,
		`partition_oldest_due_timestamp_seconds{table="T"}`:     seconds(noon.Add(-time.Hour)),
		`partition_oldest_held_timestamp_seconds{table="T"}`:    seconds(noon.Add(-2 * time.Hour)),
		`partition_horizon_timestamp_seconds{table="T"}`:        seconds(noon.Add(100 * time.Hour)),
		`partition_premake_seconds{table="T"}`:                  7 * 86400,
		`partition_detach_pending_timestamp_seconds{table="T"}`: seconds(noon.Add(-3 * time.Hour)),
	}
	for _, reason := range heldReasons {
		want[`partitions_held{reason="`+reason+`",table="T"}`] = 0
	}
	for reason, n := range held {
		want[`partitions_held{reason="`+reason+`",table="T"}`] = n
	}
	return want
}

var state = ArchiveState{
	Partitions: 30, Due: 2, Held: map[string]int{"open_call": 3, "not_terminal": 1}, DefaultRows: 7,
	OldestDue: noon.Add(-time.Hour), OldestHeld: noon.Add(-2 * time.Hour), Horizon: noon.Add(100 * time.Hour), Premake: 7 * 24 * time.Hour,
	DetachPendingSince: noon.Add(-3 * time.Hour),
}

func TestTheStateOfATableIsWhatItsDatabaseSays(t *testing.T) {
	t.Parallel()
	m, reg, _ := newMetrics()
	a := m.Archive("T")
	want := stateOf(map[string]float64{"open_call": 3, "not_terminal": 1})
	same(t, "set", want, changes(t, reg, func() { a.Set(state) }))

	freed := state
	freed.Held = map[string]int{"open_call": 1}
	same(t, "a partition that is held no longer", map[string]float64{
		`partitions_held{reason="open_call",table="T"}`: 1, `partitions_held{reason="not_terminal",table="T"}`: 0,
	}, changes(t, reg, func() { a.Set(freed) }))
	a.Set(state)

	gone := map[string]float64{}
	for series := range want {
		if !strings.HasPrefix(series, "partition_horizon") && !strings.HasPrefix(series, "partition_premake") {
			gone[series] = -1
		}
	}
	same(t, "unknown", gone, changes(t, reg, a.Unknown))
	a.Set(state)
	all := shown(t, reg)
	for series, v := range want {
		if all[series] != v {
			t.Errorf("known again, %s is %g, want %g", series, all[series], v)
		}
	}
}

func TestATimeThatIsNoneIsNoNumber(t *testing.T) {
	t.Parallel()
	m, reg, _ := newMetrics()
	m.Archive("T").Set(ArchiveState{})
	timestamps := 0
	for series, v := range shown(t, reg) {
		if strings.Contains(series, "_timestamp_seconds") && strings.Contains(series, `table="T"`) {
			timestamps++
			if !math.IsNaN(v) {
				t.Errorf("%s is %g", series, v)
			}
		}
	}
	if timestamps != 4 {
		t.Errorf("%d timestamps", timestamps)
	}
}

func TestReasonsThatNobodyKnowsAreHeldTogether(t *testing.T) {
	t.Parallel()
	m, reg, _ := newMetrics()
	a := m.Archive("T")
	a.Set(ArchiveState{})
	strange := ArchiveState{Held: map[string]int{}}
	for i := range 100 {
		strange.Held[fmt.Sprint("<script>", i)] = 2
	}
	const series = `partitions_held{reason="other",table="T"}`
	a.Set(strange)
	if v := shown(t, reg)[series]; v != 200 {
		t.Errorf("%s is %g", series, v)
	}
	a.Set(ArchiveState{})
	if v, there := shown(t, reg)[series]; there {
		t.Errorf("%s is still there, with %g", series, v)
	}
}

func TestAForgottenTableLeavesNoSeriesAndNoneComesBack(t *testing.T) {
	t.Parallel()
	m, reg, _ := newMetrics()
	m.Archive("V").Set(state)
	m.Tool("T", charge) // a tool may have the name of a table
	m.Run(TaskArchive, "T").Panicked()
	want := shown(t, reg)

	a := m.Archive("T")
	a.Set(state)
	a.Step("<script>", true)
	m.ForgetArchive("T")
	same(t, "after ForgetArchive", want, shown(t, reg))
	a.Set(state)
	a.Step("exported", true)
	a.Archived(1, 1)
	a.Unknown()
	same(t, "from what was under way", want, shown(t, reg))

	if m.Archive("T").Step("exported", false); shown(t, reg)[`archive_steps_total{result="done",step="exported",table="T"}`] != 1 {
		t.Error("a table that comes back does not begin at 0")
	}
}

func TestTablesComeAndGoWhileTheyAreReportedOnAndScraped(t *testing.T) {
	t.Parallel()
	m, reg, _ := newMetrics()
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 100 {
				a := m.Archive("T")
				a.Set(state)
				a.Step("exported", false)
				a.Archived(1, 1)
				a.Unknown()
				m.ForgetArchive("T")
			}
		})
	}
	all.Go(func() {
		for range 50 {
			if _, err := reg.Gather(); err != nil {
				t.Error(err)
			}
		}
	})
	all.Wait()
	for series := range shown(t, reg) {
		if strings.Contains(series, `table="T"`) {
			t.Errorf("%s is left", series)
		}
	}
}
