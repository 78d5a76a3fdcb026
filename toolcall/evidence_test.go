package toolcall

import (
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/callreceipt/reconciler/receipt"
)

var (
	noon    = time.Date(2024, 5, 1, 12, 0, 0, 0, time.UTC)
	ours    = receipt.Attempt{CallID: "C1", BizID: "B1", Operation: "charge", IdempotencyKey: "B1:charge", Number: 2}
	success = receipt.StatusSuccess
	failed  = receipt.StatusFailed
)

// rec is a receipt of the call with a status and an attempt, 0 for none.
func rec(status receipt.Status, attempt int, edit ...func(*receipt.Receipt)) receipt.Receipt {
	r := receipt.Receipt{CallID: "C1", BizID: "B1", Operation: "charge", IdempotencyKey: "B1:charge", Status: status, Attempt: attempt, ProcessedAt: noon}
	for _, e := range edit {
		e(&r)
	}
	r.Raw = json.RawMessage(fmt.Sprintf("%s %d", status, attempt))
	return r
}

func TestWhatTheReceiptsOfACallSay(t *testing.T) {
	t.Parallel()
	processing := receipt.StatusProcessing
	bare := func(r *receipt.Receipt) { r.Operation, r.IdempotencyKey, r.ProcessedAt = "", "", time.Time{} }
	for _, tt := range []struct {
		name     string
		receipts []receipt.Receipt
		want     Result
	}{
		{"success", []receipt.Receipt{rec(success, 2)}, ResultSuccess},
		{"success of an earlier attempt", []receipt.Receipt{rec(success, 1)}, ResultSuccess},
		{"success, with nothing but the ids", []receipt.Receipt{rec(success, 0, bare)}, ResultSuccess},
		{"failure", []receipt.Receipt{rec(failed, 2)}, ResultFailed},
		{"failure without an attempt", []receipt.Receipt{rec(failed, 0)}, ResultFailed},
		{"failure of a later attempt, by the reconciler", []receipt.Receipt{rec(failed, 3)}, ResultFailed},
		{"failure of an earlier attempt", []receipt.Receipt{rec(failed, 1)}, ResultProcessing},
		{"processing", []receipt.Receipt{rec(processing, 0)}, ResultProcessing},
		{"failure of an earlier attempt, the latest is processing", []receipt.Receipt{rec(failed, 1), rec(processing, 2)}, ResultProcessing},
		{"failure and processing", []receipt.Receipt{rec(failed, 0), rec(processing, 0)}, ResultProcessing},
		{"success and processing", []receipt.Receipt{rec(processing, 0), rec(success, 0)}, ResultSuccess},
		{"success after a failure", []receipt.Receipt{rec(failed, 1), rec(success, 2)}, ResultSuccess},
		{"failure after a success", []receipt.Receipt{rec(failed, 2), rec(success, 1)}, ResultUnusable},
		{"both of one attempt", []receipt.Receipt{rec(failed, 2), rec(success, 2)}, ResultUnusable},
		{"both without an attempt", []receipt.Receipt{rec(failed, 0), rec(success, 0)}, ResultUnusable},
		{"another bizId", []receipt.Receipt{rec(success, 2, func(r *receipt.Receipt) { r.BizID = "B2" })}, ResultUnusable},
		{"another operation", []receipt.Receipt{rec(success, 2, func(r *receipt.Receipt) { r.Operation = "refund" })}, ResultUnusable},
		{"another key", []receipt.Receipt{rec(success, 2, func(r *receipt.Receipt) { r.IdempotencyKey = "B1:refund" })}, ResultUnusable},
		{"a right one and one of another bizId", []receipt.Receipt{rec(success, 2), rec(failed, 2, func(r *receipt.Receipt) { r.BizID = "B2" })}, ResultUnusable},
		{"from the future", []receipt.Receipt{rec(success, 2, func(r *receipt.Receipt) { r.ProcessedAt = noon.Add(6 * time.Minute) })}, ResultUnusable},
		{"from a clock that is a little ahead", []receipt.Receipt{rec(success, 2, func(r *receipt.Receipt) { r.ProcessedAt = noon.Add(4 * time.Minute) })}, ResultSuccess},
	} {
		for turn := range tt.receipts { // in every order that a rotation makes
			turned := append(append([]receipt.Receipt{}, tt.receipts[turn:]...), tt.receipts[:turn]...)
			answer := receipt.Answer{Of: map[string]receipt.Evidence{"C1": {Presence: receipt.Present, Receipts: turned}}}
			got := ofAsk(ours, answer, nil, noon)
			if got.result != tt.want || got.arrived != 0 || (got.result == ResultUnusable) != (got.err != nil) {
				t.Errorf("%s: %+v", tt.name, got)
			}
			if decided := got.result == ResultSuccess || got.result == ResultFailed; decided != (got.receipt.CallID == "C1") {
				t.Errorf("%s: with the receipt %+v", tt.name, got.receipt)
			}
		}
	}
}

func TestOfSeveralReceiptsThatSayTheSameAlwaysTheSameIsReturned(t *testing.T) {
	t.Parallel()
	a, b := rec(success, 1), rec(success, 2)
	for _, order := range [][]receipt.Receipt{{a, b}, {b, a}} {
		if got := sortReceipts(ours, order, noon); got.receipt.Attempt != 1 {
			t.Errorf("%+v", got)
		}
	}
}

func TestWhatALookBringsThatBringsNoReceipt(t *testing.T) {
	t.Parallel()
	of := func(e receipt.Evidence) receipt.Answer {
		return receipt.Answer{Of: map[string]receipt.Evidence{"C1": e}}
	}
	missing := &receipt.Error{Kind: receipt.KindMissing}
	if got := ofAsk(ours, of(receipt.Evidence{Presence: receipt.Absent}), nil, noon); got.result != ResultNotFound {
		t.Errorf("%+v", got)
	}
	if got := ofAsk(ours, of(receipt.Evidence{Err: missing}), nil, noon); got.result != ResultUnanswered || !errors.Is(got.err, missing) {
		t.Errorf("%+v", got)
	}
	throttled := &receipt.Error{Kind: receipt.KindStatus, Outcome: receipt.Throttled, Status: 429, RetryAfter: time.Second}
	if got := ofAsk(ours, receipt.Answer{}, throttled, noon); got.result != ResultUnanswered || got.retryAfter != time.Second {
		t.Errorf("%+v", got)
	}
	if got := ofAsk(ours, receipt.Answer{}, &receipt.Error{Kind: receipt.KindCanceled, Connected: true}, noon); got.result != ResultCanceled {
		t.Errorf("%+v", got)
	}
}

func TestWhatTheEndOfASendTells(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name    string
		err     receipt.Error
		want    Result
		arrived int
	}{
		{"refused", receipt.Error{Kind: receipt.KindRefused}, ResultNotConnected, 0},
		{"no such host", receipt.Error{Kind: receipt.KindDNS}, ResultNotConnected, 0},
		{"no TLS", receipt.Error{Kind: receipt.KindTLS}, ResultNotConnected, 0},
		{"a connection took too long", receipt.Error{Kind: receipt.KindTimeout}, ResultNotConnected, 0},
		{"no token to send", receipt.Error{Kind: receipt.KindSetup}, ResultNotConnected, 0},
		{"given up before it was connected", receipt.Error{Kind: receipt.KindCanceled}, ResultCanceled, 0},
		{"given up while it was written", receipt.Error{Kind: receipt.KindCanceled, Connected: true}, ResultWriteInterrupted, 2},
		{"given up while it was waited for", receipt.Error{Kind: receipt.KindCanceled, Connected: true, Written: true}, ResultNoAnswer, 2},
		{"lost while it was written", receipt.Error{Kind: receipt.KindLost, Connected: true}, ResultWriteInterrupted, 2},
		{"timed out while it was written", receipt.Error{Kind: receipt.KindTimeout, Connected: true}, ResultWriteInterrupted, 2},
		{"TLS broke while it was written", receipt.Error{Kind: receipt.KindTLS, Connected: true}, ResultWriteInterrupted, 2},
		{"timed out", receipt.Error{Kind: receipt.KindTimeout, Connected: true, Written: true}, ResultNoAnswer, 2},
		{"lost", receipt.Error{Kind: receipt.KindLost, Connected: true, Written: true}, ResultNoAnswer, 2},
		{"lost in the body of a 200", receipt.Error{Kind: receipt.KindLost, Status: 200, Connected: true, Written: true}, ResultNoAnswer, 2},
		{"a page with 200", receipt.Error{Kind: receipt.KindMalformed, Status: 200, Connected: true, Written: true}, ResultAnswered, 2},
		{"too large an answer", receipt.Error{Kind: receipt.KindTooLarge, Outcome: receipt.BadBatch, Status: 200, Connected: true, Written: true}, ResultAnswered, 2},
		{"too large a request", receipt.Error{Kind: receipt.KindTooLarge, Outcome: receipt.BadBatch, Status: 413, Connected: true, Written: true}, ResultRefused, 2},
		{"429 without Retry-After", receipt.Error{Kind: receipt.KindStatus, Status: 429, Connected: true, Written: true}, ResultAnswered, 2},
		{"429", receipt.Error{Kind: receipt.KindStatus, Outcome: receipt.Throttled, RetryAfter: 1, Status: 429, Connected: true, Written: true}, ResultThrottled, 2},
	} {
		got := ofSend(ours, receipt.Receipt{}, &tt.err, noon)
		if got.result != tt.want || got.arrived != tt.arrived || !errors.Is(got.err, &tt.err) || got.retryAfter != tt.err.RetryAfter {
			t.Errorf("%s: %+v", tt.name, got)
		}
	}
}

func TestOnlySomeStatusesSayThatARepeatIsPointless(t *testing.T) {
	t.Parallel()
	refused := map[int]bool{400: true, 401: true, 403: true, 404: true, 405: true, 410: true, 413: true, 415: true, 422: true}
	for status := 201; status < 600; status++ {
		want := ResultAnswered
		if refused[status] || status/100 == 3 {
			want = ResultRefused
		}
		e := &receipt.Error{Kind: receipt.KindStatus, Status: status, Connected: true, Written: true}
		if got := ofSend(ours, receipt.Receipt{}, e, noon); got.result != want {
			t.Errorf("%d: %s", status, got.result)
		}
	}
}
