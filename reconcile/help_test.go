package reconcile

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/lib/pq"

	"github.com/callreceipt/reconciler/internal/localpg"
	"github.com/callreceipt/reconciler/internal/testdb"
	"github.com/callreceipt/reconciler/pending"
	"github.com/callreceipt/reconciler/receipt"
)

func TestMain(m *testing.M) { os.Exit(localpg.Main(m)) }

// downstream is a real HTTP service that speaks the receipt protocol.
type downstream struct {
	*httptest.Server
	mu       sync.Mutex
	says     map[string][]string // bizId to its receipts; a bizId that is missing here is not mentioned
	asked    map[string]int      // how often each bizId was asked for
	requests int
	sizes    []int                                                        // bizIds in each request
	before   func(w http.ResponseWriter, bizIDs []string) (answered bool) // may answer in place of the receipts
}

func newDownstream(t testing.TB) *downstream {
	d := &downstream{says: map[string][]string{}, asked: map[string]int{}}
	d.Server = httptest.NewServer(d)
	t.Cleanup(d.Close)
	return d
}

// say makes the downstream hold one more receipt for a bizId. fields go behind callId and bizId.
func (d *downstream) say(callID, bizID, status string, fields ...string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	text := fmt.Sprintf(`{"callId":%s,"bizId":%s,"status":%q`, quote(callID), quote(bizID), status)
	if status == "NOT_FOUND" {
		text = fmt.Sprintf(`{"bizId":%s,"status":"NOT_FOUND"`, quote(bizID))
	}
	for _, f := range fields {
		text += "," + f
	}
	d.says[bizID] = append(d.says[bizID], text+"}")
}

func (d *downstream) forget() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.says, d.asked, d.requests, d.sizes = map[string][]string{}, map[string]int{}, 0, nil
}

func (d *downstream) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var q struct{ BizIDs []string }
	if err := json.NewDecoder(r.Body).Decode(&q); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.requests++
	d.sizes = append(d.sizes, len(q.BizIDs))
	for _, id := range q.BizIDs {
		d.asked[id]++
	}
	if d.before != nil && d.before(w, q.BizIDs) {
		return
	}
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprint(w, `{"receipts":[`)
	sep := ""
	for _, id := range q.BizIDs {
		for _, item := range d.says[id] {
			fmt.Fprint(w, sep, item)
			sep = ","
		}
	}
	fmt.Fprint(w, `]}`)
}

// behind puts a server before the downstream that may answer in its place.
func (d *downstream) behind(t testing.TB, instead func(w http.ResponseWriter, r *http.Request, body string) bool) (url string) {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		if !instead(w, r, string(body)) {
			r.Body = io.NopCloser(bytes.NewReader(body))
			d.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(s.Close)
	return s.URL
}

func quote(s string) string {
	text, _ := json.Marshal(s)
	return string(text)
}

// at returns a Source for the downstream.
func (d *downstream) at(t testing.TB) Source {
	t.Helper()
	client, err := receipt.NewClient(receipt.Config{URL: d.URL, Timeout: 10 * time.Second, Concurrency: 4})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return client
}

const tool = "payment.charge"

// on builds a reconciler for the tool; the batch is small so that a test needs few rows to see several.
func on(t testing.TB, db *sqlx.DB, d *downstream, edit ...func(*Config)) *Reconciler {
	t.Helper()
	cfg := Config{
		Tool: tool, Policy: policy(func(p *Policy) { p.NotFoundConfirmations = 1 }), BatchSize: 10, Concurrency: 4, Rate: 100_000,
		DB: db, Holder: "test/" + t.Name(), Log: slog.New(slog.DiscardHandler),
	}
	if d != nil {
		cfg.Source = d.at(t)
	}
	for _, e := range edit {
		e(&cfg)
	}
	r, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func runPass(t testing.TB, r *Reconciler) Summary {
	t.Helper()
	sum, err := r.RunOnce(context.Background(), Limits{})
	if err != nil {
		t.Fatal(err)
	}
	return sum
}

// parkSQL is the statement of DESIGN section 3.1, with the send ten minutes ago.
const parkSQL = `INSERT INTO reconciler.pending_confirmations (call_id, biz_id, tool, operation, attempt, issued_at, last_sent_at, request)
	SELECT c, b, 'payment.charge', 'charge', 1, now() - interval '10 minutes', now() - interval '10 minutes', '{"amount":1}'
	FROM unnest($1::text[], $2::text[]) AS p(c, b) ON CONFLICT (call_id) DO NOTHING`

// parkMany parks n calls C0… of bizIds B0….
func parkMany(t testing.TB, db *sqlx.DB, n int) {
	t.Helper()
	db.MustExec(`INSERT INTO reconciler.pending_confirmations (call_id, biz_id, tool, operation, issued_at, last_sent_at, request)
		SELECT 'C' || n, 'B' || n, 'payment.charge', 'charge', now() - interval '10 minutes', now() - interval '10 minutes', '{"amount":1}'
		FROM generate_series(0, $1 - 1) n`, n)
}

func parkOne(t testing.TB, db *sqlx.DB, callID, bizID string) {
	t.Helper()
	db.MustExec(parkSQL, pq.StringArray{callID}, pq.StringArray{bizID})
}

func due(db *sqlx.DB) {
	db.MustExec(`UPDATE reconciler.pending_confirmations SET next_check_at = now() - interval '1 second' WHERE status NOT IN ('SUCCESS', 'FAILED')`)
}

// row is what a test looks at.
type row struct {
	Status, Reason, LastError                     string
	Checks, Unanswered, Attempt, NotFound, Events int
}

func look(t testing.TB, db *sqlx.DB, callID string) row {
	t.Helper()
	var r row
	err := db.QueryRow(`SELECT status, coalesce(reason, ''), coalesce(last_error, ''), checks, unanswered, attempt, not_found_count,
		(SELECT count(*) FROM reconciler.call_events e WHERE e.call_id = p.call_id)
		FROM reconciler.pending_confirmations p WHERE call_id = $1`, callID).
		Scan(&r.Status, &r.Reason, &r.LastError, &r.Checks, &r.Unanswered, &r.Attempt, &r.NotFound, &r.Events)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func count(t testing.TB, db *sqlx.DB, where string) (n int) {
	t.Helper()
	if err := db.Get(&n, `SELECT count(*) FROM reconciler.pending_confirmations WHERE `+where); err != nil {
		t.Fatal(err)
	}
	return n
}

func open(t testing.TB) (*sqlx.DB, *downstream) {
	t.Helper()
	return testdb.New(t), newDownstream(t)
}

// everyVerdictReplays makes each verdict again from what is on record, by the policy of its digest.
func everyVerdictReplays(t testing.TB, db *sqlx.DB, want int) {
	t.Helper()
	policies := map[string]Policy{}
	var texts [][]byte
	if err := db.Select(&texts, `SELECT policy FROM reconciler.runs`); err != nil {
		t.Fatal(err)
	}
	for _, text := range texts {
		var p Policy
		if err := json.Unmarshal(text, &p); err != nil {
			t.Fatal(err)
		}
		policies[p.Digest()] = p
	}
	var verdicts []struct {
		CallID          string `db:"call_id"`
		Attempt         int
		Reason          string
		Detail, Receipt []byte
	}
	if err := db.Select(&verdicts, `SELECT e.call_id, e.attempt, e.reason, e.detail, p.receipt FROM reconciler.call_events e
		JOIN reconciler.pending_confirmations p USING (call_id) WHERE e.kind = 'verdict'`); err != nil {
		t.Fatal(err)
	}
	if len(verdicts) != want {
		t.Errorf("%d verdicts, want %d", len(verdicts), want)
	}
	actions := map[pending.Status]Action{pending.StatusRetry: Retry, pending.StatusManual: Escalate, pending.StatusSuccess: Succeed}
	for _, v := range verdicts {
		calls, err := pending.NewStore(db).Get(context.Background(), []string{v.CallID})
		if err != nil {
			t.Fatal(err)
		}
		var s Seen
		if err := json.Unmarshal(v.Detail, &s); err != nil {
			t.Fatal(err)
		}
		got, err := Replay(calls[0], v.Attempt, v.Receipt, v.Detail, policies[s.Policy])
		if err != nil || string(got.Reason) != v.Reason || got.Action != actions[s.Status] {
			t.Errorf("%s: replayed as %+v, %v; the ledger says %s: %s", v.CallID, got, err, v.Reason, v.Detail)
		}
	}
}
