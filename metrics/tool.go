package metrics

import (
	"maps"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// ToolConfig is what can be known of a tool before anything happens.
type ToolConfig struct {
	// Reasons are the words that go with each verdict. Any other is counted as "other".
	Reasons map[Verdict][]string
	// Kinds are the words for what keeps an HTTP status from coming. Any other is counted as "other".
	Kinds []string
	// Notify says that verdicts are delivered. Without it the tool has no metrics of deliveries.
	Notify bool
}

// expectedCodes are the HTTP statuses that the receipt protocol speaks of. Others get their series when they come.
var expectedCodes = []int{200, 301, 302, 303, 307, 308, 400, 401, 403, 404, 413, 422, 429, 500, 502, 503, 504}

// Tool holds the metrics of one tool.
type Tool struct {
	m    *Metrics
	name string
	cfg  ToolConfig
}

// Tool announces a tool. For a name that was announced before, such as after a reload of the configuration, it takes the new
// cfg and returns the same *Tool: counters go on, the breaker is closed again.
func (m *Metrics) Tool(name string, cfg ToolConfig) *Tool {
	if m == nil {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	t := m.tools[name]
	if t == nil {
		t = &Tool{m: m, name: name}
		m.tools[name] = t
	}
	t.cfg = ToolConfig{Reasons: maps.Clone(cfg.Reasons), Kinds: slices.Clone(cfg.Kinds), Notify: cfg.Notify}
	t.create()
	return t
}

// create makes the series that can be foreseen.
func (t *Tool) create() {
	m := t.m
	for verdict, reasons := range t.cfg.Reasons {
		for _, reason := range reasons {
			m.verdicts.WithLabelValues(t.name, known(verdicts, verdict), reason)
		}
	}
	for _, result := range looks {
		m.looks.WithLabelValues(t.name, result)
	}
	for _, kind := range anomalies {
		m.anomalies.WithLabelValues(t.name, string(kind))
	}
	for _, kind := range t.cfg.Kinds {
		m.requests.WithLabelValues(t.name, kind)
	}
	for _, code := range expectedCodes {
		m.requests.WithLabelValues(t.name, strconv.Itoa(code))
	}
	for _, outcome := range sendOutcomes {
		m.sends.WithLabelValues(t.name, string(outcome))
	}
	m.lostRaces.WithLabelValues(t.name)
	m.resolution.WithLabelValues(t.name)
	m.requestDuration.WithLabelValues(t.name)
	t.breaker(BreakerClosed)
	if !t.cfg.Notify {
		m.notifications.DeletePartialMatch(prometheus.Labels{"tool": t.name})
		m.notificationsPending.DeleteLabelValues(t.name)
		return
	}
	for _, outcome := range deliveries {
		m.notifications.WithLabelValues(t.name, outcome)
	}
}

// Forget removes every series of a tool that the configuration no longer has, those of its runs included. What is still under
// way reports in vain from then on. The runs of a table of the same name stay.
func (m *Metrics) Forget(tool string) {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.tools, tool)
	for _, v := range m.vecsOfTool {
		v.DeletePartialMatch(prometheus.Labels{"tool": tool})
	}
	for _, task := range []Task{TaskReconcile, TaskDispatch, TaskNotify} {
		m.forgetRun(runKey{task, tool})
	}
}

// record changes metrics of the tool, unless it was forgotten.
func (t *Tool) record(change func(m *Metrics)) {
	if t == nil {
		return
	}
	t.m.mu.RLock()
	defer t.m.mu.RUnlock()
	if t.m.tools[t.name] == t {
		change(t.m)
	}
}

// Verdict counts a verdict that was written.
func (t *Tool) Verdict(verdict Verdict, reason string) {
	t.record(func(m *Metrics) {
		m.verdicts.WithLabelValues(t.name, known(verdicts, verdict), known(t.cfg.Reasons[verdict], reason)).Inc()
	})
}

// Resolved records that a call reached SUCCESS or FAILED that long after it was parked.
func (t *Tool) Resolved(after time.Duration) {
	t.record(func(m *Metrics) { m.resolution.WithLabelValues(t.name).Observe(max(after, 0).Seconds()) })
}

// Look counts a look at one call, by whether the downstream answered for it.
func (t *Tool) Look(answered bool) {
	t.record(func(m *Metrics) { m.looks.WithLabelValues(t.name, either(answered, looks)).Inc() })
}

// Anomaly counts n things that a downstream should never do.
func (t *Tool) Anomaly(kind Anomaly, n int) {
	t.record(func(m *Metrics) { add(m.anomalies.WithLabelValues(t.name, known(anomalies, kind)), n) })
}

// LostRaces counts n writes that found another version.
func (t *Tool) LostRaces(n int) {
	t.record(func(m *Metrics) { add(m.lostRaces.WithLabelValues(t.name), n) })
}

// Request records one request for receipts. status is that of the answer, or 0 when none came; only then kind says why.
func (t *Tool) Request(status int, kind string, took time.Duration) {
	t.record(func(m *Metrics) {
		m.requests.WithLabelValues(t.name, t.code(status, kind)).Inc()
		m.requestDuration.WithLabelValues(t.name).Observe(max(took, 0).Seconds())
	})
}

// code is a label value of a closed set, whatever number the downstream puts into its status line.
func (t *Tool) code(status int, kind string) string {
	switch {
	case status == 0:
		return known(t.cfg.Kinds, kind)
	case http.StatusText(status) != "":
		return strconv.Itoa(status)
	case status >= 100 && status <= 599:
		return strconv.Itoa(status/100) + "xx"
	}
	return other
}

// Breaker tells the state of the circuit breaker, now.
func (t *Tool) Breaker(state BreakerState) {
	t.record(func(*Metrics) { t.breaker(state) })
}

func (t *Tool) breaker(state BreakerState) {
	if !slices.Contains(breakerStates, state) {
		return // exactly one state is 1
	}
	for _, s := range breakerStates {
		t.m.breaker.WithLabelValues(t.name, string(s)).Set(flag(s == state))
	}
}

// Sent counts a call that was sent again.
func (t *Tool) Sent(outcome SendOutcome) {
	t.record(func(m *Metrics) { m.sends.WithLabelValues(t.name, known(sendOutcomes, outcome)).Inc() })
}

// Notified counts a delivery of a verdict. It does nothing for a tool without deliveries.
func (t *Tool) Notified(delivered bool) {
	t.record(func(m *Metrics) {
		if t.cfg.Notify {
			m.notifications.WithLabelValues(t.name, either(delivered, deliveries)).Inc()
		}
	})
}

// add bears a number that is none: a counter panics when it is told to go back.
func add[N int | int64](c prometheus.Counter, n N) {
	if n > 0 {
		c.Add(float64(n))
	}
}
