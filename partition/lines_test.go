package partition

import (
	"encoding/json"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// accepts feeds a line in pieces of a size.
func accepts(cols []Column, line string, piece int) bool {
	s := newShape(cols)
	for line += "\n"; line != ""; {
		n := min(piece, len(line))
		if !s.write([]byte(line[:n])) {
			return false
		}
		line = line[n:]
	}
	return s.complete()
}

func TestALineHasTheColumnsOfTheManifest(t *testing.T) {
	t.Parallel()
	cols := []Column{{Name: "a"}, {Name: "q\"\\\n\x01é"}}
	line := func(a, b string) string { return `{"a":` + a + `,"q\"\\\n\u0001é":` + b + `}` }
	for text, want := range map[string]bool{
		line(`1`, `"x"`):              true,
		line(`-0.5e+10`, `null`):      true,
		line(`0`, `""`):               true,
		line(`true`, `false`):         true,
		line(`"\u00e9\n\""`, `"漢😀"`):  true,
		line(`1e5`, `2.25`):           true,
		line(`01`, `1`):               false,
		line(`1.`, `1`):               false,
		line(`.5`, `1`):               false,
		line(`1e`, `1`):               false,
		line(`+1`, `1`):               false,
		line(`-`, `1`):                false,
		line(`NaN`, `1`):              false,
		line(`nul`, `1`):              false,
		line(`nulll`, `1`):            false,
		line(``, `1`):                 false,
		line(`"\x"`, `1`):             false,
		line(`"\u12g4"`, `1`):         false,
		line("\"\t\"", `1`):           false,
		line("\"\xc3\"", `1`):         false,
		line("\"\xed\xa0\x80\"", `1`): false,
		line(`[]`, `1`):               false,
		line(`"open`, `1`):            false,
		line(`1`, `1`) + ` `:          false,
		line(`1`, `1`)[1:]:            false,
		`{"a":1}`:                     false,
		`{}`:                          false,
		``:                            false,
	} {
		for piece := range 9 {
			if got := accepts(cols, text, piece+1); got != want {
				t.Errorf("%q in pieces of %d: %t", text, piece+1, got)
			}
		}
	}
}

// encoding/json judges the same values, but takes what is no UTF-8 and what is no scalar.
func TestAValueIsTakenIfItIsJSON(t *testing.T) {
	t.Parallel()
	cols := []Column{{Name: "a"}}
	value := rapid.OneOf(
		rapid.StringOfN(rapid.RuneFrom([]rune(`0123456789-+.eE"\untrfalsx/ `)), 0, 8, -1),
		rapid.StringMatching(`-?[0-9]{0,2}(\.[0-9]{0,2})?([eE][+-]?[0-9]{0,2})?`),
		rapid.StringMatching(`"(\\["\\/bfnrtux]?|[0-9a-fé漢😀]){0,6}"`),
	)
	rapid.Check(t, func(t *rapid.T) {
		v := value.Draw(t, "value")
		want := json.Valid([]byte(v)) && v == strings.TrimSpace(v)
		if got := accepts(cols, `{"a":`+v+`}`, rapid.IntRange(1, 20).Draw(t, "piece")); got != want {
			t.Fatalf("%q: %t, encoding/json says %t", v, got, want)
		}
	})
}

func TestAKeyIsWrittenAsJSON(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.String().Draw(t, "name")
		var back string
		if err := json.Unmarshal(jsonString(nil, name), &back); err != nil || back != name {
			t.Fatalf("%q became %q: %v", name, back, err)
		}
	})
}
