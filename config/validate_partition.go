package config

import (
	"maps"
	"slices"
	"strings"
)

const (
	// longestIdentifier is what PostgreSQL keeps of an identifier, in bytes.
	longestIdentifier = 63
	mostPremade       = 1000
)

// validate judges one entry under partitions by itself.
func (p *Partition) validate(at path, r *report) {
	p.Database.refuseBoth(at.to("database"), r)
	p.Database.resolve(at.to("database"), r)
	schema, table, ok := strings.Cut(p.Table, ".")
	if !ok || !isIdentifier(schema) || !isIdentifier(table) || strings.Contains(table, ".") {
		r.wrong(at.to("table"), nil, "%q is not schema.name, such as idempotency.keys, each part 1 to %d bytes", p.Table, longestIdentifier)
	}
	intervals := []Interval{IntervalHour, IntervalDay, IntervalWeek, IntervalMonth}
	if !slices.Contains(intervals, p.Interval) {
		r.wrong(at.to("interval"), nil, "is %q; it must be hour, day, week or month", string(p.Interval))
	}
	between(at.to("premake"), p.Premake, 1, mostPremade, r)
	between(at.to("max_per_run"), p.MaxPerRun, 1, mostPremade, r)
	positive(at.to("retention"), p.Retention, 0, r)
	p.Columns.validate(at.to("columns"), r)
	p.validateStatuses(at, r)
	if p.Archive.Dir == "" {
		r.wrong(at.to("archive", "dir"), nil, "is required: the directory that archives are written to")
	}
}

func (c Columns) validate(at path, r *report) {
	for _, column := range []struct{ key, name string }{
		{"key", c.Key}, {"biz_id", c.BizID}, {"status", c.Status}, {"call_id", c.CallID},
	} {
		if column.name != "" && !isIdentifier(column.name) {
			r.wrong(at.to(column.key), nil, "%q is not the name of a column, which has 1 to %d bytes", column.name, longestIdentifier)
		}
	}
	if c.Key == "" && c.BizID == "" && c.CallID == "" {
		r.wrong(at, []path{at.to("key"), at.to("biz_id"), at.to("call_id")},
			"key, biz_id and call_id are all empty, so that no row could be told from one whose business is open; write the column of one of them")
	}
}

func (p *Partition) validateStatuses(entry path, r *report) {
	at, column := entry.to("terminal_statuses"), entry.to("columns", "status")
	switch {
	case p.Columns.Status == "" && len(p.TerminalStatuses) > 0:
		r.wrong(at, []path{column}, "is written, but columns.status is empty; write the column that holds them, or remove this key if the table has no status")
	case p.Columns.Status != "" && len(p.TerminalStatuses) == 0:
		r.wrong(at, []path{column}, "is empty, so that no partition could ever be archived; write the statuses that are final, such as [SUCCESS, FAILED]")
	}
	for i, status := range p.TerminalStatuses {
		switch {
		case status == "":
			r.wrong(at.item(i), nil, "is empty; write a status or remove it")
		case strings.EqualFold(status, "PROCESSING"):
			r.wrong(at.item(i), nil, "%s is not final: archiving a business that is still open lets a late retry through", status)
		case slices.Index(p.TerminalStatuses, status) < i:
			r.wrong(at.item(i), nil, "%q is listed twice; remove one", status)
		}
	}
}

// validateRetention refuses to archive keys that a tool may still need.
func (c *Config) validateRetention(i int, r *report) {
	p := c.Partitions[i]
	longest := ""
	for _, name := range slices.Sorted(maps.Keys(c.Tools)) {
		t := c.Tools[name]
		if t.IdempotencyTable == p.Table && t.DedupWindow > max(p.Retention, c.Tools[longest].DedupWindow) {
			longest = name
		}
	}
	if longest == "" {
		return
	}
	window := path{"tools", longest, "dedup_window"}
	r.wrong(path{"partitions"}.item(i).to("retention"), []path{window},
		"is %s, shorter than %s, which is %s; a key that is archived earlier lets a late retry execute twice",
		p.Retention, window, c.Tools[longest].DedupWindow)
}

// validateUnique refuses the same table of the same database twice.
func (c *Config) validateUnique(i int, r *report) {
	p := c.Partitions[i]
	for j, other := range c.Partitions[:i] {
		if p.Table != "" && p.Table == other.Table && c.DatabaseOf(p).source() == c.DatabaseOf(other).source() {
			r.wrong(path{"partitions"}.item(i).to("table"), nil, "%s of the same database is already listed as partitions[%d]; remove one", p.Table, j)
			return
		}
	}
}

func isIdentifier(s string) bool {
	return s != "" && len(s) <= longestIdentifier && !strings.ContainsFunc(s, isControl)
}
