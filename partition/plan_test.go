package partition

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

const week = 7 * 24 * time.Hour

// told is a decision on one line.
func told(plan []Decision) []string {
	var lines []string
	for _, d := range plan {
		line := fmt.Sprintf("%s %s", d.Partition.Name, d.State)
		if d.Reason != "" {
			line += " " + string(d.Reason)
		}
		if d.Now {
			line += " now"
		}
		lines = append(lines, line)
	}
	return lines
}

func wantPlan(t *testing.T, got []Decision, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, told(got)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// fiveDays are 1 to 5 May 2024, p1 to p5, with a DEFAULT partition.
func fiveDays(t testing.TB) []Partition {
	return partitionsOf(t, "2024-05-01 - 2024-05-02", "2024-05-02 - 2024-05-03", "2024-05-03 - 2024-05-04", "2024-05-04 - 2024-05-05", "2024-05-05 - 2024-05-06", "DEFAULT")
}

func TestAPartitionIsDueWhenItsUpperBoundIsAsOldAsTheRetention(t *testing.T) {
	t.Parallel()
	parts, rules := fiveDays(t), Rules{Retention: week, MaxPerRun: 10}
	now := at(t, "2024-05-10")
	wantPlan(t, Plan(parts, nil, now, rules), "p1 due now", "p2 due now", "p3 live young", "p4 live young", "p5 live young")
	wantPlan(t, Plan(parts, nil, now.Add(-1), rules), "p1 due now", "p2 live young", "p3 live young", "p4 live young", "p5 live young")
}

func TestAClockThatIsWrongHasNoMoreThanOneRunOfPartitionsTaken(t *testing.T) {
	t.Parallel()
	parts, rules := fiveDays(t), Rules{Retention: week, MaxPerRun: 2}
	wantPlan(t, Plan(parts, nil, at(t, "2999-01-01"), rules), "p1 due now", "p2 due now", "p3 due max_per_run", "p4 due max_per_run", "p5 held newest")
	wantPlan(t, Plan(parts, nil, at(t, "1970-01-01"), rules), "p1 live young", "p2 live young", "p3 live young", "p4 live young", "p5 live young")

	begun := map[uint32]Step{1: StepFrozen} // by the wrong clock
	wantPlan(t, Plan(parts, begun, at(t, "2024-05-01"), rules), "p1 live young", "p2 live young", "p3 live young", "p4 live young", "p5 live young")
}

func TestTheLastPartitionIsHeld(t *testing.T) {
	t.Parallel()
	rules := Rules{Retention: week, MaxPerRun: 10}
	wantPlan(t, Plan(partitionsOf(t, "DEFAULT", "2024-05-01 - 2024-05-02"), map[uint32]Step{2: StepVerified}, at(t, "2999-01-01"), rules), "p2 held last")
	if plan := Plan(partitionsOf(t, "DEFAULT"), nil, at(t, "2999-01-01"), rules); len(plan) > 0 {
		t.Errorf("%v, and there is none but the default", told(plan))
	}
}

func TestPartitionsWithoutAnEndAreNeverDue(t *testing.T) {
	t.Parallel()
	parts := partitionsOf(t, "2024-05-02 - infinity", "infinity - MAXVALUE", "MINVALUE - -infinity", "-infinity - 2024-05-01")
	wantPlan(t, Plan(parts, nil, at(t, "2999-01-01"), Rules{Retention: week, MaxPerRun: 10}), "p3 due now", "p4 due now", "p1 live young", "p2 live young")
}

func TestPartitionsOfMixedWidthsAreTakenByTheirUpperBounds(t *testing.T) {
	t.Parallel()
	parts := partitionsOf(t, "2024-05-01 - 2024-05-02", "2024-03-01 - 2024-05-01", "2024-05-02 - 2024-05-02 01:00", "2024-05-02 01:00 - 2024-06-01")
	wantPlan(t, Plan(parts, nil, at(t, "2024-05-09"), Rules{Retention: week, MaxPerRun: 1}), "p2 due now", "p1 due max_per_run", "p3 live young", "p4 live young")
}

func TestThoseUnderwayGoFirstAndDoNotCount(t *testing.T) {
	t.Parallel()
	begun := map[uint32]Step{1: StepDue, 2: StepRestored, 3: StepFrozen, 4: StepDetached, 77: StepExported}
	wantPlan(t, Plan(fiveDays(t), begun, at(t, "2024-06-01"), Rules{Retention: week, MaxPerRun: 1}),
		"p3 due now", "p4 due now", "p1 due now", "p2 due max_per_run", "p5 held newest")
}

func TestWhatThePlanHoldsTakesNobodysPlace(t *testing.T) {
	t.Parallel()
	parts := fiveDays(t)
	parts[0].InboundKey = "constraint c of s.other" // for years
	plan := Plan(parts, nil, at(t, "2034-05-01"), Rules{Retention: week, MaxPerRun: 2})
	wantPlan(t, plan, "p1 held inbound_foreign_key", "p2 due now", "p3 due now", "p4 due max_per_run", "p5 held newest")
	if plan[0].Example != parts[0].InboundKey {
		t.Errorf("the example is %q", plan[0].Example)
	}
}

func TestWhatCannotBeArchivedIsHeldAlsoIfUnderway(t *testing.T) {
	t.Parallel()
	for reason, spoil := range map[Reason]func(*Partition){
		ReasonSubpartitioned:    func(p *Partition) { p.Kind = "p" },
		ReasonForeignTable:      func(p *Partition) { p.Kind = "f" },
		ReasonInboundForeignKey: func(p *Partition) { p.InboundKey = "constraint c of s.other" },
	} {
		parts, rules := fiveDays(t), Rules{Retention: week, MaxPerRun: 1}
		spoil(&parts[1])
		wantPlan(t, Plan(parts, nil, at(t, "2024-06-01"), rules), "p1 due now", "p2 held "+string(reason), "p3 due max_per_run", "p4 due max_per_run", "p5 held newest")
		wantPlan(t, Plan(parts, map[uint32]Step{2: StepFrozen}, at(t, "2024-06-01"), rules)[:1], "p2 held "+string(reason))
		wantPlan(t, Plan(parts, nil, at(t, "2024-05-09"), rules)[1:2], "p2 live young")
	}
}

func TestADetachThatWasInterruptedIsFinishedFirstIfItIsOurs(t *testing.T) {
	t.Parallel()
	parts, rules := fiveDays(t), Rules{Retention: week, MaxPerRun: 1}
	parts[2].DetachPending = true
	parts[2].InboundKey = "constraint c of s.other"
	ours := map[uint32]Step{3: StepDetached}
	wantPlan(t, Plan(parts, ours, at(t, "2024-05-09"), rules), "p3 due now", "p1 due now", "p2 live young", "p4 live young", "p5 live young")

	plan := Plan(parts, map[uint32]Step{1: StepVerified}, at(t, "2024-05-10"), rules)
	wantPlan(t, plan, "p1 held detach_pending", "p2 held detach_pending", "p3 held detach_pending", "p4 live young", "p5 live young")
	if plan[0].Example != "s.p3" {
		t.Errorf("the example is %q", plan[0].Example)
	}
}

func TestThePartitionWhoseDetachIsPendingIsNoLongerTheNewest(t *testing.T) {
	t.Parallel()
	parts := fiveDays(t)
	parts[4].DetachPending = true
	wantPlan(t, Plan(parts, map[uint32]Step{5: StepDetached}, at(t, "2999-01-01"), Rules{Retention: week, MaxPerRun: 1}),
		"p5 due now", "p1 due now", "p2 due max_per_run", "p3 due max_per_run", "p4 held newest")
}

func TestWhateverIsThereThePlanKeepsItsPromises(t *testing.T) {
	t.Parallel()
	steps := []Step{"", "", "", StepDue, StepFrozen, StepExported, StepVerified, StepWatermark, StepDetached, StepReattached, StepRestored}
	rapid.Check(t, func(t *rapid.T) {
		parts, bounds := somePartitions(t)
		begun := map[uint32]Step{}
		var newest Partition
		for i := range parts {
			p := &parts[i]
			p.Kind = rapid.SampledFrom([]string{"r", "r", "r", "r", "p", "f"}).Draw(t, "kind")
			if step := rapid.SampledFrom(steps).Draw(t, "step"); step != "" {
				begun[p.OID] = step
			}
			if !p.Range.Default && (newest.OID == 0 || p.Range.Upper.Compare(newest.Range.Upper) > 0) {
				newest = *p
			}
		}
		if n := rapid.IntRange(-20, len(parts)-1).Draw(t, "pending"); n >= 0 && !parts[n].Range.Default && parts[n].OID != newest.OID {
			parts[n].DetachPending = true
		}
		now, rules := someNow(t, bounds), Rules{Retention: time.Duration(rapid.IntRange(1, 400).Draw(t, "hours")) * time.Hour, MaxPerRun: rapid.IntRange(0, 5).Draw(t, "max")}

		plan := Plan(parts, begun, now, rules)
		if diff := cmp.Diff(told(plan), told(Plan(rapid.Permutation(parts).Draw(t, "again"), begun, now, rules))); diff != "" {
			t.Fatalf("it depends on the order: %s", diff)
		}
		taken, waiting, ordinary := 0, false, false
		seen := map[uint32]bool{}
		for i, d := range plan {
			p, underway := d.Partition, begun[d.Partition.OID].underway()
			switch {
			case p.Range.Default || seen[p.OID]:
				t.Fatalf("%s is the default or there twice", p.Name)
			case p.OID == newest.OID && d.Now:
				t.Fatalf("the newest is planned")
			case d.Now != (d.State == StateDue && d.Reason == ""), d.State == StateHeld && d.Reason == "":
				t.Fatalf("%v contradicts itself", told(plan[i:i+1]))
			case d.Now && !p.DetachPending && (p.Kind != "r" || p.Range.Upper.Compare(boundAt(now.Add(-rules.Retention))) > 0):
				t.Fatalf("%s must not be planned", p.Name)
			case underway && ordinary:
				t.Fatalf("%s is underway and comes too late", p.Name)
			case d.Now && !underway && waiting:
				t.Fatalf("%s is before an older one", p.Name)
			case i > 0 && underway == begun[plan[i-1].Partition.OID].underway() && p.Range.Upper.Compare(plan[i-1].Partition.Range.Upper) < 0:
				t.Fatalf("%s is older than the one before", p.Name)
			case underway && d.Reason == ReasonMaxPerRun:
				t.Fatalf("%s is underway and has to wait", p.Name)
			}
			seen[p.OID] = true
			ordinary = ordinary || !underway
			waiting = waiting || d.Reason == ReasonMaxPerRun
			if d.Now && !underway {
				taken++
			}
		}
		if taken > rules.MaxPerRun || waiting && taken < rules.MaxPerRun {
			t.Fatalf("%d are begun, of %d", taken, rules.MaxPerRun)
		}
		for _, p := range parts {
			if !p.Range.Default && !seen[p.OID] {
				t.Fatalf("%s is forgotten", p.Name)
			}
		}
	})
}
