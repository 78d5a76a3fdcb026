// Package reconcile gives every parked call one verdict from the receipts of its downstream.
//
// decide.go, evidence.go, policy.go and backoff.go are pure: what is known, what is asked, now. pass.go pages, asks and writes
// around them. One call has one verdict whatever the path, since every path goes through Decide.
package reconcile

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/callreceipt/reconciler/metrics"
	"github.com/callreceipt/reconciler/pending"
	"github.com/callreceipt/reconciler/receipt"
)

// Source answers one request about some bizIds; *receipt.Client is one. Its errors are *receipt.Error.
type Source interface {
	Query(ctx context.Context, bizIDs []string) (receipt.Answer, error)
}

// Config is one tool to reconcile.
type Config struct {
	Tool   string
	Policy Policy
	// IdempotencyTable (schema.name) holds the downstream's idempotency keys; each pass reads its archive watermark into its Policy.
	// "" means that none of the keys are archived.
	IdempotencyTable string

	Source      Source  // may be nil only where Policy.NeedsReceipt is false
	Sender      Sender  // sends calls again; nil hands them off to whoever takes them
	Notify      bool    // put verdicts on their way to the orchestrator; a Notifier delivers them
	BatchSize   int     // distinct bizIds in one request
	Concurrency int     // requests under way at once
	Retries     int     // repeats of a request that brought nothing
	Rate        float64 // requests per second, at most
	DB          *sqlx.DB
	Holder      string // names this process in the lease
	Log         *slog.Logger
	Metrics     *metrics.Tool    // may be nil, as may Runs
	Runs        *metrics.Run     // of the passes over the tool
	Progress    func(Summary)    // called after every batch, by several goroutines; may be nil
	Clock       func() time.Time // for durations and waiting only; nil means time.Now
}

// Reconciler works on one tool. It outlives its passes, and so do the tool's rate, pause and breaker.
type Reconciler struct {
	cfg   Config
	store *pending.Store
	gate  *gate
}

// New checks the configuration of one tool.
func New(cfg Config) (*Reconciler, error) {
	errs := []error{cfg.Policy.Validate()}
	if cfg.Tool == "" {
		errs = append(errs, errors.New("the tool has no name"))
	}
	if cfg.Source == nil && cfg.Policy.NeedsReceipt {
		errs = append(errs, errors.New("needs_receipt is true and there is nobody to ask for receipts"))
	}
	if cfg.Policy.NeedsRequest != (cfg.Sender != nil) {
		errs = append(errs, fmt.Errorf("needs_request is %t: it is true where the reconciler itself sends again, and only there", cfg.Policy.NeedsRequest))
	}
	if cfg.BatchSize < 1 || cfg.Concurrency < 1 || cfg.Retries < 0 || cfg.Rate <= 0 {
		errs = append(errs, fmt.Errorf("batch_size %d and concurrency %d must be at least 1, retries %d at least 0, rate %g above 0",
			cfg.BatchSize, cfg.Concurrency, cfg.Retries, cfg.Rate))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("tool %q: %w", cfg.Tool, err)
	}
	if cfg.Clock == nil {
		cfg.Clock = time.Now //nolint:forbidigo // the default of an injected clock
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &Reconciler{cfg: cfg, store: pending.NewStore(cfg.DB), gate: newGate(cfg)}, nil
}

// Tool is the name of the tool.
func (r *Reconciler) Tool() string { return r.cfg.Tool }
