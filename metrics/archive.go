package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Archive holds the metrics of one table whose partitions are made ahead and archived.
type Archive struct {
	m     *Metrics
	table string
}

// Archive announces a table. For one that was announced before it returns the same *Archive, and its counters go on.
func (m *Metrics) Archive(table string) *Archive {
	if m == nil {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if a := m.archives[table]; a != nil {
		return a
	}
	a := &Archive{m: m, table: table}
	m.archives[table] = a
	for _, step := range archiveSteps {
		for _, result := range stepResults {
			m.archiveSteps.WithLabelValues(table, step, result)
		}
	}
	m.archivedRows.WithLabelValues(table)
	m.archivedBytes.WithLabelValues(table)
	return a
}

// ForgetArchive removes every series of a table that the configuration no longer has, but those of its runs, which
// ForgetRun removes. What is still under way reports in vain from then on.
func (m *Metrics) ForgetArchive(table string) {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.archives, table)
	for _, v := range m.vecsOfTable {
		v.DeletePartialMatch(prometheus.Labels{"table": table})
	}
}

// record changes metrics of the table, unless it was forgotten.
func (a *Archive) record(change func(m *Metrics)) {
	if a == nil {
		return
	}
	a.m.mu.Lock() // Set and Unknown change many series, and neither may come in the middle of the other
	defer a.m.mu.Unlock()
	if a.m.archives[a.table] == a {
		change(a.m)
	}
}

// Step counts a step of archiving that ended: frozen, exported, verified, watermark, detached or dropped; or premade, a partition
// that was made ahead. Any other word is counted as "other".
func (a *Archive) Step(step string, failed bool) {
	a.record(func(m *Metrics) {
		m.archiveSteps.WithLabelValues(a.table, known(archiveSteps, step), either(failed, stepResults)).Inc()
	})
}

// Archived counts what an archive object holds: rows, and compressed bytes.
func (a *Archive) Archived(rows, bytes int64) {
	a.record(func(m *Metrics) {
		add(m.archivedRows.WithLabelValues(a.table), rows)
		add(m.archivedBytes.WithLabelValues(a.table), bytes)
	})
}

// ArchiveState is how the partitions of a table stand. A zero time is none.
type ArchiveState struct {
	Partitions  int            // without the default
	Due         int            // old enough to be archived, and not held
	Held        map[string]int // old enough to be archived, by the reason that forbids it
	DefaultRows int64          // rows in the default partition
	OldestDue   time.Time      // since when the oldest of those that are due is
	OldestHeld  time.Time      // since when the one is held that is held longest
	// Horizon is up to when there are partitions without a gap from now on: now when there is none for now, zero when they have no end.
	Horizon time.Time
	// Premake is how far ahead the configuration has them made; 0 is not known.
	Premake time.Duration
	// DetachPendingSince is when a partition was first seen that is neither attached nor detached.
	DetachPendingSince time.Time
}

// Set shows how the partitions stand. Reasons that are in no set are held as "other".
func (a *Archive) Set(s ArchiveState) {
	a.record(func(m *Metrics) {
		m.partitions.WithLabelValues(a.table).Set(float64(s.Partitions))
		m.partitionsDue.WithLabelValues(a.table).Set(float64(s.Due))
		m.partitionDefaultRows.WithLabelValues(a.table).Set(float64(s.DefaultRows))
		m.oldestDue.WithLabelValues(a.table).Set(instant(s.OldestDue))
		m.oldestHeld.WithLabelValues(a.table).Set(instant(s.OldestHeld))
		m.partitionHorizon.WithLabelValues(a.table).Set(instant(s.Horizon))
		m.partitionPremake.WithLabelValues(a.table).Set(s.Premake.Seconds())
		m.partitionDetachPending.WithLabelValues(a.table).Set(instant(s.DetachPendingSince))

		held := map[string]int{}
		for reason, n := range s.Held {
			held[known(heldReasons, reason)] += n
		}
		m.partitionsHeld.DeleteLabelValues(a.table, other)
		for _, reason := range heldReasons {
			m.partitionsHeld.WithLabelValues(a.table, reason).Set(float64(held[reason]))
		}
		if n := held[other]; n > 0 {
			m.partitionsHeld.WithLabelValues(a.table, other).Set(float64(n))
		}
	})
}

// Unknown takes the state away until it is set again. It is called when the database of the table could not be asked. The horizon
// and what it is measured by stay: time runs towards it whether or not anybody can look.
func (a *Archive) Unknown() {
	a.record(func(m *Metrics) {
		for _, v := range []*prometheus.GaugeVec{
			m.partitions, m.partitionsDue, m.partitionsHeld, m.partitionDefaultRows, m.oldestDue, m.oldestHeld, m.partitionDetachPending,
		} {
			v.DeletePartialMatch(prometheus.Labels{"table": a.table})
		}
	})
}
