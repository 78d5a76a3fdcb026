package toolcall

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/callreceipt/reconciler/pending"
)

// The tags of the tests: r may be retried, i is idempotent, n needs a receipt.
func tagged(letters string, maxSends int) tags {
	has := func(l string) bool { return strings.Contains(letters, l) }
	return tags{retryable: has("r"), idempotent: has("i"), needsReceipt: has("n"), maxSends: maxSends}
}

// play gives the state machine results, one after the other, and writes down its steps. A result may carry a Retry-After: throttled/3s.
func play(t *testing.T, tg tags, sent int, results ...string) string {
	t.Helper()
	s, todo := begin(tg, sent)
	steps := []string{shownStep(todo)}
	for _, r := range results {
		if todo.verb != send && todo.verb != ask {
			t.Fatalf("%s comes after the end: %v", r, steps)
		}
		word, pause, _ := strings.Cut(r, "/")
		e := evidence{result: Result(word)}
		if pause != "" {
			var err error
			if e.retryAfter, err = time.ParseDuration(pause); err != nil {
				t.Fatal(err)
			}
		}
		switch e.result {
		case ResultWriteInterrupted, ResultNoAnswer, ResultAnswered, ResultRefused, ResultThrottled:
			e.arrived = todo.attempt
		case ResultSuccess, ResultFailed, ResultNotConnected, ResultProcessing, ResultNotFound, ResultUnanswered, ResultUnusable, ResultCanceled:
		}
		s, todo = s.next(e)
		steps = append(steps, shownStep(todo))
	}
	return strings.Join(steps, ", ")
}

func shownStep(s step) string {
	text := ""
	if s.pause {
		text = "~"
	}
	if s.atLeast > 0 {
		text += s.atLeast.String() + " "
	}
	switch s.verb {
	case send:
		return text + fmt.Sprintf("send %d", s.attempt)
	case ask:
		return text + "ask"
	case settle:
		return text + "settle"
	case park:
		return text + "park " + string(s.kind)
	case giveUp:
		return text + "give up"
	}
	return text + "nothing"
}

func TestEveryRuleInItsPlace(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name    string
		tags    string
		sent    int
		results string
		want    string // ~ is a wait before the step
	}{
		{"a receipt ends it", "rin", 0, "success", "send 1, settle"},
		{"a failure as well", "rin", 0, "failed", "send 1, settle"},
		{"the receipt that was asked for as well", "n", 0, "no_answer success", "send 1, ask, settle"},

		{"nobody there, and it may not be repeated", "n", 0, "not_connected not_connected not_connected", "send 1, ~send 1, ~send 1, give up"},
		{"nobody there, only retryable", "rn", 0, "not_connected not_connected not_connected", "send 1, ~send 1, ~send 1, give up"},
		{"nobody there, only idempotent", "in", 0, "not_connected not_connected not_connected", "send 1, ~send 1, ~send 1, give up"},
		{"nobody there, and it may be repeated", "rin", 0, "not_connected not_connected not_connected", "send 1, ~send 1, ~send 1, park connect"},
		{"it comes back in time", "n", 0, "not_connected no_answer success", "send 1, ~send 1, ask, settle"},
		{"gone for good after one that may have arrived", "rin", 0, "no_answer not_found not_connected not_connected not_found", "send 1, ask, ~send 2, ~send 2, ask, park read"},

		{"not found, again and again", "rin", 0, "write_interrupted not_found no_answer not_found answered not_found", "send 1, ask, ~send 2, ask, ~send 3, ask, park read"},
		{"the kind is that of the latest", "rin", 0, "no_answer not_found no_answer not_found write_interrupted not_found", "send 1, ask, ~send 2, ask, ~send 3, ask, park write"},
		{"not found, not retryable", "in", 0, "no_answer not_found", "send 1, ask, park read"},
		{"not found, not idempotent", "rn", 0, "no_answer not_found", "send 1, ask, park read"},
		{"not found, and a repeat is pointless", "rin", 0, "refused not_found", "send 1, ask, park read"},
		{"refused, and executed all the same", "rin", 0, "refused success", "send 1, ask, settle"},
		{"a pure query", "ri", 0, "no_answer write_interrupted success", "send 1, ~send 2, ~send 3, settle"},
		{"a pure query that may not be repeated", "r", 0, "no_answer", "send 1, park read"},
		{"a pure query, a repeat is pointless", "ri", 0, "refused", "send 1, park read"},

		{"processing, three looks", "rin", 0, "no_answer processing processing processing", "send 1, ask, ~ask, ~ask, park read"},
		{"processing, then rolled back", "rin", 0, "no_answer processing not_found success", "send 1, ask, ~ask, ~send 2, settle"},
		{"every send has its looks", "rin", 0, "no_answer processing processing not_found no_answer processing processing success", "send 1, ask, ~ask, ~ask, ~send 2, ask, ~ask, ~ask, settle"},
		{"not answered twice in a row", "rin", 0, "no_answer unanswered unanswered", "send 1, ask, ~ask, park receipt"},
		{"not answered, but not in a row", "rin", 0, "no_answer unanswered processing unanswered", "send 1, ask, ~ask, ~ask, park receipt"},
		{"not answered, then processing", "rin", 0, "no_answer processing unanswered processing", "send 1, ask, ~ask, ~ask, park read"},
		{"receipts that cannot be", "rin", 0, "no_answer unusable", "send 1, ask, park receipt"},

		{"a short pause is kept", "rin", 0, "throttled/2s not_found success", "send 1, ~2s ask, ~send 2, settle"},
		{"a short pause of a pure query", "ri", 0, "throttled/2s success", "send 1, ~2s send 2, settle"},
		{"a long pause is the reconciler's", "rin", 0, "throttled/2001ms", "send 1, park read"},
		{"a short pause of the receipts", "rin", 0, "no_answer unanswered/1s success", "send 1, ask, ~1s ask, settle"},
		{"a long pause of the receipts", "rin", 0, "no_answer unanswered/3s", "send 1, ask, park receipt"},

		{"an earlier process sent it", "rin", 1, "not_found no_answer not_found no_answer not_found", "ask, ~send 2, ask, ~send 3, ask, park read"},
		{"an earlier process sent it often", "rin", 7, "not_found", "ask, park "},
		{"an earlier process sent it, and it may not be repeated", "n", 1, "not_found", "ask, park "},
		{"an earlier process sent it, and nobody is there", "rin", 1, "not_found not_connected not_connected processing success", "ask, ~send 2, ~send 2, ask, ~ask, settle"},
		{"an earlier process sent a pure query", "ri", 1, "success", "~send 2, settle"},

		{"cancelled before anything was sent", "rin", 0, "canceled", "send 1, give up"},
		{"cancelled before anybody was reached", "rin", 0, "not_connected canceled", "send 1, ~send 1, give up"},
		{"cancelled while it was asked for", "rin", 0, "write_interrupted canceled", "send 1, ask, park write"},
		{"cancelled before the second send", "rin", 0, "no_answer not_found canceled", "send 1, ask, ~send 2, park read"},
		{"cancelled, and an earlier process may have sent it", "rin", 1, "canceled", "ask, park "},
	} {
		if got := play(t, tagged(tt.tags, 3), tt.sent, strings.Fields(tt.results)...); got != tt.want {
			t.Errorf("%s:\n got %s\nwant %s", tt.name, got, tt.want)
		}
	}
}

func TestMaxSendsCountsEverySend(t *testing.T) {
	t.Parallel()
	for sends, want := range map[int]string{
		1: "send 1, ask, park read",
		2: "send 1, ask, ~send 2, ask, park read",
	} {
		results := []string{"no_answer", "not_found", "no_answer", "not_found"}[:2*sends]
		if diff := cmp.Diff(want, play(t, tagged("rin", sends), 0, results...)); diff != "" {
			t.Error(diff)
		}
	}
	if got := play(t, tagged("n", 1), 0, "not_connected"); got != "send 1, give up" {
		t.Error(got)
	}
}

func TestTheStateIsAValue(t *testing.T) {
	t.Parallel()
	s, _ := begin(tagged("rin", 3), 0)
	first, _ := s.next(evidence{result: ResultNoAnswer, arrived: 1})
	again, _ := s.next(evidence{result: ResultWriteInterrupted, arrived: 1})
	if s.arrived != 0 || first.kind != pending.TimeoutRead || again.kind != pending.TimeoutWrite {
		t.Errorf("%+v, %+v, %+v", s, first, again)
	}
}
