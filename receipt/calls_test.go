package receipt

import (
	"io"
	"net/http"
	"strings"
	"testing"
)

// A caller asks about its own call; whoever holds nothing of it cannot know its bizId.
func TestAQuestionAboutCallsIsAnsweredByCallID(t *testing.T) {
	t.Parallel()
	var asked string
	url := serve(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		asked = string(body)
		io.WriteString(w, answerOf(item(), `{"callId":"B2-0001","status":"NOT_FOUND"}`, `{"callId":"B9-0001","bizId":"B9","status":"SUCCESS"}`,
			`{"bizId":"B2","status":"NOT_FOUND"}`))
	})
	a, err := client(t, Config{URL: url}).QueryCalls(t.Context(), []string{"B1-0001", "B2-0001", "B3-0001"})
	if err != nil {
		t.Fatal(err)
	}
	if asked != `{"callIds":["B1-0001","B2-0001","B3-0001"]}` {
		t.Errorf("asked %s", asked)
	}
	if e := a.Of["B1-0001"]; e.Presence != Present || len(e.Receipts) != 1 || e.Receipts[0].BizID != "B1" || e.Receipts[0].Status != StatusSuccess {
		t.Errorf("B1-0001: %+v", e)
	}
	if e := a.Of["B2-0001"]; e.Presence != Absent {
		t.Errorf("B2-0001: %+v", e)
	}
	if e := a.Of["B3-0001"]; e.Presence != Unknown || e.Err == nil || e.Err.Kind != KindMissing {
		t.Errorf("B3-0001: %+v", e)
	}
	if len(a.Of) != 3 || a.Unasked != 2 { // a NOT_FOUND of a whole bizId answers no question about a call
		t.Errorf("%d entries, %d unasked", len(a.Of), a.Unasked)
	}
}

func TestOnlyANotFoundThatNamesItsCallMayLackTheBizID(t *testing.T) {
	t.Parallel()
	for _, bad := range []string{`{"callId":"A","status":"SUCCESS"}`, `{"callId":"A","status":"PROCESSING"}`, `{"status":"NOT_FOUND"}`} {
		if a, err := decode([]byte(answerOf(bad)), []string{"A"}, Limits{}, true); err == nil || !strings.Contains(err.Error(), "bizId is missing") {
			t.Errorf("%s: %+v, %v", bad, a, err)
		}
	}
	if a, err := Decode([]byte(answerOf(`{"callId":"A","status":"NOT_FOUND"}`)), []string{"A"}, Limits{}); err == nil {
		t.Errorf("asked by bizId, it was taken: %+v", a)
	}
}

func TestAReceiptOfACallOutweighsItsNotFound(t *testing.T) {
	t.Parallel()
	a, err := decode([]byte(answerOf(`{"callId":"B1-0001","status":"NOT_FOUND"}`, item())), []string{"B1-0001"}, Limits{}, true)
	if err != nil || a.Of["B1-0001"].Presence != Present {
		t.Errorf("%+v, %v", a, err)
	}
}
