package reconcile

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/callreceipt/reconciler/internal/task"
	"github.com/callreceipt/reconciler/internal/testdb"
	"github.com/callreceipt/reconciler/receipt"
)

// sent is one send as the downstream saw it.
type sent struct {
	CallID, BizID, Operation, IdempotencyKey, Timestamp string
	Attempt                                             int
	Amount                                              json.Number // of the caller's own body
	header                                              string      // Idempotency-Key
}

// shop executes charges once for each idempotency key, and answers receipt queries from what it executed.
type shop struct {
	receipts *downstream
	url      string // of /charge

	mu      sync.Mutex
	sends   []sent
	effects map[string]int // by idempotency key
	// answer, when set, decides what happens to a send: whether it is executed, and how it is answered.
	answer func(w http.ResponseWriter, s sent) (execute bool)
}

func newShop(t testing.TB) *shop {
	t.Helper()
	s := &shop{receipts: newDownstream(t), effects: map[string]int{}}
	server := httptest.NewServer(http.HandlerFunc(s.charge))
	t.Cleanup(server.Close)
	s.url = server.URL
	s.receipts.before = func(_ http.ResponseWriter, bizIDs []string) bool {
		for _, id := range bizIDs {
			if len(s.receipts.says[id]) == 0 {
				s.receipts.says[id] = []string{fmt.Sprintf(`{"bizId":%q,"status":"NOT_FOUND"}`, id)}
			}
		}
		return false
	}
	return s
}

func (s *shop) charge(w http.ResponseWriter, r *http.Request) {
	var c sent
	if err := json.NewDecoder(r.Body).Decode(&c); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	c.header = r.Header.Get("Idempotency-Key")
	s.mu.Lock()
	s.sends = append(s.sends, c)
	answer := s.answer
	s.mu.Unlock()
	text := fmt.Sprintf(`{"callId":%q,"bizId":%q,"operation":%q,"status":"SUCCESS","attempt":%d}`, c.CallID, c.BizID, c.Operation, c.Attempt)
	if answer != nil && !answer(w, c) {
		return
	}
	s.execute(c, text)
	_, _ = io.WriteString(w, text)
}

func (s *shop) execute(c sent, text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.effects[c.IdempotencyKey]++; s.effects[c.IdempotencyKey] > 1 {
		s.effects[c.IdempotencyKey] = 1 // known key: nothing is executed again
		return
	}
	s.receipts.mu.Lock()
	defer s.receipts.mu.Unlock()
	s.receipts.says[c.BizID] = []string{text}
}

// seen is every send that has come by. An answer that was cut off leaves no order between its handler and the test but the lock.
func (s *shop) seen() []sent {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.sends)
}

// executed is how many intents have been.
func (s *shop) executed() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.effects)
}

// loses answers every send by cutting the connection; it executes or not.
func (s *shop) loses(execute bool) func(http.ResponseWriter, sent) bool {
	return func(w http.ResponseWriter, c sent) bool {
		if execute {
			s.execute(c, fmt.Sprintf(`{"callId":%q,"bizId":%q,"operation":%q,"status":"SUCCESS"}`, c.CallID, c.BizID, c.Operation))
		}
		panic(http.ErrAbortHandler)
	}
}

func sending(t testing.TB, s *shop, edit ...func(*Config)) func(*Config) {
	t.Helper()
	client, err := receipt.NewClient(receipt.Config{URL: s.url, Timeout: 10 * time.Second, FreshConnections: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return func(c *Config) {
		c.Sender, c.Policy.NeedsRequest = client, true
		c.Policy.Backoff.Initial = time.Microsecond // so that a call is due again at once
		for _, e := range edit {
			e(c)
		}
	}
}

// untilNothingMoves runs passes until one of them neither settles nor sends anything.
func untilNothingMoves(t testing.TB, db *sqlx.DB, r *Reconciler) (total Summary) {
	t.Helper()
	for range 20 {
		db.MustExec(`UPDATE reconciler.pending_confirmations SET next_check_at = now() - interval '1 second',
			last_sent_at = last_sent_at - interval '1 hour' WHERE status IN ('PENDING', 'RETRY')`)
		sum := runPass(t, r)
		total.Sent += sum.Sent
		total.Success += sum.Success
		total.Manual += sum.Manual
		if sum.Moved() == 0 && sum.Sent == 0 {
			return total
		}
	}
	t.Fatal("it does not end")
	return total
}

func ledgerSends(t testing.TB, db *sqlx.DB) (n int) {
	t.Helper()
	if err := db.Get(&n, `SELECT count(*) FROM reconciler.call_events WHERE kind = 'sent'`); err != nil {
		t.Fatal(err)
	}
	return n
}

func TestACallIsSentAgainAsItWasAndItsAnswerSettlesIt(t *testing.T) {
	t.Parallel()
	db, s := testdb.New(t), newShop(t)
	db.MustExec(`INSERT INTO reconciler.pending_confirmations (call_id, biz_id, tool, operation, idempotency_key, issued_at, last_sent_at, request)
		VALUES ('C1', 'B1', 'payment.charge', 'charge', 'part-1', '2026-05-01T10:00:00.123456Z', now() - interval '1 hour',
			'{"amount": 12345678901234567890, "callId": "another", "attempt": 9, "timestamp": "never"}')`)
	sum := runPass(t, on(t, db, s.receipts, sending(t, s), func(c *Config) { c.Policy.DedupWindow = 100 * 365 * 24 * time.Hour }))
	if sum.Sent != 1 || sum.Retry != 1 || sum.Success != 1 {
		t.Errorf("%+v", sum)
	}
	want := sent{
		CallID: "C1", BizID: "B1", Operation: "charge", IdempotencyKey: "part-1", Timestamp: "2026-05-01T10:00:00.123456Z",
		Attempt: 2, Amount: "12345678901234567890", header: "part-1",
	}
	if len(s.seen()) != 1 || s.seen()[0] != want {
		t.Errorf("got %+v, want %+v", s.seen(), want)
	}
	if got := look(t, db, "C1"); got.Status != "SUCCESS" || got.Attempt != 2 || got.Events != 3 { // verdict RETRY, sent, verdict SUCCESS
		t.Errorf("%+v", got)
	}
}

func TestADownstreamThatLosesEveryAnswerExecutesEachIntentOnce(t *testing.T) {
	t.Parallel()
	db, s := testdb.New(t), newShop(t)
	parkMany(t, db, 200)
	s.answer = s.loses(true)
	r := on(t, db, s.receipts, sending(t, s), func(c *Config) { c.BatchSize = 50 })
	total := untilNothingMoves(t, db, r)
	if total.Success != 200 || total.Sent != 200 {
		t.Errorf("%+v", total)
	}
	if s.executed() != 200 || len(s.seen()) != ledgerSends(t, db) {
		t.Errorf("%d effects, %d sends, %d on record", s.executed(), len(s.seen()), ledgerSends(t, db))
	}
}

func TestADownstreamThatNeverHasAnythingGetsMaxAttemptsSendsInAll(t *testing.T) { // hyperswitch#2380
	t.Parallel()
	db, s := testdb.New(t), newShop(t)
	parkMany(t, db, 20)
	s.answer = s.loses(false)
	untilNothingMoves(t, db, on(t, db, s.receipts, sending(t, s)))
	if len(s.seen()) != 40 || ledgerSends(t, db) != 40 {
		t.Errorf("%d sends beside the callers' own, %d on record; want 2 for each call", len(s.seen()), ledgerSends(t, db))
	}
	if n := count(t, db, `status = 'MANUAL' AND reason = 'attempts_exhausted' AND attempt = 3`); n != 20 {
		t.Errorf("%d of 20 are exhausted", n)
	}
}

func TestWhatMayNotBeSentAgainIsNot(t *testing.T) { // omi#7184
	t.Parallel()
	for reason, edit := range map[Reason]func(*sqlx.DB, *Config){
		ReasonNotRetryable:      func(_ *sqlx.DB, c *Config) { c.Policy.Retryable = false },
		ReasonDedupWindowPassed: func(_ *sqlx.DB, c *Config) { c.Policy.DedupWindow = time.Minute },
		ReasonRequestMissing: func(db *sqlx.DB, _ *Config) {
			db.MustExec(`UPDATE reconciler.pending_confirmations SET request = NULL`)
		},
	} {
		t.Run(string(reason), func(t *testing.T) {
			t.Parallel()
			db, s := testdb.New(t), newShop(t)
			parkMany(t, db, 5)
			r := on(t, db, s.receipts, sending(t, s, func(c *Config) { edit(db, c) }))
			if sum := runPass(t, r); sum.Manual != 5 || sum.Sent != 0 || len(s.seen()) != 0 {
				t.Errorf("%+v, %d sends", sum, len(s.seen()))
			}
			if n := count(t, db, `reason = '`+string(reason)+`'`); n != 5 {
				t.Errorf("%d rows say %s", n, reason)
			}
		})
	}
}

func TestAnOfferThatLiesTooLongIsNotSent(t *testing.T) {
	t.Parallel()
	db, s := testdb.New(t), newShop(t)
	parkMany(t, db, 2)
	db.MustExec(`UPDATE reconciler.pending_confirmations SET status = 'RETRY', reason = 'not_found', next_check_at = now() + interval '1 hour',
		retry_before = now() + CASE call_id WHEN 'C0' THEN interval '-1 second' ELSE interval '1 hour' END`)
	if sum := runPass(t, on(t, db, s.receipts, sending(t, s))); sum.Sent != 1 || len(s.seen()) != 1 || s.seen()[0].CallID != "C1" {
		t.Errorf("%+v, %+v", sum, s.seen())
	}
}

func TestOnlyAWellFormedReceiptOfThisCallDecides(t *testing.T) {
	t.Parallel()
	for name, body := range map[string]string{
		"of another call":   `{"callId":"C9","bizId":"B0","status":"SUCCESS"}`,
		"of another bizId":  `{"callId":"C0","bizId":"B9","status":"SUCCESS"}`,
		"PROCESSING":        `{"callId":"C0","bizId":"B0","status":"PROCESSING"}`,
		"no receipt":        `{"ok":true}`,
		"HTML":              `<html>`,
		"an empty body":     ``,
		"two documents":     `{"callId":"C0","bizId":"B0","status":"SUCCESS"}{}`,
		"an answer":         `{"receipts":[{"callId":"C0","bizId":"B0","status":"SUCCESS"}]}`,
		"a key twice":       `{"callId":"C0","bizId":"B0","status":"FAILED","status":"SUCCESS"}`,
		"from the future":   `{"callId":"C0","bizId":"B0","status":"SUCCESS","processedAt":"2999-01-01T00:00:00Z"}`,
		"with a 500":        "500",
		"behind a redirect": "307",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, s := testdb.New(t), newShop(t)
			parkMany(t, db, 1)
			s.answer = func(w http.ResponseWriter, _ sent) bool {
				var status int
				if _, err := fmt.Sscan(body, &status); err == nil {
					w.Header().Set("Location", s.url)
					w.WriteHeader(status)
				}
				_, _ = io.WriteString(w, body)
				return false
			}
			sum, _ := on(t, db, s.receipts, sending(t, s)).RunOnce(context.Background(), Limits{})
			if sum.Success+sum.Failed > 0 || sum.Sent != 1 || len(s.seen()) != 1 {
				t.Errorf("%+v, %d sends", sum, len(s.seen()))
			}
			if got := look(t, db, "C0"); got.Status != "PENDING" || got.Attempt != 2 {
				t.Errorf("%+v", got)
			}
		})
	}
}

func TestADeclinedRetryIsFailed(t *testing.T) {
	t.Parallel()
	db, s := testdb.New(t), newShop(t)
	parkMany(t, db, 1)
	s.answer = func(w http.ResponseWriter, c sent) bool {
		fmt.Fprintf(w, `{"callId":%q,"bizId":%q,"status":"FAILED","attempt":2}`, c.CallID, c.BizID)
		return false
	}
	if sum := runPass(t, on(t, db, s.receipts, sending(t, s))); sum.Failed != 1 {
		t.Errorf("%+v", sum)
	}
}

func TestAConnectionThatDiesAfterTheRequestIsOneSend(t *testing.T) {
	t.Parallel()
	db, s := testdb.New(t), newShop(t)
	parkMany(t, db, 50)
	// A server that reads the whole request on a kept-alive connection and closes it without a byte.
	seen := make(chan struct{}, 1000)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closing := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		seen <- struct{}{}
		conn, _, err := http.NewResponseController(w).Hijack()
		if err == nil {
			_ = conn.Close()
		}
	})}
	go func() { _ = closing.Serve(listener) }()
	t.Cleanup(func() { _ = closing.Close() })
	s.url = "http://" + listener.Addr().String()
	sum := runPass(t, on(t, db, s.receipts, sending(t, s)))
	if sum.Sent != 50 || len(seen) != 50 || ledgerSends(t, db) != 50 {
		t.Errorf("%d sent, %d seen, %d on record", sum.Sent, len(seen), ledgerSends(t, db))
	}
}

func TestNobodyIsSentToWhoCannotBeReached(t *testing.T) {
	t.Parallel()
	db, s := testdb.New(t), newShop(t)
	parkMany(t, db, 100)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.url = "http://" + listener.Addr().String()
	_ = listener.Close()
	r := on(t, db, s.receipts, sending(t, s))
	sum, err := r.RunOnce(context.Background(), Limits{})
	if !errors.Is(err, errNotReached) || sum.Outcome != task.Partial || sum.Retry != 100 {
		t.Errorf("%v, %+v", err, sum)
	}
	if spent := count(t, db, `attempt > 1`); spent > 0 || sum.Sent > 0 {
		t.Errorf("%d attempts were spent on nobody, %+v", spent, sum)
	}
}

func TestThreeProcessesSendNoCallTwiceForOneAttempt(t *testing.T) {
	t.Parallel()
	db, s := testdb.New(t), newShop(t)
	parkMany(t, db, 300)
	db.MustExec(`UPDATE reconciler.pending_confirmations SET status = 'RETRY', reason = 'not_found', next_check_at = now() + interval '1 hour'`)
	s.answer = s.loses(true)
	var group sync.WaitGroup
	for i := range 3 {
		// The lease would keep two of them out; here all three send at once, as after an expiry.
		r := on(t, db, s.receipts, sending(t, s), func(c *Config) { c.Holder = fmt.Sprint("replica ", i) })
		group.Go(func() {
			p := &pass{Reconciler: r, soft: t.Context(), sum: Summary{}}
			if err := p.dispatch(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	seen := map[string]int{}
	for _, c := range s.seen() {
		seen[fmt.Sprint(c.CallID, "/", c.Attempt)]++
	}
	if len(s.seen()) != 300 || len(seen) != 300 || ledgerSends(t, db) != 300 {
		t.Errorf("%d sends of %d attempts, %d on record", len(s.seen()), len(seen), ledgerSends(t, db))
	}
}

func TestRetriesKeepToTheRateAndGiveWayToADownstreamThatRefuses(t *testing.T) {
	t.Parallel()
	db, s := testdb.New(t), newShop(t)
	parkMany(t, db, 40)
	db.MustExec(`UPDATE reconciler.pending_confirmations SET status = 'RETRY', reason = 'not_found', next_check_at = now() + interval '1 hour'`)
	var at []time.Time
	refused := 0
	s.answer = func(w http.ResponseWriter, _ sent) bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		at = append(at, time.Now())
		if len(at) == 5 {
			refused = len(at)
			w.WriteHeader(http.StatusServiceUnavailable)
			return false
		}
		return true
	}
	r := on(t, db, s.receipts, sending(t, s), func(c *Config) { c.Rate, c.Concurrency = 100, 1 })
	sum := runPass(t, r)
	if sum.Sent != 40 || sum.Success != 39 || refused == 0 {
		t.Errorf("%+v", sum)
	}
	if pause := at[5].Sub(at[4]); pause < shortPause-50*time.Millisecond {
		t.Errorf("the send after a refusal came %s later", pause)
	}
	if took, least := at[len(at)-1].Sub(at[0]), shortPause+30*time.Second/100; took < least {
		t.Errorf("40 sends within %s at 100 a second", took)
	}
	if got := r.gate.sending.Limit(); got > 100 {
		t.Errorf("the retry budget grew to %v", got)
	}
}

func TestACallThatAPersonSettledWhileItWasOnItsWayStaysAsItIs(t *testing.T) {
	t.Parallel()
	db, s := testdb.New(t), newShop(t)
	parkMany(t, db, 1)
	s.answer = func(http.ResponseWriter, sent) bool {
		db.MustExec(`UPDATE reconciler.pending_confirmations SET status = 'FAILED', reason = 'by hand', resolved_by = 'person:eve', resolved_at = '2026-01-01T00:00:00Z'`)
		return true
	}
	sum := runPass(t, on(t, db, s.receipts, sending(t, s)))
	if sum.Sent != 1 || sum.Contradictions != 1 || sum.Success+sum.Failed > 0 {
		t.Errorf("%+v", sum)
	}
	if n := count(t, db, `status = 'FAILED' AND reason = 'by hand' AND resolved_by = 'person:eve' AND resolved_at = '2026-01-01T00:00:00Z'`); n != 1 {
		t.Error("the final row was written over")
	}
}

func TestRowsThatCannotBeSentHoldUpNoOther(t *testing.T) {
	t.Parallel()
	db, s := testdb.New(t), newShop(t)
	parkMany(t, db, 20)
	db.MustExec(`UPDATE reconciler.pending_confirmations SET status = 'RETRY', reason = 'not_found', next_check_at = now() + interval '1 hour',
		request = CASE WHEN call_id < 'C15' THEN NULL ELSE request END`)
	sum := runPass(t, on(t, db, s.receipts, sending(t, s)))
	if sum.Sent == 0 || sum.Success != sum.Sent || count(t, db, `request IS NOT NULL AND status = 'RETRY'`) > 0 {
		t.Errorf("%+v", sum)
	}
	if n := count(t, db, `request IS NULL AND attempt > 1`); n > 0 {
		t.Errorf("%d attempts were spent on nothing", n)
	}
}

func TestAnEndpointThatRefusesEverythingCostsOneAttempt(t *testing.T) {
	t.Parallel()
	db, s := testdb.New(t), newShop(t)
	parkMany(t, db, 100)
	s.answer = func(w http.ResponseWriter, _ sent) bool {
		w.WriteHeader(http.StatusNotFound)
		return false
	}
	sum, err := on(t, db, s.receipts, sending(t, s)).RunOnce(context.Background(), Limits{})
	if err == nil || sum.Sent != 1 || count(t, db, `attempt > 1`) != 1 {
		t.Errorf("%v, %+v", err, sum)
	}
}

func TestAPureQueryIsSettledByTheAnswerToItsSecondSend(t *testing.T) {
	t.Parallel()
	db, s := testdb.New(t), newShop(t)
	parkMany(t, db, 3)
	r := on(t, db, nil, sending(t, s), func(c *Config) { c.Policy.NeedsReceipt = false })
	if sum := runPass(t, r); sum.Sent != 3 || sum.Success != 3 || sum.Requests != 0 {
		t.Errorf("%+v", sum)
	}
}

// panicking is a downstream that our own code cannot bear.
type panicking struct{}

func (panicking) Reach(context.Context) error { return nil }

func (panicking) Send(context.Context, receipt.Attempt) (receipt.Receipt, error) { panic("no send") }

func TestAPanicInASendEndsThePassAndNotTheProcess(t *testing.T) {
	t.Parallel()
	db, s := testdb.New(t), newShop(t)
	parkMany(t, db, 3)
	r := on(t, db, s.receipts, sending(t, s), func(c *Config) { c.Sender = panicking{} })
	if _, err := r.RunOnce(context.Background(), Limits{}); err == nil || !strings.Contains(err.Error(), "no send") {
		t.Errorf("%v", err)
	}
}
