package idempotency_test

import (
	"errors"
	"testing"
	"time"

	"github.com/callreceipt/reconciler/idempotency"
	"github.com/callreceipt/reconciler/receipt"
)

// daysAgo is the instant at which something was issued or executed.
func daysAgo(days int) time.Time { return time.Now().AddDate(0, 0, -days) }

func issued(at time.Time) func(*idempotency.Request) {
	return func(r *idempotency.Request) { r.IssuedAt = at }
}

// age makes all keys that are there older, as if they had arrived so many days ago.
func (s *shop) age(t testing.TB, days int) {
	t.Helper()
	tx := s.db.MustBegin()
	tx.MustExec(`DO $$ BEGIN
		EXECUTE format('CREATE TABLE idempotency.old PARTITION OF idempotency.keys FOR VALUES FROM (MINVALUE) TO (%L)', date_trunc('day', now()) - interval '2 days');
		END $$`)
	tx.MustExec(`SET LOCAL session_replication_role = replica`) // SUCCESS is final
	tx.MustExec(`UPDATE idempotency.claims SET created_at = created_at - $1 * interval '1 day'`, days)
	tx.MustExec(`UPDATE idempotency.keys SET created_at = created_at - $1 * interval '1 day', expires_at = expires_at - $1 * interval '1 day'`, days)
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
}

// archive does what the archiver does with the partition of old keys: it raises the watermark, takes the partition away and deletes
// the claims of what was in it. Receipts are kept.
func (s *shop) archive(t testing.TB) {
	t.Helper()
	s.db.MustExec(`INSERT INTO idempotency.watermarks VALUES ('idempotency.keys', now() - interval '8 days')`)
	s.db.MustExec(`ALTER TABLE idempotency.keys DETACH PARTITION idempotency.old`)
	s.db.MustExec(`DELETE FROM idempotency.claims c USING idempotency.old k
		WHERE c.key_digest = sha256(convert_to(k.idempotency_key, 'UTF8')) AND c.created_at = k.created_at`)
	s.db.MustExec(`DROP TABLE idempotency.old`)
}

// What failed nine days ago and was executed anew three days ago is remembered from then on.
func TestAKeyThatIsExecutedAnewIsRememberedFromThenOn(t *testing.T) {
	t.Parallel()
	s := open(t, rerunFailed)
	s.must(t, call(issued(daysAgo(9))), refuse(`"no funds"`))
	s.age(t, 9)
	second := call(as("B1-0002", 1), issued(daysAgo(3)))
	first := s.must(t, second, charge(`"ch_1"`))
	if n := s.count(t, `SELECT count(*) FROM idempotency.keys WHERE call_id = 'B1-0002' AND expires_at > now() + interval '167 hours'`); n != 1 {
		t.Error("the execution is not remembered for as long as any")
	}
	s.archive(t)
	if again := s.must(t, second, never(t)); wire(t, again) != wire(t, first) {
		t.Errorf("%s and %s", wire(t, first), wire(t, again))
	}
	if other := s.must(t, call(as("B1-0003", 1), issued(daysAgo(3))), never(t)); string(other.Result) != `"ch_1"` {
		t.Errorf("%+v", other)
	}
}

// The key of the call was another one's, and older: it is forgotten first.
func TestACallWhoseReceiptIsThereIsNotExecutedThoughItsKeyIsForgotten(t *testing.T) {
	t.Parallel()
	for name, edit := range map[string][]func(*idempotency.Config){"": nil, "with RerunFailed": {rerunFailed}} {
		s := open(t, edit...)
		s.must(t, call(issued(daysAgo(9))), charge(`"ch_1"`))
		repeat := func(attempt int) idempotency.Request { return call(as("B1-0002", attempt), issued(daysAgo(3))) }
		s.must(t, repeat(1), never(t))
		s.age(t, 9)
		s.archive(t)
		if got := s.must(t, repeat(2), never(t)); got.Status != receipt.StatusSuccess || string(got.Result) != `"ch_1"` || got.Attempt != 2 {
			t.Errorf("%s: %+v", name, got)
		}
		if n := s.count(t, `SELECT count(*) FROM idempotency.claims`); n != 0 {
			t.Errorf("%s: the key was claimed, and nobody executes it", name)
		}
	}
}

func TestAFailureThatWasAnsweredStaysThoughItsKeyIsForgotten(t *testing.T) {
	t.Parallel()
	s := open(t)
	s.must(t, call(issued(daysAgo(9))), refuse(`1`))
	repeat := call(as("B1-0002", 1), issued(daysAgo(3)))
	s.must(t, repeat, never(t))
	s.age(t, 9)
	s.archive(t)
	repeat.Attempt = 2
	if got := s.must(t, repeat, never(t)); got.Status != receipt.StatusFailed || string(got.Result) != `1` || got.Attempt != 2 {
		t.Errorf("%+v", got)
	}
}

// The key was executed nine days ago and is forgotten. Since then another call of the intent has failed, which lets nobody from before
// the watermark execute it again.
func TestNothingFromBelowTheWatermarkIsExecutedAnew(t *testing.T) {
	t.Parallel()
	s := open(t, rerunFailed)
	s.must(t, call(issued(daysAgo(9))), charge(`"ch_1"`))
	s.age(t, 9)
	s.archive(t)
	s.must(t, call(as("B1-0002", 1)), refuse(`"paid already"`))
	if got := s.must(t, call(as("B1-0001", 2), issued(daysAgo(9))), never(t)); got.Status != receipt.StatusSuccess || string(got.Result) != `"ch_1"` {
		t.Errorf("the call that was executed: %+v", got)
	}
	if got := s.must(t, call(as("B1-0003", 1), issued(daysAgo(9))), never(t)); got.Status != receipt.StatusFailed {
		t.Errorf("another late call: %+v", got)
	}
	s.must(t, call(as("B1-0004", 1)), charge(`"ch_2"`))
	if _, err := s.Do(t.Context(), call(as("B2-0001", 1), issued(daysAgo(9)), func(r *idempotency.Request) { r.BizID = "B2" }), never(t)); !errors.Is(err, idempotency.ErrExpired) {
		t.Errorf("a late call of another intent: %v", err)
	}
}

// The caller sends again and again while nobody ends the claim.
func TestAClaimGetsNoYoungerByRepeats(t *testing.T) {
	t.Parallel()
	s := open(t)
	s.begin(t, call())
	s.age(t, 4)
	s.isProcessing(t, call(as("B1-0001", 2)))
	if found, err := s.Unfinished(t.Context(), time.Hour, 10); err != nil || len(found) != 1 {
		t.Errorf("%+v, %v", found, err)
	}
}
