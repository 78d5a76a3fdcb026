package demo

import (
	"bytes"
	"encoding/json"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/callreceipt/reconciler/pending"
	"github.com/callreceipt/reconciler/reconcile"
)

// post is the status of the answer to a delivery; 0 when none came.
func post(t *testing.T, r *receiver, secret, id, callID string, status pending.Status) int {
	t.Helper()
	body, err := json.Marshal(reconcile.Message{Data: reconcile.MessageData{CallID: callID, Status: status}})
	if err != nil {
		t.Fatal(err)
	}
	signer, err := standardwebhooks.NewWebhook(secret)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	signature, err := signer.Sign(id, now, body)
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, r.url+"/verdicts", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set(standardwebhooks.HeaderWebhookID, id)
	req.Header.Set(standardwebhooks.HeaderWebhookTimestamp, strconv.FormatInt(now.Unix(), 10))
	req.Header.Set(standardwebhooks.HeaderWebhookSignature, signature)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0
	}
	_ = resp.Body.Close()
	return resp.StatusCode
}

// receiving is a webhook that receives the calls A, B and C as planned here, and its secret.
func receiving(t *testing.T) (*receiver, string) {
	t.Helper()
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	secret, folder, _, err := newSecret()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(folder); err != nil {
		t.Fatal(err)
	}
	r, err := startReceiver(secret, [][]Call{
		{{CallID: "A"}}, {{CallID: "B", Reception: Refuse}}, {{CallID: "C", Reception: TakeAndDrop}},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.close(t.Context()); err != nil {
			t.Error(err)
		}
	})
	return r, secret
}

func TestTheWebhookBelievesNothingThatIsNotSignedWithItsSecret(t *testing.T) {
	t.Parallel()
	r, _ := receiving(t)
	other := "whsec_" + strings.Repeat("A", 32)
	if code := post(t, r, other, "A:1", "A", pending.StatusSuccess); code != http.StatusUnauthorized {
		t.Errorf("answered %d", code)
	}
	if got := r.deliveries(); got != (Deliveries{Invalid: 1}) || r.latest("A") != "" {
		t.Errorf("%+v, and A is %q", got, r.latest("A"))
	}
}

func TestTheWebhookTakesEachVerdictOnceHoweverOftenItComes(t *testing.T) {
	t.Parallel()
	r, secret := receiving(t)
	for _, d := range []struct {
		id     string
		callID string
		status pending.Status
		code   int
	}{
		{"A:1", "A", pending.StatusRetry, http.StatusNoContent},
		{"A:2", "A", pending.StatusSuccess, http.StatusNoContent},
		{"A:1", "A", pending.StatusRetry, http.StatusNoContent}, // an old one that comes late changes nothing
		{"B:1", "B", pending.StatusFailed, http.StatusInternalServerError},
		{"B:1", "B", pending.StatusFailed, http.StatusNoContent},
		{"C:1", "C", pending.StatusManual, 0},
		{"C:1", "C", pending.StatusManual, http.StatusNoContent},
	} {
		if code := post(t, r, secret, d.id, d.callID, d.status); code != d.code {
			t.Errorf("%s: answered %d, want %d", d.id, code, d.code)
		}
	}
	if got, want := r.deliveries(), (Deliveries{Verdicts: 3, Repeats: 3}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	for callID, want := range map[string]pending.Status{"A": pending.StatusSuccess, "B": pending.StatusFailed, "C": pending.StatusManual} {
		if got := r.latest(callID); got != want {
			t.Errorf("the latest of %s is %q, want %s", callID, got, want)
		}
	}
}

func TestAVerdictThatWasRefusedIsNotTakenForTold(t *testing.T) {
	t.Parallel()
	r, secret := receiving(t)
	post(t, r, secret, "B:1", "B", pending.StatusFailed)
	if got := r.deliveries(); got.Verdicts != 0 || r.latest("B") != "" {
		t.Errorf("%+v, and B is %q", got, r.latest("B"))
	}
}
