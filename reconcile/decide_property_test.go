package reconcile

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/callreceipt/reconciler/pending"
	"github.com/callreceipt/reconciler/receipt"
)

var (
	someInstant = rapid.Custom(func(t *rapid.T) time.Time {
		if rapid.IntRange(0, 19).Draw(t, "odd") == 0 {
			return rapid.SampledFrom([]time.Time{{}, time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC)}).Draw(t, "edge")
		}
		return noon.Add(time.Duration(rapid.Int64Range(-300, 3).Draw(t, "hours")) * time.Hour).
			Add(time.Duration(rapid.Int64Range(-120, 120).Draw(t, "seconds")) * time.Second)
	})
	someReceipt = rapid.Custom(func(t *rapid.T) receipt.Receipt {
		return rec(
			rapid.SampledFrom([]string{"C1", "C1", "C9", "C8", "c1"}).Draw(t, "callId"),
			rapid.SampledFrom([]receipt.Status{receipt.StatusSuccess, receipt.StatusFailed, receipt.StatusProcessing, receipt.StatusNotFound}).Draw(t, "status"),
			of(rapid.SampledFrom([]string{"", "charge", "refund"}).Draw(t, "operation"),
				rapid.SampledFrom([]string{"", "B1:charge", "B1:refund", "part-1"}).Draw(t, "key")),
			attempt(rapid.IntRange(0, 4).Draw(t, "attempt")))
	})
	someEvidence = rapid.Custom(func(t *rapid.T) receipt.Evidence {
		switch rapid.IntRange(0, 3).Draw(t, "presence") {
		case 0:
			return unanswered
		case 1:
			return absent
		}
		return listed(rapid.SliceOfN(someReceipt, 1, 5).Draw(t, "receipts")...)
	})
	someCall = rapid.Custom(func(t *rapid.T) pending.Call {
		return parked(func(c *pending.Call) {
			c.Status = rapid.SampledFrom(pending.Statuses).Draw(t, "status")
			c.Reason = string(rapid.SampledFrom([]Reason{ReasonNotFound, ReasonConflictingReceipts, ReasonProcessing}).Draw(t, "reason"))
			c.Attempt = rapid.SampledFrom([]int{1, 2, 3, 4, 1<<31 - 1}).Draw(t, "attempt")
			c.IssuedAt, c.LastSentAt, c.CreatedAt = someInstant.Draw(t, "issued"), someInstant.Draw(t, "sent"), someInstant.Draw(t, "created")
			c.NotFoundCount = rapid.IntRange(0, 4).Draw(t, "notFound")
			c.Checks, c.Unanswered = rapid.IntRange(0, 100).Draw(t, "checks"), rapid.IntRange(0, 100).Draw(t, "unanswered")
			c.HasRequest = rapid.Bool().Draw(t, "request")
			c.IdempotencyKey = rapid.SampledFrom([]string{"B1:charge", "part-1"}).Draw(t, "ownKey")
		})
	})
	somePolicy = rapid.Custom(func(t *rapid.T) Policy {
		return policy(func(p *Policy) {
			p.Retryable, p.Idempotent = rapid.Bool().Draw(t, "retryable"), rapid.Bool().Draw(t, "idempotent")
			p.NeedsReceipt, p.NeedsRequest = rapid.Bool().Draw(t, "needsReceipt"), rapid.Bool().Draw(t, "needsRequest")
			p.RetryFailed = rapid.Bool().Draw(t, "retryFailed")
			p.NotFoundConfirmations, p.MaxAttempts = rapid.IntRange(1, 3).Draw(t, "confirmations"), rapid.IntRange(1, 4).Draw(t, "maxAttempts")
			if rapid.Bool().Draw(t, "archived") {
				p.Watermark = someInstant.Draw(t, "watermark")
			}
		})
	})
)

func check(t *testing.T, property func(t *rapid.T, call pending.Call, seen receipt.Evidence, p Policy, v Verdict)) {
	t.Helper()
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		call, seen, p := someCall.Draw(t, "call"), someEvidence.Draw(t, "seen"), somePolicy.Draw(t, "policy")
		property(t, call, seen, p, Decide(call, seen, p, noon))
	})
}

func anyReceipt(seen receipt.Evidence, is func(receipt.Receipt) bool) bool {
	for _, r := range seen.Receipts {
		if is(r) {
			return true
		}
	}
	return false
}

func TestDecideIsTotal(t *testing.T) {
	check(t, func(t *rapid.T, call pending.Call, _ receipt.Evidence, p Policy, v Verdict) {
		if v.Action < Leave || v.Action > Reopen || (v.Action != Leave && v.Reason == "") {
			t.Fatalf("%+v", v)
		}
		if (v.Action == Succeed || v.Action == Fail || v.Anomaly != NoAnomaly) != (v.Proof != nil) {
			t.Fatalf("a proof is missing or has no use: %+v", v)
		}
		if v.Action == Leave && !call.Status.Terminal() {
			t.Fatalf("an open call is left without a next look: %+v", v)
		}
		next := NextCheck(call, v, p, noon)
		if !next.After(noon) || next.After(noon.Add(p.Backoff.Max)) {
			t.Fatalf("the next look is %s from now", next.Sub(noon))
		}
	})
}

func TestOrderAndDuplicatesOfReceiptsDoNotMatter(t *testing.T) {
	check(t, func(t *rapid.T, call pending.Call, seen receipt.Evidence, p Policy, v Verdict) {
		mixed := seen
		mixed.Receipts = append([]receipt.Receipt(nil), seen.Receipts...)
		if n := len(mixed.Receipts); n > 0 {
			mixed.Receipts = append(mixed.Receipts, mixed.Receipts[rapid.IntRange(0, n-1).Draw(t, "twice")])
		}
		seed := rapid.Uint64().Draw(t, "order")
		rand.New(rand.NewPCG(seed, seed)).Shuffle(len(mixed.Receipts), func(i, j int) {
			mixed.Receipts[i], mixed.Receipts[j] = mixed.Receipts[j], mixed.Receipts[i]
		})
		if diff := cmp.Diff(v, Decide(call, mixed, p, noon)); diff != "" {
			t.Fatal(diff)
		}
	})
}

func TestSilenceNeverResolves(t *testing.T) {
	check(t, func(t *rapid.T, call pending.Call, _ receipt.Evidence, p Policy, _ Verdict) {
		p.NeedsReceipt = true
		if v := Decide(call, unanswered, p, noon); v.Action != Leave && v.Action != Wait {
			t.Fatalf("%+v", v)
		}
	})
}

func TestSuccessNeedsASuccessReceiptAndFailedAFailedOneOfThisCall(t *testing.T) {
	check(t, func(t *rapid.T, call pending.Call, seen receipt.Evidence, _ Policy, v Verdict) {
		if v.Action == Succeed {
			if v.Proof.Status != receipt.StatusSuccess || !anyReceipt(seen, func(r receipt.Receipt) bool { return r.Status == receipt.StatusSuccess }) {
				t.Fatalf("%+v", v)
			}
		}
		if v.Action == Fail && (v.Proof.Status != receipt.StatusFailed || v.Proof.CallID != call.CallID) {
			t.Fatalf("%+v", v)
		}
	})
}

func TestNotFoundNeverBecomesFailed(t *testing.T) {
	check(t, func(t *rapid.T, call pending.Call, _ receipt.Evidence, p Policy, _ Verdict) {
		for _, seen := range []receipt.Evidence{absent, listed(rec("C1", receipt.StatusNotFound))} {
			if v := Decide(call, seen, p, noon); v.Action == Fail || v.Action == Succeed {
				t.Fatalf("%+v", v)
			}
		}
	})
}

func TestAFinalCallNeverChanges(t *testing.T) {
	check(t, func(t *rapid.T, call pending.Call, _ receipt.Evidence, _ Policy, v Verdict) {
		if call.Status.Terminal() && v.Action != Leave {
			t.Fatalf("%+v", v)
		}
	})
}

func TestNothingIsSentAgainOutsideItsWindow(t *testing.T) {
	check(t, func(t *rapid.T, call pending.Call, seen receipt.Evidence, p Policy, v Verdict) {
		if v.Action != Retry {
			return
		}
		confirmed := call.NotFoundCount+1 >= p.NotFoundConfirmations && !noon.Before(call.LastSentAt.Add(p.Settle))
		switch {
		case !p.Retryable || !p.Idempotent:
			t.Fatal("the tool may not be sent again")
		case call.Attempt >= p.MaxAttempts:
			t.Fatal("sent too often")
		case !noon.Before(call.IssuedAt.Add(p.DedupWindow)), call.IssuedAt.Before(p.Watermark):
			t.Fatal("the key may be forgotten")
		case v.Reason == ReasonNotFound && p.NeedsReceipt && !confirmed:
			t.Fatal("it may still be on its way")
		case p.NeedsRequest && !call.HasRequest:
			t.Fatal("there is nothing to send")
		case v.Reason == ReasonFailedRetryable && !p.RetryFailed:
			t.Fatal("a failure is final for this tool")
		case p.NeedsReceipt && anyReceipt(seen, func(r receipt.Receipt) bool { return r.CallID == call.CallID && r.Status == receipt.StatusSuccess }):
			t.Fatal("it was executed")
		}
	})
}

func TestTheCondensedAnswerLeadsToTheSameVerdict(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		call, p := someCall.Draw(t, "call"), somePolicy.Draw(t, "policy")
		seen := listed(rapid.SliceOfN(someReceipt, smallAnswer+1, 40).Draw(t, "receipts")...)
		part := arrange(seen).about(call)
		whole, condensed := Decide(call, seen, p, noon), Decide(call, part, p, noon)
		if diff := cmp.Diff(whole, condensed); diff != "" {
			t.Fatal(diff)
		}
	})
}
