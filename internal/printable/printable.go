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

// Call is the beginning of every log line about a call, [call=…][biz=…][try=2], so that grep finds a whole intent in the logs of every
// program that handles it. The ids are shown as by ID: none can break the line or pass for another.
func Call(callID, bizID string, attempt int) string {
	return "[call=" + ID(callID) + "][biz=" + ID(bizID) + "][try=" + strconv.Itoa(attempt) + "]"
}

// Quote returns the beginning of a value, up to 40 bytes of it, quoted and escaped in ASCII. An ellipsis tells that there is more.
func Quote[Value ~string | ~[]byte](v Value) string {
	const most = 40
	if len(v) > most {
		return strconv.QuoteToASCII(string(v[:most])) + "…"
	}
	return strconv.QuoteToASCII(string(v))
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
