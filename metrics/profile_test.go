package metrics

import (
	"net/http"
	"strings"
	"testing"
)

func TestProfilesAreServedWithoutTheDefaultMux(t *testing.T) {
	t.Parallel()
	url := serve(t, HandlerConfig{Pprof: true}) + "/debug/pprof/"
	if got := ask(t, "GET", url); got.status != 200 || !strings.Contains(got.body, "\n/debug/pprof/heap\n") {
		t.Errorf("%d %s", got.status, got.body)
	}
	const gzip = "\x1f\x8b"
	for path, prefix := range map[string]string{
		"heap": gzip, "goroutine?debug=1": "goroutine profile: total", "profile?seconds=1": gzip, "trace": "go 1.",
	} {
		if got := ask(t, "GET", url+path, "Accept-Encoding", "identity"); got.status != 200 || !strings.HasPrefix(got.body, prefix) {
			t.Errorf("%s: %d %.40q", path, got.status, got.body)
		}
	}
	for path, status := range map[string]int{"nonsense": 404, "profile?seconds=0": 400, "profile?seconds=x": 400, "trace?seconds=301": 400, "trace?seconds=18446744074": 400} {
		if got := ask(t, "GET", url+path); got.status != status {
			t.Errorf("%s: %d %s", path, got.status, got.body)
		}
	}
	r, err := http.NewRequestWithContext(t.Context(), "GET", "http://x/debug/pprof/heap", nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, pattern := http.DefaultServeMux.Handler(r); pattern != "" {
		t.Errorf("http.DefaultServeMux serves %s", pattern)
	}
}
