package main

import (
	"context"
	"net"
	"net/http"
	"sync/atomic"
	"time"
)

// entry is what the table and the ledger hold of a call.
type entry struct {
	CallID         string    `db:"call_id"`
	BizID          string    `db:"biz_id"`
	Operation      string    `db:"operation"`
	IdempotencyKey string    `db:"idempotency_key"`
	IssuedAt       time.Time `db:"issued_at"`
	Amount         int       `db:"amount"`
	Status         string    `db:"status"`
	Reason         string    `db:"reason"`
	Attempt        int       `db:"attempt"`
	Sent           int       `db:"sent"` // events of that kind, each of another attempt
}

// entries are all calls, by callId.
func (s *scene) entries() map[string]entry {
	s.t.Helper()
	var all []entry
	if err := s.db.Select(&all, `
		SELECT call_id, biz_id, operation, idempotency_key, issued_at, coalesce((request->>'amount')::int, 0) AS amount, status,
			coalesce(reason, '') AS reason, attempt,
			(SELECT count(DISTINCT e.attempt) FROM reconciler.call_events e WHERE e.call_id = p.call_id AND e.kind = 'sent') AS sent
		FROM reconciler.pending_confirmations p`); err != nil {
		s.t.Fatal(err)
	}
	byID := make(map[string]entry, len(all))
	for _, e := range all {
		byID[e.CallID] = e
	}
	return byID
}

// parkUnsent puts n calls that never arrived into the table, long enough ago to be settled. Two of them share a bizId, and each
// has an amount and an instant of its own. Their callIds end in their number.
func (s *scene) parkUnsent(tool string, n int) {
	s.t.Helper()
	_, err := s.db.Exec(`
		INSERT INTO reconciler.pending_confirmations (call_id, biz_id, tool, operation, issued_at, last_sent_at, request)
		SELECT $1 || '-' || lpad(n::text, 6, '0'), 'B-' || $1 || '-' || n / 2, $1, CASE n % 2 WHEN 0 THEN 'charge' ELSE 'refund' END,
			now() - interval '1 hour' - n * interval '1.000001 seconds', now() - interval '1 hour', jsonb_build_object('amount', n)
		FROM generate_series(1, $2) n`, tool, n)
	if err != nil {
		s.t.Fatal(err)
	}
}

// open is how many calls have no verdict yet.
func (s *scene) open() int {
	s.t.Helper()
	return one[int](s, `SELECT count(*) FROM reconciler.pending_confirmations WHERE status IN ('PENDING', 'RETRY')`)
}

// untilNoneIsOpen runs again and again.
func (s *scene) untilNoneIsOpen() {
	s.t.Helper()
	for deadline := time.Now().Add(2 * patience); s.open() > 0; {
		p := s.start("run", "--log-level", "error")
		if code := p.exit(); code != exitDone && code != exitPartial {
			s.t.Fatalf("exit code %d; %s%s", code, &p.stdout, &p.stderr)
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("%d calls are open after %s; the last run said %s", s.open(), 2*patience, &p.stdout)
		}
	}
}

// judge fails the test unless every attempt that came to the shop was on record, carried what its call was parked with, and came
// once and not before the last had settled, and unless every call had its effect exactly when it is SUCCESS. It returns how many
// attempts on record never came, and the calls.
func (s *scene) judge(shop *shop, mostAttempts int) (lost int, calls map[string]entry) {
	s.t.Helper()
	calls = s.entries()
	type attempt struct {
		callID string
		number int
	}
	came := map[attempt]bool{}
	sends := map[string]int{}
	for _, a := range shop.seen() {
		c, known := calls[a.CallID]
		if at, err := time.Parse(time.RFC3339Nano, a.Timestamp); !known || err != nil || !at.Equal(c.IssuedAt) || a.BizID != c.BizID || a.Operation != c.Operation ||
			a.IdempotencyKey != c.IdempotencyKey || a.header != c.IdempotencyKey || a.Amount != c.Amount || a.Attempt < 2 || a.Attempt > c.Attempt {
			s.t.Errorf("%+v came, and on record is %+v", a, c)
		}
		if came[attempt{a.CallID, a.Attempt}] {
			s.t.Errorf("attempt %d of %s came twice", a.Attempt, a.CallID)
		}
		came[attempt{a.CallID, a.Attempt}] = true
		sends[a.CallID]++
	}
	for id, c := range calls {
		effects := 0
		if c.Status == "SUCCESS" {
			effects = 1
		}
		if sends[id] > c.Sent || c.Attempt > mostAttempts || shop.effects[id] != effects {
			s.t.Errorf("%d attempts came of %+v, and it had %d effects; no more than %d may be made", sends[id], c, shop.effects[id], mostAttempts)
		}
		lost += c.Sent - sends[id]
	}
	// settle is 300ms or more; the ledger's clock is read a moment after the row's.
	if early := one[int](s, `
		SELECT count(*) FROM (SELECT at - lag(at) OVER (PARTITION BY call_id ORDER BY at) AS gap FROM reconciler.call_events WHERE kind = 'sent') e
		WHERE gap < interval '150 milliseconds'`); early > 0 {
		s.t.Errorf("%d attempts were made before the one before had settled", early)
	}
	return lost, calls
}

// status counts calls by status and reason.
func status(calls map[string]entry) map[string]int {
	counts := map[string]int{}
	for _, c := range calls {
		counts[c.Status+" "+c.Reason]++
	}
	return counts
}

type requestsKey struct{}

// countRequests gives each connection of a server a counter for carriedBefore.
func countRequests(ctx context.Context, _ net.Conn) context.Context {
	return context.WithValue(ctx, requestsKey{}, new(atomic.Int64))
}

// carriedBefore tells whether the connection of a request has carried one before; it is to be called once for each.
func carriedBefore(r *http.Request) bool {
	return r.Context().Value(requestsKey{}).(*atomic.Int64).Add(1) > 1
}
