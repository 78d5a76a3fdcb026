package receipt

import (
	"bytes"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/callreceipt/reconciler/internal/printable"
	"github.com/callreceipt/reconciler/internal/rfc3339"
)

// maxReceipt bounds one receipt with its result, in bytes. It is stored with every call that it settles.
const maxReceipt = 256 << 10

// The names of an item's members.
const (
	nameCallID      = "callId"
	nameBizID       = "bizId"
	nameOperation   = "operation"
	nameKey         = "idempotencyKey"
	nameStatus      = "status"
	nameResult      = "result"
	nameProcessedAt = "processedAt"
	nameAttempt     = "attempt"
)

var itemNames = [...]string{
	nameCallID, nameBizID, nameOperation, nameKey, nameStatus, nameResult, nameProcessedAt, nameAttempt,
}

// receipt reads one item. The bizId is returned beside the Receipt, which lacks it: the caller has it as a string.
func (d *decoder) receipt() (bizID []byte, r Receipt, err error) {
	if err := d.begin(jsontext.KindBeginObject, "a receipt"); err != nil {
		return nil, r, err
	}
	start := d.dec.InputOffset() - 1
	for d.dec.PeekKind() != jsontext.KindEndObject {
		name, err := d.name()
		if err != nil {
			return nil, r, err
		}
		raw, err := d.member(name, itemNames[:]...)
		if err != nil {
			return nil, r, err
		}
		var wrong string
		switch string(name) {
		case nameCallID:
			r.CallID, wrong = callID(raw)
		case nameBizID:
			bizID, wrong = text(raw, 1, MaxBizID)
		case nameOperation:
			r.Operation, wrong = optional(raw)
		case nameKey:
			r.IdempotencyKey, wrong = optional(raw)
		case nameStatus:
			r.Status, wrong = status(raw)
		case nameProcessedAt:
			r.ProcessedAt, wrong = instant(raw)
		case nameAttempt:
			r.Attempt, wrong = attempt(raw)
		case nameResult:
			r.Result = raw
		}
		if wrong != "" {
			at := d.dec.InputOffset() - int64(len(raw))
			return nil, r, &fault{path: d.place() + "." + string(name), at: at, text: wrong}
		}
	}
	if _, err := d.dec.ReadToken(); err != nil {
		return nil, r, d.syntax(err)
	}
	end := d.dec.InputOffset()
	unknownCall := d.byCall && r.CallID != "" && r.Status == StatusNotFound
	switch {
	case end-start > maxReceipt:
		return nil, r, d.fault(start, "%d bytes, more than the %d allowed for one receipt", end-start, maxReceipt)
	case d.spot.at >= 0 && d.spot.at < end:
		return nil, r, d.fault(d.spot.at, "%s", d.spot.text)
	case bizID == nil && !unknownCall:
		return nil, r, d.fault(start, "bizId is missing")
	case r.Status == "":
		return nil, r, d.fault(start, "status is missing")
	case r.CallID == "" && r.Status != StatusNotFound:
		return nil, r, d.fault(start, "callId is missing")
	}
	r.Raw = d.body[start:end:end]
	return bizID, r, nil
}

// member reads the value of a member. A name that only its case tells from a known one is refused: one of two
// readers would take it for the known one, and the two would see different receipts.
func (d *decoder) member(name []byte, known ...string) ([]byte, error) {
	for _, k := range known {
		if string(name) == k {
			return d.value()
		}
	}
	for _, k := range known {
		if strings.EqualFold(string(name), k) {
			return nil, d.fault(d.dec.InputOffset(), "member %s must be written %s", printable.Quote(name), k)
		}
	}
	return d.value()
}

// text returns the text of a JSON string of least to most bytes, or what is wrong with the value.
func text(raw []byte, least, most int) (s []byte, wrong string) {
	if raw[0] != '"' {
		return nil, printable.Quote(raw) + " is not a string"
	}
	s = unquote(raw)
	if len(s) < least {
		return nil, "is empty"
	}
	if len(s) > most {
		return nil, strconv.Itoa(len(s)) + " bytes, more than the " + strconv.Itoa(most) + " allowed"
	}
	return s, ""
}

func callID(raw []byte) (id, wrong string) {
	s, wrong := text(raw, 1, MaxCallID)
	if wrong == "" && bytes.ContainsFunc(s, unicode.IsControl) {
		return "", printable.Quote(s) + " holds a control character"
	}
	return string(s), wrong
}

// optional reads an operation or an idempotency key. They are only compared with a call's, so an operation may be as long as a key.
func optional(raw []byte) (s, wrong string) {
	if isNull(raw) {
		return "", ""
	}
	b, wrong := text(raw, 0, MaxIdempotencyKey)
	return string(b), wrong
}

func status(raw []byte) (s Status, wrong string) {
	for _, s := range [...]Status{StatusSuccess, StatusFailed, StatusProcessing, StatusNotFound} {
		if raw[0] == '"' && string(unquote(raw)) == string(s) {
			return s, ""
		}
	}
	shown := printable.Quote(raw)
	if raw[0] == '"' {
		shown = printable.Quote(unquote(raw))
	}
	return "", shown + " is not one of SUCCESS, FAILED, PROCESSING, NOT_FOUND"
}

func attempt(raw []byte) (n int, wrong string) {
	if isNull(raw) {
		return 0, ""
	}
	n, err := strconv.Atoi(string(raw))
	if err != nil || n < 1 || n > math.MaxInt32 {
		return 0, printable.Quote(raw) + " is not an integer from 1 to 2147483647"
	}
	return n, ""
}

// instant reads a time with its zone. Years before 2000 are refused because they are a clock that was never
// set or a time that was never filled in.
func instant(raw []byte) (t time.Time, wrong string) {
	if isNull(raw) {
		return time.Time{}, ""
	}
	ok := raw[0] == '"'
	if ok {
		t, ok = rfc3339.Parse(unquote(raw))
	}
	switch {
	case !ok:
		return time.Time{}, printable.Quote(raw) + " is not an RFC 3339 time with a zone"
	case t.Year() < 2000 || t.Year() > 9999:
		return time.Time{}, printable.Quote(raw) + " is not in the years 2000 to 9999"
	}
	return t, ""
}

func isNull(raw []byte) bool { return raw[0] == 'n' }
