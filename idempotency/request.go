package idempotency

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/callreceipt/reconciler/internal/printable"
	"github.com/callreceipt/reconciler/internal/rfc3339"
	"github.com/callreceipt/reconciler/receipt"
)

// Request is a call as it arrived.
type Request struct {
	CallID         string // 1 to 200 bytes, no control characters
	BizID          string // 1 to 1,000 bytes
	Operation      string // 1 to 200 bytes
	IdempotencyKey string // up to 1,500 bytes; "" means BizID:Operation
	Attempt        int    // the number of this send; 0 means 1
	IssuedAt       time.Time
	// Hash is that of the payload, see the function Hash. Nil is not compared.
	Hash []byte
	// Body is the whole body as it came. Only ParseRequest sets it, and only the business function looks at it.
	Body json.RawMessage
}

// ParseRequest reads the body of a call of the retry protocol (docs/protocol.md), up to 1 MiB: callId, bizId, operation, timestamp, and
// if they are there attempt and idempotencyKey. It is strict, since two readers who take different calls out of one body execute it
// twice: one JSON object in valid UTF-8, no name twice, names in their exact case, at most 64 levels, no NUL character. All other
// members are the payload. Body is the body itself, which must not be changed afterwards. The error is one line.
func ParseRequest(body []byte) (Request, error) {
	m, err := parse(body)
	if err != nil {
		return Request{}, err
	}
	r := Request{Hash: m.hash(), Body: body}
	for _, id := range [...]struct {
		name string
		into *string
	}{{nameCallID, &r.CallID}, {nameBizID, &r.BizID}, {nameOperation, &r.Operation}, {nameKey, &r.IdempotencyKey}} {
		if *id.into, err = m.text(id.name); err != nil {
			return Request{}, err
		}
	}
	if r.Attempt, err = m.attempt(); err != nil {
		return Request{}, err
	}
	if r.IssuedAt, err = m.timestamp(); err != nil {
		return Request{}, err
	}
	return r.checked()
}

// checked fills in the defaults and refuses what the tables would.
func (r Request) checked() (Request, error) {
	if r.IdempotencyKey == "" && r.BizID != "" && r.Operation != "" {
		r.IdempotencyKey = r.BizID + ":" + r.Operation
	}
	if r.Attempt == 0 {
		r.Attempt = 1
	}
	for _, id := range [...]struct {
		name, value string
		most        int
	}{
		{nameCallID, r.CallID, receipt.MaxCallID},
		{nameBizID, r.BizID, receipt.MaxBizID},
		{nameOperation, r.Operation, receipt.MaxOperation},
		{nameKey, r.IdempotencyKey, receipt.MaxIdempotencyKey},
	} {
		switch {
		case id.value == "":
			return Request{}, errors.New(id.name + " is missing")
		case len(id.value) > id.most:
			return Request{}, fmt.Errorf("%s has %d bytes, more than the %d allowed", id.name, len(id.value), id.most)
		case !utf8.ValidString(id.value) || strings.ContainsRune(id.value, 0):
			return Request{}, fmt.Errorf("%s %s holds a NUL character or invalid UTF-8", id.name, printable.Quote(id.value))
		}
	}
	switch year := r.IssuedAt.UTC().Year(); {
	case strings.ContainsFunc(r.CallID, unicode.IsControl):
		return Request{}, fmt.Errorf("callId %s holds a control character", printable.Quote(r.CallID))
	case r.Attempt < 1 || r.Attempt > math.MaxInt32:
		return Request{}, fmt.Errorf("attempt %d is not from 1 to %d", r.Attempt, math.MaxInt32)
	case r.IssuedAt.IsZero():
		return Request{}, errors.New("timestamp is missing: it tells a late retry from a new call")
	case year < 2000 || year > 9999:
		return Request{}, fmt.Errorf("timestamp is in the year %d, not in 2000 to 9999", year)
	}
	return r, nil
}

// text reads a member that is a string; "" when it is not there.
func (m message) text(name string) (string, error) {
	raw := m.ids[name]
	if raw == nil {
		return "", nil
	}
	if raw.Kind() != jsontext.KindString {
		return "", fmt.Errorf("%s %s is not a string", name, printable.Quote(raw))
	}
	text, err := jsontext.AppendUnquote(nil, raw)
	if err == nil && len(text) == 0 {
		err = errors.New(name + " is empty")
	}
	return string(text), err
}

// attempt reads the number of this send; 0 when it is not there.
func (m message) attempt() (int, error) {
	raw := m.ids[nameAttempt]
	if raw == nil {
		return 0, nil
	}
	n, err := strconv.Atoi(string(raw))
	if err != nil || n < 1 || n > math.MaxInt32 {
		return 0, fmt.Errorf("attempt %s is not an integer from 1 to %d", printable.Quote(raw), math.MaxInt32)
	}
	return n, nil
}

// timestamp reads when the call was first issued; zero when it is not there.
func (m message) timestamp() (time.Time, error) {
	text, err := m.text(nameTimestamp)
	if text == "" || err != nil {
		return time.Time{}, err
	}
	t, ok := rfc3339.Parse([]byte(text))
	if !ok {
		return time.Time{}, fmt.Errorf("timestamp %s is not an RFC 3339 time with a zone", printable.Quote(text))
	}
	return t, nil
}

// prefix starts every log line about a call, so that grep finds a whole intent.
func prefix(r Request) string {
	return printable.Call(r.CallID, r.BizID, r.Attempt)
}
