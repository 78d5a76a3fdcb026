package idempotency

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
)

func TestWhatIsNoQuestionIsRefusedInOneLineOfJSON(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	list := func(n int) string { return strings.Repeat(`"B",`, n-1) + `"B"` }
	for body, want := range map[string]int{
		`{"bizIds":["B1"]}`:                                 200,
		` {"bizIds" : [ "B1" ], "traceId": {"a":[1]}} `:     200,
		`{"trace":1,"callIds":["B1"]}`:                      200,
		`{"bizIds":["\u0042\u0031"]}`:                       200,
		`{"bizIds":[` + list(1000) + `]}`:                   200,
		`{"bizIds":[` + list(1001) + `]}`:                   413,
		`{"callIds":[` + list(1001) + `]}`:                  413,
		`{"bizIds":["` + strings.Repeat("x", 1<<20) + `"]}`: 413,
		``:                                   400,
		`null`:                               400,
		`[]`:                                 400,
		`"B1"`:                               400,
		`{}`:                                 400,
		`{"bizIds":[]}`:                      400,
		`{"bizIds":null}`:                    400,
		`{"bizIds":"B1"}`:                    400,
		`{"bizIds":{"B1":1}}`:                400,
		`{"bizIds":["B1",1]}`:                400,
		`{"bizIds":["B1",null]}`:             400,
		`{"bizIds":[["B1"]]}`:                400,
		`{"bizIds":["B1"],"callIds":["C1"]}`: 400,
		`{"bizIds":["B1"],"callIds":[]}`:     400,
		`{"bizIds":["B1"],"bizIds":["B2"]}`:  400,
		`{"bizIds":["B1"],"BizIDs":["B2"]}`:  400,
		`{"bizids":["B1"]}`:                  400,
		`{"bizIds":["B1"],"CALLIDS":1}`:      400,
		`{"bizIds":["B1"],"x":1,"x":2}`:      400,
		`{"bizIds":["B1"]} {}`:               400,
		`{"bizIds":["B1"]}x`:                 400,
		`{"bizIds":["B1"]`:                   400,
		`{"bizIds":["B1",]}`:                 400,
		`{bizIds:["B1"]}`:                    400,
		"{\"bizIds\":[\"\xff\"]}":            400,
		"\ufeff{\"bizIds\":[\"B1\"]}":        400,
		`{"bizIds":["\ud800"]}`:              400,
		`{"bizIds":["\u0000"]}`:              400,
		`{"bizIds":[""]}`:                    400,
		`{"bizIds":["` + strings.Repeat("x", 1001) + `"]}`: 400,
		`{"callIds":[""]}`:     400,
		`{"callIds":["a\nb"]}`: 400,
		`{"callIds":["` + strings.Repeat("x", 201) + `"]}`:                                        400,
		`{"` + strings.Repeat("x", 5000) + `":1,"` + strings.Repeat("x", 5000) + `":2}`:           400,
		`{"bizIds":["B1"],"x":` + strings.Repeat("[", 20_000) + strings.Repeat("]", 20_000) + `}`: 400,
	} {
		status, answer := d.post(t, body)
		if status != want {
			t.Errorf("%.80q: %d %s, want %d", body, status, answer, want)
		}
		if want == 200 {
			continue
		}
		var said struct{ Error string }
		if err := json.Unmarshal([]byte(answer), &said); err != nil || said.Error == "" || strings.Count(answer, "\n") != 1 || len(answer) > 300 {
			t.Errorf("%.80q: %q, %v", body, answer, err)
		}
	}
	for _, method := range []string{"GET", "HEAD", "PUT", "DELETE", "OPTIONS"} {
		req, _ := http.NewRequest(method, d.url, strings.NewReader(`{"bizIds":["B1"]}`))
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != 405 || resp.Header.Get("Allow") != "POST" {
			t.Errorf("%s: %d, Allow: %q", method, resp.StatusCode, resp.Header.Get("Allow"))
		}
	}
	if d.log.String() != "" {
		t.Errorf("what others did wrong was logged: %s", d.log)
	}
}
