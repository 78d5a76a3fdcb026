package receipt

import (
	"errors"
	"fmt"
	"io"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/callreceipt/reconciler/internal/printable"
)

// fault is the reason why an answer is no answer: where it is and what is wrong there.
type fault struct {
	path string // such as receipts[3].status
	at   int64  // byte offset, at or shortly before the trouble
	text string // bounded and in one line
}

func (f *fault) Error() string { return fmt.Sprintf("%s at byte %d: %s", f.path, f.at, f.text) }

// place names what the decoder is reading, for an error.
func (d *decoder) place() string {
	if d.item < 0 {
		return "answer"
	}
	return fmt.Sprintf("receipts[%d]", d.item)
}

// fault makes an error about the item being read, or about the answer when there is none.
func (d *decoder) fault(at int64, format string, args ...any) error {
	return &fault{path: d.place(), at: at, text: fmt.Sprintf(format, args...)}
}

// syntax turns an error of the parser into a fault. The parser's own text is not used: it holds names of any
// length from the answer.
func (d *decoder) syntax(err error) error {
	if errors.Is(err, io.EOF) {
		return d.fault(d.dec.InputOffset(), "empty body")
	}
	at, text := d.dec.InputOffset(), err.Error()
	var syn *jsontext.SyntacticError
	if errors.As(err, &syn) {
		at, text = syn.ByteOffset, syn.Err.Error()
	}
	switch {
	case d.spot.at >= 0 && d.spot.at <= at:
		return d.fault(d.spot.at, "%s", d.spot.text)
	case errors.Is(err, jsontext.ErrDuplicateName):
		text = "duplicate member " + printable.Quote(syn.JSONPointer.LastToken())
	case errors.Is(err, io.ErrUnexpectedEOF):
		text = "the text ends too early"
	}
	return d.fault(at, "invalid JSON: %s", oneLine(text, 2*maxQuote))
}
