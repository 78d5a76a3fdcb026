package toolcall

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/jmoiron/sqlx"

	"github.com/callreceipt/reconciler/internal/database"
	"github.com/callreceipt/reconciler/internal/testdb"
	"github.com/callreceipt/reconciler/pending"
)

// edge is a call that is as long as can be in every respect.
func edge(c *Call) {
	c.CallID, c.BizID = strings.Repeat("c", 198)+"é", strings.Repeat("b", 998)+"\n\t"
	c.Operation, c.IdempotencyKey = strings.Repeat("o", 200), strings.Repeat("k", 1499)+"\x01"
	c.Request = json.RawMessage(`{"deep":` + strings.Repeat(`[`, 63) + strings.Repeat(`]`, 63) + `,"n":1e4000,"m":-1e-4000,"t":"😀<\u0001\n"}`)
	c.IssuedAt = time.Date(9999, 12, 31, 23, 59, 59, 999999999, time.UTC)
	c.Sent = 1<<31 - 1 - mostSends
}

func TestWhatIsAcceptedCanBeParked(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	receipts := answers(t, func(w http.ResponseWriter, _ *http.Request, _ int) { w.WriteHeader(http.StatusInternalServerError) })
	c := newClient(t, Config{DB: db, Tools: []Tool{theTool(refusing(t), receipts.url)}})
	for name, edit := range map[string]func(*Call){
		"every text at its edge": edge,
		"an empty request":       func(c *Call) { c.CallID, c.Sent, c.IssuedAt, c.Request = "C1", 1, time.Now(), json.RawMessage(` {} `) },
		"the largest request": func(c *Call) {
			c.CallID, c.Sent, c.IssuedAt = "C2", 1, time.Now()
			c.Request = json.RawMessage(`{"t":"` + strings.Repeat("x", MaxRequest-8) + `"}`)
		},
		"many digits": func(c *Call) {
			c.CallID, c.Sent, c.IssuedAt, c.Request = "C3", 1, time.Now(), json.RawMessage(`{"n":[`+strings.Repeat("9", 4000)+`e4000, 0.`+strings.Repeat("9", 3998)+`e-4000]}`)
		},
		"a wide one": func(c *Call) {
			c.CallID, c.Sent, c.IssuedAt, c.Request = "C4", 1, time.Now(), json.RawMessage(`{"a":[`+strings.Repeat("{},", 300_000)+`{}]}`)
		},
	} {
		out, err := c.Do(t.Context(), theCall("", edit))
		if err != nil || out.Status != Suspended {
			t.Errorf("%s: %s, %v", name, out.Status, err)
		}
	}
	if n := len(rows(t, db)); n != 5 {
		t.Errorf("%d rows", n)
	}
	var issued string
	if err := db.Get(&issued, `SELECT issued_at AT TIME ZONE 'UTC' FROM reconciler.pending_confirmations WHERE call_id LIKE 'c%'`); err != nil || !strings.Contains(issued, "9999-12-31T23:59:59.999999") {
		t.Errorf("%s %v", issued, err)
	}
}

// Each of these the table or PostgreSQL would refuse, or two readers would read as two calls.
var unparkable = []struct {
	name, says string
	edit       func(*Call)
	stored     bool // PostgreSQL would take it
}{
	{"no callId", "Call.CallID is empty", func(c *Call) { c.CallID = "" }, false},
	{"201 bytes", "Call.CallID has 201 bytes, more than the 200 allowed", func(c *Call) { c.CallID = strings.Repeat("c", 201) }, false},
	{"200 runes", "Call.CallID has 400 bytes", func(c *Call) { c.CallID = strings.Repeat("é", 200) }, false},
	{"a line break in the callId", "control character", func(c *Call) { c.CallID = "C\n1" }, false},
	{"DEL in the callId", "control character", func(c *Call) { c.CallID = "C\x7f" }, false},
	{"a C1 control in the callId", "control character", func(c *Call) { c.CallID = "C\u0085" }, false},
	{"a NUL in the callId", "NUL", func(c *Call) { c.CallID = "C\x00" }, false},
	{"a callId that is no UTF-8", "Call.CallID is not valid UTF-8", func(c *Call) { c.CallID = "C\xff" }, false},
	{"no bizId", "Call.BizID is empty", func(c *Call) { c.BizID = "" }, false},
	{"a long bizId", "Call.BizID has 1001 bytes", func(c *Call) { c.BizID = strings.Repeat("b", 1001) }, false},
	{"a NUL in the bizId", "Call.BizID holds a NUL", func(c *Call) { c.BizID = "B\x00" }, false},
	{"a bizId that is no UTF-8", "Call.BizID is not valid UTF-8", func(c *Call) { c.BizID = "B\xc3" }, false},
	{"a long operation", "Call.Operation has 201 bytes", func(c *Call) { c.Operation = strings.Repeat("o", 201) }, false},
	{"a NUL in the operation", "Call.Operation holds a NUL", func(c *Call) { c.Operation = "o\x00" }, false},
	{"a long key", "Call.IdempotencyKey has 1501 bytes", func(c *Call) { c.IdempotencyKey = strings.Repeat("k", 1501) }, false},
	{"a key that is no UTF-8", "Call.IdempotencyKey is not valid UTF-8", func(c *Call) { c.IdempotencyKey = "\xff" }, false},
	{"no request", "Call.Request is empty, must be a JSON object", func(c *Call) { c.Request = nil }, true},
	{"a list", "Call.Request is no JSON object but", func(c *Call) { c.Request = json.RawMessage(`[1]`) }, false},
	{"null", "Call.Request is no JSON object but", func(c *Call) { c.Request = json.RawMessage(`null`) }, false},
	{"a broken object", "Call.Request is no JSON object", func(c *Call) { c.Request = json.RawMessage(`{"a":`) }, false},
	{"two objects", "Call.Request is more than one JSON object", func(c *Call) { c.Request = json.RawMessage(`{} {}`) }, false},
	{"text after the object", "Call.Request is more than one JSON object", func(c *Call) { c.Request = json.RawMessage(`{}x`) }, false},
	{"a NUL in the request", `Call.Request at byte 13 holds a NUL character (\u0000)`, func(c *Call) { c.Request = json.RawMessage(`{"a":"\u0000"}`) }, false},
	{"a NUL in a name", "holds a NUL character", func(c *Call) { c.Request = json.RawMessage(`{"a":[{"\u0000":1}]}`) }, false},
	{"half a surrogate", "Call.Request is no JSON object", func(c *Call) { c.Request = json.RawMessage(`{"a":"\ud800"}`) }, false},
	{"a request that is no UTF-8", "Call.Request is no JSON object", func(c *Call) { c.Request = json.RawMessage("{\"a\":\"\xff\"}") }, false},
	{"too large an exponent", "more than 4000 digits or powers of ten", func(c *Call) { c.Request = json.RawMessage(`{"a":1E+200000}`) }, false},
	{"too small an exponent", "more than 4000 digits or powers of ten", func(c *Call) { c.Request = json.RawMessage(`{"a":1e-20000}`) }, false},
	{"an exponent beyond 64 bits", "more than 4000 digits", func(c *Call) { c.Request = json.RawMessage(`{"a":1e99999999999999999999}`) }, false},
	{"too many digits", "more than 4000 digits", func(c *Call) { c.Request = json.RawMessage(`{"a":` + strings.Repeat("9", 140_000) + `}`) }, false},
	{"100,000 levels", "nested deeper than 64 levels", func(c *Call) {
		c.Request = json.RawMessage(`{"a":` + strings.Repeat("[", 1e5) + strings.Repeat("]", 1e5) + `}`)
	}, false},
	{"a megabyte and more", "more than the 1000000 allowed", func(c *Call) { c.Request = json.RawMessage(`{"a":"` + strings.Repeat("x", MaxRequest) + `"}`) }, true},
	{"a name twice", "duplicate", func(c *Call) { c.Request = json.RawMessage(`{"a":{"b":1,"b":2}}`) }, true},
	{"a callId in other letters", "has the member callid, which only upper and lower case tell from callId", func(c *Call) { c.Request = json.RawMessage(`{"callid":"C2"}`) }, true},
	{"an attempt in capitals", "has the member ATTEMPT", func(c *Call) { c.Request = json.RawMessage(`{"a":{"x":[1]},"ATTEMPT":9}`) }, true},
	{"issued in year 1", "must be in the years 2000 to 9999", func(c *Call) { c.IssuedAt = time.Unix(0, 0) }, true},
	{"issued in year 10000", "must be in the years 2000 to 9999", func(c *Call) { c.IssuedAt = time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC) }, true},
	{"sent by an earlier process, and nobody knows when", "Call.IssuedAt is not set", func(c *Call) { c.Sent, c.IssuedAt = 1, time.Time{} }, true},
	{"a negative number of sends", "Call.Sent is -1", func(c *Call) { c.Sent = -1 }, true},
}

func TestACallThatCouldNotBeParkedIsRefusedBeforeAnythingIsSent(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	endpoint := answers(t, func(w http.ResponseWriter, _ *http.Request, _ int) { w.WriteHeader(http.StatusInternalServerError) })
	c := newClient(t, Config{DB: db, Tools: []Tool{theTool(endpoint.url, endpoint.url)}})
	for _, tt := range unparkable {
		call := theCall("C1", tt.edit)
		out, err := c.Do(t.Context(), call)
		if err == nil || !strings.Contains(err.Error(), tt.says) || out.Status != NotSent || len(out.Steps) > 0 {
			t.Errorf("%s: %+v, %v", tt.name, out, err)
			continue
		}
		if strings.ContainsAny(err.Error(), "\x00\n") || !utf8.ValidString(err.Error()) || len(err.Error()) > 2000 {
			t.Errorf("%s: %d bytes of %q", tt.name, len(err.Error()), err)
		}
		if tt.stored || c.db == nil {
			continue
		}
		// That it could not have been parked is not taken from a document.
		s := pending.Suspension{CallID: call.CallID, BizID: call.BizID, Tool: call.Tool, Operation: "charge", IdempotencyKey: call.IdempotencyKey, Request: call.Request}
		if call.Operation != "" {
			s.Operation = call.Operation
		}
		err = database.InTx(t.Context(), db, func(tx *sqlx.Tx) error {
			_, err := pending.Suspend(t.Context(), tx, s)
			return errors.Join(err, errIfStored)
		})
		if err == nil || err.Error() == errIfStored.Error() {
			t.Errorf("%s: the table takes it", tt.name)
		}
	}
	if n := len(endpoint.requests()); n > 0 {
		t.Errorf("%d requests were made", n)
	}
}

var errIfStored = errors.New("it was stored")

func TestACallWithoutAnyPlaceToParkItIsRefused(t *testing.T) {
	t.Parallel()
	c := newClient(t, Config{Tools: []Tool{theTool("http://127.0.0.1:1/", "http://127.0.0.1:1/")}})
	out, err := c.Do(t.Context(), theCall("C1"))
	if err == nil || !strings.Contains(err.Error(), "neither Config.DB nor Call.Transaction is set") || out.Status != NotSent || len(out.Steps) > 0 {
		t.Errorf("%+v, %v", out, err)
	}
}

func TestACallWithoutAnOperationIsRefused(t *testing.T) {
	t.Parallel()
	c := newClient(t, Config{DB: testdb.New(t), Tools: []Tool{theTool("http://127.0.0.1:1/", "http://127.0.0.1:1/", func(t *Tool) { t.Operation = "" })}})
	if _, err := c.Do(t.Context(), theCall("C1")); err == nil || !strings.Contains(err.Error(), "Call.Operation is empty") {
		t.Error(err)
	}
}

func TestAToolThatWasNotRegisteredIsUnknown(t *testing.T) {
	t.Parallel()
	c := newClient(t, Config{Tools: []Tool{
		theTool("http://127.0.0.1:1/", "http://127.0.0.1:1/"), theTool("http://127.0.0.1:1/", "http://127.0.0.1:1/", func(t *Tool) { t.Name = "a\nb" }),
	}})
	out, err := c.Do(context.Background(), theCall("C1", func(c *Call) { c.Tool = "payment.refund" }))
	if !errors.Is(err, ErrUnknownTool) || out.Status != NotSent || err.Error() != `toolcall: unknown tool payment.refund, registered: "a\nb", payment.charge` {
		t.Errorf("%+v, %v", out, err)
	}
}

func TestAToolThatCannotBeRightIsRefusedWithBothValues(t *testing.T) {
	t.Parallel()
	const url = "http://127.0.0.1:1/"
	for says, edit := range map[string]func(*Tool){
		"Tool.NeedsReceipt is true, but Tool.Receipts.URL is empty":  func(t *Tool) { t.Receipts.URL = "" },
		"Tool.MaxSends is 4, must be from 1 to 3":                    func(t *Tool) { t.MaxSends = 4 },
		"Tool.MaxSends is -1, must be from 1 to 3":                   func(t *Tool) { t.MaxSends = -1 },
		"Tool.Concurrency is -1":                                     func(t *Tool) { t.Concurrency = -1 },
		"Config.Tools[0].Name is empty":                              func(t *Tool) { t.Name = "" },
		"Config.Tools[0].Name has 201 bytes":                         func(t *Tool) { t.Name = strings.Repeat("t", 201) },
		"Tool.Operation has 201 bytes":                               func(t *Tool) { t.Operation = strings.Repeat("o", 201) },
		"tool payment.charge: Tool.Endpoint: Config.URL: is missing": func(t *Tool) { t.Endpoint.URL = "" },
		"Tool.Endpoint: Config.Timeout: 0s, must be above 0":         func(t *Tool) { t.Endpoint.Timeout = 0 },
		"Tool.Receipts: Config.Timeout: 0s, must be above 0":         func(t *Tool) { t.Receipts.Timeout = 0 },
	} {
		if c, err := New(Config{Tools: []Tool{theTool(url, url, edit)}}); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%v, %v, want %q", c, err, says)
		}
	}
	if _, err := New(Config{Tools: []Tool{theTool(url, url), theTool(url, url)}}); err == nil || !strings.Contains(err.Error(), "Config.Tools[1]: payment.charge is registered twice") {
		t.Error(err)
	}
	if _, err := New(Config{}); err == nil || !strings.Contains(err.Error(), "Config.Tools is empty") {
		t.Error(err)
	}
	for _, sends := range []int{0, 1, 2, 3} {
		if _, err := New(Config{Tools: []Tool{theTool(url, url, func(t *Tool) { t.MaxSends = sends })}}); err != nil {
			t.Errorf("%d: %v", sends, err)
		}
	}
}

func TestWhatACallLeavesOutHasADefault(t *testing.T) {
	t.Parallel()
	made, err := newCall(theCall("C1"), &tool{name: "payment.charge", operation: "charge"}, noon.Add(123456789))
	if err != nil {
		t.Fatal(err)
	}
	want := "{C1 B1 charge B1:charge 2 2024-05-01 12:00:00.123456 +0000 UTC"
	if got := fmt.Sprint(made.attempt(2)); !strings.HasPrefix(got, want) {
		t.Errorf("%s, want %s", got, want)
	}
}
