// Package rfc3339 reads instants as RFC 3339 writes them, and nothing that only resembles them.
package rfc3339

import (
	"bytes"
	"time"
)

// Parse reads a date and time with its zone, in capital letters, with any number of digits after the second. The time is in UTC, and the
// zero time unless ok. Package time also takes one-digit hours, a comma before the fraction and zones beyond 24 hours (go.dev/issue/54580).
func Parse(text []byte) (t time.Time, ok bool) {
	if t.UnmarshalText(text) != nil || text[len("2006-01-02T15")] != ':' || bytes.IndexByte(text, ',') >= 0 {
		return time.Time{}, false
	}
	zone := text[len(text)-len("+00:00"):]
	if text[len(text)-1] != 'Z' && (string(zone[1:3]) >= "24" || string(zone[4:]) >= "60") {
		return time.Time{}, false
	}
	return t.UTC(), true
}
