package idempotency

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/lib/pq"
	"pgregory.net/rapid"

	"github.com/callreceipt/reconciler/internal/eventually"
	"github.com/callreceipt/reconciler/internal/testdb"
	"github.com/callreceipt/reconciler/migrations"
	"github.com/callreceipt/reconciler/receipt"
)

// desk is a downstream's database, its receipt query served over HTTP, and the reconciler's client for it.
type desk struct {
	*sqlx.DB
	*receipt.Client
	url string
	log *lines
}

func newDesk(t testing.TB) *desk {
	t.Helper()
	d := &desk{DB: testdb.New(t, migrations.Downstream), log: &lines{}}
	server := httptest.NewServer(NewReceipts(d.DB, slog.New(slog.NewTextHandler(d.log, nil))))
	t.Cleanup(server.Close)
	client, err := receipt.NewClient(receipt.Config{URL: server.URL, Timeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	d.url, d.Client = server.URL, client
	return d
}

// lines is what was logged.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// hold writes a receipt, as a service in any language does.
func (d *desk) hold(t rapid.TB, callID, bizID, status, result string) error {
	t.Helper()
	_, err := d.Exec(`SELECT idempotency.keep_receipt($1, $2, 'charge', $2 || ':charge', $3, nullif($4, '')::json, 1, '2024-05-01T10:00:00.123456Z')`,
		callID, bizID, status, result)
	return err
}

func (d *desk) mustHold(t rapid.TB, callID, bizID, status, result string) {
	t.Helper()
	if err := d.hold(t, callID, bizID, status, result); err != nil {
		t.Fatalf("%q %q: %v", callID, bizID, err)
	}
}

// post sends a body and returns the status and the body of the answer.
func (d *desk) post(t testing.TB, body string) (status int, answer string) {
	t.Helper()
	resp, err := http.Post(d.url, "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.Header.Get("Content-Type") != "application/json" {
		t.Fatalf("%s: %v", resp.Header, err)
	}
	return resp.StatusCode, string(text)
}

func TestEveryReceiptOfABizIDIsListedAndTheOthersAreNotFound(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.mustHold(t, "B1-0002", "B1", "PROCESSING", "")
	d.mustHold(t, "B1-0001", "B1", "SUCCESS", ` {"ref": "x",  "n":1.50} `)
	d.mustHold(t, "B3-0001", "B3", "FAILED", `null`)
	status, body := d.post(t, `{"bizIds":["B2","B1","B2"]}`)
	want := `{"receipts":[{"bizId":"B2","status":"NOT_FOUND"},` +
		`{"callId":"B1-0001","bizId":"B1","operation":"charge","idempotencyKey":"B1:charge","status":"SUCCESS","result": {"ref": "x",  "n":1.50} ,` +
		`"processedAt":"2024-05-01T10:00:00.123456Z","attempt":1},` +
		`{"callId":"B1-0002","bizId":"B1","operation":"charge","idempotencyKey":"B1:charge","status":"PROCESSING",` +
		`"processedAt":"2024-05-01T10:00:00.123456Z","attempt":1}]}`
	if status != 200 || body != want {
		t.Errorf("%d %s\nwant %s", status, body, want)
	}
	a, err := d.Query(t.Context(), []string{"B1", "B2", "B3"})
	if err != nil || len(a.Of["B1"].Receipts) != 2 || a.Of["B2"].Presence != receipt.Absent || string(a.Of["B3"].Receipts[0].Result) != "null" || a.Unasked != 0 {
		t.Errorf("%+v, %v", a, err)
	}
}

func TestAQuestionAboutCallsIsAnsweredForThemAlone(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.mustHold(t, "B1-0001", "B1", "SUCCESS", `1`)
	d.mustHold(t, "B1-0002", "B1", "PROCESSING", ``)
	status, body := d.post(t, `{"callIds":["B1-0003","B1-0002"]}`)
	want := `{"receipts":[{"callId":"B1-0003","status":"NOT_FOUND"},` +
		`{"callId":"B1-0002","bizId":"B1","operation":"charge","idempotencyKey":"B1:charge","status":"PROCESSING",` +
		`"processedAt":"2024-05-01T10:00:00.123456Z","attempt":1}]}`
	if status != 200 || body != want {
		t.Errorf("%d %s\nwant %s", status, body, want)
	}
	a, err := d.QueryCalls(t.Context(), []string{"B1-0001", "B1-0003"})
	if err != nil || a.Of["B1-0001"].Presence != receipt.Present || a.Of["B1-0003"].Presence != receipt.Absent || a.Unasked != 0 {
		t.Errorf("%+v, %v", a, err)
	}
}

// hostile are ids of which no two are one, whoever folds case, trims space or normalizes.
var hostile = []string{
	"a", "A", "a ", " a", "\u00e9", "e\u0301", `"`, `\`, `\u0041`, "%", "%00", "../../etc/passwd", "<script>alert(1)</script>", `=HYPERLINK("x")`,
	"'; DROP TABLE idempotency.receipts; --", "{}", "{a,b}", `{"a"}`, "NULL", "null", "$1", "\u2028\u2029", "\ufeff", "\ufffd", "\U0001f4b8", "\u202egnp", "ﬀ",
	"\u00a0", "\\x41", strings.Repeat("x", 200), strings.Repeat("\u00e9", 100), "NOT_FOUND", ",", "//", "/*",
}

// control is what only a bizId may hold.
var control = []string{"\n", "a\r\nb", "\t", "\x1b[31m", "\x01", "\x7f", "\u0085", "[call=x]\n", strings.Repeat("\x01", 1000), strings.Repeat("y", 1000)}

func TestHostileIDsComeBackByteForByte(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	bizIDs := slices.Concat(hostile, control)
	for i, id := range bizIDs {
		if i%2 == 0 {
			d.mustHold(t, fmt.Sprint("call-", i), id, "SUCCESS", `1`)
		}
		if i < len(hostile) && i%2 == 1 {
			d.mustHold(t, id, "some-biz", "FAILED", ``)
		}
	}
	known := func(kind string, ids []string, a receipt.Answer, err error, rest int, id func(receipt.Receipt) string) {
		t.Helper()
		if err != nil || len(a.Of) != len(ids) || a.Unasked != 0 || a.Duplicates != 0 {
			t.Fatalf("%s: %d of %d, %v", kind, len(a.Of), len(ids), err)
		}
		for i, asked := range ids {
			switch e := a.Of[asked]; {
			case i%2 != rest && e.Presence != receipt.Absent:
				t.Errorf("%s %q is there: %+v", kind, asked, e)
			case i%2 == rest && (e.Presence != receipt.Present || id(e.Receipts[0]) != asked):
				t.Errorf("%s %q: %+v", kind, asked, e)
			}
		}
	}
	a, err := d.Query(t.Context(), bizIDs)
	known("bizId", bizIDs, a, err, 0, func(r receipt.Receipt) string { return r.BizID })
	a, err = d.QueryCalls(t.Context(), hostile)
	known("callId", hostile, a, err, 1, func(r receipt.Receipt) string { return r.CallID })
}

func TestAnAnswerIsNoLargerThanItsReaderTakesAndHalvesHelp(t *testing.T) {
	if testing.Short() {
		t.Skip("under the race detector it takes half a minute; the plain run has it")
	}
	t.Parallel()
	d := newDesk(t)
	fill := func(biz string, n int) {
		d.MustExec(`INSERT INTO idempotency.receipts SELECT $1 || '-' || i, $1, 'o', 'k', 'SUCCESS', NULL, 1, now() FROM generate_series(1, $2::int) i`, biz, n)
	}
	fill("B1", mostReceipts-1)
	fill("B2", 3)
	if a, err := d.Query(t.Context(), []string{"B0", "B1"}); err != nil || len(a.Of["B1"].Receipts) != mostReceipts-1 {
		t.Errorf("as many as there may be: %v", err)
	}
	for _, ids := range [][]string{{"B1", "B2"}, {"B1", "B0", "B00"}} {
		var e *receipt.Error
		if _, err := d.Query(t.Context(), ids); !errors.As(err, &e) || e.Outcome != receipt.BadBatch || e.Kind != receipt.KindTooLarge || e.Status != 413 {
			t.Errorf("%v: %v", ids, err)
		}
	}
	all, err := receipt.Collect(t.Context(), []string{"B0", "B00", "B1", "B2"}, d.Query)
	if err != nil || len(all.Evidence["B1"].Receipts) != mostReceipts-1 || len(all.Evidence["B2"].Receipts) != 3 || all.Evidence["B0"].Presence != receipt.Absent {
		t.Errorf("by halves: %v", err)
	}
}

// It is not parallel, since it looks at the memory of the whole process.
func TestAnAnswerThatWouldBeTooLargeTakesNoMoreMemoryThanOneThatIsNot(t *testing.T) {
	d := newDesk(t)
	d.MustExec(`INSERT INTO idempotency.receipts SELECT 'C' || i, 'B1', 'o', 'k', 'SUCCESS', to_json(repeat('x', 200000)), 1, now() FROM generate_series(1, 600) i`)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	status, body := d.post(t, `{"bizIds":["B1","B2"]}`)
	runtime.ReadMemStats(&after)
	if mb := (after.TotalAlloc - before.TotalAlloc) >> 20; status != 413 || mb > 80 {
		t.Errorf("%d %.100s after %d MiB, of 120 in the table", status, body, mb)
	}
	if _, err := d.Query(t.Context(), []string{"B2"}); err != nil {
		t.Errorf("the next question: %v", err)
	}
}

// Its calls would never be settled: nobody can ask for less than one bizId.
func TestABizIDWhoseResultsAreTooLargeIsAnsweredWithoutThem(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.MustExec(`INSERT INTO idempotency.receipts SELECT 'C' || i, 'B1', 'o', 'k', 'SUCCESS', to_json(repeat('x', 200000)), 1, now() FROM generate_series(1, 50) i`)
	all, err := receipt.Collect(t.Context(), []string{"B0", "B1"}, d.Query)
	if err != nil || len(all.Evidence["B1"].Receipts) != 50 || all.Evidence["B0"].Presence != receipt.Absent {
		t.Fatalf("%d receipts, %v", len(all.Evidence["B1"].Receipts), err)
	}
	if r := all.Evidence["B1"].Receipts[0]; r.Status != receipt.StatusSuccess || r.Result != nil {
		t.Errorf("%s", r.Raw)
	}
}

func TestOneQueryByIndexAnswersAlsoWithManyRows(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.MustExec(`INSERT INTO idempotency.receipts SELECT 'B' || i / 3 || '-' || i, 'B' || i / 3, 'o', 'k', 'SUCCESS', NULL, 1, now() FROM generate_series(1, 60000) i`)
	for _, analysed := range []bool{false, true} {
		if analysed {
			d.MustExec(`ANALYZE idempotency.receipts`)
		}
		for _, ids := range []int{1, 200, 1000} {
			for index, l := range map[string]look{"receipts_biz": byBiz, "receipts_pkey": byCall} {
				asked := make([]string, ids)
				for i := range asked {
					asked[i] = fmt.Sprint("B", i*7)
				}
				var plan []string
				if err := d.Select(&plan, `EXPLAIN `+l.query(), pq.StringArray(asked), mostReceipts+1, mostResult); err != nil {
					t.Fatal(err)
				}
				if text := strings.Join(plan, "\n"); !strings.Contains(text, index) || strings.Contains(text, "Seq Scan") {
					t.Errorf("%d ids, analysed: %t: %s", ids, analysed, text)
				}
			}
		}
	}
}

func TestAResultThatNobodyCanReadIsLeftOutAndItsCallIsSettledAllTheSame(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	deep := strings.Repeat("[", 64) + strings.Repeat("]", 64)
	results := map[string]string{
		"NUL": `"\u0000"`, "twice": `{"a":1,"a":2}`, "surrogate": `"\ud800"`, "deep": deep, "large": `"` + strings.Repeat("x", mostResult-100) + `"`,
		"larger": `"` + strings.Repeat("x", 2*mostResult) + `"`,
	}
	for name, result := range results {
		d.mustHold(t, name+"-1", name, "SUCCESS", result)
	}
	d.mustHold(t, "good-1", "good", "SUCCESS", `{"\u0041":"\\u0000"}`)
	for name := range results {
		a, err := d.Query(t.Context(), []string{name, "good"})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got := a.Of[name].Receipts; len(got) != 1 || got[0].Status != receipt.StatusSuccess || got[0].Result != nil {
			t.Errorf("%s: %+v", name, got)
		}
		if got := string(a.Of["good"].Receipts[0].Result); got != `{"\u0041":"\\u0000"}` {
			t.Errorf("good: %s", got)
		}
		if !strings.Contains(d.log.String(), "[call="+name+"-1][biz="+name+"][try=1] nobody can read the result") {
			t.Errorf("%s was not logged: %s", name, d.log)
		}
	}
}

func TestAReceiptThatNobodyCanReadSpoilsNoOther(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.mustHold(t, "B1-1", "B1", "SUCCESS", `1`)
	d.mustHold(t, "B2-1", "B2", "SUCCESS", `1`)
	d.MustExec(`ALTER DOMAIN idempotency.idempotency_key DROP CONSTRAINT key_is_bounded`) // somebody thinks it is in the way
	d.MustExec(`UPDATE idempotency.receipts SET idempotency_key = repeat('k', 1501) WHERE call_id = 'B2-1'`)
	all, err := receipt.Collect(t.Context(), []string{"B0", "B1", "B2", "B3"}, d.Query)
	if err != nil || all.Evidence["B0"].Presence != receipt.Absent || all.Evidence["B1"].Presence != receipt.Present || all.Evidence["B3"].Presence != receipt.Absent {
		t.Errorf("%+v, %v", all, err)
	}
	if e := all.Evidence["B2"].Err; e == nil || e.Status != 422 || !strings.Contains(d.log.String(), "[call=B2-1]") {
		t.Errorf("B2: %+v, log: %s", all.Evidence["B2"], d.log)
	}
}

func TestTroubleOfTheDatabaseIsLoggedAndNotTold(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.MustExec(`ALTER TABLE idempotency.receipts RENAME TO elsewhere`)
	status, body := d.post(t, `{"bizIds":["B1"]}`)
	if status != 500 || strings.Contains(body, "idempotency") || !strings.HasPrefix(body, `{"error":"`) {
		t.Errorf("%d %s", status, body)
	}
	if !strings.Contains(d.log.String(), `relation \"idempotency.receipts\" does not exist`) {
		t.Errorf("the log says %s", d.log)
	}
}

func TestAQueryEndsWithWhoAskedForIt(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	lock := d.MustBegin()
	defer func() { _ = lock.Rollback() }()
	lock.MustExec(`LOCK TABLE idempotency.receipts IN ACCESS EXCLUSIVE MODE`)
	waiting := func() (n int) {
		if err := d.Get(&n, `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`); err != nil {
			t.Error(err)
		}
		return n
	}
	ctx, giveUp := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := d.Query(ctx, []string{"B1"})
		done <- err
	}()
	eventually.True(t, "the query waits", func() bool { return waiting() == 1 })
	giveUp()
	if err := <-done; err == nil {
		t.Error("it was answered")
	}
	eventually.True(t, "the query is gone", func() bool { return waiting() == 0 })
	if d.log.String() != "" {
		t.Errorf("a client that leaves was logged: %s", d.log)
	}
}

func TestTheQueryHasAStatementTimeoutAndTheSessionKeepsItsOwn(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.SetMaxOpenConns(1)
	d.mustHold(t, "B1-0001", "B1", "SUCCESS", "1")
	d.MustExec(`SET statement_timeout = '77s'; ALTER TABLE idempotency.receipts RENAME TO stored;
		CREATE VIEW idempotency.receipts AS SELECT call_id, biz_id, current_setting('statement_timeout') AS operation, idempotency_key, status, result,
			attempt, processed_at FROM idempotency.stored`)
	a, err := d.Query(t.Context(), []string{"B1"})
	if err != nil || a.Of["B1"].Receipts[0].Operation != queryLimit {
		t.Fatalf("%+v, %v", a, err)
	}
	var own string
	if err := d.Get(&own, `SHOW statement_timeout`); err != nil || own != "77s" {
		t.Errorf("%s, %v", own, err)
	}
}
