package toolcall

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/callreceipt/reconciler/receipt"
)

var (
	ofSends = []Result{
		ResultSuccess, ResultFailed, ResultNotConnected, ResultWriteInterrupted, ResultNoAnswer, ResultAnswered, ResultRefused, ResultThrottled, ResultCanceled,
	}
	ofAsks = []Result{ResultSuccess, ResultFailed, ResultProcessing, ResultNotFound, ResultUnanswered, ResultUnusable, ResultCanceled}

	someTags = rapid.Custom(func(t *rapid.T) tags {
		return tags{
			retryable: rapid.Bool().Draw(t, "retryable"), idempotent: rapid.Bool().Draw(t, "idempotent"),
			needsReceipt: rapid.Bool().Draw(t, "needsReceipt"), maxSends: rapid.IntRange(1, mostSends).Draw(t, "maxSends"),
		}
	})
)

// someEvidence is how a step may end. Now and then it is something that cannot come of such a step.
func someEvidence(t *rapid.T, tg tags, todo step) evidence {
	results := ofSends
	odd := tg.needsReceipt && rapid.IntRange(0, 19).Draw(t, "odd") == 0
	if (todo.verb == ask) != odd {
		results = ofAsks
	}
	e := evidence{
		result:     rapid.SampledFrom(results).Draw(t, "result"),
		retryAfter: time.Duration(rapid.SampledFrom([]int{0, 0, 1, 2, 3}).Draw(t, "retryAfter")) * time.Second,
	}
	switch e.result {
	case ResultSuccess, ResultFailed, ResultWriteInterrupted, ResultNoAnswer, ResultAnswered, ResultRefused, ResultThrottled:
		e.arrived = todo.attempt
		e.receipt = receipt.Receipt{CallID: "C1"}
	case ResultNotConnected, ResultProcessing, ResultNotFound, ResultUnanswered, ResultUnusable, ResultCanceled:
	}
	return e
}

// TestWhateverHappensNothingIsSentThatMayNotBe follows the machine with a book of its own.
func TestWhateverHappensNothingIsSentThatMayNotBe(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		tg, sent := someTags.Draw(t, "tags"), rapid.SampledFrom([]int{0, 0, 0, 1, 2, 3, 9}).Draw(t, "sent")
		repeatable := tg.retryable && tg.idempotent
		sends, asks, arrived, refused := 0, 0, sent, false
		var last evidence
		s, todo := begin(tg, sent)
		for n := 0; todo.verb == send || todo.verb == ask; n++ {
			switch {
			case n > mostSends*(1+mostAsks):
				t.Fatalf("it does not end")
			case last.result == ResultSuccess || last.result == ResultFailed:
				t.Fatalf("%v after %s", shownStep(todo), last.result)
			case todo.verb == ask && !tg.needsReceipt:
				t.Fatalf("a receipt was asked for that is not needed")
			case todo.verb == ask:
				asks++
			case todo.attempt != arrived+1:
				t.Fatalf("attempt %d after %d that may have arrived", todo.attempt, arrived)
			case arrived > 0 && !repeatable:
				t.Fatalf("a second send of a tool with %+v", tg)
			case refused:
				t.Fatalf("sent again, though a repeat is pointless")
			case last.result == ResultUnusable || last.result == ResultCanceled:
				t.Fatalf("sent after %s", last.result)
			case todo.verb == send && arrived > 0 && tg.needsReceipt && last.result != ResultNotFound && last.result != ResultNotConnected:
				t.Fatalf("sent again after %s", last.result)
			default:
				sends++
			}
			if n > 0 && todo.verb == send && !todo.pause {
				t.Fatalf("send %d without a pause", todo.attempt)
			}
			last = someEvidence(t, tg, todo)
			if last.arrived > 0 {
				arrived, refused = last.arrived, last.result == ResultRefused
			}
			s, todo = s.next(last)
		}
		if sends > 0 && sends+sent > tg.maxSends {
			t.Fatalf("%d sends after %d of an earlier process, of %d", sends, sent, tg.maxSends)
		}
		decided := last.result == ResultSuccess || last.result == ResultFailed
		switch todo.verb {
		case settle:
			if !decided || todo.receipt.CallID != "C1" {
				t.Fatalf("settled by %+v", last)
			}
		case park:
			if decided {
				t.Fatalf("parked after %+v", last)
			}
		case giveUp:
			if decided || arrived > 0 {
				t.Fatalf("given up after %+v, %d may have arrived", last, arrived)
			}
		case send, ask:
		default:
			t.Fatalf("the end is none: %+v", todo)
		}
		if s.arrived != arrived {
			t.Fatalf("%d may have arrived, the state says %d", arrived, s.arrived)
		}
	})
}
