package demo

import (
	"reflect"
	"slices"
	"testing"

	"github.com/callreceipt/reconciler/pending"
)

func TestTheSameSeedGivesTheSamePlanAndAnotherSeedAnother(t *testing.T) {
	t.Parallel()
	if !reflect.DeepEqual(Plan(7, 500), Plan(7, 500)) {
		t.Error("one seed gave two plans")
	}
	if reflect.DeepEqual(Plan(7, 500), Plan(8, 500)) {
		t.Error("two seeds gave one plan")
	}
}

func TestAPlanHasExactlyTheCallsAskedForEachUnderItsOwnID(t *testing.T) {
	t.Parallel()
	for seed := range uint64(20) {
		for n := 1; n < 60; n++ {
			ids := map[string]bool{}
			next := 0
			for _, intent := range Plan(seed, n) {
				for _, c := range intent {
					if c.Index != next || ids[c.CallID] || c.Key() != intent[0].Key() {
						t.Fatalf("seed %d, %d calls: call %s at %d (want %d) of intent %s", seed, n, c.CallID, c.Index, next, intent[0].Key())
					}
					ids[c.CallID] = true
					next++
				}
			}
			if next != n {
				t.Fatalf("seed %d: %d calls, want %d", seed, next, n)
			}
		}
	}
}

func TestEveryWayIsPlannedForAndTheSharesOfEachToolAreWhole(t *testing.T) {
	t.Parallel()
	for _, tool := range Tools {
		whole := 0
		for _, s := range tool.fates {
			whole += s.percent
		}
		if whole != 100 {
			t.Errorf("the ways of %s add up to %d%%", tool.Name, whole)
		}
	}
	for seed := range uint64(10) {
		planned, parked, atOnce := map[Way]int{}, map[Way]int{}, map[Way]int{}
		status := map[pending.Status]int{}
		receptions, awaited, suspended := map[Reception]int{}, 0, 0
		for _, c := range slices.Concat(Plan(seed, 2000)...) {
			planned[c.Way]++
			if !c.parks() {
				atOnce[c.Way]++
				continue
			}
			suspended++
			parked[c.Way]++
			status[flawlessly(c).Status]++
			receptions[c.Reception]++
			if c.Awaited {
				awaited++
			}
		}
		for way := Answered; way < Busy; way++ {
			if planned[way] == 0 {
				t.Errorf("seed %d: no call of 2,000 goes the way %q", seed, way)
			}
			if way.mayBeCutOff() && (parked[way] == 0 || atOnce[way] == 0) {
				t.Errorf("seed %d: %q is settled at once %d times and parked %d times", seed, way, atOnce[way], parked[way])
			}
		}
		if atOnce[Down] == 0 || suspended <= 500 || len(status) != 3 {
			t.Errorf("seed %d: %d calls are not to be sent, %d to be parked, and to end as %v", seed, atOnce[Down], suspended, status)
		}
		if len(receptions) != 3 || awaited == 0 {
			t.Errorf("seed %d: %d calls are waited for, and the webhook receives them as %v", seed, awaited, receptions)
		}
	}
}

func TestNoMoreCallsAreMadeDuringTheOutageThanCanBeAtOnce(t *testing.T) {
	t.Parallel()
	planned := map[Way]int{}
	for _, intent := range Plan(1, 20_000) {
		planned[intent[0].Way]++
	}
	if planned[Refused] != mostOfOutage || planned[Down] != mostOfOutage {
		t.Errorf("%d calls are to be refused at first, and %d for good", planned[Refused], planned[Down])
	}
}

func TestACallThatMayNotBeRepeatedIsNeverHeldUpBeyondItsCaller(t *testing.T) {
	t.Parallel()
	for _, c := range slices.Concat(Plan(1, 3000)...) {
		if !c.Tool.Repeatable && (c.Fault(1) == Delay || c.Fault(1) == DelayUntilResent || c.Fault(2) != Deliver) {
			t.Fatalf("call %s of %s, %s: %v", c.CallID, c.Tool.Name, c.Way, c.faults)
		}
	}
}
