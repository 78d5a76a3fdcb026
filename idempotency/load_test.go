package idempotency_test

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"
	"golang.org/x/sync/errgroup"

	"github.com/callreceipt/reconciler/idempotency"
	"github.com/callreceipt/reconciler/internal/eventually"
	"github.com/callreceipt/reconciler/receipt"
)

// The size of the load. At full size, in about ten seconds on two cores:
//
//	go test ./idempotency -run TestManyRequests -keys 2000 -requests 20000
var (
	loadKeys     = flag.Int("keys", 200, "intents in the load test")
	loadRequests = flag.Int("requests", 2000, "requests in the load test")
)

// arrivalsAtOnce is more than the pool has connections, so that some wait for one.
const arrivalsAtOnce = 40

func TestManyRequestsOfOneKeyHaveOneEffectAlsoAcrossMidnight(t *testing.T) {
	t.Parallel()
	s := open(t, waiting(time.Minute))
	// Midnight is in two seconds: one partition ends there, the next one begins.
	s.detachAll(t)
	s.db.MustExec(`DO $$ DECLARE midnight timestamptz := clock_timestamp() + interval '2 seconds'; BEGIN
		EXECUTE format('CREATE TABLE idempotency.today PARTITION OF idempotency.keys FOR VALUES FROM (%L) TO (%L)', midnight - interval '1 day', midnight);
		EXECUTE format('CREATE TABLE idempotency.tomorrow PARTITION OF idempotency.keys FOR VALUES FROM (%L) TO (%L)', midnight, midnight + interval '1 day');
		EXECUTE format('CREATE FUNCTION before_midnight() RETURNS interval LANGUAGE sql AS $f$ SELECT %L::timestamptz - clock_timestamp() $f$', midnight);
		END $$`)
	results := &first{of: map[string]string{}}
	var group errgroup.Group
	group.SetLimit(arrivalsAtOnce)
	all := load(*loadKeys, *loadRequests)
	for i, r := range all {
		if i == len(all)/2 { // the second half straddles it
			eventually.True(t, "midnight is near", func() bool {
				return s.text(t, `SELECT before_midnight() < interval '50 milliseconds'`) == "true"
			})
		}
		group.Go(func() error {
			got, err := s.Do(t.Context(), r, chargeOnce(r))
			if err != nil {
				return err
			}
			return results.same(r, got)
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	for what, c := range map[string]struct {
		query string
		want  int
	}{
		"effects":                       {`SELECT count(*) FROM effects`, *loadKeys},
		"intents with an effect":        {`SELECT count(DISTINCT biz_id) FROM effects`, *loadKeys},
		"results that are the effect's": {`SELECT count(*) FROM effects e JOIN idempotency.keys k USING (biz_id) WHERE k.result->>'ref' = e.ref`, *loadKeys},
		"claims":                        {`SELECT count(*) FROM idempotency.claims`, *loadKeys},
		"receipts that say otherwise": {`SELECT count(*) FROM idempotency.receipts r JOIN idempotency.keys k USING (idempotency_key)
			WHERE r.result::text <> k.result::text OR r.status <> 'SUCCESS' OR r.processed_at <> k.completed_at`, 0},
		"receipts": {`SELECT count(*) FROM idempotency.receipts`, results.calls()},
	} {
		if n := s.count(t, c.query); n != c.want {
			t.Errorf("%d %s, want %d", n, what, c.want)
		}
	}
	if before, after := s.count(t, `SELECT count(*) FROM idempotency.today`), s.count(t, `SELECT count(*) FROM idempotency.tomorrow`); before == 0 || after == 0 {
		t.Errorf("%d keys before midnight and %d after it", before, after)
	}
}

// load is the requests in the order in which they arrive: for each intent duplicates, later attempts and changed callIds, close to each
// other.
func load(keys, requests int) []idempotency.Request {
	random := rand.New(rand.NewPCG(1, 2))
	type arrival struct {
		at float64
		idempotency.Request
	}
	var all []arrival
	for i := range requests {
		key := i % keys
		biz := fmt.Sprint("B", key)
		all = append(all, arrival{float64(key) + 5*random.ExpFloat64(), idempotency.Request{
			CallID: fmt.Sprint(biz, "-", random.IntN(3)), BizID: biz, Operation: "charge", Attempt: 1 + random.IntN(3), IssuedAt: time.Now(), Hash: []byte(biz),
		}})
	}
	slices.SortFunc(all, func(a, b arrival) int { return int(1e6 * (a.at - b.at)) })
	ordered := make([]idempotency.Request, len(all))
	for i, a := range all {
		ordered[i] = a.Request
	}
	return ordered
}

// chargeOnce has an effect with a reference that no other run has.
func chargeOnce(r idempotency.Request) work {
	return func(ctx context.Context, tx *sqlx.Tx) (json.RawMessage, error) {
		var ref string
		err := tx.GetContext(ctx, &ref, `INSERT INTO effects (biz_id, ref) VALUES ($1, gen_random_uuid()::text) RETURNING ref`, r.BizID)
		return json.RawMessage(fmt.Sprintf(`{"ref" : %q, "amount": 1.50}`, ref)), err
	}
}

// first is the first result of each intent, and which calls were answered.
type first struct {
	mu   sync.Mutex
	of   map[string]string
	seen sync.Map
}

func (f *first) same(r idempotency.Request, got receipt.Receipt) error {
	f.seen.Store(r.CallID, true)
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, ok := f.of[r.BizID]; !ok {
		f.of[r.BizID] = string(got.Result)
	}
	if got.Status != receipt.StatusSuccess || got.CallID != r.CallID || got.Attempt < r.Attempt || string(got.Result) != f.of[r.BizID] {
		return fmt.Errorf("%s attempt %d: %+v, and the first result is %s", r.CallID, r.Attempt, got, f.of[r.BizID])
	}
	return nil
}

func (f *first) calls() (n int) {
	f.seen.Range(func(any, any) bool { n++; return true })
	return n
}

func TestOfManyArrivalsAtOnceOneExecutesAndTheOthersWaitNoLongerThanTheyMay(t *testing.T) {
	t.Parallel()
	s := open(t, waiting(50*time.Millisecond))
	started, goOn := make(chan struct{}), make(chan struct{})
	owner := s.background(t.Context(), call(), func(ctx context.Context, tx *sqlx.Tx) (json.RawMessage, error) {
		close(started)
		<-goOn
		return charge(`1`)(ctx, tx)
	})
	soon(t, started)
	var group errgroup.Group
	for i := range 10 {
		group.Go(func() error {
			got, err := s.Do(t.Context(), call(as(fmt.Sprint("B1-", i%3), 1+i)), never(t))
			if got.Status != receipt.StatusProcessing || got.Attempt != 1+i {
				return fmt.Errorf("%+v, %w", got, err)
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil { // while the owner is still at it
		t.Error(err)
	}
	if n := s.count(t, `SELECT count(*) FROM idempotency.receipts`); n != 0 {
		t.Errorf("%d receipts of what nobody knows yet", n)
	}
	patient := s.guard(t, s.db, waiting(time.Minute))
	waiter := make(chan ended, 1)
	go func() {
		got, err := patient.Do(t.Context(), call(as("B1-0002", 1)), never(t))
		waiter <- ended{got, err}
	}()
	s.waits(t, "another call")
	close(goOn)
	if got := soon(t, owner); got.err != nil || s.effects(t) != 1 {
		t.Errorf("%+v with %d effects", got, s.effects(t))
	}
	if got := soon(t, waiter); got.err != nil || string(got.Result) != `1` {
		t.Errorf("%+v", got)
	}
}
