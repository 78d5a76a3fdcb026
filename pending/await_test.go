package pending_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/callreceipt/reconciler/internal/testdb"
	"github.com/callreceipt/reconciler/pending"
)

func TestAwaitReturnsTheVerdictOnceThereIsOne(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	for i := range 200 {
		if _, err := pending.Suspend(t.Context(), db, pending.Suspension{CallID: fmt.Sprint("C", i), BizID: "B", Tool: "T", Operation: "charge"}); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var waiting sync.WaitGroup
	results := make(chan pending.Outcome, 400)
	for i := range 200 {
		for range 2 { // two may wait for one call
			waiting.Go(func() {
				o, err := pending.Await(ctx, db, fmt.Sprint("C", i))
				if err != nil {
					t.Errorf("C%d: %v", i, err)
				}
				results <- o
			})
		}
	}
	// A retry that is offered or taken is not the end of it.
	db.MustExec(`UPDATE reconciler.pending_confirmations SET status = 'RETRY' WHERE call_id < 'C2'`)
	db.MustExec(`UPDATE reconciler.pending_confirmations SET status = 'SUCCESS', reason = 'receipt_success', receipt = '{"status":"SUCCESS"}' WHERE call_id < 'C5'`)
	db.MustExec(`UPDATE reconciler.pending_confirmations SET status = CASE WHEN call_id < 'C7' THEN 'FAILED' ELSE 'MANUAL' END WHERE call_id >= 'C5'`)
	waiting.Wait()
	close(results)
	counts := map[pending.Status]int{}
	for o := range results {
		counts[o.Status]++
		if (o.Status == pending.StatusSuccess) != (o.Receipt != nil) {
			t.Errorf("%+v", o)
		}
	}
	var want int
	if err := db.Get(&want, `SELECT count(*) FROM reconciler.pending_confirmations WHERE status = 'SUCCESS'`); err != nil {
		t.Fatal(err)
	}
	if counts[pending.StatusSuccess] != 2*want || counts[pending.StatusFailed] == 0 || counts[pending.StatusManual] == 0 {
		t.Errorf("%v", counts)
	}
}

func TestAwaitEndsWithItsContextAndForACallThatIsNotThere(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	if _, err := pending.Suspend(t.Context(), db, pending.Suspension{CallID: "C", BizID: "B", Tool: "T", Operation: "charge"}); err != nil {
		t.Fatal(err)
	}
	gone := errors.New("the caller went away")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(gone)
	if _, err := pending.Await(ctx, db, "C"); !errors.Is(err, gone) {
		t.Errorf("%v", err)
	}
	if _, err := pending.Await(t.Context(), db, "none"); !errors.Is(err, pending.ErrNoSuchCall) {
		t.Errorf("%v", err)
	}
}

func TestManyWaitersShareOneQuery(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	const calls = 300
	for i := range calls {
		if _, err := pending.Suspend(t.Context(), db, pending.Suspension{CallID: fmt.Sprint("C", i), BizID: "B", Tool: "T", Operation: "charge"}); err != nil {
			t.Fatal(err)
		}
	}
	db.SetMaxOpenConns(1) // with a query of its own for each waiter they would queue here
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var waiting sync.WaitGroup
	for i := range calls {
		waiting.Go(func() {
			if _, err := pending.Await(ctx, db, fmt.Sprint("C", i)); err != nil {
				t.Errorf("C%d: %v", i, err)
			}
		})
	}
	db.MustExec(`UPDATE reconciler.pending_confirmations SET status = 'SUCCESS'`)
	waiting.Wait()
	if wait := db.Stats().WaitCount; wait > calls/3 {
		t.Errorf("%d waits for a connection by %d waiters", wait, calls)
	}
}
