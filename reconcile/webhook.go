package reconcile

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/callreceipt/reconciler/internal/secretfile"
	"github.com/callreceipt/reconciler/pending"
)

// signers reads the secrets that sign deliveries: one a line, base64, with or without the prefix whsec_. Several stand in the
// file while a secret is being replaced; each delivery is signed with all of them.
func signers(file string) ([]*standardwebhooks.Webhook, error) {
	text, err := secretfile.Read(file)
	if err != nil {
		return nil, fmt.Errorf("notify.secret_file %q %w", file, err)
	}
	var all []*standardwebhooks.Webhook
	for i, line := range strings.Split(text, "\n") {
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		w, err := standardwebhooks.NewWebhook(line)
		if err != nil || len(strings.TrimPrefix(line, "whsec_")) == 0 {
			// The library's error may quote the secret.
			return nil, fmt.Errorf("notify.secret_file %s: line %d is no base64 secret; make one with: echo whsec_$(openssl rand -base64 32)", file, i+1)
		}
		all = append(all, w)
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("notify.secret_file %s holds no secret; make one with: echo whsec_$(openssl rand -base64 32)", file)
	}
	return all, nil
}

// WebhookID names one verdict on one call: callId and version. The specification wants no full stop in it and a header
// bears no control character, so the callId is escaped as in a URL where it must be.
func WebhookID(callID string, version int64) string {
	return strings.ReplaceAll(url.QueryEscape(callID), ".", "%2E") + ":" + strconv.FormatInt(version, 10)
}

// Message is the body of a delivery; its field names are a contract (docs/protocol.md).
type Message struct {
	Type      string      `json:"type"`      // call.success, call.failed, call.manual or call.retry
	Timestamp time.Time   `json:"timestamp"` // when the verdict was given
	Data      MessageData `json:"data"`
}

// MessageData is the verdict.
type MessageData struct {
	CallID         string          `json:"callId"`
	BizID          string          `json:"bizId"`
	Tool           string          `json:"tool"`
	Operation      string          `json:"operation"`
	IdempotencyKey string          `json:"idempotencyKey"`
	Status         pending.Status  `json:"status"`
	Reason         string          `json:"reason"`
	Attempt        int             `json:"attempt"`
	IssuedAt       time.Time       `json:"issuedAt"`
	ProcessedAt    *time.Time      `json:"processedAt,omitempty"`
	ResolvedAt     *time.Time      `json:"resolvedAt,omitempty"`
	Receipt        json.RawMessage `json:"receipt,omitempty"`
}

func message(n pending.Notification) Message {
	return Message{
		Type: "call." + strings.ToLower(string(n.Status)), Timestamp: n.Since.UTC(),
		Data: MessageData{
			CallID: n.CallID, BizID: n.BizID, Tool: n.Tool, Operation: n.Operation, IdempotencyKey: n.IdempotencyKey,
			Status: n.Status, Reason: n.Reason, Attempt: n.Attempt, IssuedAt: n.IssuedAt.UTC(), ProcessedAt: utc(n.ProcessedAt),
			ResolvedAt: utc(n.ResolvedAt), Receipt: json.RawMessage(n.Receipt),
		},
	}
}

func utc(t *time.Time) *time.Time {
	if t == nil {
		return nil
	}
	u := t.UTC()
	return &u
}

// signed sets the three headers of the Standard Webhooks specification.
func signed(header http.Header, id string, at time.Time, body []byte, by []*standardwebhooks.Webhook) error {
	var signatures []string
	for _, w := range by {
		s, err := w.Sign(id, at, body)
		if err != nil {
			return errors.New("the delivery cannot be signed")
		}
		signatures = append(signatures, s)
	}
	header.Set(standardwebhooks.HeaderWebhookID, id)
	header.Set(standardwebhooks.HeaderWebhookTimestamp, strconv.FormatInt(at.Unix(), 10))
	header.Set(standardwebhooks.HeaderWebhookSignature, strings.Join(signatures, " "))
	return nil
}
