package idempotency_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/callreceipt/reconciler/idempotency"
	"github.com/callreceipt/reconciler/internal/eventually"
	"github.com/callreceipt/reconciler/internal/testdb"
	"github.com/callreceipt/reconciler/migrations"
	"github.com/callreceipt/reconciler/receipt"
)

// shop is a downstream: its database, its guard, and a table of the business.
type shop struct {
	*idempotency.Guard
	db   *sqlx.DB
	dsn  string
	said *text
}

// text is what was logged.
type text struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *text) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *text) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func open(t testing.TB, edit ...func(*idempotency.Config)) *shop {
	t.Helper()
	s := &shop{dsn: testdb.URL(t, migrations.Downstream), said: &text{}}
	s.db = testdb.Open(t, s.dsn)
	s.db.MustExec(`CREATE TABLE effects (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, biz_id text NOT NULL, ref text NOT NULL DEFAULT '')`)
	s.Guard = s.guard(t, s.db, edit...)
	return s
}

// guard makes another guard of the shop: in another process, behind a bad network, with other rules.
func (s *shop) guard(t testing.TB, db *sqlx.DB, edit ...func(*idempotency.Config)) *idempotency.Guard {
	t.Helper()
	cfg := idempotency.Config{DB: db, Log: slog.New(slog.NewTextHandler(s.said, nil))}
	for _, e := range edit {
		e(&cfg)
	}
	g, err := idempotency.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func rerunFailed(c *idempotency.Config) { c.RerunFailed = true }

func waiting(d time.Duration) func(*idempotency.Config) {
	return func(c *idempotency.Config) { c.Wait = d }
}

// call is the first send of the first call of order B1, edited.
func call(edit ...func(*idempotency.Request)) idempotency.Request {
	r := idempotency.Request{CallID: "B1-0001", BizID: "B1", Operation: "charge", IssuedAt: time.Now().Add(-time.Minute), Hash: []byte("payload")}
	for _, e := range edit {
		e(&r)
	}
	return r
}

// as changes the callId and the attempt.
func as(callID string, attempt int) func(*idempotency.Request) {
	return func(r *idempotency.Request) { r.CallID, r.Attempt = callID, attempt }
}

type work = func(ctx context.Context, tx *sqlx.Tx) (json.RawMessage, error)

// charge is a business function that has an effect and brings the result.
func charge(result string) work {
	return func(ctx context.Context, tx *sqlx.Tx) (json.RawMessage, error) {
		if _, err := tx.ExecContext(ctx, `INSERT INTO effects (biz_id) VALUES ('B1')`); err != nil {
			return nil, err
		}
		if result == "" {
			return nil, nil
		}
		return json.RawMessage(result), nil
	}
}

// refuse has an effect, and then refuses.
func refuse(result string) work {
	return func(ctx context.Context, tx *sqlx.Tx) (json.RawMessage, error) {
		if _, err := charge("")(ctx, tx); err != nil {
			return nil, err
		}
		return nil, fmt.Errorf("the card: %w", idempotency.Refuse(json.RawMessage(result)))
	}
}

// must executes or repeats a call.
func (s *shop) must(t testing.TB, r idempotency.Request, w work) receipt.Receipt {
	t.Helper()
	got, err := s.Do(t.Context(), r, w)
	if err != nil {
		t.Fatalf("%s attempt %d: %v", r.CallID, r.Attempt, err)
	}
	return got
}

// never fails the test when it is run.
func never(t testing.TB) work {
	return func(context.Context, *sqlx.Tx) (json.RawMessage, error) {
		t.Error("the business function was run")
		return nil, nil
	}
}

// count reads a number.
func (s *shop) count(t testing.TB, query string, args ...any) int {
	t.Helper()
	var n int
	if err := s.db.Get(&n, query, args...); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return n
}

func (s *shop) effects(t testing.TB) int {
	t.Helper()
	return s.count(t, `SELECT count(*) FROM effects`)
}

// nothing fails the test unless no trace of anything is left.
func (s *shop) nothing(t testing.TB, why string) {
	t.Helper()
	if n := s.count(t, `SELECT (SELECT count(*) FROM effects) + (SELECT count(*) FROM idempotency.claims) + (SELECT count(*) FROM idempotency.keys)
		+ (SELECT count(*) FROM idempotency.receipts)`); n != 0 {
		t.Errorf("%s: %d rows are left", why, n)
	}
}

// waits returns once a session of the shop waits for a lock.
func (s *shop) waits(t testing.TB, who string) {
	t.Helper()
	eventually.True(t, who+" waits", func() bool {
		return s.count(t, `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`) > 0
	})
}

// wire is the receipt as it is sent.
func wire(t testing.TB, r receipt.Receipt) string {
	t.Helper()
	body, err := r.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

// background runs one call in a goroutine.
func (s *shop) background(ctx context.Context, r idempotency.Request, w work) <-chan ended {
	done := make(chan ended, 1)
	go func() {
		got, err := s.Do(ctx, r, w)
		done <- ended{got, err}
	}()
	return done
}

type ended struct {
	receipt.Receipt
	err error
}

// soon returns what comes, or fails.
func soon[T any](t testing.TB, from <-chan T) T {
	t.Helper()
	select {
	case v := <-from:
		return v
	case <-time.After(time.Minute):
		t.Fatal("waited in vain")
		panic("not reached")
	}
}
