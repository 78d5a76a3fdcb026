package main

import (
	"encoding/json"
	"maps"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"unicode"
)

// downstream is a real HTTP service that speaks the receipt protocol. It knows one call of each business, whose callId is
// bizId-0001, and how that one went stands in the first letters of the bizId:
//
//	S-… SUCCESS     P-… PROCESSING   M-… is not mentioned           E401-… the whole request gets that status
//	F-… FAILED      N-… NOT_FOUND    X-… SUCCESS as bizId-0002
type downstream struct {
	*httptest.Server

	mu       sync.Mutex
	requests int
	asked    map[string]bool // the bizIds since the last forget
	steer    func(query)     // may hold or break off a request; nil answers
}

// query is one request in the hands of a test.
type query struct {
	n      int // counts from 1 since the last forget
	bizIDs []string
	gone   <-chan struct{} // closes when the asker has gone
	answer func()          // sends the whole answer
}

func newDownstream(t testing.TB) *downstream {
	t.Helper()
	d := &downstream{asked: map[string]bool{}}
	d.Server = httptest.NewServer(d)
	t.Cleanup(d.Close)
	return d
}

// forget starts counting anew, and has requests steered from now on; nil answers every one.
func (d *downstream) forget(steer func(query)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.requests, d.asked, d.steer = 0, map[string]bool{}, steer
}

// seen is how many requests came and the bizIds in them.
func (d *downstream) seen() (requests int, bizIDs []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.requests, slices.Sorted(maps.Keys(d.asked))
}

func (d *downstream) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var asked struct {
		BizIDs []string `json:"bizIds"`
	}
	if err := json.NewDecoder(r.Body).Decode(&asked); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	d.mu.Lock()
	d.requests++
	for _, id := range asked.BizIDs {
		d.asked[id] = true
	}
	n, steer := d.requests, d.steer
	d.mu.Unlock()
	answer := func() {
		reply(w, asked.BizIDs)
		_ = http.NewResponseController(w).Flush() // an asker that has gone is no trouble of ours
	}
	if steer == nil {
		answer()
		return
	}
	steer(query{n: n, bizIDs: asked.BizIDs, gone: r.Context().Done(), answer: answer})
}

var refusal = regexp.MustCompile(`^E(\d{3})-`)

func reply(w http.ResponseWriter, bizIDs []string) {
	receipts := []map[string]any{}
	for _, id := range bizIDs {
		if code := refusal.FindStringSubmatch(id); code != nil {
			status, _ := strconv.Atoi(code[1]) // three digits
			http.Error(w, "as asked", status)
			return
		}
		if r := receiptOf(id); r != nil {
			receipts = append(receipts, r)
		}
	}
	body, _ := json.Marshal(map[string]any{"receipts": receipts}) // strings always marshal
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(body))) // the answer is whole before the handler returns
	_, _ = w.Write(body)
}

func receiptOf(bizID string) map[string]any {
	kind, _, _ := strings.Cut(bizID, "-")
	visible := strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return -1 // no callId may hold one
		}
		return r
	}, bizID)
	r := map[string]any{
		"callId": visible + "-0001", "bizId": bizID, "operation": "charge", "idempotencyKey": bizID + ":charge",
		"processedAt": "2024-05-01T10:00:00Z", "result": map[string]string{"ref": "R-7"},
	}
	switch kind {
	case "S":
		r["status"] = "SUCCESS"
	case "F":
		r["status"] = "FAILED"
	case "P":
		r["status"] = "PROCESSING"
	case "X":
		r["status"], r["callId"] = "SUCCESS", visible+"-0002"
	case "N":
		return map[string]any{"bizId": bizID, "status": "NOT_FOUND"}
	default:
		return nil
	}
	return r
}
