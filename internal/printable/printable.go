// Package printable makes ids and texts that came from outside safe to show to a person and to a log.
package printable

import (
	"strconv"
	"strings"
	"unicode"
)

// ID returns a plain id as it is, and any other quoted and escaped in ASCII: it can neither break a line, nor move the cursor,
// nor pass for another id, nor close the brackets it stands in.
func ID(id string) string {
	odd := func(r rune) bool { return r <= ' ' || r > '~' || strings.ContainsRune("\"'[]=\\`", r) }
	if id != "" && !strings.ContainsFunc(id, odd) {
		return id
	}
	return strings.NewReplacer("[", `\x5b`, "]", `\x5d`, "=", `\x3d`).Replace(strconv.QuoteToASCII(id))
}

// Text keeps words in any script and escapes everything that is not to be seen as it is.
func Text(s string) string {
	var b strings.Builder
	for _, r := range s {
		if r == unicode.ReplacementChar || !unicode.IsPrint(r) {
			quoted := strconv.QuoteRuneToASCII(r)
			b.WriteString(quoted[1 : len(quoted)-1])
			continue
		}
		b.WriteRune(r)
	}
	return b.String()
}
