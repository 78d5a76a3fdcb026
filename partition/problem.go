package partition

import (
	"errors"
	"fmt"

	"github.com/callreceipt/reconciler/internal/printable"
)

// Problem is something wrong with a table, a partition or an archive object, for a person to put right.
type Problem struct {
	Of   string // the table, partition or file
	What string // what is wrong, and what to do
}

func (p *Problem) Error() string { return printable.Text(p.Of) + ": " + p.What }

// Held says why a partition stays where it is. It is the finding of a step, not a failure.
type Held struct {
	Reason  Reason
	Example string // the row, key, call or object by which it was seen
}

func (h *Held) Error() string {
	if h.Example == "" {
		return fmt.Sprintf("held: %s", h.Reason)
	}
	return fmt.Sprintf("held: %s (%s)", h.Reason, h.Example)
}

// asHeld returns the finding in err, or nil when err is something else.
func asHeld(err error) *Held {
	h, _ := errors.AsType[*Held](err)
	return h
}
