package metrics

import (
	"context"
	"errors"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func ready(err error) func(context.Context) error {
	return func(context.Context) error { return err }
}

func TestReadyzListsTheChecksAsKubernetesDoes(t *testing.T) {
	t.Parallel()
	good := serve(t, HandlerConfig{Checks: []Check{{"database", ready(nil)}, {"scheduler", ready(nil)}}})
	bad := serve(t, HandlerConfig{Checks: []Check{
		{"database", ready(nil)}, {"scheduler", ready(errors.New("no tick\nfor \x1b[31m2h"))},
	}})
	for _, c := range []struct {
		url    string
		status int
		body   string
	}{
		{good + "/readyz", 200, "ok\n"},
		{good + "/readyz?verbose", 200, "[+]database ok\n[+]scheduler ok\nready\n"},
		{bad + "/readyz", 503, "[+]database ok\n[-]scheduler failed: see /readyz?verbose\nnot ready\n"},
		{bad + "/readyz?verbose", 503, "[+]database ok\n[-]scheduler failed: no tick\\nfor \\x1b[31m2h\nnot ready\n"},
		{bad + "/livez", 200, "ok\n"},
	} {
		if got := ask(t, "GET", c.url); got.status != c.status || got.body != c.body {
			t.Errorf("%s: %d %q", c.url, got.status, got.body)
		}
	}
}

func TestALongErrorIsShortened(t *testing.T) {
	t.Parallel()
	got := ask(t, "GET", serve(t, HandlerConfig{Checks: []Check{{"x", ready(errors.New(strings.Repeat("é", 10_000)))}}})+"/readyz?verbose")
	if len(got.body) > maxCheckText+100 || !strings.Contains(got.body, "éé…\n") {
		t.Errorf("%d bytes: %q", len(got.body), got.body)
	}
}

func TestAFloodOfProbesAsksOnceASecond(t *testing.T) {
	t.Parallel()
	var calls atomic.Int64
	c := &clock{at: noon}
	url := serve(t, HandlerConfig{Now: c.now, Checks: []Check{{"database", func(context.Context) error { calls.Add(1); return nil }}}})
	flood := func() {
		var all sync.WaitGroup
		for range 20 {
			all.Go(func() { ask(t, "GET", url+"/readyz") })
		}
		all.Wait()
	}
	flood()
	c.advance(checkFresh - time.Millisecond)
	flood()
	if n := calls.Load(); n != 1 {
		t.Errorf("asked %d times within a second", n)
	}
	c.advance(time.Millisecond)
	flood()
	if n := calls.Load(); n != 2 {
		t.Errorf("asked %d times after it", n)
	}
	c.advance(-time.Hour) // the clock was set back: what is cached is of no known age
	flood()
	if n := calls.Load(); n != 3 {
		t.Errorf("asked %d times after the clock went back", n)
	}
}

func TestChecksAreAskedAtOnceAndNoLongerThanASecond(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		patient := func(ctx context.Context) error { <-ctx.Done(); return nil }
		rd := newReadiness([]Check{{"a", patient}, {"b", patient}, {"c", ready(nil)}}, time.Now)
		began := time.Now()
		results := rd.ask()
		if took := time.Since(began); took != checkLimit {
			t.Errorf("it took %s", took)
		}
		if results[2] != nil {
			t.Errorf("the quick one: %v", results[2])
		}
		synctest.Wait()
	})
}

func TestACheckThatHangsIsNotCalledAgainUntilItReturns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int64
		leave := make(chan struct{})
		rd := newReadiness([]Check{{"deaf", func(context.Context) error { calls.Add(1); <-leave; return nil }}}, time.Now)
		for i, want := range []string{"no result within 1s", "an earlier check has not returned yet", "an earlier check has not returned yet"} {
			if err := rd.ask()[0]; err == nil || err.Error() != want {
				t.Errorf("probe %d: %v", i, err)
			}
			time.Sleep(checkFresh)
		}
		if calls.Load() != 1 {
			t.Errorf("%d calls", calls.Load())
		}
		close(leave)
		synctest.Wait()
		if err := rd.ask()[0]; err != nil || calls.Load() != 2 {
			t.Errorf("after it returned: %v, %d calls", err, calls.Load())
		}
	})
}

func TestACheckThatPanicsIsNotReady(t *testing.T) {
	t.Parallel()
	rd := newReadiness([]Check{{"x", func(context.Context) error { panic("boom") }}}, time.Now)
	w := httptest.NewRecorder()
	rd.ServeHTTP(w, httptest.NewRequest("GET", "/readyz?verbose", nil))
	if w.Code != 503 || !strings.Contains(w.Body.String(), "[-]x failed: panic: boom\n") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}
