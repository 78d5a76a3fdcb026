package receipt

import (
	"fmt"
	"time"
)

// Outcome is what the asker has to do about an answer that is none.
type Outcome int

// The outcomes of DESIGN section 4. The zero value changes nothing: ask again later.
const (
	Unanswered    Outcome = iota // nothing usable came back
	BadBatch                     // 400, 413, 422, or an answer too large: halve the batch
	Misconfigured                // 401, 403, 404 or a redirect: stop asking, touch nothing, tell a person
	Throttled                    // 429 or 503 with Retry-After: pause that long
)

// Kind is one word for what happened on the wire; it is a metric label and stands in front of the error text.
type Kind string

// The kinds of trouble that are told apart.
const (
	KindRefused   Kind = "connect_refused"
	KindDNS       Kind = "dns"
	KindTLS       Kind = "tls"
	KindTimeout   Kind = "timeout"         // connect, headers or body took longer than the whole exchange may
	KindLost      Kind = "connection_lost" // reset, or the body ended early
	KindCanceled  Kind = "canceled"        // our own caller gave up; says nothing about the downstream
	KindStatus    Kind = "status"
	KindMalformed Kind = "malformed"
	KindTooLarge  Kind = "too_large"     // more bytes or items than we accept, or 413
	KindMissing   Kind = "not_mentioned" // a well-formed answer that leaves the bizId out
	KindSetup     Kind = "setup"         // the request could not be built: an unreadable token file, an id that is not UTF-8
)

// Error says why a request brought no evidence. Its text is one line, bounded, and never holds a secret.
type Error struct {
	Outcome    Outcome
	Kind       Kind
	Status     int           // HTTP status code, 0 when none came
	RetryAfter time.Duration // with Throttled: how long to pause, above 0, at most MaxRetryAfter
	// Connected says that a connection was had, so that bytes of the request may have arrived. Without one the request
	// is known not to have.
	Connected bool
	// Written says that the whole request was handed to the connection, so that nothing but the answer is missing.
	Written bool
	Err     error
}

// MaxRetryAfter bounds the pause a downstream can ask for, whatever its clock or its typing says.
const MaxRetryAfter = 24 * time.Hour

func (e *Error) Error() string {
	if e.Err == nil {
		return string(e.Kind)
	}
	return fmt.Sprintf("%s: %v", e.Kind, e.Err)
}

func (e *Error) Unwrap() error { return e.Err }
