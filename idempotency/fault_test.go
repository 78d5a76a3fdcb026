package idempotency_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/callreceipt/reconciler/idempotency"
	"github.com/callreceipt/reconciler/internal/database"
	"github.com/callreceipt/reconciler/internal/eventually"
	"github.com/callreceipt/reconciler/internal/pgproxy"
	"github.com/callreceipt/reconciler/internal/testdb"
	"github.com/callreceipt/reconciler/receipt"
)

// then has an effect and does something else before it returns.
func then(do func() error) work {
	return func(ctx context.Context, tx *sqlx.Tx) (json.RawMessage, error) {
		if _, err := charge("")(ctx, tx); err != nil {
			return nil, err
		}
		return json.RawMessage(`1`), do()
	}
}

func TestAnErrorOfTheFunctionLeavesNothing(t *testing.T) {
	t.Parallel()
	s := open(t)
	mine := errors.New("mine")
	got, err := s.Do(t.Context(), call(), then(func() error { return mine }))
	if !errors.Is(err, mine) || !strings.Contains(err.Error(), "B1-0001") || got.Status != "" {
		t.Errorf("%+v, %v", got, err)
	}
	s.nothing(t, "an error")
	s.must(t, call(), charge("1"))
}

func TestAPanicLeavesNothingAndIsLoggedWithItsStack(t *testing.T) {
	t.Parallel()
	s := open(t)
	_, err := s.Do(t.Context(), call(as("B1-\n0001", 1), func(r *idempotency.Request) { r.CallID = "B1-[x]" }), then(func() error { panic("no\nstock") }))
	if err == nil || !strings.Contains(err.Error(), `panicked: no\nstock`) {
		t.Errorf("%v", err)
	}
	if said := s.said.String(); !strings.Contains(said, "level=ERROR") || !strings.Contains(said, "fault_test.go") || strings.Count(said, "\n") != 1 {
		t.Errorf("the log: %s", said)
	}
	s.nothing(t, "a panic")
	if _, err := s.Do(t.Context(), call(), then(func() error { panic(idempotency.Refuse(nil)) })); err == nil {
		t.Error("a panic was taken for a refusal")
	}
	s.nothing(t, "a panic with a refusal")
	s.must(t, call(), charge("1"))
}

func TestAnAbortedHandlerIsNotHeldUpAndLeavesNothing(t *testing.T) {
	t.Parallel()
	s := open(t)
	func() {
		defer func() {
			if err, _ := recover().(error); !errors.Is(err, http.ErrAbortHandler) {
				t.Errorf("recovered %v", err)
			}
		}()
		_, _ = s.Do(t.Context(), call(), then(func() error { panic(http.ErrAbortHandler) }))
	}()
	s.nothing(t, "an aborted handler")
}

// t.FailNow in a business function is one.
func TestAGoexitLeavesNothing(t *testing.T) {
	t.Parallel()
	s := open(t)
	var group sync.WaitGroup
	group.Go(func() { _, _ = s.Do(t.Context(), call(), then(func() error { runtime.Goexit(); return nil })) })
	group.Wait()
	s.nothing(t, "a Goexit")
	if open := s.db.Stats().InUse; open != 0 {
		t.Errorf("%d connections are still in use", open)
	}
	s.must(t, call(), charge("1"))
}

func TestAContextThatEndsInTheMiddleLeavesNothing(t *testing.T) {
	t.Parallel()
	s := open(t)
	for name, do := range map[string]func(context.CancelFunc) func() error{
		"the function returns its error": func(cancel context.CancelFunc) func() error {
			return func() error { cancel(); return context.Canceled }
		},
		"the function does not notice": func(cancel context.CancelFunc) func() error {
			return func() error { cancel(); return nil }
		},
		"the function refuses": func(cancel context.CancelFunc) func() error {
			return func() error { cancel(); return idempotency.Refuse(nil) }
		},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		got, err := s.Do(ctx, call(), then(do(cancel)))
		if !errors.Is(err, context.Canceled) || got.Status != "" {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
		eventually.True(t, "the transaction is rolled back", func() bool {
			return s.count(t, `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in transaction%'`) == 0
		})
		s.nothing(t, name)
	}
	s.must(t, call(), charge("1"))
}

func TestAnArrivalThatWaitsEndsWithItsContext(t *testing.T) {
	t.Parallel()
	s := open(t, waiting(time.Minute))
	s.must(t, call(), then(func() error {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		other := s.background(ctx, call(as("B1-0002", 1)), never(t))
		s.waits(t, "the other call")
		cancel()
		if got := soon(t, other); !errors.Is(got.err, context.Canceled) || errors.Is(got.err, idempotency.ErrProcessing) {
			t.Errorf("%+v", got)
		}
		return nil
	}))
}

func TestALockThatTheFunctionDoesNotGetIsItsOwnError(t *testing.T) {
	t.Parallel()
	s := open(t)
	s.db.MustExec(`INSERT INTO effects (biz_id) VALUES ('other')`)
	err := database.InTx(t.Context(), s.db, func(holder *sqlx.Tx) error {
		holder.MustExec(`SELECT FROM effects FOR UPDATE`)
		_, err := s.Do(t.Context(), call(), func(ctx context.Context, tx *sqlx.Tx) (json.RawMessage, error) {
			_, err := tx.ExecContext(ctx, `SELECT FROM effects FOR UPDATE NOWAIT`)
			return nil, err
		})
		return err
	})
	if !database.Busy(err) || errors.Is(err, idempotency.ErrProcessing) {
		t.Errorf("%v", err)
	}
}

func TestAStatementOfTheFunctionThatFailedCannotBeSwallowed(t *testing.T) {
	t.Parallel()
	s := open(t)
	_, err := s.Do(t.Context(), call(), func(ctx context.Context, tx *sqlx.Tx) (json.RawMessage, error) {
		_, _ = tx.ExecContext(ctx, `INSERT INTO effects (biz_id) VALUES (NULL)`)
		return nil, nil
	})
	if err == nil {
		t.Error("a transaction that had failed was settled")
	}
	s.nothing(t, "a swallowed error")
}

func TestTheWaitOfAnArrivalDoesNotBoundTheFunction(t *testing.T) {
	t.Parallel()
	s := open(t, waiting(7*time.Millisecond))
	var limit string
	s.must(t, call(), func(ctx context.Context, tx *sqlx.Tx) (json.RawMessage, error) {
		return nil, tx.GetContext(ctx, &limit, `SELECT current_setting('lock_timeout')`)
	})
	if limit != "0" {
		t.Errorf("lock_timeout is %s in the function", limit)
	}
}

func TestACommitWhoseAnswerIsLostIsAnsweredFromWhatIsOnRecord(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		w      work
		status receipt.Status
	}{
		"executed": {charge(`{"ref": 1.50}`), receipt.StatusSuccess},
		"refused":  {refuse(`{"why": 1.50}`), receipt.StatusFailed},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := open(t)
			far := s.guard(t, testdb.Open(t, pgproxy.URL(t, s.dsn, pgproxy.Fate{Arrives: true})))
			got, err := far.Do(t.Context(), call(), c.w)
			if err != nil || got.Status != c.status {
				t.Fatalf("%+v, %v", got, err)
			}
			if again := s.must(t, call(), never(t)); wire(t, again) != wire(t, got) {
				t.Errorf("%s and %s", wire(t, got), wire(t, again))
			}
		})
	}
}

func TestACommitThatNeverArrivedIsUnknownAndTheNextArrivalExecutes(t *testing.T) {
	t.Parallel()
	s := open(t, waiting(time.Minute))
	far := s.guard(t, testdb.Open(t, pgproxy.URL(t, s.dsn, pgproxy.Fate{})))
	got, err := far.Do(t.Context(), call(), charge(`1`))
	if !errors.Is(err, database.ErrCommitUnknown) || got.Status != "" || !strings.Contains(err.Error(), "unknown") {
		t.Fatalf("%+v, %v", got, err)
	}
	s.must(t, call(), charge(`2`))
	if n := s.effects(t); n != 1 {
		t.Errorf("%d effects", n)
	}
}

func TestACommitThatArrivesLateIsUnknownAndThenTheAnswer(t *testing.T) {
	t.Parallel()
	s := open(t, waiting(time.Minute))
	late := make(chan struct{})
	far := s.guard(t, testdb.Open(t, pgproxy.URL(t, s.dsn, pgproxy.Fate{Arrives: true, Late: late})))
	_, err := far.Do(t.Context(), call(), charge(`"first"`))
	if !errors.Is(err, database.ErrCommitUnknown) {
		t.Error(err)
	}
	again := s.background(t.Context(), call(as("B1-0001", 2)), charge(`"second"`))
	s.waits(t, "attempt 2")
	close(late)
	if got := soon(t, again); got.err != nil || string(got.Result) != `"first"` || got.Attempt != 2 || s.effects(t) != 1 {
		t.Errorf("%+v with %d effects", got, s.effects(t))
	}
}

func TestAnEarlierFailureIsNotTakenForTheAnswerToALaterAttempt(t *testing.T) {
	t.Parallel()
	s := open(t)
	s.must(t, call(), refuse(`1`))
	far := s.guard(t, testdb.Open(t, pgproxy.URL(t, s.dsn, pgproxy.Fate{})), rerunFailed)
	if got, err := far.Do(t.Context(), call(as("B1-0001", 2)), charge(`2`)); !errors.Is(err, database.ErrCommitUnknown) || got.Status != "" {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestAMissingPartitionIsMadeAndTheCallExecutedOnce(t *testing.T) {
	t.Parallel()
	s := open(t)
	s.detachAll(t)
	runs := 0
	got := s.must(t, call(), func(ctx context.Context, tx *sqlx.Tx) (json.RawMessage, error) {
		runs++
		return charge(`1`)(ctx, tx)
	})
	if got.Status != receipt.StatusSuccess || s.effects(t) != 1 || runs != 2 {
		t.Errorf("%+v with %d effects in %d runs", got, s.effects(t), runs)
	}
	s.must(t, call(), never(t))
}

func TestACheckOfTheFunctionIsNotTakenForAMissingPartition(t *testing.T) {
	t.Parallel()
	s := open(t)
	s.db.MustExec(`CREATE TABLE days (day date) PARTITION BY RANGE (day)`)
	runs := 0
	_, err := s.Do(t.Context(), call(), func(ctx context.Context, tx *sqlx.Tx) (json.RawMessage, error) {
		runs++
		_, err := tx.ExecContext(ctx, `INSERT INTO days VALUES ('2024-05-01')`)
		return nil, err
	})
	if err == nil || runs != 1 {
		t.Errorf("%v after %d runs", err, runs)
	}
}

func TestWhoMayNotMakeThePartitionSaysWhatToRun(t *testing.T) {
	t.Parallel()
	s := open(t)
	s.detachAll(t)
	role := strings.NewReplacer("test_", "role_").Replace(s.text(t, `SELECT current_database()`))
	s.db.MustExec(`CREATE ROLE ` + role + `; GRANT USAGE ON SCHEMA idempotency TO ` + role + `;
		GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA idempotency TO ` + role)
	t.Cleanup(func() { s.db.MustExec(`DROP OWNED BY ` + role + `; DROP ROLE ` + role) })
	poor := s.guard(t, testdb.Open(t, s.dsn+"&role="+role))
	_, err := poor.Do(t.Context(), call(), func(context.Context, *sqlx.Tx) (json.RawMessage, error) { return nil, nil })
	if err == nil || !strings.Contains(err.Error(), "SELECT idempotency.ensure_partitions()") || !strings.Contains(err.Error(), "no partition") {
		t.Errorf("%v", err)
	}
	s.nothing(t, "no partition")
	s.db.MustExec(`SELECT idempotency.ensure_partitions()`)
	if _, err := poor.Do(t.Context(), call(), func(context.Context, *sqlx.Tx) (json.RawMessage, error) { return nil, nil }); err != nil {
		t.Error(err)
	}
}

// text reads a text.
func (s *shop) text(t testing.TB, query string) string {
	t.Helper()
	var v string
	if err := s.db.Get(&v, query); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return v
}
