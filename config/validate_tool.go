package config

import (
	"net/url"
	"strings"
	"time"
)

const (
	longestName    = 200
	longestBackoff = Duration(720 * time.Hour)
	longestTimeout = Duration(5 * time.Minute)
	highestRate    = 100_000
)

// validate judges one tool by itself.
func (t Tool) validate(name string, r *report) {
	at := path{"tools", name}
	if name == "" || len(name) > longestName || strings.ContainsFunc(name, isControl) {
		r.wrong(at, nil, "the name of a tool has 1 to %d bytes and no control characters; this one has %d bytes", longestName, len(name))
	}
	between(at.to("not_found_confirmations"), t.NotFoundConfirmations, 1, 100, r)
	between(at.to("max_attempts"), t.MaxAttempts, 1, 100, r)
	positive(at.to("manual_after"), t.ManualAfter, 0, r)
	if t.Settle > longestBackoff {
		r.wrong(at.to("settle"), nil, "is %s; it must be at most %s", t.Settle, longestBackoff)
	}
	t.CheckBackoff.validate(at.to("check_backoff"), r)
	t.Receipts.validate(at.to("receipts"), t.NeedsReceipt, r)
	t.Retry.validate(at.to("retry"), r)
	t.Notify.validate(at.to("notify"), r)
	t.validateSettle(at, r)
	t.validateRetry(at, r)
}

func (b Backoff) validate(at path, r *report) {
	positive(at.to("initial"), b.Initial, longestBackoff, r)
	positive(at.to("max"), b.Max, longestBackoff, r)
	if b.Max > 0 && b.Initial > b.Max {
		r.wrong(at.to("initial"), []path{at.to("max")}, "is %s, longer than max, which is %s", b.Initial, b.Max)
	}
}

func (q Receipts) validate(at path, needed bool, r *report) {
	if needed && q.URL == "" {
		r.wrong(at.to("url"), []path{at[:len(at)-1].to("needs_receipt")}, "is required: the endpoint that answers receipt queries (or set needs_receipt: false for a pure query)")
	}
	validateEndpoint(at.to("url"), q.URL, "use bearer_token_file", r)
	between(at.to("batch_size"), q.BatchSize, 1, 1000, r)
	between(at.to("concurrency"), q.Concurrency, 1, 64, r)
	between(at.to("retries"), q.Retries, 0, 10, r)
	positive(at.to("timeout"), q.Timeout, longestTimeout, r)
	if q.Rate <= 0 || q.Rate > highestRate {
		r.wrong(at.to("rate"), nil, "is %v requests per second; it must be above 0 and at most %d", q.Rate, highestRate)
	}
	checkFile(at.to("bearer_token_file"), q.BearerTokenFile, r)
	checkFile(at.to("ca_file"), q.CAFile, r)
}

func (t Retry) validate(at path, r *report) {
	switch {
	case t.Mode != RetryHandoff && t.Mode != RetryDispatch:
		r.wrong(at.to("mode"), nil, "is %q; it must be %s or %s", string(t.Mode), RetryHandoff, RetryDispatch)
	case t.Mode == RetryDispatch && t.URL == "":
		r.wrong(at.to("mode"), []path{at.to("url")}, "is %s, but url is empty; write retry.url, or use mode: %s", t.Mode, RetryHandoff)
	}
	validateEndpoint(at.to("url"), t.URL, "use bearer_token_file", r)
	positive(at.to("timeout"), t.Timeout, longestTimeout, r)
	checkFile(at.to("bearer_token_file"), t.BearerTokenFile, r)
	checkFile(at.to("ca_file"), t.CAFile, r)
}

func (n Notify) validate(at path, r *report) {
	validateEndpoint(at.to("url"), n.URL, "deliveries are signed with secret_file", r)
	if n.URL != "" && n.SecretFile == "" {
		r.wrong(at.to("url"), []path{at.to("secret_file")}, "needs secret_file; deliveries are signed and never sent without a signature")
	}
	checkFile(at.to("secret_file"), n.SecretFile, r)
}

// validateSettle refuses a NOT_FOUND that counts while the request may still be under way.
func (t Tool) validateSettle(at path, r *report) {
	settle := at.to("settle")
	if timeout := at.to("receipts", "timeout"); t.NeedsReceipt && t.Settle < t.Receipts.Timeout {
		r.wrong(settle, []path{timeout}, "is %s, shorter than receipts.timeout, which is %s; a NOT_FOUND must not count while a request may still arrive", t.Settle, t.Receipts.Timeout)
	}
	if timeout := at.to("retry", "timeout"); t.Retry.URL != "" && t.Settle < t.Retry.Timeout {
		r.wrong(settle, []path{timeout}, "is %s, shorter than retry.timeout, which is %s; a NOT_FOUND must not count while a request may still arrive", t.Settle, t.Retry.Timeout)
	}
}

// validateRetry refuses retries that could execute a call twice, and attempts that can never be made in time.
func (t Tool) validateRetry(at path, r *report) {
	if !t.Retryable {
		return
	}
	retryable, idempotent, window := at.to("retryable"), at.to("idempotent"), at.to("dedup_window")
	if !t.Idempotent {
		if t.Retry.URL != "" {
			r.wrong(retryable, []path{idempotent, at.to("retry", "url")}, "is true and retry.url is set, but idempotent is false: a second send could execute the call twice; "+
				"set idempotent: true if the downstream executes one key once, else retryable: false")
		}
		return
	}
	if t.DedupWindow <= 0 {
		r.wrong(window, []path{retryable, idempotent}, "is %s: write how long the downstream remembers a key; required to retry (retryable and idempotent are true)", t.DedupWindow)
		return
	}
	attempts := at.to("max_attempts")
	if t.MaxAttempts < 1 || t.MaxAttempts > 100 || t.Settle > longestBackoff || t.CheckBackoff.Max > longestBackoff {
		return // reported as such
	}
	if needed := t.sendsTake(); needed > t.DedupWindow {
		r.wrong(attempts, []path{window, at.to("settle"), at.to("check_backoff", "initial"), at.to("check_backoff", "max")},
			"is %d: that many sends take about %s (settle is %s, check_backoff %s doubling up to %s), longer than dedup_window, which is %s",
			t.MaxAttempts, needed, t.Settle, t.CheckBackoff.Initial, t.CheckBackoff.Max, t.DedupWindow)
	}
}

// sendsTake is about how long after the first send the last of max_attempts can be made: each waits for settle, and for a
// backoff that doubles.
func (t Tool) sendsTake() (sum Duration) {
	wait := t.CheckBackoff.Initial
	for range t.MaxAttempts - 1 {
		sum += max(t.Settle, min(wait, t.CheckBackoff.Max))
		wait = min(2*wait, t.CheckBackoff.Max)
	}
	return sum
}

// validateTableOf checks that a tool's table is one that is archived here; [Config.validateRetention] compares the times.
func (c *Config) validateTableOf(name string, t Tool, r *report) {
	if t.IdempotencyTable == "" {
		return
	}
	at := path{"tools", name, "idempotency_table"}
	known := make([]string, len(c.Partitions))
	for i, p := range c.Partitions {
		if p.Table == t.IdempotencyTable {
			return
		}
		known[i] = p.Table
	}
	if len(known) == 0 {
		r.wrong(at, []path{{"partitions"}}, "names %q, but nothing is listed under partitions; add the table there or remove this key", t.IdempotencyTable)
		return
	}
	r.wrong(at, []path{{"partitions"}}, "names %q, which is not a table under partitions; %s", t.IdempotencyTable, suggestion(t.IdempotencyTable, known[:min(len(known), 20)]))
}

// validateEndpoint checks a URL that requests are sent to. instead says where credentials belong.
func validateEndpoint(at path, raw URL, instead string, r *report) {
	if raw == "" {
		return
	}
	u, err := url.Parse(string(raw))
	switch {
	case err != nil:
		r.wrong(at, nil, "is not a valid URL; write one like https://payments.internal:8443/receipts/query")
	case u.Scheme != "http" && u.Scheme != "https":
		r.wrong(at, nil, "%s must begin with http:// or https://", raw)
	case u.User != nil:
		r.wrong(at, nil, "%s carries a user or password; %s", raw, instead)
	case u.Hostname() == "":
		r.wrong(at, nil, "%s has no host", raw)
	case u.Fragment != "" || strings.Contains(string(raw), "#"):
		r.wrong(at, nil, "%s has a fragment (#), which is never sent; remove it", raw)
	}
}
