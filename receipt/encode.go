package receipt

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/callreceipt/reconciler/internal/printable"
)

// MarshalJSON writes the receipt as an item of an answer. Members that are empty are left out, and Raw is not looked at.
func (r Receipt) MarshalJSON() ([]byte, error) {
	b := append(make([]byte, 0, 256+len(r.Result)), '{')
	for _, m := range [...]struct{ name, value string }{
		{nameCallID, r.CallID},
		{nameBizID, r.BizID},
		{nameOperation, r.Operation},
		{nameKey, r.IdempotencyKey},
		{nameStatus, string(r.Status)},
	} {
		if m.value == "" {
			continue
		}
		b = appendName(b, m.name)
		var err error
		if b, err = jsontext.AppendQuote(b, m.value); err != nil {
			return nil, fmt.Errorf("%s %s is not valid UTF-8", m.name, printable.Quote(m.value))
		}
	}
	if r.Result != nil {
		b = append(appendName(b, nameResult), r.Result...)
	}
	if !r.ProcessedAt.IsZero() {
		b = append(appendName(b, nameProcessedAt), '"')
		b = append(r.ProcessedAt.UTC().AppendFormat(b, time.RFC3339Nano), '"')
	}
	if r.Attempt != 0 {
		b = strconv.AppendInt(appendName(b, nameAttempt), int64(r.Attempt), 10)
	}
	return append(b, '}'), nil
}

func appendName(b []byte, name string) []byte {
	if b[len(b)-1] != '{' {
		b = append(b, ',')
	}
	return append(append(append(b, '"'), name...), '"', ':')
}

// Check reports why the strict reader at the other end would refuse the receipt, or nil. A downstream calls it before the
// receipt is written: one that cannot be read leaves its call without a verdict for ever.
func (r Receipt) Check() error {
	item, err := r.MarshalJSON()
	if err != nil {
		return err
	}
	back, err := decodeOne(item, Limits{})
	switch {
	case err != nil:
		return err
	case !bytes.Equal(back.Result, bytes.TrimSpace(r.Result)):
		return errors.New("result is not one JSON value") // it closes the object it stands in, and opens another member
	}
	return nil
}
