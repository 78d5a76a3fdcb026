package receipt

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func ids(n int) []string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprintf("B%d", i)
	}
	return all
}

// downstream answers every bizId with a bare NOT_FOUND, unless refuse has an error for the batch.
type downstream struct {
	requests int
	row      int // refused requests in a row, the longest so far
	inARow   int
	refuse   func(batch []string) *Error
}

func (d *downstream) ask(_ context.Context, batch []string) (Answer, error) {
	d.requests++
	if e := d.refuse(batch); e != nil {
		d.inARow++
		d.row = max(d.row, d.inARow)
		return Answer{}, e
	}
	d.inARow = 0
	a := Answer{Of: map[string]Evidence{}, Unasked: 1, Duplicates: 2}
	for _, id := range batch {
		a.Of[id] = Evidence{Presence: Absent}
	}
	return a, nil
}

func badIDs(e *Error, bad ...string) func([]string) *Error {
	return func(batch []string) *Error {
		if slices.ContainsFunc(batch, func(id string) bool { return slices.Contains(bad, id) }) {
			return e
		}
		return nil
	}
}

var (
	errBad      = &Error{Outcome: BadBatch, Kind: KindStatus, Status: 400}
	errTooLarge = &Error{Outcome: BadBatch, Kind: KindTooLarge, Status: 413}
)

// unknown lists the ids that were not answered, and checks that each id asked has an entry and each Unknown a reason.
func unknown(t interface{ Fatalf(string, ...any) }, asked []string, c Collected) []string {
	var list []string
	if len(c.Evidence) != len(asked) {
		t.Fatalf("%d entries for %d ids", len(c.Evidence), len(asked))
	}
	for _, id := range asked {
		e, ok := c.Evidence[id]
		if !ok || (e.Presence == Unknown) != (e.Err != nil) {
			t.Fatalf("%s: got %+v", id, e)
		}
		if e.Presence == Unknown {
			list = append(list, id)
		}
	}
	return list
}

func TestAGoodBatchIsOneRequest(t *testing.T) {
	t.Parallel()
	d := &downstream{refuse: badIDs(nil)}
	got, err := Collect(t.Context(), ids(200), d.ask)
	if err != nil || d.requests != 1 || got.Unasked != 1 || got.Duplicates != 2 || got.MaxBatch != 0 || unknown(t, ids(200), got) != nil {
		t.Errorf("got %d requests, %+v, %v", d.requests, got, err)
	}
	if got, err := Collect(t.Context(), nil, d.ask); err != nil || d.requests != 1 || len(got.Evidence) != 0 {
		t.Errorf("nobody to ask about: got %d requests, %+v, %v", d.requests, got, err)
	}
}

func TestOneBadIdAmongManyIsSetAsideAlone(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 2, 3, 20, 200} {
		for bad := range n {
			d := &downstream{refuse: badIDs(errBad, ids(n)[bad])}
			got, err := Collect(t.Context(), ids(n), d.ask)
			if err != nil {
				t.Fatal(err)
			}
			if aside := unknown(t, ids(n), got); !slices.Equal(aside, []string{ids(n)[bad]}) || got.Evidence[aside[0]].Err != errBad {
				t.Errorf("of %d, %d bad: set aside %q", n, bad, aside)
			}
			if extra := d.requests - 1; extra > 2*ceilLog2(n)+1 {
				t.Errorf("of %d, %d bad: %d extra requests", n, bad, extra)
			}
		}
	}
}

func TestADownstreamThatRefusesEverythingIsLeftAlone(t *testing.T) {
	t.Parallel()
	d := &downstream{refuse: func([]string) *Error { return errBad }}
	got, err := Collect(t.Context(), ids(200), d.ask)
	if err != nil || d.requests > 19 || len(unknown(t, ids(200), got)) != 200 {
		t.Errorf("got %d requests, %v", d.requests, err)
	}
}

func TestBadNeighboursDoNotHideTheGoodOnes(t *testing.T) {
	t.Parallel()
	for start := range 190 {
		d := &downstream{refuse: badIDs(errBad, ids(200)[start:start+10]...)}
		got, err := Collect(t.Context(), ids(200), d.ask)
		if aside := unknown(t, ids(200), got); err != nil || len(aside) != 10 {
			t.Errorf("from %d: %d set aside after %d requests, %v", start, len(aside), d.requests, err)
		}
	}
}

func TestEveryOtherIdBadIsStillSorted(t *testing.T) {
	t.Parallel()
	var bad []string
	for i, id := range ids(200) {
		if i%2 == 0 {
			bad = append(bad, id)
		}
	}
	d := &downstream{refuse: badIDs(errBad, bad...)}
	got, err := Collect(t.Context(), ids(200), d.ask)
	if aside := unknown(t, ids(200), got); err != nil || !slices.Equal(aside, bad) {
		t.Errorf("%d set aside after %d requests, %v", len(aside), d.requests, err)
	}
}

func TestAnyGoodIdIsAnsweredUnlessPatienceEnds(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 300).Draw(t, "n")
		all := ids(n)
		var bad []string
		for _, i := range rapid.SliceOfDistinct(rapid.IntRange(0, n-1), rapid.ID[int]).Draw(t, "bad") {
			bad = append(bad, all[i])
		}
		slices.Sort(bad)
		d := &downstream{refuse: badIDs(errBad, bad...)}
		got, err := Collect(context.Background(), all, d.ask)
		if err != nil {
			t.Fatal(err)
		}
		patience := 2*ceilLog2(n) + 2
		gaveUp := d.row > patience
		aside := unknown(t, all, got)
		slices.Sort(aside)
		switch {
		case d.row > patience+1:
			t.Fatalf("%d refusals in a row", d.row)
		case !gaveUp && !slices.Equal(aside, bad):
			t.Fatalf("set aside %q, bad are %q", aside, bad)
		case gaveUp && slices.ContainsFunc(bad, func(id string) bool { return !slices.Contains(aside, id) }):
			t.Fatalf("a bad id was answered")
		case len(bad) == 1 && d.requests-1 > 2*ceilLog2(n)+1:
			t.Fatalf("%d requests for one bad id of %d", d.requests, n)
		case len(bad) <= 2 && gaveUp:
			t.Fatalf("gave up for two bad ids of %d", n)
		}
	})
}

func TestABatchThatIsTooLargeLowersTheBatchSize(t *testing.T) {
	t.Parallel()
	d := &downstream{refuse: func(batch []string) *Error {
		if len(batch) > 64 {
			return errTooLarge
		}
		return nil
	}}
	got, err := Collect(t.Context(), ids(200), d.ask)
	if err != nil || unknown(t, ids(200), got) != nil || got.MaxBatch != 50 {
		t.Errorf("got MaxBatch %d, %v", got.MaxBatch, err)
	}
}

func TestOneIdWhoseAnswerIsTooLargeDoesNotLowerTheBatchSize(t *testing.T) {
	t.Parallel()
	d := &downstream{refuse: badIDs(errTooLarge, "B7")}
	got, err := Collect(t.Context(), ids(200), d.ask)
	if aside := unknown(t, ids(200), got); err != nil || got.MaxBatch != 0 || !slices.Equal(aside, []string{"B7"}) {
		t.Errorf("got MaxBatch %d, set aside %q, %v", got.MaxBatch, aside, err)
	}
}

func TestTwoIdsTooLargeTogetherDoNotLowerTheBatchSizeBelowWhatWasAnswered(t *testing.T) {
	t.Parallel()
	d := &downstream{refuse: func(batch []string) *Error {
		if slices.Contains(batch, "B0") && slices.Contains(batch, "B1") {
			return errTooLarge
		}
		return nil
	}}
	got, err := Collect(t.Context(), ids(200), d.ask)
	if err != nil || got.MaxBatch != 100 || unknown(t, ids(200), got) != nil {
		t.Errorf("got MaxBatch %d, %v", got.MaxBatch, err)
	}
}

func TestAnyOtherTroubleIsNotHalved(t *testing.T) {
	t.Parallel()
	trouble := &Error{Outcome: Unanswered, Kind: KindTimeout}
	d := &downstream{}
	d.refuse = func(batch []string) *Error {
		switch {
		case d.requests == 1:
			return errBad
		case slices.Contains(batch, "B0"):
			return trouble
		default:
			return nil
		}
	}
	got, err := Collect(t.Context(), ids(10), d.ask)
	aside := unknown(t, ids(10), got)
	if err != nil || d.requests != 3 || !slices.Equal(aside, ids(5)) || got.Evidence["B3"].Err != trouble {
		t.Errorf("got %d requests, set aside %q, %v", d.requests, aside, err)
	}
}

func TestAMisconfiguredToolOrACallerWhoLeavesEndsTheAsking(t *testing.T) {
	t.Parallel()
	open := errors.New("the breaker is open")
	for name, stop := range map[string]error{
		"misconfigured": &Error{Outcome: Misconfigured, Kind: KindStatus, Status: 401},
		"canceled":      &Error{Kind: KindCanceled, Err: context.Canceled},
		"an own error":  open,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			requests := 0
			got, err := Collect(t.Context(), ids(8), func(_ context.Context, batch []string) (Answer, error) {
				switch requests++; requests {
				case 1, 2:
					return Answer{}, errBad
				case 3:
					return Answer{Of: map[string]Evidence{"B0": {Presence: Absent}}}, nil
				default:
					return Answer{}, stop
				}
			})
			var e *Error
			if !errors.As(err, &e) || !errors.Is(err, stop) || requests != 4 {
				t.Fatalf("got %d requests, %v", requests, err)
			}
			if aside := unknown(t, ids(8), got); !slices.Equal(aside, ids(8)[1:]) || got.Evidence["B7"].Err != e {
				t.Errorf("set aside %q", aside)
			}
			if e := got.Evidence["B1"].Err; e.Kind != KindMissing {
				t.Errorf("B1, which the answer left out: %v", e)
			}
		})
	}
}
