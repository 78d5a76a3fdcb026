package idempotency_test

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/callreceipt/reconciler/idempotency"
)

const wireCall = `{"amount":500,"attempt":2,"bizId":"ORD-9","callId":"ORD-9-0001","idempotencyKey":"ORD-9:charge","operation":"charge",` +
	`"timestamp":"2026-11-29T18:46:43.62866+08:00"}`

func TestACallOfTheRetryProtocolIsReadAsItIsWritten(t *testing.T) {
	t.Parallel()
	got, err := idempotency.ParseRequest([]byte(wireCall))
	if err != nil {
		t.Fatal(err)
	}
	hash, err := idempotency.Hash([]byte(`{"amount": 5e2}`))
	if err != nil {
		t.Fatal(err)
	}
	want := idempotency.Request{
		CallID: "ORD-9-0001", BizID: "ORD-9", Operation: "charge", IdempotencyKey: "ORD-9:charge", Attempt: 2,
		IssuedAt: time.Date(2026, 11, 29, 10, 46, 43, 628660000, time.UTC), Hash: hash, Body: []byte(wireCall),
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestWhatACallNeedNotSayHasADefault(t *testing.T) {
	t.Parallel()
	for _, rest := range []string{``, `,"attempt":null,"idempotencyKey":null`, `,"attempt":1`} {
		got, err := idempotency.ParseRequest([]byte(`{"callId":"A","bizId":"\u0042","operation":"charge","timestamp":"2026-11-29T18:46:43Z"` + rest + `}`))
		if err != nil || got.Attempt != 1 || got.IdempotencyKey != "B:charge" {
			t.Errorf("%s: %+v, %v", rest, got, err)
		}
	}
}

func TestACallThatTwoReadersCouldReadDifferentlyIsRefused(t *testing.T) {
	t.Parallel()
	with := func(old, new string) string {
		if !strings.Contains(wireCall, old) {
			t.Fatalf("%s is not there", old)
		}
		return strings.Replace(wireCall, old, new, 1)
	}
	deep := func(n int) string {
		return with(`500`, strings.Repeat("[", n)+strings.Repeat("]", n))
	}
	for body, says := range map[string]string{
		``:                                   "empty or cut off",
		` `:                                  "empty or cut off",
		`null`:                               "not a JSON object",
		`[` + wireCall + `]`:                 "not a JSON object",
		wireCall + wireCall:                  "data after the end",
		wireCall + "x":                       "data after the end",
		"\xef\xbb\xbf" + wireCall:            "not well-formed JSON",
		wireCall[:len(wireCall)-1]:           "cut off",
		`{"callId":"A",}`:                    "not well-formed JSON at byte",
		`{'callId':'A'}`:                     "not well-formed JSON at byte",
		with(`"amount":500`, `"callId":"X"`): "callId",
		with(`"amount":500`, `"c\u0061llId":"X"`):                            "twice",
		with(`"amount":500`, `"amount":1,"amount":500`):                      `"amount" twice`,
		with(`500`, `{"a":1,"\u0061":2}`):                                    `"a" twice`,
		with(`"amount"`, `"callID"`):                                         `member "callID" must be written callId`,
		with(`"amount"`, `"TIMESTAMP"`):                                      `must be written timestamp`,
		with(`"amount"`, `"idempotencykey"`):                                 `must be written idempotencyKey`,
		with(`"callId"`, `"call_id"`):                                        "callId is missing",
		with(`"ORD-9-0001"`, `null`):                                         "callId is missing",
		with(`"ORD-9-0001"`, `""`):                                           "callId is empty",
		with(`"ORD-9-0001"`, `17`):                                           "callId \"17\" is not a string",
		with(`"ORD-9-0001"`, `{"a":[]}`):                                     "is not a string",
		with(`"ORD-9-0001"`, `"a\nb"`):                                       "control character",
		with(`"ORD-9-0001"`, `"`+strings.Repeat("x", 201)+`"`):               "201 bytes",
		with(`"ORD-9"`, `"\u0000"`):                                          "NUL",
		with(`"ORD-9"`, "\"\xff\""):                                          "UTF-8",
		with(`"ORD-9"`, `"\ud800"`):                                          "not well-formed JSON",
		with(`"ORD-9:charge"`, `""`):                                         "idempotencyKey is empty",
		with(`500`, `"a\u0000b"`):                                            "NUL",
		with(`"amount"`, `"\u0000"`):                                         "NUL",
		with(`"attempt":2`, `"attempt":0`):                                   "attempt",
		with(`"attempt":2`, `"attempt":2.0`):                                 "attempt",
		with(`"attempt":2`, `"attempt":2e0`):                                 "attempt",
		with(`"attempt":2`, `"attempt":"2"`):                                 "attempt",
		with(`"attempt":2`, `"attempt":2147483648`):                          "attempt",
		with(`"attempt":2`, `"attempt":-1`):                                  "attempt",
		with(`2026-11-29T18:46:43.62866+08:00`, ``):                          "timestamp is empty",
		with(`2026-11-29T18:46:43.62866+08:00`, `2026-11-29T18:46:43`):       "RFC 3339",
		with(`2026-11-29T18:46:43.62866+08:00`, `2026-11-29 18:46:43Z`):      "RFC 3339",
		with(`2026-11-29T18:46:43.62866+08:00`, `2026-11-29T8:46:43Z`):       "RFC 3339",
		with(`2026-11-29T18:46:43.62866+08:00`, `2026-11-29T18:46:43,5Z`):    "RFC 3339",
		with(`2026-11-29T18:46:43.62866+08:00`, `2026-11-29T18:46:43+24:00`): "RFC 3339",
		with(`2026-11-29T18:46:43.62866+08:00`, `2026-02-30T18:46:43Z`):      "RFC 3339",
		with(`2026-11-29T18:46:43.62866+08:00`, `1999-12-31T23:59:59Z`):      "year 1999",
		with(`"2026-11-29T18:46:43.62866+08:00"`, `1764441603`):              "timestamp \"1764441603\" is not a string",
		with(`500`, `"`+strings.Repeat("x", 1<<20)+`"`):                      "larger than 1048576 bytes",
		with(`500`, `01`):                                                    "not well-formed JSON",
		with(`500`, `+1`):                                                    "not well-formed JSON",
		with(`500`, `NaN`):                                                   "not well-formed JSON",
		with(`500`, `[1,]`):                                                  "not well-formed JSON",
		with(`500`, `{"a" 1}`):                                               "not well-formed JSON",
		deep(64):                                                             "nested more than 64 levels",
		deep(100_000):                                                        "nested more than 64 levels",
		with(`"amount"`, `"`+strings.Repeat("callId", 10_000)+"\x01"+`"`):    "not well-formed JSON",
	} {
		_, err := idempotency.ParseRequest([]byte(body))
		if err == nil || !strings.Contains(err.Error(), says) || strings.ContainsAny(err.Error(), "\n\x01") || len(err.Error()) > 300 {
			t.Errorf("%.100q: %v; want %s", body, err, says)
		}
		if _, err := idempotency.Hash([]byte(body)); err == nil && strings.Contains(says, "JSON") {
			t.Errorf("%.100q has a hash", body)
		}
	}
	if _, err := idempotency.ParseRequest([]byte(deep(63))); err != nil {
		t.Errorf("63 levels in the payload: %v", err)
	}
}

func TestAMemberThatOnlyResemblesAnIDBelongsToThePayload(t *testing.T) {
	t.Parallel()
	plain, _ := idempotency.Hash([]byte(`{}`))
	for _, body := range []string{`{"call_id":1}`, `{"callId ":1}`, `{"nested":{"callID":1}}`, `{"calId":1}`} {
		if hash, err := idempotency.Hash([]byte(body)); err != nil || bytes.Equal(hash, plain) {
			t.Errorf("%s: %x, %v", body, hash, err)
		}
	}
}
