package metrics

import (
	"context"
	"database/sql"
	"errors"

	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/callreceipt/reconciler/internal/database"
)

// WatchDB shows the state of a connection pool as go_sql_*, in place of the pool watched before.
func (m *Metrics) WatchDB(db *sql.DB) {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.watched != nil {
		m.reg.Unregister(m.watched)
	}
	m.watched = collectors.NewDBStatsCollector(db, "reconciler")
	m.reg.MustRegister(m.watched)
}

// DBError counts an error that the database gave. Nil and the end of the caller's own context are none; the caller looks at its
// context first, since a statement that it cut off can look like any other error.
func (m *Metrics) DBError(err error) {
	if m == nil || err == nil || errors.Is(err, context.Canceled) {
		return
	}
	m.dbErrors.WithLabelValues(dbClass(err)).Inc()
}

func dbClass(err error) string {
	if _, refused := database.Refused(err); refused {
		return "refused"
	}
	switch {
	case database.Busy(err):
		return "busy"
	case database.Unreachable(err):
		return "unreachable"
	}
	return other
}

// Reloaded tells how reading the configuration ended, the first time at the start of the process. The configuration in force
// stays when there was an error.
func (m *Metrics) Reloaded(err error) {
	if m == nil {
		return
	}
	m.reloadSuccessful.WithLabelValues().Set(flag(err == nil))
	if err == nil {
		m.reloadSuccessAt.WithLabelValues().Set(seconds(m.now()))
	}
}
