package toolcall

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/callreceipt/reconciler/internal/testdb"
)

// hostile has ids that some encodings do not keep, and a request that names another call.
func hostile(c *Call) {
	c.CallID, c.BizID, c.Operation, c.IdempotencyKey = `C 1"<&>é\`, "B\n\t1", "charge/é", "K\x01€"
	c.IssuedAt = time.Date(2024, 5, 1, 18, 0, 0, 123456789, time.FixedZone("CST", 8*3600))
	c.Request = json.RawMessage(`{"callId":"another","attempt":9,"timestamp":"1999-01-01T00:00:00Z","idempotencyKey":null,"amount":9007199254740993}`)
}

func TestAllRequestsOfACallCarryOneCallID(t *testing.T) {
	t.Parallel()
	cut := func(w http.ResponseWriter) { // read, and not answered
		conn, _, err := http.NewResponseController(w).Hijack()
		if err == nil {
			_ = conn.Close()
		}
	}
	for _, tt := range []struct {
		name    string
		sends   string // what becomes of each
		looks   string // what is said at each look
		sent    int
		status  Status
		want    string // the attempts that arrived
		attempt int
	}{
		{"answered", "SUCCESS", "", 0, Success, "1", 1},
		{"lost twice, then refused by the business", "cut 500 FAILED", "NOT_FOUND NOT_FOUND", 0, Failed, "1 2 3", 3},
		{"lost, and executed", "cut", "PROCESSING SUCCESS", 0, Success, "1", 1},
		{"lost three times", "cut 503 html", "NOT_FOUND NOT_FOUND PROCESSING NOT_FOUND", 0, Suspended, "1 2 3", 3},
		{"another process began it", "cut SUCCESS", "NOT_FOUND NOT_FOUND", 1, Success, "2 3", 3},
		{"another process began it, and it was executed", "", "SUCCESS", 2, Success, "", 2},
		{"refused for good", "422", "NOT_FOUND", 0, Suspended, "1", 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var call Call
			hostile(&call)
			of := func(status string) string {
				r := map[string]any{"callId": call.CallID, "bizId": call.BizID, "operation": call.Operation, "idempotencyKey": call.IdempotencyKey, "status": status}
				text, err := json.Marshal(r)
				if err != nil {
					t.Error(err)
				}
				return string(text)
			}
			sends, looks := strings.Fields(tt.sends), strings.Fields(tt.looks)
			endpoint := answers(t, func(w http.ResponseWriter, r *http.Request, n int) {
				if head := r.Header.Values("Idempotency-Key"); len(head) > 0 { // no header can carry this key
					t.Errorf("Idempotency-Key: %q", head)
				}
				switch fate := sends[n-1]; fate {
				case "cut":
					cut(w)
				case "SUCCESS", "FAILED":
					_, _ = io.WriteString(w, of(fate))
				case "html":
					_, _ = io.WriteString(w, "<p>SUCCESS</p>")
				default:
					var status int
					_, _ = fmt.Sscan(fate, &status)
					w.WriteHeader(status)
				}
			})
			receipts := answers(t, func(w http.ResponseWriter, _ *http.Request, n int) { list(w, of(looks[n-1])) })
			db := testdb.New(t)
			c := newClient(t, Config{DB: db, Tools: []Tool{theTool(endpoint.url, receipts.url)}})
			out, err := c.Do(t.Context(), theCall("", hostile, func(c *Call) { c.Sent = tt.sent }))
			if err != nil || out.Status != tt.status || out.Attempt != tt.attempt {
				t.Errorf("%+v, %v", out, err)
			}
			var attempts []string
			for _, r := range endpoint.sends() {
				attempts = append(attempts, fmt.Sprint(r.Attempt))
				want := sentRequest{Attempt: r.Attempt, CallID: call.CallID, BizID: call.BizID, Op: call.Operation, Key: call.IdempotencyKey, At: "2024-05-01T10:00:00.123456Z"}
				if diff := cmp.Diff(want, r); diff != "" {
					t.Error(diff)
				}
			}
			if got := strings.Join(attempts, " "); got != tt.want {
				t.Errorf("attempts %s, want %s", got, tt.want)
			}
			for _, body := range endpoint.requests() {
				if !strings.Contains(body, `"amount":9007199254740993,`) {
					t.Errorf("the amount is another one in %s", body)
				}
			}
			if n := len(receipts.requests()); n != len(looks) {
				t.Errorf("%d looks, want %d", n, len(looks))
			}
			asked, _ := json.Marshal(map[string][]string{"callIds": {call.CallID}})
			for _, q := range receipts.requests() {
				if !sameJSON(t, q, string(asked)) {
					t.Errorf("asked %s", q)
				}
			}
			var parked []string
			err = db.Select(&parked, `SELECT concat_ws('|', call_id, biz_id, operation, idempotency_key, to_char(issued_at AT TIME ZONE 'UTC', 'HH24:MI:SS.US'))
				FROM reconciler.pending_confirmations`)
			want := []string(nil)
			if tt.status == Suspended {
				want = []string{strings.Join([]string{call.CallID, call.BizID, call.Operation, call.IdempotencyKey, "10:00:00.123456"}, "|")}
			}
			if diff := cmp.Diff(want, parked); diff != "" || err != nil {
				t.Error(diff, err)
			}
		})
	}
}

func sameJSON(t *testing.T, a, b string) bool {
	var left, right any
	if err := json.Unmarshal([]byte(a), &left); err != nil {
		t.Error(err)
	}
	if err := json.Unmarshal([]byte(b), &right); err != nil {
		t.Error(err)
	}
	return cmp.Equal(left, right)
}

// Nobody listens at first; the downstream comes up after the first send.
func TestADownstreamThatComesBackGetsTheFirstAttempt(t *testing.T) {
	t.Parallel()
	fd, url := reserve(t)
	var bodies chan []byte
	up := func(e Event) {
		if e.Step.Result != ResultNotConnected || bodies != nil {
			return
		}
		bodies = make(chan []byte, 1)
		serveOne(t, fd, func(conn net.Conn) {
			raw := readRequest(conn)
			answer := receiptOf("C1", "SUCCESS", `"attempt":1`)
			_, _ = fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(answer), answer)
			bodies <- raw
		})
	}
	c := newClient(t, Config{DB: testdb.New(t), Observe: up, Tools: []Tool{theTool(url, url, func(t *Tool) { t.Retryable = false })}})
	out, err := c.Do(t.Context(), theCall("C1"))
	if err != nil || out.Status != Success || out.Attempt != 1 || told(out.Steps) != "send 1 not_connected, send 1 success" {
		t.Fatalf("%+v, %v", out, err)
	}
	if r := parseRequest(<-bodies); r.Attempt != 1 || r.CallID != "C1" {
		t.Errorf("%+v", r)
	}
}

// conversation serves one connection after the other and counts the requests; the nth of all goes through talk, which reports
// whether the connection stays.
func conversation(t *testing.T, talk func(conn *net.TCPConn, n int, body []byte) bool) (url string, bodies func() [][]byte) {
	t.Helper()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var all [][]byte
	var talks sync.WaitGroup
	talks.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			talks.Go(func() {
				defer func() { _ = conn.Close() }()
				r := bufio.NewReader(conn)
				for {
					req, err := http.ReadRequest(r)
					if err != nil {
						return
					}
					body, err := io.ReadAll(req.Body)
					if err != nil {
						return
					}
					mu.Lock()
					all = append(all, body)
					n := len(all)
					mu.Unlock()
					if !talk(conn.(*net.TCPConn), n, body) {
						return
					}
				}
			})
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		talks.Wait()
	})
	return "http://" + listener.Addr().String(), func() [][]byte {
		mu.Lock()
		defer mu.Unlock()
		return all
	}
}

func TestAKeptConnectionThatDiesDoesNotSendACallTwice(t *testing.T) {
	t.Parallel()
	for name, reset := range map[string]bool{"closed": false, "reset": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url, bodies := conversation(t, func(conn *net.TCPConn, n int, body []byte) bool {
				if n == 2 { // it came on the connection of the first call, and is not answered
					if reset {
						_ = conn.SetLinger(0)
					}
					return false
				}
				answer := receiptOf(parseRequest(body).CallID, "SUCCESS")
				_, _ = fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(answer), answer)
				return true
			})
			receipts := answers(t, func(w http.ResponseWriter, _ *http.Request, _ int) { list(w, receiptOf("C2", "NOT_FOUND")) })
			db := testdb.New(t)
			c := newClient(t, Config{DB: db, Tools: []Tool{theTool(url, receipts.url, func(t *Tool) { t.Idempotent = false })}})
			if out, err := c.Do(t.Context(), theCall("C1")); out.Status != Success || err != nil {
				t.Fatalf("%+v, %v", out, err)
			}
			out, err := c.Do(t.Context(), theCall("C2"))
			if out.Status != Suspended || err != nil || told(out.Steps) != "send 1 no_answer, ask not_found, park" {
				t.Errorf("%+v, %v", out, err)
			}
			c.Close()
			got := bodies()
			if len(got) != 2 || !bytes.Contains(got[1], []byte(`"callId":"C2"`)) {
				t.Errorf("%d requests for two calls: %s", len(got), bytes.Join(got, []byte("\n")))
			}
		})
	}
}
