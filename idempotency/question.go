package idempotency

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/callreceipt/reconciler/receipt"
)

// The largest question.
const (
	mostQuestion = 1 << 20
	mostIDs      = 1000
)

var errTooManyIDs = errors.New("more than " + strconv.Itoa(mostIDs) + " ids in one question, ask for fewer at once")

// question is what is asked.
type question struct {
	look look
	ids  []string
}

// questionMembers are the two ways to ask, of which a question has one.
var questionMembers = [...]struct {
	name string
	look look
	// sample is a receipt with the id in it: an id that spoils it would spoil the answer.
	sample func(id string) receipt.Receipt
}{
	{"bizIds", byBiz, byBiz.absent},
	{"callIds", byCall, func(id string) receipt.Receipt {
		return receipt.Receipt{CallID: id, BizID: "any", Status: receipt.StatusSuccess}
	}},
}

// parseQuestion is as strict as the reader of the answer: one JSON object in UTF-8, no name twice, names in their exact case, ids
// that can be answered. Other members are tolerated. The error is one line.
func parseQuestion(body []byte) (q question, err error) {
	dec := jsontext.NewDecoder(bytes.NewBuffer(body))
	if err := opens(dec, jsontext.KindBeginObject, "the question is not a JSON object"); err != nil {
		return q, err
	}
	for dec.PeekKind() != jsontext.KindEndObject {
		token, err := dec.ReadToken()
		if err != nil {
			return q, malformed(err)
		}
		if err := q.member(dec, token.String()); err != nil {
			return q, err
		}
	}
	if _, err := dec.ReadToken(); err != nil {
		return q, malformed(err)
	}
	if _, err := dec.ReadToken(); !errors.Is(err, io.EOF) {
		return q, errors.New("there is data after the question")
	}
	if q.ids == nil {
		return q, errors.New("the question has neither bizIds nor callIds")
	}
	return q, nil
}

// member reads one member of the question.
func (q *question) member(dec *jsontext.Decoder, name string) error {
	for _, m := range questionMembers {
		switch {
		case name == m.name && q.ids != nil:
			return errors.New("the question has both bizIds and callIds, ask one of them at once")
		case name == m.name:
			q.look = m.look
			return q.list(dec, name, m.sample)
		case strings.EqualFold(name, m.name):
			return fmt.Errorf("member %s must be written %s", strconv.QuoteToASCII(name), m.name)
		}
	}
	if err := dec.SkipValue(); err != nil {
		return malformed(err)
	}
	return nil
}

// list reads the array of ids.
func (q *question) list(dec *jsontext.Decoder, name string, sample func(string) receipt.Receipt) error {
	if err := opens(dec, jsontext.KindBeginArray, name+" is not an array"); err != nil {
		return err
	}
	for dec.PeekKind() != jsontext.KindEndArray {
		token, err := dec.ReadToken()
		switch {
		case err != nil:
			return malformed(err)
		case token.Kind() != jsontext.KindString:
			return fmt.Errorf("%s[%d] is not a string", name, len(q.ids))
		case len(q.ids) == mostIDs:
			return errTooManyIDs
		}
		id := token.String()
		if err := sample(id).Check(); err != nil {
			return fmt.Errorf("%s[%d] cannot be answered: %w", name, len(q.ids), err)
		}
		q.ids = append(q.ids, id)
	}
	if len(q.ids) == 0 {
		return errors.New(name + " is empty")
	}
	if _, err := dec.ReadToken(); err != nil {
		return malformed(err)
	}
	return nil
}

func opens(dec *jsontext.Decoder, kind jsontext.Kind, otherwise string) error {
	if got := dec.PeekKind(); got != kind && got != jsontext.KindInvalid {
		return errors.New(otherwise)
	}
	if _, err := dec.ReadToken(); err != nil {
		return malformed(err)
	}
	return nil
}

func malformed(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return errors.New("the question is empty or cut off")
	}
	// The whole text of the error holds names of any length from the question.
	if syntax, ok := errors.AsType[*jsontext.SyntacticError](err); ok {
		err = fmt.Errorf("at byte %d: %w", syntax.ByteOffset, syntax.Err)
	}
	return fmt.Errorf("the question is not well-formed JSON: %w", err)
}
