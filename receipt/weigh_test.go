package receipt

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// said is a receipt of a call, with an attempt or 0 for none.
func said(callID string, status Status, attempt int) Receipt {
	return Receipt{CallID: callID, Status: status, Attempt: attempt, Raw: json.RawMessage(fmt.Sprintf("%s %s %d", callID, status, attempt))}
}

func TestWhatAllReceiptsOfACallSayTogether(t *testing.T) {
	t.Parallel()
	success := func(attempt int) Receipt { return said("C1", StatusSuccess, attempt) }
	failed := func(attempt int) Receipt { return said("C1", StatusFailed, attempt) }
	of := func(r Receipt) *Receipt { return &r }
	for name, c := range map[string]struct {
		receipts []Receipt
		want     Weighed
	}{
		"none":                              {nil, Weighed{}},
		"success":                           {[]Receipt{success(2)}, Weighed{Success: of(success(2))}},
		"success of an earlier attempt":     {[]Receipt{success(1)}, Weighed{Success: of(success(1))}},
		"failure of the latest attempt":     {[]Receipt{failed(2)}, Weighed{Failed: of(failed(2))}},
		"failure of a later attempt":        {[]Receipt{failed(3)}, Weighed{Failed: of(failed(3))}},
		"failure without an attempt":        {[]Receipt{failed(0)}, Weighed{Failed: of(failed(0))}},
		"failure of an earlier attempt":     {[]Receipt{failed(1)}, Weighed{StaleFailed: true}},
		"failures of both attempts":         {[]Receipt{failed(1), failed(2)}, Weighed{StaleFailed: true, Failed: of(failed(2))}},
		"processing":                        {[]Receipt{said("C1", StatusProcessing, 1)}, Weighed{Processing: true}},
		"not found":                         {[]Receipt{said("C1", StatusNotFound, 0)}, Weighed{}},
		"success after a failure":           {[]Receipt{failed(1), success(2)}, Weighed{StaleFailed: true, Success: of(success(2))}},
		"failure after a success":           {[]Receipt{success(1), failed(2)}, Weighed{Success: of(success(1)), Failed: of(failed(2)), Contradictory: true}},
		"both of one attempt":               {[]Receipt{success(1), failed(1)}, Weighed{Success: of(success(1)), StaleFailed: true, Contradictory: true}},
		"both without an attempt":           {[]Receipt{success(0), failed(0)}, Weighed{Success: of(success(0)), Failed: of(failed(0)), Contradictory: true}},
		"failure without an attempt beside": {[]Receipt{success(9), failed(0)}, Weighed{Success: of(success(9)), Failed: of(failed(0)), Contradictory: true}},
		"success without an attempt beside": {[]Receipt{success(0), failed(1)}, Weighed{Success: of(success(0)), StaleFailed: true, Contradictory: true}},
		"of several successes the latest":   {[]Receipt{success(1), failed(2), success(3)}, Weighed{Success: of(success(1)), Failed: of(failed(2))}},
		"what other calls say": {
			[]Receipt{said("C9", StatusSuccess, 2), said("c1", StatusFailed, 2), said("C9", StatusProcessing, 2), success(2), said("C9", StatusFailed, 0)},
			Weighed{Success: of(success(2))},
		},
	} {
		if diff := cmp.Diff(c.want, Weigh("C1", 2, c.receipts)); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

func TestWhatReceiptsSayDependsNeitherOnTheirOrderNorOnDuplicates(t *testing.T) {
	t.Parallel()
	one := rapid.Custom(func(t *rapid.T) Receipt {
		r := said(rapid.SampledFrom([]string{"C1", "C1", "C2"}).Draw(t, "callId"),
			rapid.SampledFrom([]Status{StatusSuccess, StatusFailed, StatusProcessing, StatusNotFound}).Draw(t, "status"), rapid.IntRange(0, 4).Draw(t, "attempt"))
		r.Raw = append(r.Raw, rapid.SampledFrom([]string{"", " a", " b"}).Draw(t, "result")...)
		return r
	})
	rapid.Check(t, func(t *rapid.T) {
		receipts, attempt := rapid.SliceOfN(one, 1, 6).Draw(t, "receipts"), rapid.IntRange(1, 4).Draw(t, "latest")
		other := append(slices.Clone(receipts), rapid.SampledFrom(receipts).Draw(t, "twice"))
		other = rapid.Permutation(other).Draw(t, "order")
		if diff := cmp.Diff(Weigh("C1", attempt, receipts), Weigh("C1", attempt, other)); diff != "" {
			t.Fatal(diff)
		}
	})
}

func TestAReceiptFromTheFutureCountsWhenItsTimeComes(t *testing.T) {
	t.Parallel()
	now := time.Date(2024, 5, 1, 12, 0, 0, 0, time.UTC)
	late := Receipt{ProcessedAt: now.Add(ClockTolerance + 1).In(time.FixedZone("", 3600))}
	if err := late.CheckTime(now); err == nil || err.Error() != "processed at 2024-05-01T12:05:00Z, and now it is 2024-05-01T12:00:00Z" {
		t.Error(err)
	}
	if err := late.CheckTime(now.Add(1)); err != nil {
		t.Error(err)
	}
	if err := (Receipt{}).CheckTime(now); err != nil {
		t.Errorf("a receipt that names no instant: %v", err)
	}
}
