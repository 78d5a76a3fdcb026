package idempotency_test

import (
	"errors"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/callreceipt/reconciler/idempotency"
)

// elsewhere is a service in another language that executes the key in a transaction which it leaves open.
func (s *shop) elsewhere(t testing.TB, callID string, rerunFailed bool) *sqlx.Tx {
	t.Helper()
	tx, err := s.db.BeginTxx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback() })
	var outcome string
	var createdAt time.Time
	err = tx.QueryRowx(`SELECT outcome, created_at FROM idempotency.arrive('B1:charge', 'B1', 'charge', $1, 1, now() - interval '1 minute', $2, $3)`,
		callID, []byte("payload"), rerunFailed).Scan(&outcome, &createdAt)
	if err != nil || outcome != "EXECUTE" {
		t.Fatalf("%s, %v", outcome, err)
	}
	tx.MustExec(`SELECT idempotency.settle('B1:charge', 'B1', 'charge', $1, 1, now() - interval '1 minute', $2, $3, 'SUCCESS', '1')`,
		callID, []byte("payload"), createdAt)
	return tx
}

// Whoever executes in SQL holds what this library asks for: it does not wait without a bound, in either order.
func TestAnArrivalWaitsNoLongerThanItMayForAnotherLanguage(t *testing.T) {
	t.Parallel()
	for name, failedBefore := range map[string]bool{"that executes the key": false, "that executes the key anew": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := open(t, waiting(30*time.Millisecond), rerunFailed)
			if failedBefore {
				s.must(t, call(), refuse(`"no funds"`))
			}
			there := s.elsewhere(t, "B1-0002", failedBefore)
			s.isProcessing(t, call(as("B1-0003", 1)))
			if err := there.Commit(); err != nil {
				t.Fatal(err)
			}
			if got := s.must(t, call(as("B1-0003", 1)), never(t)); string(got.Result) != "1" {
				t.Errorf("%+v", got)
			}
		})
	}
	s := open(t)
	s.must(t, call(), then(func() error {
		_, err := s.db.Exec(`SELECT idempotency.arrive('B1:charge', 'B1', 'charge', 'B1-0002', 1, now(), NULL, false, 30)`)
		if err == nil {
			t.Error("the other language did not wait")
		}
		return nil
	}))
}

// The claim was made in a snapshot that lacks the watermark, which the transaction that settles must not commit below.
func TestAWatermarkThatIsRaisedMeanwhileIsSeenBeforeTheCommit(t *testing.T) {
	t.Parallel()
	s := open(t)
	_, err := s.Do(t.Context(), call(), then(func() error {
		s.db.MustExec(`INSERT INTO idempotency.watermarks VALUES ('idempotency.keys', now())`)
		return nil
	}))
	if !errors.Is(err, idempotency.ErrExpired) {
		t.Errorf("%v", err)
	}
	if n := s.effects(t) + s.count(t, `SELECT count(*) FROM idempotency.claims`); n != 0 {
		t.Errorf("%d rows are left", n)
	}
}
