package idempotency

import (
	"encoding/json"
	"errors"

	"github.com/lib/pq"
	"github.com/lib/pq/pqerror"
)

// What an arrival can come to besides a receipt. The errors returned wrap one of these and name the call.
var (
	// ErrProcessing means that the key is being executed, by another arrival or in two steps. The caller sends again later, or
	// asks for the receipt.
	ErrProcessing = errors.New("the key is being executed, ask again later")
	// ErrOtherPayload means that the key was used for another payload, bizId or operation, or the callId for another intent.
	// Sending again does not help.
	ErrOtherPayload = errors.New("the key was used for another payload, bizId or operation, or the callId for another intent")
	// ErrExpired means that the call was issued so long ago that the result of its key may have been forgotten. It is never
	// executed any more.
	ErrExpired = errors.New("issued so long ago that its result may have been forgotten")
	// ErrIssuedInFuture means that the call was issued more than 5 minutes ahead of the database's clock.
	ErrIssuedInFuture = errors.New("issued more than 5 minutes ahead of the database's clock")
	// ErrNotYours is returned by Complete and Fail when the claim was ended otherwise, or by somebody else who executed anew.
	ErrNotYours = errors.New("the claim was ended by somebody else, or otherwise")
)

// Refusal is a business's own no: the card is declined, the stock is gone. It is a result, and remembered like one.
type Refusal struct {
	Result json.RawMessage // one JSON value, or nil for none
}

// Refuse returns a *Refusal for the function of Do to return. Its writes are rolled back and the receipt says FAILED.
func Refuse(result json.RawMessage) error { return &Refusal{Result: result} }

func (r *Refusal) Error() string { return "refused by the business" }

// panicked is the panic of a business function, which was logged with its stack.
type panicked struct{ value string }

func (p *panicked) Error() string { return "the business function panicked: " + p.value }

// errNoPartition means that idempotency.keys has no partition for the instant of the claim.
var errNoPartition = errors.New("idempotency.keys has no partition for today")

// otherIntent reports that the callId arrived before for another intent.
func otherIntent(err error) bool {
	e := pq.As(err, pqerror.UniqueViolation)
	return e != nil && e.Constraint == "call_of_one_intent"
}

// noPartition tells a missing partition from a CHECK that failed: PostgreSQL has one SQLSTATE for both.
func noPartition(err error) bool {
	e := pq.As(err, pqerror.CheckViolation)
	return e != nil && e.Constraint == ""
}
