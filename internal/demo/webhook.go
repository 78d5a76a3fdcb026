package demo

import (
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"sync"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/callreceipt/reconciler/pending"
	"github.com/callreceipt/reconciler/reconcile"
)

// Reception is what the orchestrator's webhook does to the first delivery about a call; every further one it takes.
type Reception int

// The receptions. Each but Take is followed by the same delivery once more.
const (
	Take        Reception = iota
	Refuse                // answers 500
	TakeAndDrop           // takes it, and the connection closes before the answer
)

// receiver is the webhook of the orchestrator. It listens on 127.0.0.1 and believes only what is signed.
type receiver struct {
	*service
	webhook   *standardwebhooks.Webhook
	reception map[string]Reception // by callId

	mu    sync.Mutex
	ids   map[string]bool           // by webhook-id, of what came; true once it has been taken
	calls map[string]bool           // callIds that something was delivered about
	told  map[string]pending.Status // by callId, the latest that was taken
	count Deliveries
}

// Deliveries counts what reached the webhook.
type Deliveries struct {
	Verdicts int // SUCCESS, FAILED or MANUAL that were taken, each once however often it came
	Repeats  int // deliveries under a webhook-id that had come before
	Invalid  int // deliveries whose signature did not hold; none of them was believed
}

func startReceiver(secret string, plan [][]Call) (*receiver, error) {
	webhook, err := standardwebhooks.NewWebhook(secret)
	if err != nil {
		return nil, fmt.Errorf("the webhook's secret: %w", err)
	}
	r := &receiver{
		webhook: webhook, reception: map[string]Reception{}, ids: map[string]bool{}, calls: map[string]bool{},
		told: map[string]pending.Status{},
	}
	for _, intent := range plan {
		for _, c := range intent {
			r.reception[c.CallID] = c.Reception
		}
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /verdicts", r.answer)
	r.service, err = serve("the orchestrator's webhook", mux)
	return r, err
}

// answer takes a delivery whose signature holds, and says so with a 2xx.
func (r *receiver) answer(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, req.Body, maxBody))
	if err != nil {
		http.Error(w, "this is no verdict", http.StatusBadRequest)
		return
	}
	if r.webhook.Verify(body, req.Header) != nil {
		r.mu.Lock()
		r.count.Invalid++
		r.mu.Unlock()
		http.Error(w, "the signature does not hold", http.StatusUnauthorized)
		return
	}
	var m reconcile.Message
	if json.Unmarshal(body, &m) != nil || m.Data.CallID == "" {
		http.Error(w, "this is no verdict", http.StatusBadRequest)
		return
	}
	switch r.take(req.Header.Get(standardwebhooks.HeaderWebhookID), m.Data.CallID, m.Data.Status) {
	case Take:
		w.WriteHeader(http.StatusNoContent)
	case Refuse:
		http.Error(w, "the orchestrator has no time for it now", http.StatusInternalServerError)
	case TakeAndDrop:
		panic(http.ErrAbortHandler)
	}
}

// take remembers what a delivery says, once for each webhook-id, and returns how it is received.
func (r *receiver) take(id, callID string, status pending.Status) Reception {
	r.mu.Lock()
	defer r.mu.Unlock()
	reception := Take
	if !r.calls[callID] {
		r.calls[callID] = true
		reception = r.reception[callID]
	}
	taken, came := r.ids[id]
	if came {
		r.count.Repeats++
	}
	r.ids[id] = taken || reception != Refuse
	if taken || reception == Refuse {
		return reception
	}
	r.told[callID] = status
	if status != pending.StatusRetry {
		r.count.Verdicts++
	}
	return reception
}

// latest is the newest status that the orchestrator was told about a call; "" when it was told nothing.
func (r *receiver) latest(callID string) pending.Status {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.told[callID]
}

func (r *receiver) deliveries() Deliveries {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.count
}

// newSecret makes a webhook secret and a file that holds it, alone in a folder that the caller removes.
func newSecret() (secret, folder, file string, err error) {
	random := make([]byte, 32)
	_, _ = rand.Read(random) // it never fails
	secret = "whsec_" + base64.StdEncoding.EncodeToString(random)
	if folder, err = os.MkdirTemp("", "reconciler-demo-"); err != nil {
		return "", "", "", fmt.Errorf("making a folder for the webhook's secret: %w", err)
	}
	file = filepath.Join(folder, "secret")
	if err := os.WriteFile(file, []byte(secret+"\n"), 0o600); err != nil {
		_ = os.RemoveAll(folder)
		return "", "", "", fmt.Errorf("writing the webhook's secret: %w", err)
	}
	return secret, folder, file, nil
}
