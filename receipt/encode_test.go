package receipt

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func TestAReceiptIsReadBackAsItWasWritten(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		word := rapid.StringOfN(rapid.Rune(), 0, 20, 200)
		id := rapid.StringMatching(`[ -~éß☃]{1,50}`)
		want := Receipt{
			CallID: id.Draw(t, "call"), BizID: id.Draw(t, "biz"), Operation: word.Draw(t, "operation"), IdempotencyKey: word.Draw(t, "key"),
			Status:  rapid.SampledFrom([]Status{StatusSuccess, StatusFailed, StatusProcessing}).Draw(t, "status"),
			Attempt: rapid.IntRange(0, 1<<31-1).Draw(t, "attempt"),
			Result:  json.RawMessage(rapid.SampledFrom([]string{`null`, `{"ref":"x"}`, `[1,2.50]`, `"<&>"`, `0`}).Draw(t, "result")),
		}
		if rapid.Bool().Draw(t, "processed") {
			want.ProcessedAt = time.Unix(rapid.Int64Range(946684800, 4102444800).Draw(t, "at"), rapid.Int64Range(0, 999_999_999).Draw(t, "ns")).UTC()
		}
		if strings.ContainsRune(want.Operation+want.IdempotencyKey, 0) {
			if want.Check() == nil {
				t.Fatal("a NUL was let through, and PostgreSQL refuses it")
			}
			return
		}
		if err := want.Check(); err != nil {
			t.Fatal(err)
		}
		item, err := want.MarshalJSON()
		if err != nil {
			t.Fatal(err)
		}
		got, err := decodeOne(item, Limits{})
		if err != nil {
			t.Fatal(err)
		}
		want.Raw = item
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatal(diff)
		}
	})
}

func TestAReceiptThatNobodyCouldReadIsFoundOutBeforeItIsWritten(t *testing.T) {
	t.Parallel()
	good := Receipt{CallID: "A", BizID: "B", Status: StatusSuccess}
	for symptom, c := range map[string]struct {
		change func(*Receipt)
		says   string
	}{
		"the result closes the receipt":    {func(r *Receipt) { r.Result = []byte(`1},"x":{"y":2`) }, "data after the end"},
		"the result brings another member": {func(r *Receipt) { r.Result = []byte(`1,"extra":2`) }, "result is not one JSON value"},
		"the result overrides the status":  {func(r *Receipt) { r.Result = []byte(`1,"status":"FAILED"`) }, "duplicate"},
		"the result is no JSON":            {func(r *Receipt) { r.Result = []byte(`{`) }, "invalid"},
		"the result is empty":              {func(r *Receipt) { r.Result = []byte{} }, "invalid"},
		"the result holds a NUL":           {func(r *Receipt) { r.Result = []byte(`"\u0000"`) }, `\u0000`},
		"the receipt is too large":         {func(r *Receipt) { r.Result = []byte(`"` + strings.Repeat("x", maxReceipt) + `"`) }, "more than the 262144 allowed"},
		"no call":                          {func(r *Receipt) { r.CallID = "" }, "callId is missing"},
		"no bizId":                         {func(r *Receipt) { r.BizID = "" }, "bizId is missing"},
		"no status":                        {func(r *Receipt) { r.Status = "" }, "status is missing"},
		"an id that is not UTF-8":          {func(r *Receipt) { r.CallID = "\xff" }, "not valid UTF-8"},
	} {
		r := good
		c.change(&r)
		if err := r.Check(); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want %q", symptom, err, c.says)
		}
	}
	if err := good.Check(); err != nil {
		t.Errorf("a good one: %v", err)
	}
}
