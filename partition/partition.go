// Package partition makes the partitions of range-partitioned tables ahead of time, and archives those that are older than the retention
// and whose business is over.
//
// bounds.go, plan.go and premake.go are pure: what the catalog and the journal say, what to do about it. archive.go walks one partition
// through its steps, one function for each:
//
//	check ─► freeze ─► export ─► verify ─► watermark ─► detach ─ ─ drop_after ─ ─► drop
//	   └────────┴─────────┴──── held, with the reason, an example and since when
//
// Each step is written into the journal before it begins, and can be killed and repeated at any point. A table may live in a database
// of its own; the journal, the leases and the calls that are still open are in the reconciler's.
package partition

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/callreceipt/reconciler/metrics"
)

// Config is one range-partitioned table.
type Config struct {
	// Table is schema.name.
	Table string
	// Database names the database of the table in the journal; empty is that of the reconciler. It must not change while partitions
	// are on their way.
	Database string
	// DB is the database of the table, Control that of the reconciler; they may be the same.
	DB, Control *sqlx.DB
	// Interval is the width of the partitions that are made ahead, and Premake how many there are ahead of now.
	Interval Interval
	Premake  int
	// Retention is the age of its upper bound at which a partition is due.
	Retention time.Duration
	// DropAfter is how long a detached partition is kept; 0 drops it in the same run.
	DropAfter time.Duration
	// Columns are those that tell whether a business is over.
	Columns Columns
	// Terminal are the values of Columns.Status that are final.
	Terminal []string
	// Dir is where the archive objects are written.
	Dir string
	// MaxPerRun is the most partitions whose archiving one run begins.
	MaxPerRun int
	// LockTimeout bounds each wait for a lock, and with it how long others may have to wait behind us. 0 means 500 ms. It must be below
	// the server's deadlock_timeout.
	LockTimeout time.Duration

	Holder   string // names this process in the lease
	Log      *slog.Logger
	Metrics  *metrics.Archive // may be nil, as may Runs
	Runs     *metrics.Run
	Progress func(Progress)   // may be nil
	Clock    func() time.Time // for durations only; nil means time.Now
}

// Columns names columns of the table. One that is empty is not there: a ledger of calls has no status, and its CallID is looked up among
// the open calls instead of a key.
type Columns struct {
	Key, BizID, Status, CallID string
}

// Progress is what a person may want to see while a run works.
type Progress struct {
	Table, Partition string
	Step             Step
	Rows             int64 // exported so far
}

// defaultLockTimeout is half of PostgreSQL's default deadlock_timeout.
const defaultLockTimeout = 500 * time.Millisecond

// Archiver works on one table. It is safe for concurrent use; a lease keeps its runs, and those of other processes, apart.
type Archiver struct {
	cfg          Config
	schema, name string
}

// New checks cfg. It connects to nothing.
func New(cfg Config) (*Archiver, error) {
	var errs []error
	schema, name, ok := strings.Cut(cfg.Table, ".")
	if !ok || schema == "" || name == "" {
		errs = append(errs, fmt.Errorf("%q is not schema.name", cfg.Table))
	}
	if cfg.DB == nil || cfg.Control == nil {
		errs = append(errs, errors.New("a database is missing"))
	}
	if cfg.Retention <= 0 || cfg.DropAfter < 0 || cfg.MaxPerRun < 1 || cfg.Premake < 1 {
		errs = append(errs, fmt.Errorf("retention %s and max_per_run %d and premake %d must be above 0, drop_after %s not below",
			cfg.Retention, cfg.MaxPerRun, cfg.Premake, cfg.DropAfter))
	}
	if !slices.Contains(intervals, cfg.Interval) {
		errs = append(errs, fmt.Errorf("interval %q is none of %v", cfg.Interval, intervals))
	}
	if cfg.Columns.Key+cfg.Columns.BizID+cfg.Columns.CallID == "" {
		errs = append(errs, errors.New("no column names the business of a row: a key, a bizId or a callId"))
	}
	if cfg.Columns.Status != "" && len(cfg.Terminal) == 0 {
		errs = append(errs, errors.New("no status is terminal, so nothing could ever be archived"))
	}
	if cfg.Dir == "" {
		errs = append(errs, errors.New("the directory of the archive is missing"))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("table %s: %w", cfg.Table, err)
	}
	if cfg.LockTimeout == 0 {
		cfg.LockTimeout = defaultLockTimeout
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Clock == nil {
		cfg.Clock = time.Now //nolint:forbidigo // the default of an injected clock
	}
	return &Archiver{cfg: cfg, schema: schema, name: name}, nil
}

// Subject names the table among all tables of all databases.
func (a *Archiver) Subject() string {
	if a.cfg.Database == "" {
		return a.cfg.Table
	}
	return a.cfg.Table + "@" + a.cfg.Database
}
