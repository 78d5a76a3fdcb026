package pending

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/lib/pq"
)

// Outcome is the verdict on a parked call, for the orchestrator that waits for it.
type Outcome struct {
	CallID  string `db:"call_id"`
	Status  Status `db:"status"` // StatusSuccess, StatusFailed or StatusManual
	Reason  string `db:"reason"`
	Attempt int    `db:"attempt"`
	Receipt JSON   `db:"receipt"` // the receipt that decided; nil with StatusManual
}

// How often the table is asked, for all waiters of a process together: soon after something happened, and ever more
// seldom while nothing does.
const (
	awaitSoon    = 100 * time.Millisecond
	awaitSeldom  = 2 * time.Second
	awaitAtOnce  = 1000 // calls in one query
	awaitPatient = 1.5  // growth of the pause
)

// Await returns the verdict on a parked call as soon as there is one: SUCCESS, FAILED or MANUAL. A call that is to be sent again
// is not finished, and is waited for. Any number of goroutines may wait; those on one db share one query. It ends with
// ErrNoSuchCall when the call is not in the table, and with the error of ctx, to which the latest trouble of the database is
// joined, when that ends first.
func Await(ctx context.Context, db *sqlx.DB, callID string) (Outcome, error) {
	w := &waiter{callID: callID, done: make(chan struct{})}
	p := join(db, w)
	select {
	case <-w.done:
		return w.outcome, w.err
	case <-ctx.Done():
		return Outcome{}, errors.Join(context.Cause(ctx), p.leave(w))
	}
}

// waiter is one call of Await. Its result is set before done is closed.
type waiter struct {
	callID  string
	missed  bool // one query has not found the call
	done    chan struct{}
	outcome Outcome
	err     error
}

// poller asks for all waiters of one database. It lives while there are any.
type poller struct {
	db   *sqlx.DB
	wake chan struct{} // somebody new is waiting

	mu      sync.Mutex
	waiting map[string]map[*waiter]bool // by callId
	trouble error                       // of the latest query
}

var pollers = struct {
	sync.Mutex
	of map[*sqlx.DB]*poller
}{of: map[*sqlx.DB]*poller{}}

func join(db *sqlx.DB, w *waiter) *poller {
	pollers.Lock()
	defer pollers.Unlock()
	p := pollers.of[db]
	if p == nil {
		p = &poller{db: db, wake: make(chan struct{}, 1), waiting: map[string]map[*waiter]bool{}}
		pollers.of[db] = p
		go p.run()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.waiting[w.callID] == nil {
		p.waiting[w.callID] = map[*waiter]bool{}
	}
	p.waiting[w.callID][w] = true
	select {
	case p.wake <- struct{}{}:
	default:
	}
	return p
}

// leave takes a waiter out and returns the latest trouble.
func (p *poller) leave(w *waiter) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.remove(w)
	select {
	case p.wake <- struct{}{}: // it may have been the last
	default:
	}
	return p.trouble
}

// run ends with the last waiter.
func (p *poller) run() {
	pause := awaitSoon
	for {
		ids := p.ids()
		if ids == nil {
			return
		}
		if p.ask(ids) > 0 {
			pause = awaitSoon
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
			pause = min(time.Duration(float64(pause)*awaitPatient), awaitSeldom)
		case <-p.wake:
			// Those who come together are asked for together.
			<-time.After(awaitSoon / 10)
			pause = awaitSoon
		}
		timer.Stop()
	}
}

// ids are the calls that are waited for; nil, and the poller is gone, when there are none.
func (p *poller) ids() []string {
	pollers.Lock()
	defer pollers.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.waiting) == 0 {
		delete(pollers.of, p.db)
		return nil
	}
	ids := make([]string, 0, len(p.waiting))
	for id := range p.waiting {
		ids = append(ids, id)
	}
	return ids
}

// ask looks for verdicts and returns how many calls it could answer for.
func (p *poller) ask(ids []string) (answered int) {
	for len(ids) > 0 {
		n := min(len(ids), awaitAtOnce)
		answered += p.askSome(ids[:n])
		ids = ids[n:]
	}
	return answered
}

func (p *poller) askSome(ids []string) (answered int) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	var found []Outcome
	err := p.db.SelectContext(ctx, &found, `
		SELECT call_id, status, coalesce(reason, '') AS reason, attempt, receipt
		FROM reconciler.pending_confirmations WHERE call_id = ANY($1)`, pq.StringArray(ids))
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.trouble = err; err != nil {
		p.trouble = fmt.Errorf("asking for verdicts: %w", err)
		return 0
	}
	here := make(map[string]bool, len(found))
	for _, o := range found {
		here[o.CallID] = true
		if o.Status.Terminal() || o.Status == StatusManual {
			for w := range p.waiting[o.CallID] {
				p.answer(w, o, nil)
				answered++
			}
		}
	}
	for _, id := range ids {
		for w := range p.waiting[id] {
			switch {
			case here[id]:
			case w.missed:
				p.answer(w, Outcome{}, fmt.Errorf("waiting for %q: %w", id, ErrNoSuchCall))
				answered++
			default:
				w.missed = true // it may have come, and its call been parked, while the query was on its way
			}
		}
	}
	return answered
}

// answer ends a waiter; p.mu is held.
func (p *poller) answer(w *waiter, o Outcome, err error) {
	w.outcome, w.err = o, err
	close(w.done)
	p.remove(w)
}

func (p *poller) remove(w *waiter) {
	delete(p.waiting[w.callID], w)
	if len(p.waiting[w.callID]) == 0 {
		delete(p.waiting, w.callID)
	}
}
