package reconcile

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/callreceipt/reconciler/internal/task"
	"github.com/callreceipt/reconciler/receipt"
)

// answers is what a receipt endpoint may answer (the list of the field cases), for a batch that holds B0.
var answers = map[string]http.HandlerFunc{
	"no byte until the timeout":        func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
	"headers, then silence":            func(w http.ResponseWriter, r *http.Request) { flush(w, ""); <-r.Context().Done() },
	"half an answer, then silence":     func(w http.ResponseWriter, r *http.Request) { flush(w, `{"receipts":[`); <-r.Context().Done() },
	"body shorter than Content-Length": func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Content-Length", "99"); flush(w, "{") },
	"array cut at an item boundary":    says(200, `{"receipts":[`+item("C0", "B0", `"SUCCESS"`)),
	"empty 200":                        says(200, ""),
	"204":                              says(204, ""),
	"HTML with 200":                    says(200, "<html><body>Welcome</body></html>"),
	"an error with 200":                says(200, `{"error":"database is down"}`),
	"an error beside receipts":         says(200, `{"error":"database is down","receipts":[]}`),
	"null":                             says(200, "null"),
	"[null]":                           says(200, "[null]"),
	"receipts null":                    says(200, `{"receipts":null}`),
	"a null receipt":                   says(200, `{"receipts":[null]}`),
	"409":                              says(409, "{}"),
	"413":                              says(413, ""),
	"400":                              says(400, ""),
	"422":                              says(422, ""),
	"429 without Retry-After":          says(429, ""),
	"429 negative":                     saysAfter(429, "-5"),
	"429 rubbish":                      saysAfter(429, "soon"),
	"500":                              says(500, ""),
	"502":                              says(502, ""),
	"503":                              says(503, ""),
	"504":                              says(504, ""),
	"the id is missing":                says(200, `{"receipts":[]}`),
	"only an id that nobody asked for": says(200, `{"receipts":[`+item("C77", "B77", `"SUCCESS"`)+`]}`),
	"the id in another case":           says(200, `{"receipts":[`+item("C0", "b0", `"SUCCESS"`)+`]}`),
	"the id with a space":              says(200, `{"receipts":[`+item("C0", "B0 ", `"SUCCESS"`)+`]}`),
	"the id null":                      says(200, `{"receipts":[{"callId":"C0","bizId":null,"status":"SUCCESS"}]}`),
	"the callId empty":                 says(200, `{"receipts":[`+item("", "B0", `"SUCCESS"`)+`]}`),
	"the callId a number":              says(200, `{"receipts":[{"callId":7,"bizId":"B0","status":"SUCCESS"}]}`),
	"the callId 1 MB":                  says(200, `{"receipts":[`+item(strings.Repeat("x", 1<<20), "B0", `"SUCCESS"`)+`]}`),
	"an unknown status":                says(200, `{"receipts":[`+item("C0", "B0", `"DONE"`)+`]}`),
	"the status in lower case":         says(200, `{"receipts":[`+item("C0", "B0", `"success"`)+`]}`),
	"the status 0":                     says(200, `{"receipts":[`+item("C0", "B0", `0`)+`]}`),
	"the status true":                  says(200, `{"receipts":[`+item("C0", "B0", `true`)+`]}`),
	"no status":                        says(200, `{"receipts":[{"callId":"C0","bizId":"B0"}]}`),
	"a key twice":                      says(200, `{"receipts":[{"callId":"C0","bizId":"B0","status":"FAILED","status":"SUCCESS"}]}`),
	"a key twice in another case":      says(200, `{"receipts":[{"callId":"C0","bizId":"B0","status":"FAILED","STATUS":"SUCCESS"}]}`),
	"invalid UTF-8":                    says(200, "{\"receipts\":[{\"callId\":\"C0\",\"bizId\":\"B0\",\"status\":\"SUCCESS\",\"result\":\"\xff\"}]}"),
	"a lone surrogate":                 says(200, `{"receipts":[{"callId":"C0","bizId":"B0","status":"SUCCESS","result":"\ud800"}]}`),
	"a byte order mark":                says(200, "\ufeff"+`{"receipts":[`+item("C0", "B0", `"SUCCESS"`)+`]}`),
	"a NUL in a text":                  says(200, `{"receipts":[{"callId":"C0","bizId":"B0","status":"SUCCESS","result":"\u0000"}]}`),
	"trailing rubbish":                 says(200, `{"receipts":[`+item("C0", "B0", `"SUCCESS"`)+`]}{}`),
	"nested 10,000 deep": says(200, `{"receipts":[{"callId":"C0","bizId":"B0","status":"SUCCESS","result":`+
		strings.Repeat("[", 10_000)+strings.Repeat("]", 10_000)+`}]}`),
	"1,000,000 items": func(w http.ResponseWriter, _ *http.Request) { flood(w, 1_000_000*30) },
	"100 MB":          func(w http.ResponseWriter, _ *http.Request) { flood(w, 100<<20) },
	"a gzip bomb":     bomb,
	"a wrong Content-Encoding": func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Encoding", "gzip")
		flush(w, "plain")
	},
	"processed in the future":   says(200, `{"receipts":[{"callId":"C0","bizId":"B0","status":"SUCCESS","processedAt":"2999-01-01T00:00:00Z"}]}`),
	"processed in year 1":       says(200, `{"receipts":[{"callId":"C0","bizId":"B0","status":"SUCCESS","processedAt":"0001-01-01T00:00:00Z"}]}`),
	"processed without a zone":  says(200, `{"receipts":[{"callId":"C0","bizId":"B0","status":"SUCCESS","processedAt":"2026-01-01T00:00:00"}]}`),
	"the answer of another one": says(200, `{"receipts":[`+item("C5000", "B5000", `"SUCCESS"`)+`,`+item("C5001", "B5001", `"FAILED"`)+`]}`),
	"the connection is cut":     func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
}

func item(callID, bizID, status string) string {
	return fmt.Sprintf(`{"callId":%q,"bizId":%q,"status":%s}`, callID, bizID, status)
}

func says(status int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}

func saysAfter(status int, after string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", after)
		w.WriteHeader(status)
	}
}

func flush(w http.ResponseWriter, body string) {
	_, _ = io.WriteString(w, body)
	_ = http.NewResponseController(w).Flush()
}

func flood(w io.Writer, size int) {
	_, _ = io.WriteString(w, `{"receipts":[`)
	chunk := []byte(strings.Repeat(`{"bizId":"B0","status":"NOT_FOUND"},`, 1000))
	for sent := 0; sent < size; sent += len(chunk) {
		if _, err := w.Write(chunk); err != nil {
			return
		}
	}
}

func bomb(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Encoding", "gzip")
	var small bytes.Buffer
	z := gzip.NewWriter(&small)
	flood(z, 50<<20)
	_ = z.Close()
	_, _ = w.Write(small.Bytes())
}

func TestNoAnswerOfTheFieldSettlesACallWronglyOrHoldsUpAnother(t *testing.T) {
	t.Parallel()
	for name, answer := range answers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, d := open(t)
			parkMany(t, db, 30)
			for i := 10; i < 30; i++ {
				d.say(fmt.Sprint("C", i), fmt.Sprint("B", i), "SUCCESS")
			}
			// The rows are due in the order of their callIds as text: C0, C1, C10 … share a batch, and so do the good ones.
			proxy := d.behind(t, func(w http.ResponseWriter, r *http.Request, body string) bool {
				if strings.Contains(body, `"B0"`) {
					answer(w, r)
					return true
				}
				return false
			})
			client, err := receipt.NewClient(receipt.Config{URL: proxy, Timeout: 400 * time.Millisecond, Concurrency: 4})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(client.Close)
			r := on(t, db, d, func(c *Config) { c.Source = client })
			sum, err := r.RunOnce(context.Background(), Limits{})
			if err != nil || sum.Outcome != task.Partial {
				t.Errorf("%v, %+v", err, sum)
			}
			bad := look(t, db, "C0")
			if bad.Status != "PENDING" || bad.Reason != "unanswered" || bad.LastError == "" || bad.Checks != 0 || bad.Unanswered != 1 {
				t.Errorf("%+v", bad)
			}
			if n := count(t, db, `status NOT IN ('PENDING', 'SUCCESS')`); n > 0 {
				t.Errorf("%d rows got a verdict that nobody gave", n)
			}
			if n := count(t, db, `status = 'SUCCESS' AND receipt->>'callId' <> call_id`); n > 0 {
				t.Errorf("%d rows stand on the receipt of another", n)
			}
			if sum.Success < 12 {
				t.Errorf("only %d of the good rows of other batches were settled", sum.Success)
			}
			t.Log(bad.LastError)
		})
	}
}
