package idempotency

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/callreceipt/reconciler/internal/printable"
)

// The bounds of a body.
const (
	maxBody  = 1 << 20 // bytes
	maxDepth = 64      // levels of nesting, the outer object included
)

// The members that name a call and number its sends. They are compared by themselves, or differ from send to send; all others are the
// payload.
const (
	nameCallID    = "callId"
	nameBizID     = "bizId"
	nameOperation = "operation"
	nameKey       = "idempotencyKey"
	nameAttempt   = "attempt"
	nameTimestamp = "timestamp"
)

var callNames = [...]string{nameCallID, nameBizID, nameOperation, nameKey, nameAttempt, nameTimestamp}

// Hash returns the SHA-256 of the payload of a body: of the JSON object without callId, bizId, operation, idempotencyKey, attempt and
// timestamp. It is equal for all bodies that PostgreSQL's jsonb takes for equal, as a call that is sent again comes out of a jsonb column:
// the order of members, white space, escapes and the spelling of numbers (1e2, 100, 100.0) do not matter, and every digit does.
// Bodies are refused as by ParseRequest.
func Hash(body []byte) ([]byte, error) {
	m, err := parse(body)
	if err != nil {
		return nil, err
	}
	return m.hash(), nil
}

// message is a body taken apart.
type message struct {
	ids     map[string]jsontext.Value // of callNames, as they were written; without those that are null
	payload []member
}

// member is a member of an object in canonical form.
type member struct {
	name  string
	value []byte
}

func (m message) hash() []byte {
	sum := sha256.Sum256(appendObject(nil, m.payload))
	return sum[:]
}

func parse(body []byte) (message, error) {
	if len(body) > maxBody {
		return message{}, fmt.Errorf("the body is larger than %d bytes", maxBody)
	}
	m := message{ids: map[string]jsontext.Value{}}
	d := jsontext.NewDecoder(bytes.NewBuffer(body))
	if kind := d.PeekKind(); kind != jsontext.KindBeginObject && kind != jsontext.KindInvalid {
		return message{}, errors.New("the body is not a JSON object")
	}
	if _, err := d.ReadToken(); err != nil {
		return message{}, ill(err)
	}
	for d.PeekKind() != jsontext.KindEndObject {
		if err := m.member(d); err != nil {
			return message{}, err
		}
	}
	if _, err := d.ReadToken(); err != nil {
		return message{}, ill(err)
	}
	if _, err := d.ReadToken(); !errors.Is(err, io.EOF) {
		return message{}, errors.New("there is data after the end of the body")
	}
	return m, nil
}

// member reads one member of the body. A name that only its case tells from one of callNames is refused: one of two readers would take
// it for that one.
func (m *message) member(d *jsontext.Decoder) error {
	name, err := text(d)
	if err != nil {
		return err
	}
	for _, known := range callNames {
		switch {
		case name == known:
			value, err := d.ReadValue()
			if err != nil {
				return ill(err)
			}
			if value.Kind() != jsontext.KindNull {
				m.ids[name] = value.Clone()
			}
			return nil
		case strings.EqualFold(name, known):
			return fmt.Errorf("member %s must be written %s", printable.Quote(name), known)
		}
	}
	value, err := appendCanonical(nil, d)
	m.payload = append(m.payload, member{name, value})
	return err
}

// appendCanonical reads the next value and appends its canonical form.
func appendCanonical(dst []byte, d *jsontext.Decoder) ([]byte, error) {
	kind := d.PeekKind()
	if kind == jsontext.KindString {
		s, err := text(d)
		if err != nil {
			return nil, err
		}
		return jsontext.AppendQuote(dst, s)
	}
	token, err := d.ReadToken()
	switch {
	case err != nil:
		return nil, ill(err)
	case d.StackDepth() > maxDepth:
		return nil, fmt.Errorf("the body is nested more than %d levels deep", maxDepth)
	case kind == jsontext.KindNumber:
		return appendNumber(dst, token.String()), nil
	case kind == jsontext.KindBeginArray:
		dst = append(dst, '[')
		for d.PeekKind() != jsontext.KindEndArray {
			if dst, err = appendCanonical(dst, d); err != nil {
				return nil, err
			}
			dst = append(dst, ',')
		}
		if _, err := d.ReadToken(); err != nil {
			return nil, ill(err)
		}
		return append(dst, ']'), nil
	case kind == jsontext.KindBeginObject:
		var members []member
		for d.PeekKind() != jsontext.KindEndObject {
			var m member
			if m.name, err = text(d); err != nil {
				return nil, err
			}
			if m.value, err = appendCanonical(nil, d); err != nil {
				return nil, err
			}
			members = append(members, m)
		}
		if _, err := d.ReadToken(); err != nil {
			return nil, ill(err)
		}
		return appendObject(dst, members), nil
	}
	return append(dst, token.String()...), nil // true, false, null
}

func appendObject(dst []byte, members []member) []byte {
	slices.SortFunc(members, func(a, b member) int { return strings.Compare(a.name, b.name) })
	dst = append(dst, '{')
	for _, m := range members {
		dst, _ = jsontext.AppendQuote(dst, m.name) // the decoder lets no invalid UTF-8 pass
		dst = append(append(append(dst, ':'), m.value...), ',')
	}
	return append(dst, '}')
}

// text reads a string. NUL characters are refused as jsonb refuses them.
func text(d *jsontext.Decoder) (string, error) {
	token, err := d.ReadToken()
	if err != nil {
		return "", ill(err)
	}
	s := token.String()
	if strings.ContainsRune(s, 0) {
		return "", fmt.Errorf(`the body holds a NUL character (\u0000) before byte %d`, d.InputOffset())
	}
	return s, nil
}

// ill is the parser's error in one line. The whole text of it would hold names of any length from the body.
func ill(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return errors.New("the body is empty or cut off")
	}
	syntax, ok := errors.AsType[*jsontext.SyntacticError](err)
	switch {
	case !ok:
		return fmt.Errorf("the body cannot be read: %w", err)
	case errors.Is(err, jsontext.ErrDuplicateName):
		return fmt.Errorf("the body has member %s twice, at byte %d", printable.Quote(syntax.JSONPointer.LastToken()), syntax.ByteOffset)
	}
	return fmt.Errorf("the body is not well-formed JSON at byte %d: %w", syntax.ByteOffset, syntax.Err)
}
