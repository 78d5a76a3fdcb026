package reconcile

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jmoiron/sqlx"
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
	"golang.org/x/sync/errgroup"

	"github.com/callreceipt/reconciler/internal/task"
	"github.com/callreceipt/reconciler/metrics"
	"github.com/callreceipt/reconciler/pending"
)

// How verdicts are delivered.
const (
	notifyPage        = 50 // verdicts in memory at once, each with its receipt
	untoldLimit       = 10_000
	notifyConcurrency = 4
	notifyTimeout     = 10 * time.Second // of one delivery, from connecting to the last byte of the answer
	// NotifyAttempts is how often a verdict is delivered before it is given up and counted as stuck. With the waits between
	// them that is about three days.
	NotifyAttempts = 80
	// notifyFailures is how many deliveries in a row may fail before the receiver is left alone until the next run.
	notifyFailures = 5
	maxNotifyDrain = 64 << 10
)

// notifyBackoff spaces the deliveries of one verdict.
var notifyBackoff = Backoff{Initial: time.Second, Max: time.Hour}

// errReceiver ends a run that delivers nothing.
var errReceiver = errors.New("the webhook receiver does not take verdicts and is left alone for now")

// NotifierConfig is the webhook of one tool.
type NotifierConfig struct {
	Tool       string
	URL        string
	SecretFile string // read at each run, so that secrets can be replaced
	DB         *sqlx.DB
	Holder     string
	Log        *slog.Logger
	Metrics    *metrics.Tool    // may be nil, as may Runs
	Runs       *metrics.Run     // of the deliveries of the tool
	Clock      func() time.Time // for the timestamp of a delivery; nil means time.Now
}

// Notifier tells the orchestrator of verdicts, at least once each, signed as the Standard Webhooks specification says. A
// receiver de-duplicates by webhook-id. It has a lease of its own and no pass waits for it, so a receiver that is dead
// delays nothing but its own news.
type Notifier struct {
	cfg   NotifierConfig
	store *pending.Store
	http  *http.Client

	givenUp atomic.Int64 // verdicts of which the log has said that they were given up
}

// NewNotifier checks the configuration of one webhook, its secrets included.
func NewNotifier(cfg NotifierConfig) (*Notifier, error) {
	if u, err := url.Parse(cfg.URL); err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") {
		return nil, fmt.Errorf("tool %q: notify.url must be an http or https URL", cfg.Tool)
	}
	if _, err := signers(cfg.SecretFile); err != nil {
		return nil, fmt.Errorf("tool %q: %w", cfg.Tool, err)
	}
	if cfg.Clock == nil {
		cfg.Clock = time.Now //nolint:forbidigo // the default of an injected clock
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	transport := &http.Transport{
		Proxy: http.ProxyFromEnvironment, MaxIdleConnsPerHost: notifyConcurrency, IdleConnTimeout: 90 * time.Second,
		MaxResponseHeaderBytes: maxNotifyDrain, ForceAttemptHTTP2: true,
	}
	return &Notifier{cfg: cfg, store: pending.NewStore(cfg.DB), http: &http.Client{
		Transport: transport, Timeout: notifyTimeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}, nil
}

// Tool is the name of the tool.
func (n *Notifier) Tool() string { return n.cfg.Tool }

// Close closes the connections that are idle.
func (n *Notifier) Close() { n.http.CloseIdleConnections() }

// NotifySummary counts what a run delivered; the names are a contract.
type NotifySummary struct {
	Tool      string       `json:"tool"`
	Outcome   task.Outcome `json:"outcome"`
	Delivered int          `json:"delivered"`
	Failed    int          `json:"failed"`   // deliveries that were not taken
	Waiting   int          `json:"waiting"`  // verdicts still to be delivered, up to 10,000
	GivenUp   int          `json:"given_up"` // verdicts that nobody will be told of until a person says so, up to 10,000
	Error     string       `json:"error,omitempty"`
}

// RunOnce delivers every verdict that is due. It ends when none is, when the receiver takes nothing, or when ctx ends.
func (n *Notifier) RunOnce(ctx context.Context) (NotifySummary, error) {
	sum := NotifySummary{Tool: n.cfg.Tool}
	err := task.Hold(ctx, n.cfg.DB, n.cfg.Log, "notify:"+n.cfg.Tool, n.cfg.Holder, func(ctx context.Context) (err error) {
		n.cfg.Runs.LeaseHeld(true)
		defer n.cfg.Runs.LeaseHeld(false)
		ended := n.cfg.Runs.Begin()
		defer func() { ended(metrics.Outcome(sum.outcome(err))) }()
		err = n.flush(ctx, &sum)
		var uncounted error
		sum.Waiting, sum.GivenUp, uncounted = n.store.Untold(context.WithoutCancel(ctx), n.cfg.Tool, untoldLimit)
		return errors.Join(err, uncounted)
	})
	sum.Outcome = sum.outcome(err)
	if err != nil {
		sum.Error = err.Error()
	}
	if before := n.givenUp.Swap(int64(sum.GivenUp)); int64(sum.GivenUp) > before {
		n.cfg.Log.Error("verdicts could not be delivered and were given up; set notify_at = now(), notify_attempts = 0 to go on", "tool", n.cfg.Tool, "calls", sum.GivenUp)
	}
	return sum, err
}

// outcome judges a run that went as far as s and was ended by err, or by nothing.
func (s NotifySummary) outcome(err error) task.Outcome {
	var held *task.HeldError
	switch {
	case errors.As(err, &held):
		return task.Skipped
	case err != nil && s.Delivered == 0:
		return task.Failed
	case err != nil, s.Waiting > 0, s.GivenUp > 0:
		return task.Partial
	}
	return task.Success
}

// flush delivers page by page. What failed is not due again at once, so it holds up nobody.
func (n *Notifier) flush(ctx context.Context, sum *NotifySummary) error {
	secrets, err := signers(n.cfg.SecretFile)
	if err != nil {
		return err
	}
	f := &delivery{Notifier: n, sum: sum, secrets: secrets}
	for {
		due, err := n.store.DueNotifications(ctx, n.cfg.Tool, notifyPage)
		if err != nil || len(due) == 0 {
			return err
		}
		workers, soft := errgroup.WithContext(ctx)
		workers.SetLimit(notifyConcurrency)
		for _, one := range due {
			workers.Go(func() error {
				if soft.Err() != nil {
					return nil
				}
				return guarded(n.cfg.Log, n.cfg.Tool, func() error { return f.deliver(context.WithoutCancel(soft), one) })
			})
		}
		if err := workers.Wait(); err != nil {
			return err
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
}

// delivery is the state of one run.
type delivery struct {
	*Notifier
	secrets []*standardwebhooks.Webhook

	mu  sync.Mutex
	sum *NotifySummary
	row int // failures since the last success
}

// deliver makes one attempt and records how it ended. Its error ends the run.
func (f *delivery) deliver(ctx context.Context, n pending.Notification) error {
	failure := f.post(ctx, n)
	row := f.tally(failure)
	if failure == nil {
		return f.store.Delivered(ctx, n)
	}
	after := notifyBackoff.Delay(n.Attempts, n.CallID)
	if n.Attempts+1 >= NotifyAttempts {
		after = 0
	}
	again := after.Round(time.Second).String()
	if after == 0 {
		again = "never, it was given up"
	}
	f.cfg.Log.Warn(Prefix(n.Call)+" verdict not delivered", "tool", f.cfg.Tool, "attempt", n.Attempts+1, "again_in", again, "error", failure.Error())
	if err := f.store.NotDelivered(ctx, n, after); err != nil {
		return err
	}
	if row >= notifyFailures {
		return fmt.Errorf("%w: %w", errReceiver, failure)
	}
	return nil
}

func (f *delivery) tally(failure error) (row int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.cfg.Metrics.Notified(failure == nil)
	if failure == nil {
		f.sum.Delivered++
		f.row = 0
	} else {
		f.sum.Failed++
		f.row++
	}
	return f.row
}

// post makes one request; only a 2xx is a delivery.
func (f *delivery) post(ctx context.Context, n pending.Notification) error {
	body, err := json.Marshal(message(n))
	if err != nil {
		return fmt.Errorf("writing the message: %w", err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, f.cfg.URL, bytes.NewReader(body))
	if err != nil {
		return errors.New("notify.url is no URL that can be posted to")
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", "reconciler")
	if err := signed(req.Header, WebhookID(n.CallID, n.NotifyVersion), f.cfg.Clock(), body, f.secrets); err != nil {
		return err
	}
	resp, err := f.http.Do(req)
	if err != nil {
		var told *url.Error // its text holds the whole URL, which may hold a token
		if errors.As(err, &told) {
			err = told.Err
		}
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	_, _ = io.CopyN(io.Discard, resp.Body, maxNotifyDrain) // only to keep the connection
	if resp.StatusCode/100 != 2 {
		return fmt.Errorf("the receiver answered %d %s", resp.StatusCode, http.StatusText(resp.StatusCode))
	}
	return nil
}
