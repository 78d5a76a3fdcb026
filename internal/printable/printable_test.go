package printable_test

import (
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/callreceipt/reconciler/internal/printable"
)

func TestAPlainIDIsShownAsItIsAndAnyOtherQuoted(t *testing.T) {
	t.Parallel()
	for id, want := range map[string]string{
		"ORD20240501-0001":         `ORD20240501-0001`,
		"B1:charge/x%2F..{}<>&;,~": `B1:charge/x%2F..{}<>&;,~`,
		"":                         `""`,
		"a b":                      `"a b"`,
		" ":                        `" "`,
		"a\nb":                     `"a\nb"`,
		"a\r\tb":                   `"a\r\tb"`,
		"a\x00b":                   `"a\x00b"`,
		"\x1b[31mred":              `"\x1b\x5b31mred"`,
		"\u009b31m":                `"\u009b31m"`,
		"a\x7f":                    `"a\x7f"`,
		`a"b`:                      `"a\"b"`,
		`a'b`:                      `"a'b"`,
		"a`b":                      "\"a`b\"",
		`a\nb`:                     `"a\\nb"`,
		"C1][biz=B2":               `"C1\x5d\x5bbiz\x3dB2"`,
		"退款":                       `"\u9000\u6b3e"`,
		"é":                        `"\u00e9"`,
		"e\u0301":                  `"e\u0301"`,
		"a\xffb":                   `"a\xffb"`,
		"a\ufffdb":                 `"a\ufffdb"`,
		"a\u202eb":                 `"a\u202eb"`,
		"a\u2028b":                 `"a\u2028b"`,
		"\U0001f4b3":               `"\U0001f4b3"`,
	} {
		if got := printable.ID(id); got != want {
			t.Errorf("%q: %s, want %s", id, got, want)
		}
	}
}

// hostile mixes what breaks a line, a terminal or a reader with ordinary letters and with escapes that are spelled out.
func hostile() *rapid.Generator[string] {
	piece := rapid.OneOf(
		rapid.SampledFrom([]string{
			"a", "B", "1", "\n", "\r", "\t", "\x00", "\x1b[2J", "\"", "'", "`", "[", "]", "=", "\\", `\n`, `\x5b`, `\u202e`, "\xff", "\xc3", "\ufffd",
			"\u202e", "\u2028", "\u0085", "é", "e\u0301", "\U0001f4b3", " ", "\u00a0", "\ufeff", "%",
		}),
		rapid.String(),
		rapid.Map(rapid.SliceOfN(rapid.Byte(), 0, 4), func(b []byte) string { return string(b) }),
	)
	return rapid.Map(rapid.SliceOfN(piece, 0, 6), func(pieces []string) string { return strings.Join(pieces, "") })
}

func TestAnIDIsOneWordOfPrintableASCIIAndNeverAnothers(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		id, other := hostile().Draw(t, "id"), hostile().Draw(t, "other")
		got := printable.ID(id)
		for _, r := range got {
			if r < ' ' || r > '~' || strings.ContainsRune("[]=", r) {
				t.Fatalf("%q is shown as %q", id, got)
			}
		}
		if got == "" || strings.Contains(got, " ") && got[0] != '"' {
			t.Fatalf("%q is shown as %q", id, got)
		}
		if id != other && got == printable.ID(other) {
			t.Fatalf("%q and %q are both shown as %s", id, other, got)
		}
		// What an id is shown as is an id of its own.
		if got != id && printable.ID(got) == got {
			t.Fatalf("%q passes for %q", got, id)
		}
	})
}

func TestAPrefixOfALogLineNamesItsCallAndNoIDCanForgeAnother(t *testing.T) {
	t.Parallel()
	if got := printable.Call("ORD20240501-0001", "ORD20240501", 2); got != "[call=ORD20240501-0001][biz=ORD20240501][try=2]" {
		t.Error(got)
	}
	if got := printable.Call("x][biz=paid]\n[call=C1", "", 0); got != `[call="x\x5d\x5bbiz\x3dpaid\x5d\n\x5bcall\x3dC1"][biz=""][try=0]` {
		t.Error(got)
	}
}

func TestAQuoteIsTheBeginningOfAValueInASCII(t *testing.T) {
	t.Parallel()
	for value, want := range map[string]string{
		"":                                `""`,
		"DONE":                            `"DONE"`,
		"a\"b\\\n\x00\xff":                `"a\"b\\\n\x00\xff"`,
		"退款":                              `"\u9000\u6b3e"`,
		strings.Repeat("x", 40):           `"` + strings.Repeat("x", 40) + `"`,
		strings.Repeat("x", 41):           `"` + strings.Repeat("x", 40) + `"…`,
		strings.Repeat("x", 39) + "é":     `"` + strings.Repeat("x", 39) + `\xc3"…`, // cut inside of a letter
		strings.Repeat("x", 1<<20) + "\n": `"` + strings.Repeat("x", 40) + `"…`,
	} {
		if got := printable.Quote(value); got != want {
			t.Errorf("%.50q: %s, want %s", value, got, want)
		}
		if got := printable.Quote([]byte(value)); got != want {
			t.Errorf("%.50q as bytes: %s, want %s", value, got, want)
		}
	}
}

func TestATextKeepsWordsOfAnyScriptAndEscapesTheRest(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                        "",
		`say "no" to [this]=that`: `say "no" to [this]=that`,
		"退款 é e\u0301 \U0001f4b3": "退款 é e\u0301 \U0001f4b3",
		"a\nb\r\tc":               `a\nb\r\tc`,
		"\x1b[31mred":             `\x1b[31mred`,
		"\u009b31m":               `\u009b31m`,
		"a\x00\x7fb":              `a\x00\x7fb`,
		"a\xffb\ufffd":            `a\ufffdb\ufffd`,
		"\u202eevil\u2066":        `\u202eevil\u2066`,
		"a\u2028b\u2029":          `a\u2028b\u2029`,
		"a\u200bb\ufeff":          `a\u200bb\ufeff`,
	} {
		if got := printable.Text(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

func TestATextIsOneLineThatMovesNoCursorAndShowingItAgainChangesNothing(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		text := hostile().Draw(t, "text")
		got := printable.Text(text)
		if !utf8.ValidString(got) || strings.ContainsFunc(got, func(r rune) bool { return !unicode.IsPrint(r) }) {
			t.Fatalf("%q is shown as %q", text, got)
		}
		if again := printable.Text(got); again != got {
			t.Fatalf("%q is shown as %q, and that as %q", text, got, again)
		}
	})
}
