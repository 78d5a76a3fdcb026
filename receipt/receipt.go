// Package receipt is the contract by which a downstream proves what became of a call.
//
// A receipt is the only thing that decides. The package holds its types, a strict decoder for the
// answers of a downstream, an HTTP client that tells every transport outcome apart, and the halving of
// batches that a downstream refuses. It knows nothing of the pending table and is safe to embed.
//
//	question {"bizIds":[…]} ──► downstream ──► answer ──► decode ──► Evidence per bizId
//	      or {"callIds":[…]}                     │                   (or callId)
//	                                             └─ anything else: *Error, evidence stays Unknown
package receipt

import (
	"encoding/json"
	"time"
)

// Status is what a downstream says of one call. The set is closed: any other word makes the answer malformed.
type Status string

// The four words of the protocol.
const (
	StatusSuccess    Status = "SUCCESS"
	StatusFailed     Status = "FAILED"
	StatusProcessing Status = "PROCESSING"
	StatusNotFound   Status = "NOT_FOUND"
)

// The longest ids of a call, in bytes. The tables of pending calls and of receipts have the same bounds. An idempotency key is by default
// bizId:operation.
const (
	MaxCallID         = 200
	MaxBizID          = 1000
	MaxOperation      = 200
	MaxIdempotencyKey = 1500
)

// Receipt is one item of an answer. CallID is empty only for a NOT_FOUND of a whole bizId.
type Receipt struct {
	CallID         string
	BizID          string
	Operation      string // "" when the downstream does not name it
	IdempotencyKey string // "" when the downstream does not name it
	Status         Status
	ProcessedAt    time.Time // zero when not stated
	Attempt        int       // 0 when not stated
	// Result is what the downstream's own work brought, verbatim and a part of Raw; nil when not stated.
	Result json.RawMessage
	// Raw is the item as it came, byte for byte: valid JSON without NUL characters or lone surrogates,
	// so PostgreSQL's jsonb takes it unless a number in it is out of its range.
	Raw json.RawMessage
}

// Presence says whether a downstream holds anything for an id that was asked about. The three values never merge:
// silence is not absence. The zero value is Unknown.
type Presence int

// The values of Presence.
const (
	Unknown Presence = iota // not answered: no answer, a malformed one, or one that does not mention the id
	Absent                  // an explicit NOT_FOUND for the id and nothing else
	Present                 // at least one receipt
)

// Evidence is what one look learned about one bizId, or about one callId.
type Evidence struct {
	Presence Presence
	// Receipts holds every receipt the downstream listed for the id; only with Present. A NOT_FOUND that names a callId is
	// kept here when a bizId was asked about, since it speaks of that call alone.
	Receipts []Receipt
	// Err tells why the id was not answered; only with Unknown.
	Err *Error
}
