package reconcile

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/callreceipt/reconciler/pending"
	"github.com/callreceipt/reconciler/receipt"
)

// Seen is what a verdict was made from and the row no longer shows. It is the detail of a verdict in the ledger: with
// the row, the policy of that digest (table runs) and Replay, the same verdict comes out again.
type Seen struct {
	Status   pending.Status `json:"status"` // the status after the verdict
	From     pending.Status `json:"from"`   // the status before it
	At       time.Time      `json:"at"`     // the instant it was decided for, by the database clock
	Policy   string         `json:"policy"` // digest
	SentAt   time.Time      `json:"last_sent_at"`
	NotFound int            `json:"not_found_count,omitempty"` // before this look
	Was      string         `json:"was,omitempty"`             // the reason before this look
	// Receipts is what the downstream listed for the bizId and bears on this call, without the results, unless that was
	// exactly the one receipt that decided, which stands in the row.
	Receipts []json.RawMessage `json:"receipts,omitempty"`
	Absent   bool              `json:"absent,omitempty"` // the downstream said NOT_FOUND of the bizId
	Error    string            `json:"error,omitempty"`  // with unwritable: what the database said
}

// maxSeenBytes bounds the receipts that go into one ledger row, whatever a downstream lists of one call.
const maxSeenBytes = 32 << 10

func newSeen(call pending.Call, v Verdict, status pending.Status, ev receipt.Evidence, digest string, now time.Time) Seen {
	s := Seen{
		Status: status, From: call.Status, At: now, Policy: digest, SentAt: call.LastSentAt, NotFound: call.NotFoundCount,
		Absent: ev.Presence == receipt.Absent,
	}
	if call.Status != pending.StatusPending {
		s.Was = call.Reason
	}
	if v.Proof != nil && len(ev.Receipts) == 1 && settles(v.Action) {
		return s
	}
	bytes := 0
	for _, r := range ev.Receipts {
		text := essence(r)
		if bytes += len(text); bytes > maxSeenBytes {
			break
		}
		s.Receipts = append(s.Receipts, text)
	}
	return s
}

// essence is a receipt without its result: all that Decide reads.
func essence(r receipt.Receipt) json.RawMessage {
	fields := map[string]any{"callId": r.CallID, "bizId": r.BizID, "status": r.Status}
	if r.Operation != "" {
		fields["operation"] = r.Operation
	}
	if r.IdempotencyKey != "" {
		fields["idempotencyKey"] = r.IdempotencyKey
	}
	if r.Attempt > 0 {
		fields["attempt"] = r.Attempt
	}
	if !r.ProcessedAt.IsZero() {
		fields["processedAt"] = r.ProcessedAt
	}
	text, _ := json.Marshal(fields) // strings, a number and an instant always marshal
	return text
}

func settles(a Action) bool { return a == Succeed || a == Fail }

// Replay makes the decision again from a ledger row and the row of the call with its receipt, offline.
func Replay(call pending.Call, attempt int, inRow json.RawMessage, detail json.RawMessage, p Policy) (Verdict, error) {
	var s Seen
	if err := json.Unmarshal(detail, &s); err != nil {
		return Verdict{}, fmt.Errorf("reading the ledger of call %q: %w", call.CallID, err)
	}
	if digest := p.Digest(); digest != s.Policy {
		return Verdict{}, fmt.Errorf("call %q was decided under policy %s, not %s", call.CallID, s.Policy, digest)
	}
	call.Status, call.Attempt, call.LastSentAt, call.NotFoundCount, call.Reason = s.From, attempt, s.SentAt, s.NotFound, s.Was
	raws := s.Receipts
	if len(raws) == 0 && !s.Absent && s.Status.Terminal() {
		raws = []json.RawMessage{inRow}
	}
	ev := receipt.Evidence{Presence: receipt.Absent}
	if !s.Absent {
		answer, err := receipt.Decode(envelope(raws), []string{call.BizID}, receipt.Limits{})
		if err != nil {
			return Verdict{}, fmt.Errorf("reading the stored receipts of call %q: %w", call.CallID, err)
		}
		ev = answer.Of[call.BizID]
	}
	return Decide(call, ev, p, s.At), nil
}

// envelope puts receipts back into the form in which a downstream sends them.
func envelope(receipts []json.RawMessage) []byte {
	body := []byte(`{"receipts":[`)
	for i, r := range receipts {
		if i > 0 {
			body = append(body, ',')
		}
		body = append(body, r...)
	}
	return append(body, "]}"...)
}
