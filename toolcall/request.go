package toolcall

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/callreceipt/reconciler/internal/printable"
)

// MaxRequest is the largest request of a call, in bytes. It is stored with every call that is parked. With the members that each send
// sets it is a body of less than 1 MiB, the most that a guard of package idempotency reads.
const MaxRequest = 1_000_000

// What PostgreSQL's jsonb takes is bounded further out: 131,072 digits, some thousand levels.
const (
	mostDepth  = 64
	mostDigits = 4000
)

// protocolNames are the members that every send sets.
var protocolNames = []string{"callId", "bizId", "operation", "idempotencyKey", "attempt", "timestamp"}

// checkRequest finds what the table would refuse, and what two readers could understand differently: the downstream that gets the
// request as it is, and the one that gets it back from a jsonb column.
func checkRequest(request json.RawMessage) error {
	if len(request) > MaxRequest {
		return fmt.Errorf("has %d bytes, more than the %d allowed", len(request), MaxRequest)
	}
	if len(request) == 0 {
		return errors.New("is empty, must be a JSON object: {} where there is nothing to say")
	}
	dec := jsontext.NewDecoder(bytes.NewBuffer(request)) // refuses duplicate names, invalid UTF-8 and lone surrogates
	if kind := dec.PeekKind(); kind != jsontext.KindBeginObject && kind != jsontext.KindInvalid {
		return fmt.Errorf("is no JSON object but %s", kind)
	}
	for open := true; open; open = dec.StackDepth() > 0 {
		token, err := dec.ReadToken()
		switch {
		case err != nil:
			return fmt.Errorf("is no JSON object: %w", plain(err))
		case dec.StackDepth() > mostDepth:
			return fmt.Errorf("is nested deeper than %d levels", mostDepth)
		}
		if err := checkToken(dec, token); err != nil {
			return fmt.Errorf("at byte %d %w", dec.InputOffset(), err)
		}
	}
	if _, err := dec.ReadToken(); !errors.Is(err, io.EOF) {
		return errors.New("is more than one JSON object")
	}
	return nil
}

func checkToken(dec *jsontext.Decoder, token jsontext.Token) error {
	kind := token.Kind()
	if kind == jsontext.KindNumber {
		return checkNumber(token.String())
	}
	if kind != jsontext.KindString {
		return nil
	}
	text := token.String()
	if strings.ContainsRune(text, 0) {
		return errors.New(`holds a NUL character (\u0000), which PostgreSQL cannot store`)
	}
	if _, read := dec.StackIndex(1); dec.StackDepth() == 1 && read%2 == 1 { // the name of a member of the request itself
		return checkName(text)
	}
	return nil
}

// checkName refuses a member that a reader who does not mind upper and lower case takes for one of the protocol's: it would stand
// beside the right one, and the downstream would see another call.
func checkName(name string) error {
	at := slices.IndexFunc(protocolNames, func(ours string) bool { return ours != name && strings.EqualFold(ours, name) })
	if at < 0 {
		return nil
	}
	return fmt.Errorf("has the member %s, which only upper and lower case tell from %s of the protocol", printable.ID(name), protocolNames[at])
}

func checkNumber(text string) error {
	digits, exponent, _ := strings.Cut(strings.ToLower(text), "e")
	power, err := strconv.Atoi("0" + strings.TrimLeft(exponent, "+-"))
	if len(digits) > mostDigits || err != nil || power > mostDigits {
		return fmt.Errorf("has a number of more than %d digits or powers of ten", mostDigits)
	}
	return nil
}

// plain is an error of the parser in one printable line.
func plain(err error) error {
	return errors.New(printable.Text(strings.TrimPrefix(err.Error(), "jsontext: ")))
}
