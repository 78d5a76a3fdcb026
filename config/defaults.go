package config

import "time"

// defaultConfig is the configuration of an empty file.
func defaultConfig() *Config {
	return &Config{
		Server: Server{Listen: "127.0.0.1:9464"},
		Reconcile: Reconcile{
			Schedule:  "* * * * *",
			Timezone:  "UTC",
			Retention: Duration(720 * time.Hour),
		},
		Tools:      map[string]Tool{},
		Partitions: []Partition{},
	}
}

// defaultTool is a tool of which nothing but the name is written.
func defaultTool() Tool {
	return Tool{
		NeedsReceipt:          true,
		Settle:                Duration(30 * time.Second),
		NotFoundConfirmations: 2,
		MaxAttempts:           3,
		ManualAfter:           Duration(24 * time.Hour),
		CheckBackoff:          Backoff{Initial: Duration(30 * time.Second), Max: Duration(time.Hour)},
		Receipts: Receipts{
			BatchSize:   200,
			Concurrency: 4,
			Timeout:     Duration(5 * time.Second),
			Retries:     2,
			Rate:        50,
		},
		Retry: Retry{Timeout: Duration(10 * time.Second)},
	}
}

// defaultPartition is an entry under partitions of which nothing is written; [Partition.complete] adds the columns.
func defaultPartition() Partition {
	return Partition{
		Schedule:  "15 3 * * *",
		Interval:  IntervalDay,
		Premake:   7,
		Retention: Duration(168 * time.Hour),
		DropAfter: Duration(168 * time.Hour),
		MaxPerRun: 10,
	}
}

// complete fills in the defaults that depend on other values.
func (c *Config) complete(r *report) {
	for name, t := range c.Tools {
		if t.Retry.Mode != "" {
			continue
		}
		t.Retry.Mode = RetryHandoff
		if t.Retry.URL != "" {
			t.Retry.Mode = RetryDispatch
		}
		c.Tools[name] = t
	}
	for i := range c.Partitions {
		c.Partitions[i].complete(path{"partitions"}.item(i), r)
	}
}

// ledger is the one table under partitions whose columns are known beforehand.
const ledger = "reconciler.call_events"

// complete fills in the columns that were not written. One that was written as empty stays empty.
func (p *Partition) complete(at path, r *report) {
	columns := at.to("columns")
	unless := func(key string, column *string, name string) {
		if !r.written(columns.to(key)) {
			*column = name
		}
	}
	if p.Table == ledger {
		unless("call_id", &p.Columns.CallID, "call_id")
	}
	if p.Columns.CallID == "" {
		unless("key", &p.Columns.Key, "idempotency_key")
		unless("biz_id", &p.Columns.BizID, "biz_id")
		unless("status", &p.Columns.Status, "status")
	}
	if !r.written(at.to("terminal_statuses")) {
		p.TerminalStatuses = []string{}
		if p.Columns.Status != "" {
			p.TerminalStatuses = []string{"SUCCESS", "FAILED"}
		}
	}
}
