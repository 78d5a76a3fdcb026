package demo

import (
	"context"
	"sync"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/callreceipt/reconciler/pending"
)

// awaitLimit is how long after the last pass the orchestrator may still wait for a verdict; the table is asked every two
// seconds at the least.
const awaitLimit = 10 * time.Second

// waits are the calls whose verdict the orchestrator waits for on the spot, besides hearing of it by the webhook.
type waits struct {
	db  *sqlx.DB
	ctx context.Context // ends every wait
	end context.CancelFunc

	all  sync.WaitGroup
	told []pending.Status // by Call.Index; "" was not waited for, or not answered
}

func newWaits(ctx context.Context, db *sqlx.DB, calls int) *waits {
	ctx, end := context.WithCancel(ctx)
	return &waits{db: db, ctx: ctx, end: end, told: make([]pending.Status, calls)}
}

// begin waits for the verdict on a call that has been parked.
func (w *waits) begin(c Call) {
	w.all.Go(func() {
		if outcome, err := pending.Await(w.ctx, w.db, c.CallID); err == nil {
			w.told[c.Index] = outcome.Status // without one the judge says which call it was
		}
	})
}

// over returns when every wait has ended, or has been ended by the limit.
func (w *waits) over() {
	limit := time.AfterFunc(awaitLimit, w.end)
	defer limit.Stop()
	w.all.Wait()
}

// close ends every wait.
func (w *waits) close() {
	w.end()
	w.all.Wait()
}
