package receipt

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// item is a well-formed receipt of B1 with one piece of its text replaced.
func item(replace ...string) string {
	const good = `{"callId":"B1-0001","bizId":"B1","operation":"charge","idempotencyKey":"B1:charge",` +
		`"status":"SUCCESS","result":{"ref":"x"},"processedAt":"2024-05-01T10:00:00Z","attempt":1}`
	s := strings.NewReplacer(replace...).Replace(good)
	if len(replace) > 0 && s == good {
		panic("nothing replaced: " + strings.Join(replace, " "))
	}
	return s
}

func answerOf(items ...string) string { return `{"receipts":[` + strings.Join(items, ",") + `]}` }

func TestATypicalAnswerIsReadInFull(t *testing.T) {
	t.Parallel()
	got, err := Decode([]byte(answerOf(item(), `{"bizId":"B2","status":"NOT_FOUND"}`)), []string{"B1", "B2", "B3"}, Limits{})
	if err != nil {
		t.Fatal(err)
	}
	want := Answer{Of: map[string]Evidence{
		"B1": {Presence: Present, Receipts: []Receipt{{
			CallID: "B1-0001", BizID: "B1", Operation: "charge", IdempotencyKey: "B1:charge", Status: StatusSuccess,
			ProcessedAt: time.Date(2024, 5, 1, 10, 0, 0, 0, time.UTC), Attempt: 1, Result: []byte(`{"ref":"x"}`), Raw: []byte(item()),
		}}},
		"B2": {Presence: Absent},
		"B3": {Presence: Unknown, Err: got.Of["B3"].Err},
	}}
	if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b *Error) bool { return a == b })); diff != "" {
		t.Error(diff)
	}
	if e := got.Of["B3"].Err; e == nil || e.Kind != KindMissing || e.Outcome != Unanswered {
		t.Errorf("B3 was not mentioned, got %v", e)
	}
}

func TestAMalformedAnswerIsNoAnswer(t *testing.T) {
	t.Parallel()
	deep := func(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }
	for symptom, c := range map[string]struct{ body, says string }{
		"empty body":                        {``, "answer at byte 0: empty body"},
		"white space only":                  {"  \n", "empty body"},
		"an HTML page":                      {`<html>`, `answer at byte 0: invalid JSON: invalid character '<'`},
		"an error object":                   {`{"error":"no such table"}`, "receipts is missing"},
		"null":                              {`null`, "null where an object belongs"},
		"[null]":                            {`[null]`, "where an object belongs"},
		"a bare array":                      {`[` + item() + `]`, "where an object belongs"},
		"receipts is null":                  {`{"receipts":null}`, "null where an array of receipts belongs"},
		"receipts is an object":             {`{"receipts":` + item() + `}`, "where an array of receipts belongs"},
		"an item is null":                   {answerOf(item(), `null`), "receipts[1] at byte"},
		"an item is a text":                 {answerOf(`"B1"`), "string where a receipt belongs"},
		"receipts in another case":          {strings.Replace(answerOf(item()), "receipts", "Receipts", 1), `member "Receipts" must be written receipts`},
		"receipts twice":                    {`{"receipts":[],"receipts":[` + item() + `]}`, `duplicate member "receipts"`},
		"array cut at an item boundary":     {`{"receipts":[` + item() + `,`, "the text ends too early"},
		"array cut before its end":          {`{"receipts":[` + item(), "the text ends too early"},
		"object not closed":                 {`{"receipts":[` + item() + `]`, "the text ends too early"},
		"trailing garbage":                  {answerOf(item()) + `x`, "invalid JSON"},
		"a second document":                 {answerOf(item()) + answerOf(), "data after the end"},
		"byte order mark":                   {"\xef\xbb\xbf" + answerOf(item()), "answer at byte 0: invalid JSON"},
		"single quotes":                     {strings.ReplaceAll(answerOf(item()), `"`, `'`), "invalid JSON"},
		"a comma too many":                  {`{"receipts":[` + item() + `,]}`, "invalid JSON"},
		"NaN":                               {answerOf(item(`{"ref":"x"}`, `NaN`)), "receipts[0] at byte"},
		"invalid UTF-8 in an id":            {answerOf(item(`"B1"`, "\"B\xff1\"")), "invalid UTF-8"},
		"invalid UTF-8 in a result":         {answerOf(item(`"x"`, "\"\xc3\"")), "invalid UTF-8"},
		"lone surrogate":                    {answerOf(item(`"x"`, `"\ud800"`)), "surrogate"},
		"NUL in an id":                      {answerOf(item(`"B1"`, `"B\u00001"`)), `receipts[0] at byte 43: a NUL character (\u0000)`},
		"NUL in a result":                   {answerOf(item(), item(`"x"`, `"a\u0000"`)), `receipts[1] at byte`},
		"NUL in a member name":              {answerOf(item(`"ref"`, `"\u0000"`)), `a NUL character`},
		"NUL in an unknown top member":      {`{"receipts":[],"x":["\u0000"]}`, `answer at byte 21: a NUL character`},
		"NUL in an unknown top name":        {`{"x\u0000":1,"receipts":[]}`, `a NUL character`},
		"NUL behind a backslash":            {answerOf(item(`"x"`, `"\\\u0000"`)), `a NUL character`},
		"duplicate status":                  {answerOf(item(`"status":"SUCCESS"`, `"status":"FAILED","status":"SUCCESS"`)), `duplicate member "status"`},
		"duplicate status by an escape":     {answerOf(item(`"status":"SUCCESS"`, `"status":"FAILED","st\u0061tus":"SUCCESS"`)), `duplicate member "status"`},
		"duplicate member in a result":      {answerOf(item(`{"ref":"x"}`, `{"a":1,"a":2}`)), `duplicate member "a"`},
		"duplicate unknown member":          {answerOf(item(`"attempt":1`, `"x":1,"x":1`)), `duplicate member "x"`},
		"status and STATUS":                 {answerOf(item(`"status":"SUCCESS"`, `"status":"FAILED","STATUS":"SUCCESS"`)), `member "STATUS" must be written status`},
		"ſtatus, which folds to status":     {answerOf(item(`"status":"SUCCESS"`, `"status":"FAILED","ſtatus":"SUCCESS"`)), `must be written status`},
		"CallID":                            {answerOf(item(`"callId"`, `"CallID"`)), `must be written callId`},
		"nesting of 10,000":                 {answerOf(item(`{"ref":"x"}`, deep(10_000))), "receipts[0] at byte 185: nested too deeply"},
		"nesting of 1,000,000":              {answerOf(item(`{"ref":"x"}`, deep(1_000_000))), "nested too deeply"},
		"nesting outside the items":         {`{"x":` + deep(64) + `,"receipts":[]}`, "answer at byte 68: nested too deeply"},
		"unknown status word":               {answerOf(item(`"SUCCESS"`, `"DONE"`)), `receipts[0].status at byte 105: "DONE" is not one of SUCCESS, FAILED, PROCESSING, NOT_FOUND`},
		"status in lower case":              {answerOf(item(), item(), item(), item(`"SUCCESS"`, `"success"`)), `"success" is not one of SUCCESS, FAILED, PROCESSING, NOT_FOUND`},
		"status with a space":               {answerOf(item(`"SUCCESS"`, `"SUCCESS "`)), "is not one of"},
		"status 0":                          {answerOf(item(`"SUCCESS"`, `0`)), "receipts[0].status at byte 105: \"0\" is not one of"},
		"status true":                       {answerOf(item(`"SUCCESS"`, `true`)), "is not one of"},
		"status null":                       {answerOf(item(`"SUCCESS"`, `null`)), "is not one of"},
		"status empty":                      {answerOf(item(`"SUCCESS"`, `""`)), "is not one of"},
		"status missing":                    {answerOf(item(`"status":"SUCCESS",`, ``)), "receipts[0] at byte 13: status is missing"},
		"bizId missing":                     {answerOf(item(`"bizId":"B1",`, ``)), "bizId is missing"},
		"bizId null":                        {answerOf(item(`"bizId":"B1"`, `"bizId":null`)), "receipts[0].bizId at byte"},
		"bizId empty":                       {answerOf(item(`"bizId":"B1"`, `"bizId":""`)), "is empty"},
		"bizId a number":                    {answerOf(item(`"bizId":"B1"`, `"bizId":17`)), `"17" is not a string`},
		"bizId of 1,001 bytes":              {answerOf(item(`"bizId":"B1"`, `"bizId":"`+strings.Repeat("b", 1001)+`"`)), "1001 bytes, more than the 1000 allowed"},
		"bizId of 1 MB":                     {answerOf(item(`"bizId":"B1"`, `"bizId":"`+strings.Repeat("b", 1<<20)+`"`)), "more than the 1000 allowed"},
		"callId missing":                    {answerOf(item(`"callId":"B1-0001",`, ``)), "receipts[0] at byte 13: callId is missing"},
		"callId null":                       {answerOf(item(`"B1-0001"`, `null`)), "is not a string"},
		"callId null with NOT_FOUND":        {answerOf(`{"bizId":"B1","status":"NOT_FOUND","callId":null}`), "is not a string"},
		"callId empty":                      {answerOf(item(`"B1-0001"`, `""`)), "is empty"},
		"callId of 201 bytes":               {answerOf(item(`B1-0001`, strings.Repeat("c", 201))), "201 bytes, more than the 200 allowed"},
		"callId with a newline":             {answerOf(item(`B1-0001`, `B1\n0001`)), `"B1\n0001" holds a control character`},
		"callId with an ANSI escape":        {answerOf(item(`B1-0001`, `\u001b[31m`)), "holds a control character"},
		"callId with a C1 control":          {answerOf(item(`B1-0001`, "B1\u0085")), "holds a control character"},
		"operation a number":                {answerOf(item(`"charge"`, `1`)), "receipts[0].operation at byte"},
		"idempotencyKey of 1,501 bytes":     {answerOf(item(`B1:charge`, strings.Repeat("k", 1501))), "more than the 1500 allowed"},
		"attempt 0":                         {answerOf(item(`"attempt":1`, `"attempt":0`)), "is not an integer from 1 to 2147483647"},
		"attempt negative":                  {answerOf(item(`"attempt":1`, `"attempt":-1`)), "is not an integer"},
		"attempt 2^31":                      {answerOf(item(`"attempt":1`, `"attempt":2147483648`)), "is not an integer"},
		"attempt with a fraction":           {answerOf(item(`"attempt":1`, `"attempt":1.5`)), "is not an integer"},
		"attempt a text":                    {answerOf(item(`"attempt":1`, `"attempt":"1"`)), "is not an integer"},
		"processedAt in year 1":             {answerOf(item(`2024-`, `0001-`)), "is not in the years 2000 to 9999"},
		"processedAt in 1970":               {answerOf(item(`2024-05-01T10`, `1970-01-01T00`)), "is not in the years 2000 to 9999"},
		"processedAt beyond 9999 in UTC":    {answerOf(item(`2024-05-01T10:00:00Z`, `9999-12-31T23:59:59-01:00`)), "is not in the years"},
		"processedAt without zone":          {answerOf(item(`10:00:00Z`, `10:00:00`)), "is not an RFC 3339 time with a zone"},
		"processedAt with a one-digit hour": {answerOf(item(`T10:`, `T1:`)), "is not an RFC 3339 time with a zone"},
		"processedAt with a comma":          {answerOf(item(`10:00:00Z`, `10:00:00,5Z`)), "is not an RFC 3339 time with a zone"},
		"processedAt in zone +24:00":        {answerOf(item(`10:00:00Z`, `10:00:00+24:00`)), "is not an RFC 3339 time with a zone"},
		"processedAt in zone +01:60":        {answerOf(item(`10:00:00Z`, `10:00:00+01:60`)), "is not an RFC 3339 time with a zone"},
		"processedAt a number":              {answerOf(item(`"2024-05-01T10:00:00Z"`, `1714557600`)), "is not an RFC 3339 time with a zone"},
		"processedAt empty":                 {answerOf(item(`2024-05-01T10:00:00Z`, ``)), "is not an RFC 3339 time with a zone"},
		"malformed item nobody asked for":   {answerOf(item(), item(`"B1"`, `"B9"`, `"SUCCESS"`, `"DONE"`)), "is not one of"},
	} {
		t.Run(symptom, func(t *testing.T) {
			t.Parallel()
			got, err := Decode([]byte(c.body), []string{"B1"}, Limits{})
			var e *Error
			if !errors.As(err, &e) || e.Kind != KindMalformed || e.Outcome != Unanswered || got.Of != nil {
				t.Fatalf("got %+v, %v", got, err)
			}
			if text := err.Error(); !strings.Contains(text, c.says) || len(text) > maxText || strings.ContainsAny(text, "\n\x1b") {
				t.Errorf("got  %s\nwant %s", text, c.says)
			}
		})
	}
}

func TestWhatIsUnusualButWellFormedIsTaken(t *testing.T) {
	t.Parallel()
	deep := func(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }
	for name, body := range map[string]string{
		"unknown members":               `{"v":2,"receipts":[` + item(`"attempt":1`, `"attempt":1,"trace":{"id":[1,null]}`) + `],"next":null}`,
		"null for optional members":     answerOf(item(`"charge"`, `null`, `"B1:charge"`, `null`, `"2024-05-01T10:00:00Z"`, `null`, `"attempt":1`, `"attempt":null`)),
		"optional members missing":      answerOf(`{"bizId":"B1","callId":"B1-0001","status":"SUCCESS"}`),
		"a result of null":              answerOf(item(`{"ref":"x"}`, `null`)),
		"a result with a huge number":   answerOf(item(`{"ref":"x"}`, `1e999999`)),
		"a backslash before u0000":      answerOf(item(`"x"`, `"\\u0000"`)),
		"ids of the greatest length":    answerOf(item(`B1-0001`, strings.Repeat("c", 200), `B1:charge`, strings.Repeat("k", 1500))),
		"ids with escapes":              answerOf(item(`"B1"`, `"\u00421"`)),
		"names with escapes":            answerOf(item(`"bizId"`, `"b\u0069zId"`)),
		"brackets in texts":             answerOf(item(`"x"`, `"`+strings.Repeat(`[{\"`, 100)+`"`)),
		"nesting up to the limit":       answerOf(item(`{"ref":"x"}`, deep(61))),
		"attempt 2^31-1":                answerOf(item(`"attempt":1`, `"attempt":2147483647`)),
		"processedAt in the future":     answerOf(item(`2024-`, `2999-`)),
		"processedAt of the year 2000":  answerOf(item(`2024-05-01T10:00:00Z`, `2000-01-01T00:00:00.000000001Z`)),
		"processedAt with another zone": answerOf(item(`10:00:00Z`, `15:30:00.5+05:30`)),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := Decode([]byte(body), []string{"B1"}, Limits{})
			if err != nil || got.Unasked != 0 {
				t.Fatalf("got %+v, %v", got, err)
			}
			if e := got.Of["B1"]; e.Presence != Present || len(e.Receipts) != 1 || e.Receipts[0].Status != StatusSuccess {
				t.Errorf("got %+v", e)
			}
		})
	}
}

func TestAnIdIsComparedByteForByte(t *testing.T) {
	t.Parallel()
	asked := []string{"Zoë"}
	for _, other := range []string{"zoë", "Zoë ", " Zoë", "Zoe\u0308", "Zoe", "Zoë\u200b"} {
		got, err := Decode([]byte(answerOf(item(`"B1"`, `"`+other+`"`))), asked, Limits{})
		if err != nil || got.Unasked != 1 || len(got.Of) != 1 || got.Of["Zoë"].Presence != Unknown {
			t.Errorf("%q: got %+v, %v", other, got, err)
		}
	}
}

func TestTheAnswerOfAnotherRequestSaysNothing(t *testing.T) {
	t.Parallel()
	got, err := Decode([]byte(answerOf(item(), `{"bizId":"B2","status":"NOT_FOUND"}`)), []string{"B7", "B8"}, Limits{})
	if err != nil || got.Unasked != 2 || len(got.Of) != 2 || got.Of["B7"].Presence != Unknown || got.Of["B8"].Presence != Unknown {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestRepeatedItems(t *testing.T) {
	t.Parallel()
	const bare = `{"bizId":"B1","status":"NOT_FOUND"}`
	named := `{"bizId":"B1","status":"NOT_FOUND","callId":"B1-0001"}`
	for name, c := range map[string]struct {
		items      []string
		receipts   int
		duplicates int
		presence   Presence
	}{
		"exact duplicates are one":                 {[]string{item(), item(), item()}, 1, 2, Present},
		"so are items that differ in their layout": {[]string{item(), item(`,"status"`, ` , "st\u0061tus"`), item(`"bizId":"B1",`, ``, `"attempt":1`, `"attempt":1,"bizId":"B1"`)}, 1, 2, Present},
		"contradicting duplicates are both kept":   {[]string{item(), item(`SUCCESS`, `FAILED`), item()}, 2, 1, Present},
		"another result is another receipt":        {[]string{item(), item(`"x"`, `"y"`)}, 2, 0, Present},
		"numbers are not rounded":                  {[]string{item(`"x"`, `9007199254740993`), item(`"x"`, `9007199254740992`)}, 2, 0, Present},
		"receipts win over a bare NOT_FOUND":       {[]string{bare, item(), bare}, 1, 1, Present},
		"bare NOT_FOUND twice":                     {[]string{bare, bare}, 0, 1, Absent},
		"a NOT_FOUND of one call is a receipt":     {[]string{bare, named}, 1, 0, Present},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := Decode([]byte(answerOf(c.items...)), []string{"B1"}, Limits{})
			if err != nil {
				t.Fatal(err)
			}
			e := got.Of["B1"]
			if len(e.Receipts) != c.receipts || got.Duplicates != c.duplicates || e.Presence != c.presence {
				t.Errorf("got %d receipts, %d duplicates, presence %d", len(e.Receipts), got.Duplicates, e.Presence)
			}
		})
	}
}

func TestTooManyItemsAreABatchTooLarge(t *testing.T) {
	t.Parallel()
	items := strings.Repeat(`{"bizId":"B1","status":"NOT_FOUND"},`, 1_000_000)
	body := []byte(answerOf(items[:len(items)-1]))
	for _, most := range []int{0, 10} {
		_, err := Decode(body, []string{"B1"}, Limits{Items: most})
		var e *Error
		if !errors.As(err, &e) || e.Kind != KindTooLarge || e.Outcome != BadBatch {
			t.Errorf("got %v", err)
		}
	}
	if _, err := Decode([]byte(answerOf(item(), item())), []string{"B1"}, Limits{Items: 2}); err != nil {
		t.Errorf("two of two allowed: %v", err)
	}
}

func TestTooManyItemsTakeNoMemoryBeyondTheLimit(t *testing.T) {
	items := strings.Repeat(item()+",", 20_000)
	body := []byte(answerOf(items[:len(items)-1]))
	used := allocated(func() {
		if _, err := Decode(body, []string{"B1"}, Limits{Items: 100}); err == nil {
			t.Error("taken")
		}
	})
	if used > 1<<20 {
		t.Errorf("%d bytes allocated for 100 items of %d", used, len(body))
	}
}

func TestOneReceiptIsBounded(t *testing.T) {
	t.Parallel()
	sized := func(n int) string { return item(`"x"`, `"`+strings.Repeat("x", n-len(item())+1)+`"`) }
	if _, err := Decode([]byte(answerOf(sized(maxReceipt))), []string{"B1"}, Limits{}); err != nil {
		t.Errorf("%d bytes: %v", maxReceipt, err)
	}
	if _, err := Decode([]byte(answerOf(sized(maxReceipt+1))), []string{"B1"}, Limits{}); err == nil {
		t.Errorf("%d bytes were taken", maxReceipt+1)
	}
}

func TestManyRepeatsOfOneLargeReceiptStayLinear(t *testing.T) {
	large := item(`"x"`, `"`+strings.Repeat("x", maxReceipt-1000)+`"`)
	items := []string{large}
	for i := range 2000 {
		items = append(items, item(`"x"`, fmt.Sprint(i)))
	}
	body := []byte(answerOf(items...))
	used := allocated(func() {
		got, err := Decode(body, []string{"B1"}, Limits{})
		if err != nil || len(got.Of["B1"].Receipts) != 2001 {
			t.Errorf("got %d receipts, %v", len(got.Of["B1"].Receipts), err)
		}
	})
	if used > 16<<20 {
		t.Errorf("%d bytes allocated for a body of %d", used, len(body))
	}
}
