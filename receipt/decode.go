package receipt

import (
	"bytes"
	"errors"
	"io"

	"github.com/go-json-experiment/json/jsontext"
)

// Limits bound what one answer may hold. Zero values mean the defaults.
type Limits struct {
	Items int // items in the receipts array
	Depth int // levels of nesting, counted from the outer object, also inside result
}

// The defaults of Limits. A bizId may own thousands of calls, a batch has hundreds of bizIds.
const (
	DefaultItems = 50_000
	DefaultDepth = 64
)

// Answer is what a well-formed answer says.
type Answer struct {
	// Of has exactly one entry for each id asked. One that the answer does not mention is Unknown, with
	// an Err of KindMissing.
	Of         map[string]Evidence
	Unasked    int // well-formed items for ids that nobody asked about, dropped
	Duplicates int // items that repeat another one, kept once
}

// Decode reads the body of an answer to the question about the asked bizIds. It is strict, because what it
// returns becomes a final verdict: one JSON document in valid UTF-8, no duplicate names, names in their exact
// case, no NUL characters, all ids as they must be. Unknown members are tolerated, unless they differ from a
// known one in their case only. Ids are compared byte for byte.
//
// An answer is taken as a whole or not at all. The error is always an *Error that says where the trouble is:
// KindTooLarge for more items than lim allows, KindMalformed for all else.
//
// Each Receipt.Raw is a part of body, so body must not be changed afterwards and lives as long as they do.
func Decode(body []byte, asked []string, lim Limits) (Answer, error) {
	answer, trouble := decode(body, asked, lim, false)
	if trouble != nil {
		return Answer{}, trouble
	}
	return answer, nil
}

// decode reads the answer to a question about bizIds, or about callIds.
func decode(body []byte, asked []string, lim Limits, byCall bool) (Answer, *Error) {
	if lim.Items == 0 {
		lim.Items = DefaultItems
	}
	if lim.Depth == 0 {
		lim.Depth = DefaultDepth
	}
	d := &decoder{
		body: body,
		dec:  jsontext.NewDecoder(bytes.NewBuffer(body)),
		lim:  lim,
		item: -1,
		spot: scan(body, lim.Depth),

		byCall: byCall,
	}
	sorted := newSorter(asked)
	add := sorted.add
	if byCall {
		add = sorted.addCall
	}
	if err := d.answer(add); err != nil {
		if errors.Is(err, errTooMany) {
			return Answer{}, &Error{Outcome: BadBatch, Kind: KindTooLarge, Err: err}
		}
		return Answer{}, &Error{Outcome: Unanswered, Kind: KindMalformed, Err: err}
	}
	return sorted.answer(), nil
}

var errTooMany = errors.New("too many receipts")

// decoder walks over one answer and hands out one item at a time, so that the number of items is checked before
// they take memory.
type decoder struct {
	body []byte
	dec  *jsontext.Decoder
	lim  Limits
	item int // index of the item being read, -1 outside the array
	spot forbidden
	// byCall allows a NOT_FOUND that names its call alone: whoever was asked by callId and holds nothing knows no bizId.
	byCall bool
}

// answer reads the whole body and calls add for each item.
func (d *decoder) answer(add func(bizID []byte, r Receipt)) error {
	if err := d.begin(jsontext.KindBeginObject, "an object"); err != nil {
		return err
	}
	listed := false
	for d.dec.PeekKind() != jsontext.KindEndObject {
		name, err := d.name()
		if err != nil {
			return err
		}
		if string(name) == "receipts" {
			listed = true
			err = d.receipts(add)
		} else {
			_, err = d.member(name, "receipts")
		}
		if err != nil {
			return err
		}
	}
	if _, err := d.dec.ReadToken(); err != nil {
		return d.syntax(err)
	}
	if _, err := d.dec.ReadToken(); err == nil {
		return d.fault(d.dec.InputOffset(), "data after the end")
	} else if !errors.Is(err, io.EOF) {
		return d.syntax(err)
	}
	if d.spot.at >= 0 {
		return d.fault(d.spot.at, "%s", d.spot.text)
	}
	if !listed {
		return d.fault(0, "receipts is missing")
	}
	return nil
}

// receipts reads the array.
func (d *decoder) receipts(add func(bizID []byte, r Receipt)) error {
	if err := d.begin(jsontext.KindBeginArray, "an array of receipts"); err != nil {
		return err
	}
	for n := 0; d.dec.PeekKind() != jsontext.KindEndArray; n++ {
		if n == d.lim.Items {
			return errTooMany
		}
		d.item = n
		bizID, r, err := d.receipt()
		if err != nil {
			return err
		}
		add(bizID, r)
	}
	d.item = -1
	if _, err := d.dec.ReadToken(); err != nil {
		return d.syntax(err)
	}
	return nil
}

// begin reads the opening bracket of the kind wanted.
func (d *decoder) begin(kind jsontext.Kind, wanted string) error {
	got := d.dec.PeekKind()
	if got != kind && got != jsontext.KindInvalid {
		return d.fault(d.dec.InputOffset(), "%s where %s belongs", got, wanted)
	}
	if _, err := d.dec.ReadToken(); err != nil {
		return d.syntax(err)
	}
	return nil
}

// name reads the name of the next member.
func (d *decoder) name() ([]byte, error) {
	raw, err := d.value()
	if err != nil {
		return nil, err
	}
	return unquote(raw), nil
}

// value reads the next value and returns its bytes as a part of the body.
func (d *decoder) value() ([]byte, error) {
	v, err := d.dec.ReadValue()
	if err != nil {
		return nil, d.syntax(err)
	}
	end := d.dec.InputOffset()
	return d.body[end-int64(len(v)) : end : end], nil
}

// unquote returns the text of a JSON string that the decoder has accepted.
func unquote(raw []byte) []byte {
	if bytes.IndexByte(raw, '\\') < 0 {
		return raw[1 : len(raw)-1]
	}
	s, _ := jsontext.AppendUnquote(nil, raw) // cannot fail on a string that was parsed
	return s
}
