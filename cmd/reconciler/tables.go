package main

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/callreceipt/reconciler/config"
	"github.com/callreceipt/reconciler/internal/database"
	"github.com/callreceipt/reconciler/internal/printable"
	"github.com/callreceipt/reconciler/metrics"
	"github.com/callreceipt/reconciler/partition"
)

// tableSilence is how long a table's database may say nothing. Statements there read whole partitions and take as long as they need; but
// a run that waits for a dead connection for ever keeps the lease from every replica.
const tableSilence = 30 * time.Minute

// chosenTables is the entries under partitions to work on, in the order of the file. A table is chosen by its name, in whatever
// database, or by its subject.
func chosenTables(c *config.Config, only []string) ([]config.Partition, error) {
	if len(c.Partitions) == 0 {
		return nil, fmt.Errorf("no partitioned tables are configured in %s: add one, such as "+
			"'partitions: [{table: idempotency.keys, archive: {dir: /var/lib/reconciler/archive}}]'", c.Source)
	}
	if len(only) == 0 {
		return c.Partitions, nil
	}
	var chosen []config.Partition
	var subjects []string
	found := map[string]bool{}
	for _, p := range c.Partitions {
		subjects = append(subjects, p.Subject())
		if slices.Contains(only, p.Table) || slices.Contains(only, p.Subject()) {
			chosen = append(chosen, p)
			found[p.Table], found[p.Subject()] = true, true
		}
	}
	for _, name := range only {
		if !found[name] {
			return nil, fmt.Errorf("--table %s is not configured; the tables in %s are %v", printable.ID(name), c.Source, subjects)
		}
	}
	return chosen, nil
}

// partitioned is a table of the configuration, ready to work on.
type partitioned struct {
	*partition.Archiver
	name, database string // database is empty for a table in the reconciler's
	most           int    // partitions that one run begins
}

// tables are all tables of the configuration, and their connections.
type tables struct {
	all   []*partitioned
	pools []*sqlx.DB
}

// close gives the connections back.
func (w *tables) close() error {
	var errs []error
	for _, pool := range w.pools {
		errs = append(errs, pool.Close())
	}
	return errors.Join(errs...)
}

// of is the tables of these entries.
func (w *tables) of(chosen []config.Partition) (some []*partitioned) {
	for _, p := range chosen {
		for _, t := range w.all {
			if t.Subject() == p.Subject() {
				some = append(some, t)
			}
		}
	}
	return some
}

// wireTables turns the configuration of tables into archivers, and connects to nothing; they are to be closed also after an error.
// control is the reconciler's database. most, unless it is 0, is the number of partitions that one run may begin.
func (a *app) wireTables(c *config.Config, control *sqlx.DB, holder string, most int, progress func(partition.Progress)) (*tables, error) {
	w := &tables{}
	listed := map[string]int{}
	for i, p := range c.Partitions {
		at := p.Table + "@" + c.DatabaseOf(p).Name()
		if j, twice := listed[at]; twice {
			return w, fmt.Errorf("partitions[%d] and partitions[%d] are both %s; remove one", j, i, at)
		}
		listed[at] = i
		dsn, err := c.DatabaseOf(p).DSN()
		if err != nil {
			return w, fmt.Errorf("partitions[%d]: the database of %s: %w", i, p.Table, err)
		}
		pool, err := database.OpenPatient(dsn, tableSilence)
		if err != nil {
			return w, fmt.Errorf("partitions[%d]: the database of %s: %w", i, p.Table, err)
		}
		w.pools = append(w.pools, pool)
		t := &partitioned{name: p.Table, most: cmp.Or(most, p.MaxPerRun)}
		if p.Database.Configured() {
			t.database = p.Database.Name()
		}
		cfg := partition.Config{
			Table: p.Table, Database: t.database, DB: pool, Control: control, Interval: partition.Interval(p.Interval), Premake: p.Premake,
			Retention: p.Retention.Std(), DropAfter: p.DropAfter.Std(), Terminal: p.TerminalStatuses, Dir: p.Archive.Dir, MaxPerRun: t.most,
			Columns: partition.Columns{Key: p.Columns.Key, BizID: p.Columns.BizID, Status: p.Columns.Status, CallID: p.Columns.CallID},
			Holder:  holder, Log: a.log, Progress: progress,
			Metrics: a.metrics.Archive(p.Subject()), Runs: a.metrics.Run(metrics.TaskArchive, p.Subject()),
		}
		if t.Archiver, err = partition.New(cfg); err != nil {
			return w, err
		}
		w.all = append(w.all, t)
	}
	return w, nil
}
