package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// shop is a real HTTP service that executes each idempotency key once, and answers receipt queries from what it has executed.
type shop struct {
	server *httptest.Server

	mu       sync.Mutex
	requests []time.Time // when each one came, queries too
	sends    []sent      // in the order in which they came
	effects  map[string]int
	keys     map[string]map[string]any            // the receipt of each idempotency key that was executed
	shown    map[string]map[string]map[string]any // the receipts that a query finds, by bizId and key
	queries  int
	cutEvery int // see cutQueries; 0 cuts none
	steer    func(*arrival)
	steered  int // sends since steerBy
}

// sent is the body of one attempt as it came.
type sent struct {
	CallID, BizID, Operation, IdempotencyKey, Timestamp string
	Attempt, Amount                                     int
	header                                              string // Idempotency-Key
}

// arrival is one attempt in the hands of a test. Left without an answer, its connection is cut.
type arrival struct {
	sent
	n        int  // counts from 1 since steerBy
	kept     bool // its connection has carried a request before
	shop     *shop
	w        http.ResponseWriter
	gone     <-chan struct{} // closes when the sender has gone
	answered bool
}

func newShop(t testing.TB) *shop {
	t.Helper()
	s := &shop{effects: map[string]int{}, keys: map[string]map[string]any{}, shown: map[string]map[string]map[string]any{}}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /charge", s.charge)
	mux.HandleFunc("POST /receipts", s.query)
	s.server = httptest.NewUnstartedServer(mux)
	s.server.Config.ConnContext = countRequests
	s.server.Start()
	t.Cleanup(s.server.Close)
	return s
}

// steerBy counts sends anew, and puts every one from now on into the hands of steer; nil answers them.
func (s *shop) steerBy(steer func(*arrival)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.steer, s.steered = steer, 0
}

// cutQueries cuts off one of so many queries without an answer.
func (s *shop) cutQueries(every int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cutEvery = every
}

// seen is every attempt that came. The shop is closed first, so that none is still on its way.
func (s *shop) seen() []sent {
	s.server.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.sends)
}

func (s *shop) charge(w http.ResponseWriter, r *http.Request) {
	a := &arrival{shop: s, w: w, gone: r.Context().Done(), kept: carriedBefore(r)}
	came := time.Now()
	if err := json.NewDecoder(r.Body).Decode(&a.sent); err != nil {
		panic(http.ErrAbortHandler) // it has not arrived: its sender was killed while it wrote
	}
	a.header = r.Header.Get("Idempotency-Key")
	s.mu.Lock()
	s.requests = append(s.requests, came)
	s.sends = append(s.sends, a.sent)
	s.steered++
	a.n = s.steered
	steer := s.steer
	s.mu.Unlock()
	if steer == nil {
		steer = (*arrival).answer
	}
	steer(a)
	if !a.answered {
		panic(http.ErrAbortHandler)
	}
}

// execute has the effect, if the key has not had it, and shows the receipt to whoever asks for it.
func (a *arrival) execute() {
	a.executeUnseen("SUCCESS")
	a.shop.mu.Lock()
	defer a.shop.mu.Unlock()
	if a.shop.shown[a.BizID] == nil {
		a.shop.shown[a.BizID] = map[string]map[string]any{}
	}
	a.shop.shown[a.BizID][a.IdempotencyKey] = a.shop.keys[a.IdempotencyKey]
}

// executeUnseen has the effect, but its receipt is not to be found before the next attempt.
func (a *arrival) executeUnseen(status string) {
	a.shop.mu.Lock()
	defer a.shop.mu.Unlock()
	if a.shop.keys[a.IdempotencyKey] != nil {
		return
	}
	a.shop.effects[a.CallID]++
	a.shop.keys[a.IdempotencyKey] = map[string]any{
		"callId": a.CallID, "bizId": a.BizID, "operation": a.Operation, "idempotencyKey": a.IdempotencyKey, "attempt": a.Attempt,
		"status": status, "processedAt": "2024-05-01T10:00:00Z",
	}
}

// answer executes and sends the receipt.
func (a *arrival) answer() {
	a.execute()
	a.shop.mu.Lock()
	body, _ := json.Marshal(a.shop.keys[a.IdempotencyKey]) // words and numbers always marshal
	a.shop.mu.Unlock()
	a.w.Header().Set("Content-Length", fmt.Sprint(len(body))) // the answer is whole before the handler returns
	a.write(http.StatusOK, body)
}

// decline answers that the call has failed for good.
func (a *arrival) decline() {
	a.executeUnseen("FAILED")
	a.answer()
}

// refuse answers 503 and executes nothing.
func (a *arrival) refuse() {
	a.w.Header().Set("Retry-After", "1")
	a.write(http.StatusServiceUnavailable, nil)
}

func (a *arrival) write(status int, body []byte) {
	a.answered = true
	a.w.WriteHeader(status)
	a.w.Write(body)
	_ = http.NewResponseController(a.w).Flush() // a sender that has gone is no trouble of ours
}

func (s *shop) query(w http.ResponseWriter, r *http.Request) {
	came := time.Now()
	var asked struct {
		BizIDs []string `json:"bizIds"`
	}
	if err := json.NewDecoder(r.Body).Decode(&asked); err != nil {
		panic(http.ErrAbortHandler)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests = append(s.requests, came)
	s.queries++
	if s.cutEvery > 0 && s.queries%s.cutEvery == 0 {
		panic(http.ErrAbortHandler)
	}
	receipts := []map[string]any{}
	for _, id := range asked.BizIDs {
		for _, key := range slices.Sorted(maps.Keys(s.shown[id])) {
			receipts = append(receipts, s.shown[id][key])
		}
		if len(s.shown[id]) == 0 {
			receipts = append(receipts, map[string]any{"bizId": id, "status": "NOT_FOUND"})
		}
	}
	json.NewEncoder(w).Encode(map[string]any{"receipts": receipts})
}

// tool is the configuration of a tool that the reconciler itself sends to this shop again.
func (s *shop) tool(name, receipts string, changed ...string) string {
	return dispatching(name, s.server.URL, receipts, changed...)
}

// dispatching is the configuration of a tool that the reconciler itself sends again, to the shop at url. It takes further keys of
// "receipts", such as "rate: 50", and keys of the tool that stand in place of those below, such as "max_attempts: 3".
func dispatching(name, url, receipts string, changed ...string) string {
	const timeout = "200ms"
	keys := map[string]string{
		"retryable": "true", "idempotent": "true", "settle": "300ms", "not_found_confirmations": "1", "dedup_window": "168h",
		"max_attempts": "5", "check_backoff": "{initial: 50ms, max: 200ms}",
		"receipts": fmt.Sprintf("{url: %q, timeout: %s, %s}", url+"/receipts", timeout, receipts),
		"retry":    fmt.Sprintf("{mode: dispatch, url: %q, timeout: %s}", url+"/charge", timeout),
	}
	for _, change := range changed {
		key, value, _ := strings.Cut(change, ": ")
		keys[key] = value
	}
	text := "  " + name + ":\n"
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		text += "    " + key + ": " + keys[key] + "\n"
	}
	return text
}
