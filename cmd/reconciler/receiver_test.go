package main

import (
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/callreceipt/reconciler/reconcile"
)

// receiver is an orchestrator that takes verdicts at its webhook and keeps each webhook-id once. Its server may die and come back;
// what it keeps survives that.
type receiver struct {
	t      *testing.T
	secret string // the file
	verify *standardwebhooks.Webhook

	mu     sync.Mutex
	server *httptest.Server
	came   []delivery // everything, in order
	inbox  map[string]reconcile.Message
	steer  func(*delivery) bool
}

// delivery is one request of the notifier.
type delivery struct {
	n      int // counts from 1
	id     string
	header http.Header
	body   []byte
	told   reconcile.Message
	taken  func() // answers that it has been taken, at once
}

func newReceiver(t *testing.T) *receiver {
	t.Helper()
	key := make([]byte, 32)
	_, _ = rand.Read(key) // it never fails
	secret := "whsec_" + base64.StdEncoding.EncodeToString(key)
	verify, err := standardwebhooks.NewWebhook(secret)
	if err != nil {
		t.Fatal(err)
	}
	r := &receiver{t: t, verify: verify, secret: filepath.Join(t.TempDir(), "secret"), inbox: map[string]reconcile.Message{}}
	if err := os.WriteFile(r.secret, []byte(secret+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	r.live()
	return r
}

// live starts a server, at another address than the last.
func (r *receiver) live() {
	server := httptest.NewServer(r)
	r.t.Cleanup(server.Close)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.server = server
}

// die closes the listener and cuts every connection.
func (r *receiver) die() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.server.Listener.Close()
	r.server.CloseClientConnections()
}

// kept is the inbox.
func (r *receiver) kept() map[string]reconcile.Message {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.inbox)
}

// notify is the key of a tool that names the receiver.
func (r *receiver) notify() string {
	return `notify: {url: "` + r.server.URL + `/verdicts", secret_file: "` + r.secret + `"}`
}

// steerBy puts every delivery from now on into the hands of steer after it has been kept, or, where it returns false, before the
// receiver refuses it and keeps nothing; nil takes all.
func (r *receiver) steerBy(steer func(*delivery) (take bool)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.steer = steer
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	d := &delivery{id: req.Header.Get(standardwebhooks.HeaderWebhookID), header: req.Header.Clone()}
	var err error
	if d.body, err = io.ReadAll(req.Body); err != nil {
		panic(http.ErrAbortHandler) // it has not arrived
	}
	if err := r.verify.Verify(d.body, req.Header); err != nil {
		r.t.Errorf("%s: %v", d.id, err)
	}
	if err := json.Unmarshal(d.body, &d.told); err != nil {
		r.t.Errorf("%s: %v in %q", d.id, err, d.body)
	}
	d.taken = func() {
		w.WriteHeader(http.StatusNoContent)
		_ = http.NewResponseController(w).Flush() // a sender that has gone is no trouble of ours
	}
	r.mu.Lock()
	r.came = append(r.came, *d)
	d.n = len(r.came)
	steer := r.steer
	r.mu.Unlock()
	if steer != nil && !steer(d) {
		http.Error(w, "not now", http.StatusInternalServerError)
		return
	}
	r.mu.Lock()
	r.inbox[d.id] = d.told
	r.mu.Unlock()
}

// deliveries is everything that came. It fails the test unless equal webhook-ids have equal bodies, and equal bodies equal ids.
func (r *receiver) deliveries() []delivery {
	r.t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	bodies, ids := map[string][]byte{}, map[string]string{}
	for _, d := range r.came {
		if body, again := bodies[d.id]; again && !bytes.Equal(body, d.body) {
			r.t.Errorf("%s came with two bodies:\n%s\n%s", d.id, body, d.body)
		}
		if id, again := ids[string(d.body)]; again && id != d.id {
			r.t.Errorf("%s and %s have one body: %s", id, d.id, d.body)
		}
		bodies[d.id], ids[string(d.body)] = d.body, d.id
	}
	return slices.Clone(r.came)
}

// replay sends everything that came once more, byte for byte, as whoever listened in could.
func (r *receiver) replay() {
	r.t.Helper()
	for _, d := range r.deliveries() {
		req, err := http.NewRequest(http.MethodPost, r.server.URL, bytes.NewReader(d.body))
		if err != nil {
			r.t.Fatal(err)
		}
		req.Header = d.header
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			r.t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode/100 != 2 {
			r.t.Errorf("%s: %s", d.id, resp.Status)
		}
	}
}
