package receipt

import (
	"bytes"
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/go-cmp/cmp"
)

func FuzzDecode(f *testing.F) {
	twice := item() + "," + item(`,"status"`, ` , "status"`) + "," + item(`SUCCESS`, `FAILED`)
	for _, body := range []string{
		answerOf(item()), answerOf(twice), answerOf(item(`"B1"`, `"B9"`), `{"bizId":"B2","status":"NOT_FOUND"}`),
		answerOf(`{"bizId":"B2","status":"NOT_FOUND","callId":"B2-1"}`, `{"bizId":"B2","status":"NOT_FOUND"}`),
		``, `null`, `[null]`, `{"error":"x"}`, `<html>`, `{"receipts":null}`, `{"receipts":[null]}`, `{"receipts":[` + item() + `,`,
		answerOf(item()) + "x", answerOf() + answerOf(), "\xef\xbb\xbf" + answerOf(),
		answerOf(item(`"B1"`, `null`)), answerOf(item(`"B1"`, `""`)), answerOf(item(`"B1"`, `17`)), answerOf(item(`"B1"`, `" B1"`)),
		answerOf(item(`"SUCCESS"`, `"success"`)), answerOf(item(`"SUCCESS"`, `0`)), answerOf(item(`"SUCCESS"`, `true`)),
		answerOf(item(`"status":"SUCCESS"`, `"status":"FAILED","STATUS":"SUCCESS"`)),
		answerOf(item(`"status":"SUCCESS"`, `"status":"FAILED","status":"SUCCESS"`)),
		answerOf(item(`"B1"`, "\"B\xff1\"")), answerOf(item(`"x"`, `"\ud800"`)), answerOf(item(`"x"`, `"\ud83d\ude00"`)),
		answerOf(item(`"x"`, `"\u0000"`)), answerOf(item(`"x"`, `"\\u0000"`)), answerOf(item(`"x"`, `"\\\u0000"`)),
		answerOf(item(`{"ref":"x"}`, strings.Repeat("[", 70)+strings.Repeat("]", 70))), answerOf(item(`"x"`, `1e999`)),
		answerOf(item(`2024-`, `0001-`)), answerOf(item(`2024-`, `2999-`)), answerOf(item(`10:00:00Z`, `10:00:00`)),
		answerOf(item(`"attempt":1`, `"attempt":2147483648`)), answerOf(item(`"B1-0001"`, `"a\nb"`)),
	} {
		f.Add([]byte(body))
	}
	asked := []string{"B1", "B2", "Zoë"}
	f.Fuzz(func(t *testing.T, body []byte) {
		got, err := Decode(body, asked, Limits{})
		again, errAgain := Decode(bytes.Clone(body), asked, Limits{})
		if !reflect.DeepEqual(got, again) || (err == nil) != (errAgain == nil) {
			t.Fatalf("another answer the second time: %+v, %v, then %+v, %v", got, err, again, errAgain)
		}
		if err != nil {
			if text := err.Error(); len(text) > maxText || strings.ContainsAny(text, "\n\r\x1b\x00") || err.Error() != errAgain.Error() {
				t.Fatalf("text %q", text)
			}
			return
		}
		if keys := slices.Sorted(maps.Keys(got.Of)); !slices.Equal(keys, asked) {
			t.Fatalf("evidence for %q", keys)
		}
		for id, e := range got.Of {
			if (e.Presence == Present) != (len(e.Receipts) > 0) || (e.Presence == Unknown) != (e.Err != nil) {
				t.Fatalf("%s: %+v", id, e)
			}
			for _, r := range e.Receipts {
				checkReceipt(t, id, r, body)
			}
		}
		reversed, err := Decode(reverse(t, body), asked, Limits{})
		if err != nil {
			t.Fatalf("reversed: %v", err)
		}
		if diff := cmp.Diff(summary(got), summary(reversed)); diff != "" {
			t.Fatalf("the order of the items matters: %s", diff)
		}
	})
}

// checkReceipt checks a receipt against what encoding/json, another parser, reads in its raw text.
func checkReceipt(t *testing.T, bizID string, r Receipt, body []byte) {
	t.Helper()
	var raw map[string]any
	other := json.NewDecoder(bytes.NewReader(r.Raw))
	other.UseNumber()
	if err := other.Decode(&raw); err != nil || !json.Valid(r.Raw) || !bytes.Contains(body, r.Raw) {
		t.Fatalf("raw %q: %v", r.Raw, err)
	}
	if r.BizID != bizID || raw["bizId"] != bizID || raw["callId"] != r.CallID || raw["status"] != string(r.Status) {
		t.Fatalf("%+v from %v", r, raw)
	}
	if r.CallID == "" || len(r.CallID) > MaxCallID || r.Attempt < 0 || (!r.ProcessedAt.IsZero() && r.ProcessedAt.Year() < 2000) {
		t.Fatalf("%+v", r)
	}
	if text, err := json.Marshal(raw); err != nil || bytes.Contains(bytes.ReplaceAll(text, []byte(`\\`), nil), []byte(`\u0000`)) {
		t.Fatalf("a NUL in %q: %v", r.Raw, err)
	}
}

// reverse turns the order of the items round.
func reverse(t *testing.T, body []byte) []byte {
	t.Helper()
	var top map[string]json.RawMessage
	var items []json.RawMessage
	if err := json.Unmarshal(body, &top); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(top["receipts"], &items); err != nil {
		t.Fatal(err)
	}
	slices.Reverse(items)
	return append(append([]byte(`{"receipts":[`), bytes.Join(raws(items), []byte(","))...), `]}`...)
}

func raws(items []json.RawMessage) [][]byte {
	list := make([][]byte, len(items))
	for i := range items {
		list[i] = items[i]
	}
	return list
}

// summary is an answer without the order and the layout of its receipts.
func summary(a Answer) map[string][]string {
	s := map[string][]string{"": {string(rune('0' + a.Unasked)), string(rune('0' + a.Duplicates))}}
	for id, e := range a.Of {
		list := []string{string(rune('0' + e.Presence))}
		for _, r := range e.Receipts {
			form, _ := jsontext.AppendFormat(nil, r.Raw, jsontext.ReorderRawObjects(true))
			list = append(list, string(form))
		}
		slices.Sort(list)
		s[id] = list
	}
	return s
}
