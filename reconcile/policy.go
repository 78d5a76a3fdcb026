package reconcile

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// Policy is what the owner of a tool declares about it. Decide reads nothing else.
type Policy struct {
	Retryable  bool `json:"retryable"`
	Idempotent bool `json:"idempotent"`
	// NeedsReceipt is false for a pure query: it has no effect to look up and is simply asked again.
	NeedsReceipt bool `json:"needs_receipt"`
	// NeedsRequest is true where the reconciler itself sends the retry and so needs the stored request.
	NeedsRequest bool `json:"needs_request"`
	// RetryFailed lets a FAILED receipt be followed by another attempt.
	RetryFailed bool `json:"retry_failed"`
	// Settle is how long after its last send a call may still be on its way; a NOT_FOUND before that says nothing.
	Settle time.Duration `json:"settle"`
	// NotFoundConfirmations is how many settled NOT_FOUND looks in a row make a call "not found". At least 1.
	NotFoundConfirmations int `json:"not_found_confirmations"`
	// DedupWindow is how long after the first send the downstream surely remembers the idempotency key.
	DedupWindow time.Duration `json:"dedup_window"`
	// MaxAttempts bounds the sends of a call, the caller's first included.
	MaxAttempts int `json:"max_attempts"`
	// ManualAfter is the age at which a call that cannot be decided goes to a person.
	ManualAfter time.Duration `json:"manual_after"`
	Backoff     Backoff       `json:"check_backoff"`
	// Watermark is the instant up to which the downstream's idempotency keys have been archived; zero means none.
	// A call issued before it is refused by the downstream's guard, so it is not sent again.
	Watermark time.Time `json:"watermark,omitzero"`
}

// Validate reports every value that no decision could be made with.
func (p Policy) Validate() error {
	var errs []error
	if p.NotFoundConfirmations < 1 {
		errs = append(errs, fmt.Errorf("not_found_confirmations is %d and must be at least 1", p.NotFoundConfirmations))
	}
	if p.MaxAttempts < 1 {
		errs = append(errs, fmt.Errorf("max_attempts is %d and must be at least 1", p.MaxAttempts))
	}
	if p.Settle < 0 {
		errs = append(errs, fmt.Errorf("settle is %s and must not be negative", p.Settle))
	}
	if p.ManualAfter <= 0 {
		errs = append(errs, fmt.Errorf("manual_after is %s and must be above 0", p.ManualAfter))
	}
	if p.Retryable && p.Idempotent && p.DedupWindow <= 0 {
		errs = append(errs, fmt.Errorf("dedup_window is %s: a tool that may be sent again needs one above 0", p.DedupWindow))
	}
	if p.Backoff.Initial <= 0 || p.Backoff.Max < p.Backoff.Initial {
		errs = append(errs, fmt.Errorf("check_backoff goes from %s to %s and must rise from above 0", p.Backoff.Initial, p.Backoff.Max))
	}
	return errors.Join(errs...)
}

// Digest names the policy in the ledger: equal policies have equal digests.
func (p Policy) Digest() string {
	text, err := json.Marshal(p)
	if err != nil {
		return "" // a struct of numbers and instants always marshals
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:8])
}
