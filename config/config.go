// Package config reads the typed configuration of the reconciler.
//
// A value comes from the first of these that has it:
//
//	flag > environment variable > YAML file > default
//
// Reading is strict. Unknown keys, wrong types, keys written twice, a second
// document, bare numbers for durations and values that contradict each other
// are refused, all of them at once, each with file, line and column (see
// [Problems]). What [Load] returns is complete: every default is filled in and
// every secret file has been found.
//
// Passwords cannot be printed by accident: [URL] shows itself redacted to fmt,
// log/slog, JSON and YAML alike.
package config

import (
	"errors"
	"time"
)

// Config is the whole configuration. The zero value is not usable; [Load] makes one.
type Config struct {
	// Database is where schema reconciler lives.
	Database Database `yaml:"database" json:"database"`
	// Server is the HTTP endpoint of the daemon.
	Server Server `yaml:"server" json:"server"`
	// Reconcile holds what is common to all tools.
	Reconcile Reconcile `yaml:"reconcile" json:"reconcile"`
	// Tools are the downstream tools by name, as written in column tool of the pending table.
	Tools map[string]Tool `yaml:"tools" json:"tools"`
	// Partitions are the range-partitioned tables to premake and to archive.
	Partitions []Partition `yaml:"partitions" json:"partitions"`

	// Source tells where the values came from.
	Source Source `yaml:"-" json:"-"`

	location *time.Location
}

// Database names a PostgreSQL database by URL, or by a file that holds the URL.
// Both at the same level (file, environment, flags) are refused; at different
// levels the higher one wins.
type Database struct {
	// URL is a postgres:// URL or a key=value string. See [Database.DSN] for what is added to it.
	URL URL `yaml:"url" json:"url"`
	// URLFile is a file of at most 64 KiB that holds the URL; one newline at its end is ignored.
	URLFile string `yaml:"url_file" json:"url_file"`

	// fromFile is a pointer because fmt prints unexported strings as they are.
	fromFile *URL
}

// Server is the HTTP endpoint of the daemon: /metrics, /livez and /readyz.
type Server struct {
	// Listen is host:port. An empty host means every interface, port 0 any free port.
	Listen string `yaml:"listen" json:"listen"`
	// ReloadTokenFile holds the bearer token with which another machine may ask for a reload. Empty means that only this
	// machine may.
	ReloadTokenFile string `yaml:"reload_token_file" json:"reload_token_file"`
}

// Reconcile holds what is common to all tools.
type Reconcile struct {
	// Schedule says when a pass starts: five cron fields, @hourly and its like, or @every 30s.
	Schedule string `yaml:"schedule" json:"schedule"`
	// Timezone is the IANA name in which every schedule is read.
	Timezone string `yaml:"timezone" json:"timezone"`
	// Retention is how long a settled call is kept in the pending table; 0 keeps it for ever.
	Retention Duration `yaml:"retention" json:"retention"`
}

// Tool says how calls of one downstream tool are settled.
type Tool struct {
	// Retryable allows a call that was not found to be sent again.
	Retryable bool `yaml:"retryable" json:"retryable"`
	// Idempotent states that the downstream executes one key once. Without it nothing is re-sent.
	Idempotent bool `yaml:"idempotent" json:"idempotent"`
	// NeedsReceipt is false only for pure queries, which are retried without a look.
	NeedsReceipt bool `yaml:"needs_receipt" json:"needs_receipt"`
	// Settle is how long after the last send a NOT_FOUND begins to count. At least the request timeouts.
	Settle Duration `yaml:"settle" json:"settle"`
	// NotFoundConfirmations is how many looks in a row must say NOT_FOUND, 1 to 100.
	NotFoundConfirmations int `yaml:"not_found_confirmations" json:"not_found_confirmations"`
	// DedupWindow is how long the downstream remembers a key; required to retry.
	DedupWindow Duration `yaml:"dedup_window" json:"dedup_window"`
	// MaxAttempts counts every send, the caller's first included, 1 to 100.
	MaxAttempts int `yaml:"max_attempts" json:"max_attempts"`
	// RetryFailed also sends again what the downstream says has FAILED.
	RetryFailed bool `yaml:"retry_failed" json:"retry_failed"`
	// IdempotencyTable is a table under partitions; below its archive watermark nothing is retried. Empty means none.
	IdempotencyTable string `yaml:"idempotency_table" json:"idempotency_table"`
	// ManualAfter is the age at which a call that is still processing goes to a person.
	ManualAfter Duration `yaml:"manual_after" json:"manual_after"`
	// CheckBackoff spaces the looks at one call.
	CheckBackoff Backoff `yaml:"check_backoff" json:"check_backoff"`
	// Schedule overrides reconcile.schedule for this tool. Empty means no override.
	Schedule string `yaml:"schedule" json:"schedule"`
	// Receipts is where receipts are asked for.
	Receipts Receipts `yaml:"receipts" json:"receipts"`
	// Retry is how calls are sent again.
	Retry Retry `yaml:"retry" json:"retry"`
	// Notify is where verdicts are delivered.
	Notify Notify `yaml:"notify" json:"notify"`
}

// Backoff is an exponential wait from Initial up to Max, at most 720h.
type Backoff struct {
	Initial Duration `yaml:"initial" json:"initial"`
	Max     Duration `yaml:"max" json:"max"`
}

// Receipts is the receipt query of one tool.
type Receipts struct {
	// URL takes the POST of the receipt query; http or https. Required when the tool needs receipts.
	URL URL `yaml:"url" json:"url"`
	// BatchSize is how many bizIds one request asks for, 1 to 1000.
	BatchSize int `yaml:"batch_size" json:"batch_size"`
	// Concurrency is how many requests are under way at once, 1 to 64.
	Concurrency int `yaml:"concurrency" json:"concurrency"`
	// Timeout is for one whole request and its answer, at most 5m.
	Timeout Duration `yaml:"timeout" json:"timeout"`
	// Retries is how often one batch is repeated within a pass, 0 to 10.
	Retries int `yaml:"retries" json:"retries"`
	// Rate is the most requests per second, above 0 and at most 100000; fractions are allowed.
	Rate float64 `yaml:"rate" json:"rate"`
	// BearerTokenFile holds the token of the Authorization header. Empty means no header.
	BearerTokenFile string `yaml:"bearer_token_file" json:"bearer_token_file"`
	// CAFile holds the PEM certificates that are trusted besides the system's. Empty means the system's.
	CAFile string `yaml:"ca_file" json:"ca_file"`
}

// RetryMode says who sends a call again.
type RetryMode string

const (
	// RetryHandoff leaves RETRY rows to the orchestrator. It is the default without retry.url.
	RetryHandoff RetryMode = "handoff"
	// RetryDispatch makes the reconciler send them to retry.url. It is the default with retry.url.
	RetryDispatch RetryMode = "dispatch"
)

// Retry is how calls of one tool are sent again.
type Retry struct {
	// Mode is filled in by [Load] when it was not written.
	Mode RetryMode `yaml:"mode" json:"mode"`
	// URL takes the POST of a repeated call; required for dispatch.
	URL URL `yaml:"url" json:"url"`
	// Timeout is for one whole send and its answer, at most 5m.
	Timeout Duration `yaml:"timeout" json:"timeout"`
	// BearerTokenFile holds the token of the Authorization header. Empty means no header.
	BearerTokenFile string `yaml:"bearer_token_file" json:"bearer_token_file"`
	// CAFile holds the PEM certificates that are trusted besides the system's. Empty means the system's.
	CAFile string `yaml:"ca_file" json:"ca_file"`
}

// Notify is where the verdicts of one tool are delivered.
type Notify struct {
	// URL takes the signed POST of each verdict. Empty means that the orchestrator reads the row.
	URL URL `yaml:"url" json:"url"`
	// SecretFile holds the secret that signs the deliveries; required with URL.
	SecretFile string `yaml:"secret_file" json:"secret_file"`
}

// Partition is one range-partitioned table to premake and to archive.
type Partition struct {
	// Table is schema.name.
	Table string `yaml:"table" json:"table"`
	// Database is where the table lives; empty means the database at the top. See [Config.DatabaseOf].
	Database Database `yaml:"database" json:"database"`
	// Schedule says when a run starts, written like reconcile.schedule.
	Schedule string `yaml:"schedule" json:"schedule"`
	// Interval is the width of the partitions that are premade.
	Interval Interval `yaml:"interval" json:"interval"`
	// Premake is how many partitions exist ahead of now, 1 to 1000.
	Premake int `yaml:"premake" json:"premake"`
	// Retention is the age of its upper bound at which a partition is due for archiving.
	Retention Duration `yaml:"retention" json:"retention"`
	// Columns names the columns that the check for open businesses reads.
	Columns Columns `yaml:"columns" json:"columns"`
	// TerminalStatuses are the values of the status column that are final, compared as text. PROCESSING cannot be one. Empty where
	// the table has no status.
	TerminalStatuses []string `yaml:"terminal_statuses" json:"terminal_statuses"`
	// Archive is where archives are written.
	Archive Archive `yaml:"archive" json:"archive"`
	// DropAfter is how long a detached partition is kept before it is dropped; 0 drops it in the same run.
	DropAfter Duration `yaml:"drop_after" json:"drop_after"`
	// MaxPerRun is the most partitions one run archives, at least 1.
	MaxPerRun int `yaml:"max_per_run" json:"max_per_run"`
}

// Interval is the width of a partition.
type Interval string

// The intervals a table can be partitioned by.
const (
	IntervalHour  Interval = "hour"
	IntervalDay   Interval = "day"
	IntervalWeek  Interval = "week"
	IntervalMonth Interval = "month"
)

// Columns are column names of a partitioned table. One that is empty is not there; Key, BizID or CallID must be.
//
// A table of keys is the default. Where CallID is written the table holds calls instead, and the other three are empty unless they are
// written as well; reconciler.call_events is such a table by itself.
type Columns struct {
	// Key holds an idempotency key.
	Key string `yaml:"key" json:"key"`
	// BizID holds a bizId.
	BizID string `yaml:"biz_id" json:"biz_id"`
	// Status tells whether the business of a row is over. Without it only the calls that are still open are asked.
	Status string `yaml:"status" json:"status"`
	// CallID holds a callId.
	CallID string `yaml:"call_id" json:"call_id"`
}

// Archive is where archives are written.
type Archive struct {
	// Dir is a directory; a relative one starts at the working directory.
	Dir string `yaml:"dir" json:"dir"`
}

// Location is the time zone of every schedule.
func (c *Config) Location() *time.Location {
	if c.location == nil {
		return time.UTC
	}
	return c.location
}

// DatabaseOf is the database of a partitioned table: its own, or else the one at the top.
func (c *Config) DatabaseOf(p Partition) Database {
	if p.Database.Configured() {
		return p.Database
	}
	return c.Database
}

// RequireDatabase reports that no database is configured. [Load] does not, so
// that commands which need none work without.
func (c *Config) RequireDatabase() error {
	if c.Database.Configured() {
		return nil
	}
	if c.Source.File == "" {
		return errors.New("no database is configured and no configuration file was found: " +
			"set RECONCILER_DATABASE_URL, or write database.url or database.url_file into reconciler.yaml or the file named by --config")
	}
	return errors.New("no database is configured: set database.url or database.url_file in " + c.Source.File +
		", or the environment variable RECONCILER_DATABASE_URL")
}
