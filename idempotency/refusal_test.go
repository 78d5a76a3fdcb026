package idempotency_test

import (
	"context"
	"encoding/json"
	"errors"
	"testing"

	"github.com/jmoiron/sqlx"

	"github.com/callreceipt/reconciler/idempotency"
	"github.com/callreceipt/reconciler/receipt"
)

func TestARefusalIsAResultAndItsWritesAreRolledBack(t *testing.T) {
	t.Parallel()
	s := open(t)
	first := s.must(t, call(), refuse(` {"why":"no funds"} `))
	if first.Status != receipt.StatusFailed || string(first.Result) != `{"why":"no funds"}` || s.effects(t) != 0 {
		t.Errorf("%+v with %d effects", first, s.effects(t))
	}
	if again := s.must(t, call(), never(t)); wire(t, again) != wire(t, first) {
		t.Errorf("%s and %s", wire(t, first), wire(t, again))
	}
	// A FAILED of an earlier attempt than the caller's is stale to the reconciler, so the attempt must be raised.
	if again := s.must(t, call(as("B1-0001", 3)), never(t)); again.Status != receipt.StatusFailed || again.Attempt != 3 {
		t.Errorf("attempt 3: %+v", again)
	}
	if again := s.must(t, call(as("B1-0001", 2)), never(t)); again.Attempt != 3 {
		t.Errorf("attempt 2, late: %+v", again)
	}
	if n := s.count(t, `SELECT attempt FROM idempotency.receipts WHERE call_id = 'B1-0001' AND status = 'FAILED'`); n != 3 {
		t.Errorf("the receipt says attempt %d", n)
	}
}

func TestARefusalNeedsNoResult(t *testing.T) {
	t.Parallel()
	s := open(t)
	got := s.must(t, call(), func(context.Context, *sqlx.Tx) (json.RawMessage, error) { return nil, idempotency.Refuse(nil) })
	if got.Status != receipt.StatusFailed || got.Result != nil {
		t.Errorf("%+v", got)
	}
}

func TestAFailedKeyIsExecutedAnewOnlyByWhoWasNotAnswered(t *testing.T) {
	t.Parallel()
	s := open(t, rerunFailed)
	s.must(t, call(), refuse(`1`))
	s.must(t, call(), never(t)) // a duplicate of the failed attempt
	if got := s.must(t, call(as("B1-0001", 3)), refuse(`3`)); got.Attempt != 3 || string(got.Result) != `3` {
		t.Errorf("%+v", got)
	}
	s.must(t, call(as("B1-0001", 2)), never(t)) // attempts 1 and 2 were overtaken by 3
	s.must(t, call(), never(t))
	if got := s.must(t, call(as("B1-0002", 1)), refuse(`4`)); string(got.Result) != `4` {
		t.Errorf("%+v", got)
	}
	// Another call failed since, and that makes a duplicate of the first one no new attempt.
	if got := s.must(t, call(as("B1-0001", 3)), never(t)); string(got.Result) != `3` || got.Attempt != 3 {
		t.Errorf("%+v", got)
	}
	if got := s.must(t, call(as("B1-0001", 4)), charge(`5`)); got.Status != receipt.StatusSuccess || got.Attempt != 4 {
		t.Errorf("%+v", got)
	}
	s.must(t, call(as("B1-0003", 1)), never(t)) // SUCCESS is final
	if got := s.must(t, call(as("B1-0002", 2)), never(t)); got.Status != receipt.StatusSuccess || string(got.Result) != `5` {
		t.Errorf("%+v", got)
	}
	if s.effects(t) != 1 {
		t.Errorf("%d effects", s.effects(t))
	}
}

func TestWithoutRerunFailedAFailureStays(t *testing.T) {
	t.Parallel()
	s := open(t)
	s.must(t, call(), refuse(`1`))
	s.must(t, call(as("B1-0001", 2)), never(t))
	s.must(t, call(as("B1-0002", 1)), never(t))
}

// A guard with other rules, which looked before this one took the key, answers attempt 2 with the old failure. What is executed must not
// be committed, since the receipt of attempt 2 has been given.
func TestAnExecutionWhoseReceiptWasGivenMeanwhileIsRolledBack(t *testing.T) {
	t.Parallel()
	s := open(t, rerunFailed)
	s.must(t, call(), refuse(`1`))
	_, err := s.Do(t.Context(), call(as("B1-0001", 2)), func(ctx context.Context, tx *sqlx.Tx) (json.RawMessage, error) {
		s.db.MustExec(`SELECT idempotency.keep_receipt('B1-0001', 'B1', 'charge', 'B1:charge', 'FAILED', '1', 2, now())`)
		return charge(`2`)(ctx, tx)
	})
	if err == nil || s.effects(t) != 0 {
		t.Errorf("%v with %d effects", err, s.effects(t))
	}
}

func TestWhoExecutesWhileARefusalIsRolledBackHasTheAnswer(t *testing.T) {
	t.Parallel()
	s := open(t)
	var other <-chan ended
	got := s.must(t, call(), func(ctx context.Context, tx *sqlx.Tx) (json.RawMessage, error) {
		other = s.background(t.Context(), call(as("B1-0002", 1)), charge(`"other"`))
		s.waits(t, "the other call") // and has the claim as soon as the refusal is rolled back
		return refuse(`"refused"`)(ctx, tx)
	})
	theirs := soon(t, other)
	if theirs.err != nil || theirs.Status != got.Status || string(theirs.Result) != string(got.Result) {
		t.Errorf("%+v and %+v", got, theirs)
	}
	if want := map[bool]int{true: 1, false: 0}[got.Status == receipt.StatusSuccess]; s.effects(t) != want {
		t.Errorf("%s with %d effects", got.Status, s.effects(t))
	}
}

func TestARefusalIsFoundInWhatWrapsIt(t *testing.T) {
	t.Parallel()
	if r, ok := errors.AsType[*idempotency.Refusal](idempotency.Refuse(json.RawMessage(`1`))); !ok || string(r.Result) != `1` {
		t.Errorf("%+v", r)
	}
}
