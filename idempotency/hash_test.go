package idempotency_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/jmoiron/sqlx"
	"pgregory.net/rapid"

	"github.com/callreceipt/reconciler/idempotency"
	"github.com/callreceipt/reconciler/internal/localpg"
	"github.com/callreceipt/reconciler/internal/testdb"
)

func hash(t rapid.TB, body string) string {
	t.Helper()
	h, err := idempotency.Hash([]byte(body))
	if err != nil || len(h) != 32 {
		t.Fatalf("%.200q: %x, %v", body, h, err)
	}
	return fmt.Sprintf("%x", h)
}

// spellings are lists of numbers of equal value; different lists differ.
var spellings = [][]string{
	{"0", "-0", "0.0", "-0.00", "0e5", "0E-5", "-0e+0", "0.000e999"},
	{"1", "1.0", "1e0", "10e-1", "0.1e1", "0.01e+2", "1000e-3", "1E-0", "1.000"},
	{"-1", "-1.0", "-10E-1"},
	{"100", "1e2", "1E+2", "100.0", "1.00e2", "0.001e5", "10e1", "1e02"},
	{"1.5", "1.50", "15e-1", "0.15e1", "150e-2"},
	{"15", "1.5e1"},
	{"0.15", "15e-2"},
	{"9007199254740993", "9007199254740993.0", "9007199254740993e0"},
	{"9007199254740992"},
	{"0.1"},
	{"0.1000000000000000055511151231257827"},
	{"12345678901234567890123456789012345678901234567890", "1234567890123456789012345678901234567890123456789.0e1"},
	{"1e300", "10e299"},
	{"1e-300", "0.1e-299"},
	{"1e131071", "10e131070"},
	{"1e-16383"},
}

func TestNumbersOfEqualValueAreEqualHoweverTheyAreSpelled(t *testing.T) {
	t.Parallel()
	db := testdb.Open(t, localpg.NewDatabase(t, localpg.Migration{}))
	seen := map[string]string{}
	for _, list := range spellings {
		want := hash(t, `{"a":`+list[0]+`}`)
		if other := seen[want]; other != "" {
			t.Errorf("%s and %s have one hash", other, list[0])
		}
		seen[want] = list[0]
		for _, n := range list {
			if got := hash(t, `{"a":`+n+`}`); got != want {
				t.Errorf("%s and %s differ", n, list[0])
			}
			var equal bool
			if err := db.Get(&equal, `SELECT $1::jsonb = $2::jsonb`, n, list[0]); err != nil || (!equal && n[0] != '-') {
				t.Errorf("jsonb says that %s and %s differ: %v", n, list[0], err)
			}
		}
	}
}

// jsonb refuses them, so they come out of no column in another spelling. Written out they would fill the memory.
func TestNumbersBeyondAllBoundsAreNeverWrittenOut(t *testing.T) {
	t.Parallel()
	for _, n := range []string{"1e999999999999999999999", "1e-999999999999999999999", "1e1000000000", "-1e2147483648", "1e1000001"} {
		if hash(t, `{"a":`+n+`}`) == hash(t, `{"a":0}`) {
			t.Errorf("%s is 0", n)
		}
	}
	if hash(t, `{"a":0e999999999999999999999}`) != hash(t, `{"a":0}`) {
		t.Error("0 is not 0")
	}
	many := "[" + strings.Repeat("1e131071,", 50_000) + "0]"
	hash(t, `{"a":`+many+`}`)
}

func TestTheMembersThatNumberACallAreNoPayload(t *testing.T) {
	t.Parallel()
	want := hash(t, `{"amount":1}`)
	if got := hash(t, `{"callId":"A","bizId":"B","operation":"x","idempotencyKey":"k","attempt":7,"timestamp":"t","amount":1}`); got != want {
		t.Error("they count")
	}
	if got := hash(t, `{"amount":1,"inner":{"attempt":1}}`); got == hash(t, `{"amount":1,"inner":{"attempt":2}}`) {
		t.Error("inside of the payload they do not count")
	}
}

// number is a JSON number in any spelling.
var number = rapid.Custom(func(t *rapid.T) string {
	n := rapid.StringMatching(`-?(0|[1-9][0-9]{0,25})(\.[0-9]{1,20})?`).Draw(t, "digits")
	if rapid.Bool().Draw(t, "exponential") {
		n += rapid.StringMatching(`[eE][+-]?0?[0-9]{1,3}`).Draw(t, "exponent")
	}
	return n
})

var word = rapid.StringOfN(rapid.OneOf(rapid.RuneFrom([]rune("ab\"\\/\n\t\x01\x7f\u2028é☃😀")), rapid.Rune().Filter(func(r rune) bool { return r != 0 })), 0, 6, -1)

// quoted spells a string in one of many ways.
func quoted(t *rapid.T, s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range s {
		switch {
		case r > 0xffff && rapid.Bool().Draw(t, "escaped"):
			fmt.Fprintf(&b, `\u%04x\u%04X`, 0xd800+(r-0x10000)>>10, 0xdc00+(r-0x10000)&0x3ff)
		case r < ' ' || r == '"' || r == '\\' || (r <= 0xffff && rapid.Bool().Draw(t, "escaped")):
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			b.WriteRune(r)
		}
	}
	return b.String() + `"`
}

// document writes a value, with white space anywhere.
func document(t *rapid.T, depth int) string {
	space := rapid.SampledFrom([]string{"", "", " ", "\n\t"})
	kinds := []string{"null", "true", "false", "number", "number", "string", "string"}
	if depth > 0 {
		kinds = append(kinds, "array", "object", "object")
	}
	switch kind := rapid.SampledFrom(kinds).Draw(t, "kind"); kind {
	case "number":
		return number.Draw(t, "number")
	case "string":
		return quoted(t, word.Draw(t, "string"))
	case "array":
		var items []string
		for range rapid.IntRange(0, 3).Draw(t, "items") {
			items = append(items, space.Draw(t, "space")+document(t, depth-1))
		}
		return "[" + strings.Join(items, ",") + space.Draw(t, "space") + "]"
	case "object":
		return object(t, depth)
	default:
		return kind
	}
}

func object(t *rapid.T, depth int) string {
	var members []string
	for _, name := range rapid.SliceOfNDistinct(word, 0, 4, rapid.ID).Draw(t, "names") {
		members = append(members, " "+quoted(t, name)+" : "+document(t, depth-1))
	}
	return "{" + strings.Join(members, ",") + "}"
}

func TestThePayloadThatComesOutOfAJSONBColumnHasTheSameHash(t *testing.T) {
	t.Parallel()
	db := testdb.Open(t, localpg.NewDatabase(t, localpg.Migration{}))
	rapid.Check(t, func(t *rapid.T) {
		body := object(t, 4)
		var stored string
		if err := db.Get(&stored, `SELECT $1::jsonb::text`, body); err != nil {
			t.Fatalf("%s: %v", body, err)
		}
		if hash(t, body) != hash(t, stored) {
			t.Fatalf("%s came back as %s, and is another payload", body, stored)
		}
	})
}

func TestPayloadsAreEqualExactlyWhenJSONBSaysSo(t *testing.T) {
	t.Parallel()
	db := testdb.Open(t, localpg.NewDatabase(t, localpg.Migration{}))
	rapid.Check(t, func(t *rapid.T) {
		a := object(t, 3)
		b := altered(t, a)
		if equalInJSONB(t, db, a, b) != (hash(t, a) == hash(t, b)) {
			t.Fatalf("%s and %s", a, b)
		}
	})
}

// altered changes one character, and perhaps nothing that counts.
func altered(t *rapid.T, body string) string {
	for range 20 {
		at := rapid.IntRange(1, len(body)-1).Draw(t, "at")
		piece := rapid.SampledFrom([]string{"0", "1", ".0", "e0", "e1", " ", "a", "-", ""}).Draw(t, "piece")
		changed := body[:at] + piece + body[at+rapid.IntRange(0, 1).Draw(t, "replaced"):]
		if _, err := idempotency.Hash([]byte(changed)); err == nil {
			return changed
		}
	}
	return body
}

func equalInJSONB(t *rapid.T, db *sqlx.DB, a, b string) (equal bool) {
	if err := db.Get(&equal, `SELECT $1::jsonb = $2::jsonb`, a, b); err != nil {
		t.Skip(err) // a number that jsonb does not take
	}
	return equal
}

func FuzzHash(f *testing.F) {
	for _, list := range spellings {
		for _, n := range list {
			f.Add([]byte(`{"a":` + n + `}`))
		}
	}
	for _, body := range []string{
		wireCall, `{}`, `{"a":{"b":[1,2.50,"\u00e9"],"a":null}}`, `{"a":"\ud83d\ude00"}`, `{"a":1,"a":2}`, `{"callID":1}`, `{"a":"\u0000"}`, `[]`, ``, `{`,
		`{"a":` + strings.Repeat("[", 70) + strings.Repeat("]", 70) + `}`,
	} {
		f.Add([]byte(body))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		want, err := idempotency.Hash(body)
		if err != nil {
			if text := err.Error(); len(text) > 300 || strings.ContainsAny(text, "\n\r\x1b\x00") {
				t.Fatalf("text %q", text)
			}
			return
		}
		if !jsontext.Value(body).IsValid() {
			t.Fatalf("%q has a hash and is no JSON", body)
		}
		other, err := jsontext.AppendFormat(nil, body, jsontext.ReorderRawObjects(true), jsontext.CanonicalizeRawInts(false),
			jsontext.CanonicalizeRawFloats(false), jsontext.PreserveRawStrings(false), jsontext.Multiline(true))
		if err != nil {
			t.Fatal(err)
		}
		if got, err := idempotency.Hash(other); len(other) <= 1<<20 && (err != nil || !bytes.Equal(got, want)) {
			t.Fatalf("%q and %q: %x, %x, %v", body, other, want, got, err)
		}
	})
}
