package toolcall

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/jmoiron/sqlx"

	"github.com/callreceipt/reconciler/internal/printable"
	"github.com/callreceipt/reconciler/pending"
	"github.com/callreceipt/reconciler/receipt"
)

// mostName bounds the name of a tool, in bytes, as the pending table does.
const mostName = 200

// Call is one call of a tool. What could never be parked is refused before anything is sent.
type Call struct {
	Tool           string
	CallID         string          // 1 to 200 bytes, no control characters; never used for another call
	BizID          string          // 1 to 1,000 bytes: the business fact, such as an order number
	Operation      string          // "" means the tool's
	IdempotencyKey string          // "" means BizID:Operation; at most 1,500 bytes
	Request        json.RawMessage // the caller's own body: a JSON object of at most MaxRequest bytes
	IssuedAt       time.Time       // when the call was first issued, in the years 2000 to 9999; zero means now, and is refused with Sent
	// Sent is above 0 when an earlier process may have sent the call and died: the receipt is asked for before anything is sent. 1 is
	// right unless more sends are on record; a number too high makes a FAILED receipt look like that of an earlier send.
	Sent int
	// Transaction, if set, runs park in the caller's own transaction when (and only when) the call has to be parked, so that
	// the caller's own writes commit with it. No transaction is open while anything is on the wire. It has 5 seconds, ctx says
	// so, and must return an error unless the transaction was committed.
	Transaction func(ctx context.Context, park func(sqlx.ExtContext) error) error
}

// call is a Call that was found right. It is a value and nothing assigns to its fields again, so that whatever is sent or parked
// has the ids it began with.
type call struct {
	tool        string
	ids         receipt.Attempt // without a Number
	sent        int
	transaction func(ctx context.Context, park func(sqlx.ExtContext) error) error
}

func newCall(c Call, t *tool, now time.Time) (call, error) {
	if c.Operation == "" {
		c.Operation = t.operation
	}
	if c.IdempotencyKey == "" {
		c.IdempotencyKey = c.BizID + ":" + c.Operation
	}
	if c.IssuedAt.IsZero() && c.Sent <= 0 {
		c.IssuedAt = now
	}
	// The table keeps microseconds, and a send from there must carry the same timestamp.
	c.IssuedAt = c.IssuedAt.UTC().Truncate(time.Microsecond)
	if err := c.check(); err != nil {
		return call{}, fmt.Errorf("call %s of %s: %w", shown(c.CallID), shown(t.name), err)
	}
	return call{tool: t.name, sent: c.Sent, transaction: c.Transaction, ids: receipt.Attempt{
		CallID: c.CallID, BizID: c.BizID, Operation: c.Operation, IdempotencyKey: c.IdempotencyKey, IssuedAt: c.IssuedAt, Request: bytes.Clone(c.Request),
	}}, nil
}

func (c Call) check() error {
	for _, text := range []struct {
		name, value string
		most        int
	}{
		{"Call.CallID", c.CallID, receipt.MaxCallID},
		{"Call.BizID", c.BizID, receipt.MaxBizID},
		{"Call.Operation", c.Operation, receipt.MaxOperation},
		{"Call.IdempotencyKey", c.IdempotencyKey, receipt.MaxIdempotencyKey},
	} {
		if err := checkText(text.value, text.most); err != nil {
			return fmt.Errorf("%s %w", text.name, err)
		}
	}
	switch {
	case strings.ContainsFunc(c.CallID, unicode.IsControl):
		return errors.New("Call.CallID holds a control character")
	case c.Sent > 0 && c.IssuedAt.IsZero():
		return fmt.Errorf("Call.Sent is %d and Call.IssuedAt is not set: when the call was first issued must stand beside its callId, or a late retry passes for a new call", c.Sent)
	case c.IssuedAt.Year() < 2000 || c.IssuedAt.Year() > 9999:
		return fmt.Errorf("Call.IssuedAt is %s, must be in the years 2000 to 9999", c.IssuedAt)
	case c.Sent < 0 || c.Sent > math.MaxInt32-mostSends:
		return fmt.Errorf("Call.Sent is %d, must be from 0 to %d", c.Sent, math.MaxInt32-mostSends)
	}
	if err := checkRequest(c.Request); err != nil {
		return fmt.Errorf("Call.Request %w", err)
	}
	return nil
}

// checkText finds what PostgreSQL or the table would refuse.
func checkText(s string, most int) error {
	switch {
	case s == "":
		return errors.New("is empty")
	case len(s) > most:
		return fmt.Errorf("has %d bytes, more than the %d allowed", len(s), most)
	case !utf8.ValidString(s):
		return fmt.Errorf("is not valid UTF-8: %s", shown(s))
	case strings.ContainsRune(s, 0):
		return fmt.Errorf("holds a NUL character: %s", shown(s))
	}
	return nil
}

// shown is an id for an error, which may come from a call that was refused for the length of its id.
func shown(id string) string {
	if len(id) > receipt.MaxCallID {
		return printable.ID(id[:receipt.MaxCallID]) + "…"
	}
	return printable.ID(id)
}

// attempt is the send of that number.
func (c call) attempt(number int) receipt.Attempt {
	a := c.ids
	a.Number = number
	return a
}

// suspension is the call as it is parked.
func (c call) suspension(attempt int, lastSent time.Time, kind pending.TimeoutKind) pending.Suspension {
	return pending.Suspension{
		CallID: c.ids.CallID, BizID: c.ids.BizID, Tool: c.tool, Operation: c.ids.Operation, IdempotencyKey: c.ids.IdempotencyKey,
		Attempt: max(attempt, 1), IssuedAt: c.ids.IssuedAt, LastSentAt: lastSent, Request: c.ids.Request, TimeoutKind: kind,
	}
}
