package idempotency_test

import (
	"encoding/json"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/callreceipt/reconciler/idempotency"
	"github.com/callreceipt/reconciler/internal/database"
	"github.com/callreceipt/reconciler/internal/pgproxy"
	"github.com/callreceipt/reconciler/internal/testdb"
	"github.com/callreceipt/reconciler/receipt"
)

// begin begins a call and returns its claim.
func (s *shop) begin(t testing.TB, r idempotency.Request) idempotency.Claim {
	t.Helper()
	claim, got, err := s.Begin(t.Context(), r)
	if err != nil || claim == nil || got.Status != receipt.StatusProcessing {
		t.Fatalf("%+v %+v, %v", claim, got, err)
	}
	return *claim
}

// isProcessing sends a call and fails unless its key is being executed.
func (s *shop) isProcessing(t testing.TB, r idempotency.Request) {
	t.Helper()
	got, err := s.Do(t.Context(), r, never(t))
	if !errors.Is(err, idempotency.ErrProcessing) || got.Status != receipt.StatusProcessing || got.CallID != r.CallID || got.Attempt != r.Attempt {
		t.Errorf("%s attempt %d: %+v, %v", r.CallID, r.Attempt, got, err)
	}
	if claim, got, err := s.Begin(t.Context(), r); claim != nil || !errors.Is(err, idempotency.ErrProcessing) || got.Status != receipt.StatusProcessing {
		t.Errorf("%s attempt %d was begun: %+v, %v", r.CallID, r.Attempt, claim, err)
	}
}

func TestWhatACrashLeavesProcessingIsFoundAndEndedForEveryCallThatCameMeanwhile(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		end    func(*idempotency.Guard) func(idempotency.Claim, json.RawMessage) (receipt.Receipt, error)
		status receipt.Status
	}{
		"completed": {func(g *idempotency.Guard) func(idempotency.Claim, json.RawMessage) (receipt.Receipt, error) {
			return func(c idempotency.Claim, r json.RawMessage) (receipt.Receipt, error) {
				return g.Complete(t.Context(), c, r)
			}
		}, receipt.StatusSuccess},
		"failed": {func(g *idempotency.Guard) func(idempotency.Claim, json.RawMessage) (receipt.Receipt, error) {
			return func(c idempotency.Claim, r json.RawMessage) (receipt.Receipt, error) {
				return g.Fail(t.Context(), c, r)
			}
		}, receipt.StatusFailed},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := open(t)
			begun := s.begin(t, call()) // and its process dies
			s.isProcessing(t, call(as("B1-0001", 2)))
			s.isProcessing(t, call(as("B1-0002", 1)))
			if n := s.count(t, `SELECT count(*) FROM idempotency.receipts WHERE status = 'PROCESSING'`); n != 2 {
				t.Errorf("%d receipts say PROCESSING", n)
			}
			found, err := s.Unfinished(t.Context(), 0, 10)
			if err != nil || len(found) != 1 || found[0].CallID != begun.CallID || !found[0].CreatedAt.Equal(begun.CreatedAt) || found[0].Attempt != 1 {
				t.Fatalf("%+v, %v; begun was %+v", found, err, begun)
			}
			end := c.end(s.guard(t, s.db)) // of another process
			got, err := end(found[0], json.RawMessage(` {"ref":  1.50} `))
			if err != nil || got.Status != c.status || string(got.Result) != `{"ref":  1.50}` || got.CallID != "B1-0001" || got.Attempt != 2 {
				t.Fatalf("%+v, %v", got, err)
			}
			if again, err := end(begun, json.RawMessage(`{"ref":  1.50}`)); err != nil || wire(t, again) != wire(t, got) {
				t.Errorf("ended twice: %s, %v; the first time %s", wire(t, again), err, wire(t, got))
			}
			if again := s.must(t, call(as("B1-0001", 2)), never(t)); wire(t, again) != wire(t, got) {
				t.Errorf("repeated: %s, ended %s", wire(t, again), wire(t, got))
			}
			if other := s.must(t, call(as("B1-0002", 1)), never(t)); other.Status != c.status || string(other.Result) != `{"ref":  1.50}` {
				t.Errorf("%+v", other)
			}
			if claim, other, err := s.Begin(t.Context(), call(as("B1-0003", 1))); claim != nil || err != nil || other.Status != c.status {
				t.Errorf("%+v %+v, %v", claim, other, err)
			}
			if found, err := s.Unfinished(t.Context(), 0, 10); err != nil || len(found) != 0 {
				t.Errorf("still unfinished: %+v, %v", found, err)
			}
		})
	}
}

func TestAClaimThatWasStoredIsEnded(t *testing.T) {
	t.Parallel()
	s := open(t)
	stored, err := json.Marshal(s.begin(t, call()))
	if err != nil {
		t.Fatal(err)
	}
	var claim idempotency.Claim
	if err := json.Unmarshal(stored, &claim); err != nil {
		t.Fatal(err)
	}
	if got, err := s.Complete(t.Context(), claim, nil); err != nil || got.Status != receipt.StatusSuccess || got.Result != nil {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestAClaimIsEndedOnceAndByItsOwner(t *testing.T) {
	t.Parallel()
	s := open(t, rerunFailed)
	first := s.begin(t, call())
	if _, err := s.Complete(t.Context(), first, json.RawMessage(`{"a":1,"a":2}`)); err == nil || errors.Is(err, idempotency.ErrNotYours) {
		t.Errorf("a result that nobody can read: %v", err)
	}
	if _, err := s.Fail(t.Context(), first, json.RawMessage(`1`)); err != nil {
		t.Fatal(err)
	}
	for name, end := range map[string]func() (receipt.Receipt, error){
		"another status": func() (receipt.Receipt, error) { return s.Complete(t.Context(), first, json.RawMessage(`1`)) },
		"another result": func() (receipt.Receipt, error) { return s.Fail(t.Context(), first, json.RawMessage(`1.0`)) },
		"no result":      func() (receipt.Receipt, error) { return s.Fail(t.Context(), first, nil) },
		"another call": func() (receipt.Receipt, error) {
			other := first
			other.CallID = "B1-0002"
			return s.Fail(t.Context(), other, json.RawMessage(`1`))
		},
	} {
		if got, err := end(); !errors.Is(err, idempotency.ErrNotYours) || got.Status != "" {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	second := s.begin(t, call(as("B1-0001", 2)))
	if _, err := s.Fail(t.Context(), first, json.RawMessage(`1`)); !errors.Is(err, idempotency.ErrNotYours) {
		t.Errorf("who was given up for dead ended the work of another: %v", err)
	}
	if got, err := s.Complete(t.Context(), second, json.RawMessage(`2`)); err != nil || got.Attempt != 2 {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestOnlyOldClaimsAreUnfinishedAndTheOldestComeFirst(t *testing.T) {
	t.Parallel()
	s := open(t, rerunFailed)
	biz := func(id string) func(*idempotency.Request) {
		return func(r *idempotency.Request) { r.BizID, r.CallID = id, id+"-0001" }
	}
	s.must(t, call(biz("B0")), charge("1"))
	for _, id := range []string{"B3", "B1", "B2"} {
		s.begin(t, call(biz(id)))
	}
	s.db.MustExec(`UPDATE idempotency.receipts SET processed_at = processed_at - interval '2 hours' WHERE biz_id IN ('B1', 'B3')`)
	s.db.MustExec(`UPDATE idempotency.keys SET created_at = created_at - interval '2 hours' WHERE biz_id IN ('B1', 'B3')`)
	found, err := s.Unfinished(t.Context(), time.Hour, 10)
	if err != nil || len(found) != 2 || found[0].BizID != "B3" || found[1].BizID != "B1" {
		t.Errorf("%+v, %v", found, err)
	}
	if found, err := s.Unfinished(t.Context(), time.Hour, 1); err != nil || len(found) != 1 || found[0].BizID != "B3" {
		t.Errorf("%+v, %v", found, err)
	}
}

// A key that failed long ago and is being executed anew is as old as this execution; who begins it now is not dead.
func TestAClaimThatWasBegunAnewIsAsOldAsItsBeginning(t *testing.T) {
	t.Parallel()
	s := open(t, rerunFailed)
	s.must(t, call(), refuse(`1`))
	s.db.MustExec(`WITH k AS (UPDATE idempotency.keys SET created_at = created_at - interval '2 hours'),
		r AS (UPDATE idempotency.receipts SET processed_at = processed_at - interval '2 hours')
		UPDATE idempotency.claims SET created_at = created_at - interval '2 hours'`)
	s.begin(t, call(as("B1-0001", 2)))
	if found, err := s.Unfinished(t.Context(), time.Hour, 10); err != nil || len(found) != 0 {
		t.Errorf("%+v, %v", found, err)
	}
}

func TestABeginningWhoseCommitIsLostHasOneOwnerAtMost(t *testing.T) {
	t.Parallel()
	for name, fate := range map[string]pgproxy.Fate{"it arrived": {Arrives: true}, "it never arrived": {}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := open(t, waiting(time.Minute))
			far := s.guard(t, testdb.Open(t, pgproxy.URL(t, s.dsn, fate)))
			var mu sync.Mutex
			var owners []idempotency.Claim
			var group sync.WaitGroup
			for _, g := range []*idempotency.Guard{far, s.Guard} { // the same attempt, twice
				group.Go(func() {
					claim, _, err := g.Begin(t.Context(), call())
					mu.Lock()
					defer mu.Unlock()
					if claim != nil {
						owners = append(owners, *claim)
					} else if !errors.Is(err, idempotency.ErrProcessing) && !errors.Is(err, database.ErrCommitUnknown) {
						t.Error(err)
					}
				})
			}
			group.Wait()
			if len(owners) > 1 || (fate.Arrives && len(owners) != 1) {
				t.Fatalf("%d owners of one key", len(owners))
			}
			found, err := s.Unfinished(t.Context(), 0, 2)
			if err != nil || len(found) > 1 || len(found) < len(owners) {
				t.Errorf("unfinished %+v, %v; owners %+v", found, err, owners)
			}
		})
	}
}

func TestAnEndWhoseCommitIsLostIsMadeOnce(t *testing.T) {
	t.Parallel()
	for name, fate := range map[string]pgproxy.Fate{"it arrived": {Arrives: true}, "it never arrived": {}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := open(t)
			claim := s.begin(t, call())
			far := s.guard(t, testdb.Open(t, pgproxy.URL(t, s.dsn, fate)))
			got, err := far.Complete(t.Context(), claim, json.RawMessage(`1`))
			if err != nil || got.Status != receipt.StatusSuccess {
				t.Fatalf("%+v, %v", got, err)
			}
			if again := s.must(t, call(), never(t)); wire(t, again) != wire(t, got) {
				t.Errorf("%s and %s", wire(t, got), wire(t, again))
			}
		})
	}
}
