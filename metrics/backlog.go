package metrics

import "time"

// BacklogLimit is where counting open calls stops: more shows as just as many.
const BacklogLimit = 100_000

// Backlog is what is open for a tool.
type Backlog struct {
	Pending, Retry, Manual int       // calls in each open status
	NotificationsPending   int       // verdicts that are not delivered yet; left out for a tool without deliveries
	Oldest                 time.Time // created_at of the oldest call in PENDING or RETRY; zero when there is none
}

// SetBacklog shows what the database holds for a tool. It does nothing for one that was not announced.
func (m *Metrics) SetBacklog(tool string, b Backlog) {
	if m == nil {
		return
	}
	m.mu.RLock()
	defer m.mu.RUnlock()
	t := m.tools[tool]
	if t == nil {
		return
	}
	m.pendingCalls.WithLabelValues(tool, "PENDING").Set(counted(b.Pending))
	m.pendingCalls.WithLabelValues(tool, "RETRY").Set(counted(b.Retry))
	m.pendingCalls.WithLabelValues(tool, "MANUAL").Set(counted(b.Manual))
	m.oldestPending.WithLabelValues(tool).Set(instant(b.Oldest))
	if t.cfg.Notify {
		m.notificationsPending.WithLabelValues(tool).Set(counted(b.NotificationsPending))
	}
}

// SetUnknownTools shows how many open calls belong to tools that are not configured.
func (m *Metrics) SetUnknownTools(calls int) {
	if m != nil {
		m.unknownTools.WithLabelValues().Set(counted(calls))
	}
}

// BacklogUnknown takes every number of the backlog away until it is set again. It is called when the database could not be
// asked: a number that no longer holds is worse than none.
func (m *Metrics) BacklogUnknown() {
	if m == nil {
		return
	}
	m.mu.Lock() // not in the middle of a SetBacklog
	defer m.mu.Unlock()
	m.pendingCalls.Reset()
	m.oldestPending.Reset()
	m.notificationsPending.Reset()
	m.unknownTools.Reset()
}

func counted(n int) float64 { return float64(min(max(n, 0), BacklogLimit)) }
