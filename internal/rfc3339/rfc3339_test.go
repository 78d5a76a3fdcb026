package rfc3339_test

import (
	"fmt"
	"regexp"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/callreceipt/reconciler/internal/rfc3339"
)

func TestAnInstantIsReadAsItIsWrittenAndInUTC(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Time{
		"2024-05-01T10:00:00Z":               time.Date(2024, 5, 1, 10, 0, 0, 0, time.UTC),
		"2024-05-01T10:00:00.5+05:30":        time.Date(2024, 5, 1, 4, 30, 0, 500_000_000, time.UTC),
		"2024-05-01T10:00:00-23:59":          time.Date(2024, 5, 2, 9, 59, 0, 0, time.UTC),
		"2024-05-01T10:00:00-00:00":          time.Date(2024, 5, 1, 10, 0, 0, 0, time.UTC),
		"2024-02-29T23:59:59.1234567890123Z": time.Date(2024, 2, 29, 23, 59, 59, 123_456_789, time.UTC),
		"0000-01-01T00:00:00Z":               time.Date(0, 1, 1, 0, 0, 0, 0, time.UTC),
		"9999-12-31T23:59:59-01:00":          time.Date(10000, 1, 1, 0, 59, 59, 0, time.UTC),
	} {
		if got, ok := rfc3339.Parse([]byte(text)); !ok || got != want {
			t.Errorf("%s: %s, %t", text, got, ok)
		}
	}
}

func TestWhatOnlyResemblesAnInstantIsRefused(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"", "Z", "2024-05-01", "2024-05-01T10:00:00", "2024-05-01T10:00Z", "2024-05-01 10:00:00Z", "2024-05-01t10:00:00Z", "2024-05-01T10:00:00z",
		"2024-05-01T1:00:00Z", "2024-05-01T1:00:00.5Z", "2024-05-01T10:00:00,5Z", "2024-05-01T10:00:00.Z", "2024-05-01T24:00:00Z", "2024-05-01T10:60:00Z",
		"2024-05-01T10:00:60Z", "2023-02-29T10:00:00Z", "2024-13-01T10:00:00Z", "2024-05-01T10:00:00+24:00", "2024-05-01T10:00:00+01:60",
		"2024-05-01T10:00:00+0100", "2024-05-01T10:00:00+01", "12024-05-01T10:00:00Z", "2024-5-01T10:00:00Z", "2024-05-01T10:00:00Z\n", " 2024-05-01T10:00:00Z",
	} {
		if got, ok := rfc3339.Parse([]byte(text)); ok || !got.IsZero() {
			t.Errorf("%q: %s, %t", text, got, ok)
		}
	}
}

// grammar is that of RFC 3339, section 5.6, which does not know how long a month is.
var grammar = regexp.MustCompile(`^\d{4}-\d\d-\d\dT([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d+)?(Z|[+-]([01]\d|2[0-3]):[0-5]\d)$`)

func TestAnInstantIsWhatTheGrammarAndTheCalendarAllow(t *testing.T) {
	t.Parallel()
	number := func(t *rapid.T, most int) int { return rapid.IntRange(0, most).Draw(t, "number") }
	zones := rapid.SampledFrom([]string{"Z", "Z", "z", "", "+00:00", "-23:59", "+24:00", "+05:60", "+0530", "+5:30"})
	fractions := rapid.SampledFrom([]string{"", "", ".5", ".123456789", ".0000000001", ",5", "."})
	valid := 0
	rapid.Check(t, func(t *rapid.T) {
		text := fmt.Sprintf("%04d-%02d-%02d%s%02d:%02d:%02d%s%s", number(t, 9999), number(t, 13), number(t, 32), rapid.SampledFrom([]string{"T", "T", "T", "t", " "}).Draw(t, "T"),
			number(t, 24), number(t, 60), number(t, 60), fractions.Draw(t, "fraction"), zones.Draw(t, "zone"))
		if rapid.IntRange(0, 3).Draw(t, "spoilt") == 0 { // a character is missing, or is another one
			at := number(t, len(text))
			text = text[:at] + rapid.SampledFrom([]string{"", "0", ":", ",", "Z", "+", "\n", "٣"}).Draw(t, "with") + text[min(at+1, len(text)):]
		}
		want, err := time.Parse(time.RFC3339Nano, text)
		allowed := err == nil && grammar.MatchString(text)
		got, ok := rfc3339.Parse([]byte(text))
		if ok != allowed || ok && got != want.UTC() || !ok && !got.IsZero() {
			t.Fatalf("%q: %s, %t; want %s, %v", text, got, ok, want, err)
		}
		if ok {
			valid++
		}
	})
	if valid == 0 {
		t.Error("no instant was drawn")
	}
}
