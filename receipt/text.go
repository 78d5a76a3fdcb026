package receipt

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// The bounds of what an error tells of other people's text, in bytes.
const (
	maxText  = 300
	maxQuote = 40
)

// oneLine makes text of unknown origin fit for a log line: printable characters only, the others escaped,
// at most limit bytes and then an ellipsis.
func oneLine(s string, limit int) string {
	var b strings.Builder
	for len(s) > 0 {
		r, size := utf8.DecodeRuneInString(s)
		piece := s[:size]
		switch {
		case r == utf8.RuneError && size == 1:
			piece = fmt.Sprintf(`\x%02x`, s[0])
		case !strconv.IsPrint(r):
			piece = strings.Trim(strconv.QuoteRuneToASCII(r), "'")
		}
		if b.Len()+len(piece) > limit {
			b.WriteString("…")
			break
		}
		b.WriteString(piece)
		s = s[size:]
	}
	return b.String()
}
