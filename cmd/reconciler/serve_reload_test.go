package main

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/callreceipt/reconciler/internal/eventually"
)

// asking is the configuration of a tool with this downstream, with further keys of "receipts".
func (s *scene) asking(tool string, d *downstream, receipts ...string) string {
	keys := append([]string{fmt.Sprintf("url: %q", d.URL)}, receipts...)
	return fmt.Sprintf("  %s:\n    receipts: {%s}\n", tool, strings.Join(keys, ", "))
}

// parkOne puts one due call into the table.
func (s *scene) parkOne(tool, bizID string) {
	s.t.Helper()
	s.db.MustExec(`INSERT INTO reconciler.pending_confirmations (call_id, biz_id, tool, operation) VALUES ($1 || '-0001', $1, $2, 'charge')`, bizID, tool)
}

// becomes waits until a query has this single value.
func (s *scene) becomes(want, query string, args ...any) {
	s.t.Helper()
	got := ""
	s.t.Cleanup(func() {
		if got != want {
			s.t.Errorf("it is %q, want %q: %s", got, want, query)
		}
	})
	eventually.True(s.t, "it is "+want, func() bool {
		got = one[string](s, `SELECT coalesce((`+query+`), 'null')`, args...)
		return got == want
	})
}

// untilSome waits until so many calls are settled.
func (s *scene) untilSome(calls int) {
	s.t.Helper()
	eventually.True(s.t, fmt.Sprint(calls, " calls are settled"), func() bool {
		return one[int](s, `SELECT count(*) FROM reconciler.pending_confirmations WHERE status IN ('SUCCESS', 'FAILED')`) >= calls
	})
}

// untilSettled waits until every call of a tool is.
func (s *scene) untilSettled(tool string) {
	s.t.Helper()
	eventually.True(s.t, "every call of "+tool+" is settled", func() bool {
		return one[int](s, `SELECT count(*) FROM reconciler.pending_confirmations WHERE tool = $1 AND status NOT IN ('SUCCESS', 'FAILED')`, tool) == 0
	})
}

func TestServeReloadsAllOfAConfigurationOrNone(t *testing.T) {
	t.Parallel()
	s := newScene(t, "batch_size: 50", "charge", "refund")
	d := s.serve()
	d.ready()
	s.park("charge", 10)
	s.untilSettled("charge")

	// A tool that is added by SIGHUP is worked on, and the one that is taken out leaves nothing in the metrics.
	other := newDownstream(t)
	s.configure(s.asking("charge", other), s.asking("ship", other))
	d.signal(syscall.SIGHUP)
	s.park("ship", 4)
	s.park("refund", 4)
	s.untilSettled("ship")
	d.shows("reconciler_config_last_reload_successful", 1)
	eventually.True(t, "the metrics of refund are gone", func() bool {
		_, text := d.get("/metrics")
		return !strings.Contains(text, `"refund"`) && strings.Contains(text, `"ship"`)
	})
	d.shows("reconciler_unknown_tool_calls", 4)
	// What is changed counts from the reload on.
	s.parkOne("charge", "S-new")
	s.untilSettled("charge")
	if _, asked := other.seen(); !strings.Contains(fmt.Sprint(asked), "S-new") {
		t.Errorf("the downstream of the new configuration was asked for %v", asked)
	}

	// What cannot be read, and what can be read and not be done, changes nothing.
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("no secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for i, broken := range []string{
		"  charge: {receipts: {url: 17}}\n",
		s.asking("added", other) + fmt.Sprintf("    notify: {url: %q, secret_file: %q}\n", nobody, secret),
	} {
		s.configure(broken)
		if code, text := d.reload(); code != http.StatusInternalServerError || !strings.Contains(text, "what was in force stays in force") {
			t.Errorf("a broken file: %d %s", code, text)
		}
		d.shows("reconciler_config_last_reload_successful", 0)
		if _, text := d.get("/metrics"); strings.Contains(text, `"added"`) {
			t.Error("a refused configuration left series of its tool")
		}
		s.parkOne("ship", fmt.Sprintf("S-after-%d", i))
		s.untilSettled("ship")
	}
	s.configure(s.asking("refund", other))
	if code, text := d.reload(); code != http.StatusOK {
		t.Errorf("a good file: %d %s", code, text)
	}
	d.shows("reconciler_config_last_reload_successful", 1)
	s.untilSettled("refund")
}

// atFirst holds the first request that comes to a downstream until the returned function is called; arrived gets it.
func (d *downstream) atFirst() (arrived <-chan query, proceed func()) {
	came, open := make(chan query, 1), make(chan struct{})
	d.forget(func(q query) {
		if q.n == 1 {
			came <- q
			select {
			case <-open:
			case <-q.gone:
			}
		}
		q.answer()
	})
	return came, func() { close(open) }
}

func TestServeEndsAPassUnderTheConfigurationItBeganWithAndGoesOnUnderTheNext(t *testing.T) {
	t.Parallel()
	const batch = "batch_size: 10, concurrency: 1, timeout: 30s, rate: 1000"
	s := newScene(t, batch, "charge")
	s.park("charge", 30)
	arrived, proceed := s.downstream.atFirst()
	d := s.serve("RECONCILER_RECONCILE_SCHEDULE=@every 1h")
	inHand := await(t, arrived, "a request").bizIDs

	next := newDownstream(t)
	s.configure(s.asking("charge", next, batch))
	if code, text := d.reload(); code != http.StatusOK {
		t.Fatalf("%d %s", code, text)
	}
	// Longer than whoever asks for the lease waits for it.
	since := one[time.Time](s, `SELECT clock_timestamp()`)
	s.until("the lease would have been given up", `SELECT clock_timestamp() > $1::timestamptz + interval '3 seconds'`, since)
	proceed()
	s.untilSettled("charge")
	_, before := s.downstream.seen()
	_, after := next.seen()
	if !slices.Equal(before, slices.Sorted(slices.Values(inHand))) || len(after) != 20 {
		t.Errorf("the first downstream was asked for %v, with %v in hand; the next one for %v", before, inHand, after)
	}
	s.becomes("partial 10 the configuration was reloaded, success 20", `
		SELECT string_agg(concat_ws(' ', outcome, counts->>'scanned', error), ', ' ORDER BY started_at)
		FROM reconciler.runs WHERE task = 'reconcile'`)
}

// The configuration without the tool is still waiting for the pass when the one that has it again is at work.
func TestServeKeepsTheMetricsOfAToolThatIsTakenOutAndBroughtBack(t *testing.T) {
	t.Parallel()
	const batch = "batch_size: 10, concurrency: 1, timeout: 30s"
	s := newScene(t, batch, "charge", "refund")
	s.park("charge", 20)
	arrived, proceed := s.downstream.atFirst()
	d := s.serve("RECONCILER_RECONCILE_SCHEDULE=@every 1h")
	await(t, arrived, "a request")
	for _, tools := range []string{
		s.asking("refund", s.downstream, batch),
		s.asking("refund", s.downstream, batch) + s.asking("charge", s.downstream, batch),
	} {
		s.configure(tools)
		if code, text := d.reload(); code != http.StatusOK {
			t.Fatalf("%d %s", code, text)
		}
	}
	proceed()
	s.untilSettled("charge")
	d.shows(`reconciler_runs_total{outcome="success",task="reconcile",tool="charge"}`, 1)
	d.shows(`reconciler_verdicts_total{reason="receipt_success",tool="charge",verdict="success"}`, 10)
}

func TestServeTellsThatItsEndpointChangesWithARestartOnly(t *testing.T) {
	t.Parallel()
	s := newScene(t, "batch_size: 50", "charge")
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("a-secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	tool := s.asking("charge", s.downstream)
	configured := func(server string) { s.configure(tool, "server: {"+server+"}\n") }
	withToken := fmt.Sprintf("reload_token_file: %q", token)
	configured(withToken)
	d := s.serve()
	for i, step := range []struct {
		server   string
		warnings int
	}{{withToken, 0}, {"", 1}, {"", 2}, {withToken, 2}} {
		configured(step.server)
		if code, text := d.reload(); code != http.StatusOK {
			t.Fatalf("%d %s", code, text)
		}
		eventually.True(t, "the log speaks of the reload", func() bool { return len(d.log.saying("configuration reloaded")) == i+1 })
		if got := len(d.log.saying("takes effect after a restart")); got != step.warnings {
			t.Errorf("with {%s} it has warned %d times, want %d", step.server, got, step.warnings)
		}
	}

	// Who is somewhere else needs the token that the daemon was started with.
	const elsewhere = "X-Forwarded-For"
	for _, tt := range []struct {
		headers []string
		want    int
	}{
		{[]string{elsewhere, "203.0.113.7"}, http.StatusForbidden},
		{[]string{elsewhere, "203.0.113.7", "Authorization", "Bearer wrong"}, http.StatusForbidden},
		{[]string{elsewhere, "203.0.113.7", "Authorization", "Bearer a-secret"}, http.StatusOK},
		{[]string{"Origin", "http://example.com"}, http.StatusForbidden},
	} {
		if code, text := d.reload(tt.headers...); code != tt.want {
			t.Errorf("%q: %d %s, want %d", tt.headers, code, text, tt.want)
		}
	}
}
