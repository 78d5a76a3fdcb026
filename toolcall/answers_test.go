package toolcall

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/callreceipt/reconciler/internal/testdb"
)

// Every answer to a send that is read in full, while the receipt endpoint says NOT_FOUND.
func TestWhatTheAnswerToASendLeadsTo(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	write := func(text string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, text) }
	}
	status := func(code int, header ...string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			for i := 0; i < len(header); i += 2 {
				w.Header().Set(header[i], header[i+1])
			}
			w.WriteHeader(code)
			_, _ = io.WriteString(w, receiptOf("C", "SUCCESS")) // only a 2xx can carry a receipt
		}
	}
	const (
		decided   = "send 1 %s"
		repeated  = "send 1 answered, ask not_found, send 2 answered, ask not_found, send 3 answered, ask not_found, park"
		pointless = "send 1 refused, ask not_found, park"
	)
	ahead := time.Now().Add(time.Hour).UTC().Format(time.RFC3339)
	for _, tt := range []struct {
		name   string
		answer http.HandlerFunc
		status Status
		story  string
	}{
		{"SUCCESS", write(receiptOf("C", "SUCCESS")), Success, fmt.Sprintf(decided, "success")},
		{"FAILED", write(receiptOf("C", "FAILED")), Failed, fmt.Sprintf(decided, "failed")},
		{"SUCCESS of its operation and key", write(receiptOf("C", "SUCCESS", `"operation":"charge","idempotencyKey":"B1:charge"`)), Success, fmt.Sprintf(decided, "success")},
		{"PROCESSING", write(receiptOf("C", "PROCESSING")), Suspended, repeated},
		{"NOT_FOUND", write(`{"callId":"C","bizId":"B1","status":"NOT_FOUND"}`), Suspended, repeated},
		{"of another callId", write(receiptOf("D", "SUCCESS")), Suspended, repeated},
		{"of another bizId", write(strings.Replace(receiptOf("C", "SUCCESS"), "B1", "B2", 1)), Suspended, repeated},
		{"of another operation", write(receiptOf("C", "SUCCESS", `"operation":"refund"`)), Suspended, repeated},
		{"of another key", write(receiptOf("C", "SUCCESS", `"idempotencyKey":"B1:refund"`)), Suspended, repeated},
		{"from the future", write(receiptOf("C", "SUCCESS", `"processedAt":"`+ahead+`"`)), Suspended, repeated},
		{"a list", write(`{"receipts":[` + receiptOf("C", "SUCCESS") + `]}`), Suspended, repeated},
		{"two receipts", write(receiptOf("C", "SUCCESS") + receiptOf("C", "FAILED")), Suspended, repeated},
		{"an error with 200", write(`{"error":"SUCCESS"}`), Suspended, repeated},
		{"a page with 200", write("<html>SUCCESS</html>"), Suspended, repeated},
		{"an empty 200", write(""), Suspended, repeated},
		{"204", status(204), Suspended, repeated},
		{"301", status(301, "Location", "/elsewhere"), Suspended, pointless},
		{"307", status(307, "Location", "/elsewhere"), Suspended, pointless},
		{"400", status(400), Suspended, pointless},
		{"401", status(401), Suspended, pointless},
		{"403", status(403), Suspended, pointless},
		{"404", status(404), Suspended, pointless},
		{"409", status(409), Suspended, repeated},
		{"410", status(410), Suspended, pointless},
		{"413", status(413), Suspended, pointless},
		{"422", status(422), Suspended, pointless},
		{"429", status(429), Suspended, repeated},
		{"429 with a long pause", status(429, "Retry-After", "3"), Suspended, "send 1 throttled, park"},
		{"503 with a long pause", status(503, "Retry-After", "3600"), Suspended, "send 1 throttled, park"},
		{"503 with a short pause", status(503, "Retry-After", "1"), Suspended, "send 1 throttled, ask not_found, send 2 throttled, park"},
		{"500", status(500), Suspended, repeated},
		{"502", status(502), Suspended, repeated},
		{"504", status(504), Suspended, repeated},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			callID := "C-" + tt.name
			endpoint := answers(t, func(w http.ResponseWriter, r *http.Request, n int) {
				if tt.name == "503 with a short pause" && n == 2 {
					status(503, "Retry-After", "9")(w, r)
					return
				}
				tt.answer(&renamed{ResponseWriter: w, callID: callID}, r)
			})
			receipts := answers(t, func(w http.ResponseWriter, _ *http.Request, _ int) { list(w, receiptOf(callID, "NOT_FOUND")) })
			c := newClient(t, Config{DB: db, Tools: []Tool{theTool(endpoint.url, receipts.url)}})
			out, err := c.Do(t.Context(), theCall(callID))
			if err != nil || out.Status != tt.status || told(out.Steps) != tt.story {
				t.Errorf("%s %s, %v", out.Status, told(out.Steps), err)
			}
			if decided := out.Status == Success || out.Status == Failed; decided && (out.Receipt.CallID != callID || string(out.Receipt.Status) != string(out.Status)) {
				t.Errorf("with the receipt %+v", out.Receipt)
			}
			if n := len(endpoint.requests()); n != strings.Count(tt.story, "send") {
				t.Errorf("%d requests were made", n)
			}
		})
	}
}

// renamed puts the callId of its test in the place of "C".
type renamed struct {
	http.ResponseWriter
	callID string
}

func (r *renamed) Write(b []byte) (int, error) {
	return r.ResponseWriter.Write([]byte(strings.Replace(string(b), `"callId":"C"`, fmt.Sprintf(`"callId":%q`, r.callID), 1)))
}

func (r *renamed) WriteString(s string) (int, error) { return r.Write([]byte(s)) }

// The downstream remembers the failure of the first attempt while the second is on its way.
func TestTheFailureOfAnEarlierAttemptDecidesNothing(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	for name, tt := range map[string]struct {
		attempt int
		status  Status
		story   string
	}{
		"stale": {1, Suspended, "send 1 answered, ask not_found, send 2 answered, ask processing, ask processing, ask processing, park"},
		"fresh": {2, Failed, "send 1 answered, ask not_found, send 2 answered, ask failed"},
	} {
		endpoint := answers(t, func(w http.ResponseWriter, _ *http.Request, _ int) { w.WriteHeader(http.StatusInternalServerError) })
		receipts := answers(t, func(w http.ResponseWriter, _ *http.Request, n int) {
			if n == 1 {
				list(w, receiptOf(name, "NOT_FOUND"))
				return
			}
			list(w, receiptOf(name, "FAILED", fmt.Sprintf(`"attempt":%d`, tt.attempt)))
		})
		c := newClient(t, Config{DB: db, Tools: []Tool{theTool(endpoint.url, receipts.url)}})
		out, err := c.Do(t.Context(), theCall(name))
		if err != nil || out.Status != tt.status || told(out.Steps) != tt.story {
			t.Errorf("%s: %s %s, %v", name, out.Status, told(out.Steps), err)
		}
	}
}

func TestALookThatIsThrottledForLongEndsTheAsking(t *testing.T) {
	t.Parallel()
	endpoint := answers(t, func(w http.ResponseWriter, _ *http.Request, _ int) { w.WriteHeader(http.StatusInternalServerError) })
	receipts := answers(t, func(w http.ResponseWriter, _ *http.Request, _ int) {
		w.Header().Set("Retry-After", "60")
		w.WriteHeader(http.StatusTooManyRequests)
	})
	c := newClient(t, Config{DB: testdb.New(t), Tools: []Tool{theTool(endpoint.url, receipts.url)}})
	out, err := c.Do(t.Context(), theCall("C1"))
	if err != nil || out.Status != Suspended || out.Timeout != "receipt" || told(out.Steps) != "send 1 answered, ask unanswered, park" {
		t.Errorf("%+v, %v", out, err)
	}
}

func TestEveryStepIsObservedWhenItHasEndedAndTheEndOfTheCall(t *testing.T) {
	t.Parallel()
	endpoint := answers(t, func(w http.ResponseWriter, _ *http.Request, _ int) { w.WriteHeader(http.StatusInternalServerError) })
	receipts := answers(t, func(w http.ResponseWriter, _ *http.Request, n int) {
		list(w, receiptOf("C1", []string{"PROCESSING", "SUCCESS"}[n-1]))
	})
	var seen []string
	at := noon
	c := newClient(t, Config{
		DB: testdb.New(t), Tools: []Tool{theTool(endpoint.url, receipts.url)},
		Clock:   func() time.Time { at = at.Add(time.Second); return at },
		Observe: func(e Event) { seen = append(seen, fmt.Sprint(e.Tool, " ", e.CallID, " ", e.Step, " ", e.Status)) },
	})
	out, err := c.Do(t.Context(), theCall("C1"))
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"payment.charge C1 send 1 answered 1s ", "payment.charge C1 ask processing 1s ", "payment.charge C1 wait 1s ",
		"payment.charge C1 ask success 1s ", "payment.charge C1 end 9s SUCCESS",
	}
	if strings.Join(seen, "\n") != strings.Join(want, "\n") {
		t.Errorf("observed\n%s", strings.Join(seen, "\n"))
	}
	if len(out.Steps) != 4 || out.Steps[0].Err == nil || out.Steps[3].Err != nil {
		t.Errorf("%+v", out.Steps)
	}
}
