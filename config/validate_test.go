package config

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// tool is a valid tool with changes, keys indented by four.
func tool(lines ...string) string {
	return "tools:\n  a:\n    needs_receipt: false\n    " + strings.Join(lines, "\n    ") + "\n"
}

// partition is a valid partition with changes, keys indented by two.
func partition(lines ...string) string {
	return "partitions:\n- table: a.b\n  archive: {dir: x}\n  " + strings.Join(lines, "\n  ") + "\n"
}

func TestEachRuleOfAToolPrintsTheValuesThatDisagree(t *testing.T) {
	t.Parallel()
	for _, one := range []struct{ text, want string }{
		{"tools: {a: {}}", "c.yaml:1:9: tools.a.receipts.url: is required: the endpoint that answers receipt queries (or set needs_receipt: false for a pure query)"},
		{`tools: {"": {needs_receipt: false}}`, `c.yaml:1:9: tools."": the name of a tool has 1 to 200 bytes and no control characters; this one has 0 bytes`},
		{`tools: {"a\tb": {needs_receipt: false}}`, `c.yaml:1:9: tools."a\tb": the name of a tool has 1 to 200 bytes and no control characters; this one has 3 bytes`},
		{"tools: {" + strings.Repeat("é", 101) + ": {needs_receipt: false}}", "c.yaml:1:9: tools." + strings.Repeat("é", 101) + ": the name of a tool has 1 to 200 bytes and no control characters; this one has 202 bytes"},
		{tool("receipts: {timeout: 31s}", "needs_receipt2: 1"), "c.yaml:5:5: tools.a.needs_receipt2: unknown key; did you mean needs_receipt?"},
		{"tools: {a: {settle: 4s, receipts: {url: 'http://h/r'}}}", "c.yaml:1:13: tools.a.settle: is 4s, shorter than receipts.timeout, which is 5s; a NOT_FOUND must not count while a request may still arrive"},
		{"tools: {a: {receipts: {url: 'http://h/r', timeout: 31s}}}", "c.yaml:1:9: tools.a.settle: is 30s, shorter than receipts.timeout, which is 31s; a NOT_FOUND must not count while a request may still arrive"},
		{tool("settle: 9s", "retry: {url: 'http://h/r'}"), "c.yaml:4:5: tools.a.settle: is 9s, shorter than retry.timeout, which is 10s; a NOT_FOUND must not count while a request may still arrive"},
		{tool("settle: 721h"), "c.yaml:4:5: tools.a.settle: is 721h; it must be at most 720h"},
		{tool("not_found_confirmations: 0"), "c.yaml:4:5: tools.a.not_found_confirmations: is 0; it must be from 1 to 100"},
		{tool("max_attempts: 101"), "c.yaml:4:5: tools.a.max_attempts: is 101; it must be from 1 to 100"},
		{tool("manual_after: 0"), "c.yaml:4:5: tools.a.manual_after: is 0s; it must be longer than 0"},
		{tool("check_backoff: {initial: 0s}"), "c.yaml:4:21: tools.a.check_backoff.initial: is 0s; it must be longer than 0"},
		{tool("check_backoff: {initial: 2h}"), "c.yaml:4:21: tools.a.check_backoff.initial: is 2h, longer than max, which is 1h"},
		{tool("check_backoff: {max: 721h}"), "c.yaml:4:21: tools.a.check_backoff.max: is 721h; it must be at most 720h"},
		{tool("schedule: '@every 1s'"), `c.yaml:4:5: tools.a.schedule: schedule "@every 1s" runs every 1s; the shortest interval is 5s`},
		{tool("receipts: {batch_size: 1001}"), "c.yaml:4:16: tools.a.receipts.batch_size: is 1001; it must be from 1 to 1000"},
		{tool("receipts: {batch_size: 0}"), "c.yaml:4:16: tools.a.receipts.batch_size: is 0; it must be from 1 to 1000"},
		{tool("receipts: {concurrency: 65}"), "c.yaml:4:16: tools.a.receipts.concurrency: is 65; it must be from 1 to 64"},
		{tool("receipts: {retries: 11}"), "c.yaml:4:16: tools.a.receipts.retries: is 11; it must be from 0 to 10"},
		{tool("receipts: {timeout: 0}"), "c.yaml:4:16: tools.a.receipts.timeout: is 0s; it must be longer than 0"},
		{tool("receipts: {timeout: 301s}"), "c.yaml:4:16: tools.a.receipts.timeout: is 5m1s; it must be at most 5m"},
		{tool("receipts: {rate: 0}"), "c.yaml:4:16: tools.a.receipts.rate: is 0 requests per second; it must be above 0 and at most 100000"},
		{tool("receipts: {rate: 100000.5}"), "c.yaml:4:16: tools.a.receipts.rate: is 100000.5 requests per second; it must be above 0 and at most 100000"},
		{tool("receipts: {url: 'ftp://h/r'}"), "c.yaml:4:16: tools.a.receipts.url: ftp://h/r must begin with http:// or https://"},
		{tool("receipts: {url: 'https://u:hush@h/r'}"), "c.yaml:4:16: tools.a.receipts.url: https://redacted@h/r carries a user or password; use bearer_token_file"},
		{tool("receipts: {url: 'https:///r'}"), "c.yaml:4:16: tools.a.receipts.url: https:///r has no host"},
		{tool("receipts: {url: 'https://h/r#x'}"), "c.yaml:4:16: tools.a.receipts.url: https://h/r#x has a fragment (#), which is never sent; remove it"},
		{tool("receipts: {url: 'https://u:hu sh@h/r'}"), "c.yaml:4:16: tools.a.receipts.url: is not a valid URL; write one like https://payments.internal:8443/receipts/query"},
		{tool("receipts: {ca_file: /does/not/exist}"), "c.yaml:4:16: tools.a.receipts.ca_file: /does/not/exist does not exist; check the path (relative paths start at the working directory)"},
		{tool("retry: {mode: dispatch}"), "c.yaml:4:13: tools.a.retry.mode: is dispatch, but url is empty; write retry.url, or use mode: handoff"},
		{tool("retry: {mode: send}"), `c.yaml:4:13: tools.a.retry.mode: is "send"; it must be handoff or dispatch`},
		{tool("retry: {timeout: 6m}"), "c.yaml:4:13: tools.a.retry.timeout: is 6m; it must be at most 5m"},
		{tool("notify: {url: 'http://h/n'}"), "c.yaml:4:14: tools.a.notify.url: needs secret_file; deliveries are signed and never sent without a signature"},
		{tool("retryable: true", "retry: {url: 'http://h/r'}"), "c.yaml:4:5: tools.a.retryable: is true and retry.url is set, but idempotent is false: a second send could execute the call twice; " +
			"set idempotent: true if the downstream executes one key once, else retryable: false"},
		{tool("retryable: true", "idempotent: true"), "c.yaml:2:3: tools.a.dedup_window: is 0s: write how long the downstream remembers a key; required to retry (retryable and idempotent are true)"},
		{
			tool("retryable: true", "idempotent: true", "dedup_window: 59s"),
			"c.yaml:2:3: tools.a.max_attempts: is 3: that many sends take about 1m30s (settle is 30s, check_backoff 30s doubling up to 1h), longer than dedup_window, which is 59s",
		},
		{
			tool("retryable: true", "idempotent: true", "dedup_window: 79s", "settle: 5s", "check_backoff: {initial: 40s}"),
			"c.yaml:2:3: tools.a.max_attempts: is 3: that many sends take about 2m (settle is 5s, check_backoff 40s doubling up to 1h), longer than dedup_window, which is 1m19s",
		},
		{tool("idempotency_table: x.y"), `c.yaml:4:5: tools.a.idempotency_table: names "x.y", but nothing is listed under partitions; add the table there or remove this key`},
		{tool("idempotency_table: a.c") + partition(), `c.yaml:4:5: tools.a.idempotency_table: names "a.c", which is not a table under partitions; did you mean a.b?`},
	} {
		t.Run("", func(t *testing.T) {
			t.Parallel()
			refused(t, one.text, one.want)
		})
	}
}

func TestValuesAtTheEdgeOfARuleAreAccepted(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		tool("settle: 0"),
		tool("retryable: true", "retry: {url: ''}"),
		tool("retry: {url: 'http://h/r'}"),
		tool("retryable: true", "idempotent: true", "dedup_window: 90s"),
		tool("retryable: true", "idempotent: true", "dedup_window: 1s", "max_attempts: 1"),
		tool("max_attempts: 100", "not_found_confirmations: 100", "check_backoff: {initial: 720h, max: 720h}"),
		tool("receipts: {batch_size: 1000, concurrency: 64, retries: 0, rate: 0.01, timeout: 5m}"),
		tool("idempotency_table: a.b", "dedup_window: 168h") + partition("drop_after: 0"),
		tool("dedup_window: 169h") + partition(),
		"tools: {a: {settle: 5s, receipts: {url: 'https://[::1]:8443/r?tenant=1'}}}",
		"server: {listen: ':0'}",
		"reconcile: {retention: 0}",
		"tools: {" + strings.Repeat("a", 200) + ": {needs_receipt: false}}",
	} {
		if _, err := load(text); err != nil {
			t.Errorf("%s\n%v", text, err)
		}
	}
}

func TestTheRetryModeFollowsFromTheURL(t *testing.T) {
	t.Parallel()
	c := mustLoad(t, `tools:
  none: {needs_receipt: false}
  url: {needs_receipt: false, retry: {url: 'http://h/r'}}
  off: {needs_receipt: false, retry: {url: 'http://h/r', mode: handoff}}
`)
	for name, want := range map[string]RetryMode{"none": RetryHandoff, "url": RetryDispatch, "off": RetryHandoff} {
		if got := c.Tools[name].Retry.Mode; got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
}

func TestEachRuleOfAPartitionPrintsTheValuesThatDisagree(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 64)
	for _, one := range []struct{ text, want string }{
		{"partitions: [{table: a.b}]", "c.yaml:1:14: partitions[0].archive.dir: is required: the directory that archives are written to"},
		{"partitions: [{archive: {dir: x}}]", `c.yaml:1:14: partitions[0].table: "" is not schema.name, such as idempotency.keys, each part 1 to 63 bytes`},
		{"partitions: [{archive: {dir: x}, table: keys}]", `c.yaml:1:34: partitions[0].table: "keys" is not schema.name, such as idempotency.keys, each part 1 to 63 bytes`},
		{"partitions: [{archive: {dir: x}, table: a.b.c}]", `c.yaml:1:34: partitions[0].table: "a.b.c" is not schema.name, such as idempotency.keys, each part 1 to 63 bytes`},
		{"partitions: [{archive: {dir: x}, table: a." + long + "}]", `c.yaml:1:34: partitions[0].table: "a.` + long + `" is not schema.name, such as idempotency.keys, each part 1 to 63 bytes`},
		{partition("interval: year"), `c.yaml:4:3: partitions[0].interval: is "year"; it must be hour, day, week or month`},
		{partition("premake: 0"), "c.yaml:4:3: partitions[0].premake: is 0; it must be from 1 to 1000"},
		{partition("max_per_run: 0"), "c.yaml:4:3: partitions[0].max_per_run: is 0; it must be from 1 to 1000"},
		{partition("retention: 0"), "c.yaml:4:3: partitions[0].retention: is 0s; it must be longer than 0"},
		{partition("schedule: 0 0 31 2 *"), `c.yaml:4:3: partitions[0].schedule: schedule "0 0 31 2 *" never fires; no such day exists`},
		{partition("schedule: ''"), `c.yaml:4:3: partitions[0].schedule: the schedule is empty; write five fields such as "*/5 * * * *", or "@every 30s"`},
		{partition("columns: {call_id: " + long + "}"), `c.yaml:4:13: partitions[0].columns.call_id: "` + long + `" is not the name of a column, which has 1 to 63 bytes`},
		{partition("columns: {status: " + long + "}"), `c.yaml:4:13: partitions[0].columns.status: "` + long + `" is not the name of a column, which has 1 to 63 bytes`},
		{
			partition("columns: {key: '', biz_id: ''}"),
			"c.yaml:4:3: partitions[0].columns: key, biz_id and call_id are all empty, so that no row could be told from one whose business is open; write the column of one of them",
		},
		{
			"partitions: [{table: reconciler.call_events, archive: {dir: x}, columns: {call_id: '', key: '', biz_id: ''}}]",
			"c.yaml:1:65: partitions[0].columns: key, biz_id and call_id are all empty, so that no row could be told from one whose business is open; write the column of one of them",
		},
		{
			partition("columns: {status: ''}", "terminal_statuses: [DONE]"),
			"c.yaml:5:3: partitions[0].terminal_statuses: is written, but columns.status is empty; write the column that holds them, or remove this key if the table has no status",
		},
		{
			partition("columns: {call_id: call_id}", "terminal_statuses: [DONE]"),
			"c.yaml:5:3: partitions[0].terminal_statuses: is written, but columns.status is empty; write the column that holds them, or remove this key if the table has no status",
		},
		{partition("columns: {call_id: call_id, status: state}", "terminal_statuses: []"), "c.yaml:5:3: partitions[0].terminal_statuses: is empty, so that no partition could ever be archived; write the statuses that are final, such as [SUCCESS, FAILED]"},
		{"reconcile: {retention: 720h}\npartitions: [{table: reconciler.call_events, archive: {dir: x}, columns: {call_id: }}]", "c.yaml:2:75: partitions[0].columns.call_id: has no value; write one or remove the key"},
		{partition("terminal_statuses: []"), "c.yaml:4:3: partitions[0].terminal_statuses: is empty, so that no partition could ever be archived; write the statuses that are final, such as [SUCCESS, FAILED]"},
		{partition("terminal_statuses: [A, processing]"), "c.yaml:4:26: partitions[0].terminal_statuses[1]: processing is not final: archiving a business that is still open lets a late retry through"},
		{partition("terminal_statuses: [A, B, A]"), `c.yaml:4:29: partitions[0].terminal_statuses[2]: "A" is listed twice; remove one`},
		{partition("terminal_statuses: ['']"), "c.yaml:4:23: partitions[0].terminal_statuses[0]: is empty; write a status or remove it"},
		{partition("retention: 167h") + "tools: {p.q: {needs_receipt: false, idempotency_table: a.b, dedup_window: 168h}, a: {needs_receipt: false, idempotency_table: a.b, dedup_window: 167.6h}, short: {needs_receipt: false, idempotency_table: a.b, dedup_window: 167.5h}}", "c.yaml:4:3: partitions[0].retention: is 167h, shorter than tools.p.q.dedup_window, which is 168h; a key that is archived earlier lets a late retry execute twice"},
		{partition() + "- {table: a.b, archive: {dir: y}}", "c.yaml:5:4: partitions[1].table: a.b of the same database is already listed as partitions[0]; remove one"},
		{partition("database: {url: x=1, url_file: y}"), "c.yaml:4:24: partitions[0].database.url_file: is set together with url; remove one of them"},
	} {
		t.Run("", func(t *testing.T) {
			t.Parallel()
			refused(t, one.text, one.want)
		})
	}
	mustLoad(t, partition()+"- {table: a.b, archive: {dir: y}, database: {url: 'host=other'}}")
}

func TestTheColumnsOfATableFollowFromWhatItHolds(t *testing.T) {
	t.Parallel()
	final := []string{"SUCCESS", "FAILED"}
	for name, one := range map[string]struct {
		text     string
		want     Columns
		statuses []string
	}{
		"keys":                   {partition(), Columns{Key: "idempotency_key", BizID: "biz_id", Status: "status"}, final},
		"keys of another name":   {partition("columns: {key: k}"), Columns{Key: "k", BizID: "biz_id", Status: "status"}, final},
		"keys without a bizId":   {partition("columns: {biz_id: ''}"), Columns{Key: "idempotency_key", Status: "status"}, final},
		"businesses":             {partition("columns: {key: ''}"), Columns{BizID: "biz_id", Status: "status"}, final},
		"no status":              {partition("columns: {status: ''}"), Columns{Key: "idempotency_key", BizID: "biz_id"}, []string{}},
		"no status, no words":    {partition("columns: {status: ''}", "terminal_statuses: []"), Columns{Key: "idempotency_key", BizID: "biz_id"}, []string{}},
		"calls":                  {partition("columns: {call_id: id}"), Columns{CallID: "id"}, []string{}},
		"calls with a status":    {partition("columns: {call_id: id, status: state}"), Columns{CallID: "id", Status: "state"}, final},
		"calls with all":         {partition("columns: {call_id: id, key: k, biz_id: b, status: s}", "terminal_statuses: [DONE]"), Columns{"k", "b", "s", "id"}, []string{"DONE"}},
		"all but calls, written": {partition("columns: {call_id: '', key: k, biz_id: b, status: s}"), Columns{"k", "b", "s", ""}, final},
		"nothing written":        {partition("columns:"), Columns{Key: "idempotency_key", BizID: "biz_id", Status: "status"}, final},
		"the ledger":             {ledgerEntry(), Columns{CallID: "call_id"}, []string{}},
		"the ledger, shortly":    {"reconcile: {retention: 720h}\n" + ledgerEntry("retention: 24h"), Columns{CallID: "call_id"}, []string{}},
		"the ledger, by bizId":   {ledgerEntry("columns: {call_id: '', key: '', biz_id: biz_id, status: ''}"), Columns{BizID: "biz_id"}, []string{}},
		"the ledger, and more":   {ledgerEntry("columns: {biz_id: biz_id}"), Columns{CallID: "call_id", BizID: "biz_id"}, []string{}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := mustLoad(t, one.text).Partitions[0]
			if p.Columns != one.want || !slices.Equal(p.TerminalStatuses, one.statuses) || p.TerminalStatuses == nil {
				t.Errorf("%+v %#v, want %+v %v", p.Columns, p.TerminalStatuses, one.want, one.statuses)
			}
		})
	}
}

// ledgerEntry is partition for the table whose columns are known.
func ledgerEntry(lines ...string) string {
	return strings.Replace(partition(lines...), "a.b", "reconciler.call_events", 1)
}

func TestCommonSettingsAreChecked(t *testing.T) {
	t.Parallel()
	refused(t, "server: {listen: 'h:http'}\nreconcile: {timezone: Local, schedule: 'CRON_TZ=UTC'}\n",
		`c.yaml:1:10: server.listen: "h:http" has port "http"; write a number from 0 to 65535`,
		"c.yaml:2:13: reconcile.timezone: Local differs from machine to machine; write UTC or a name such as Europe/Berlin",
		`c.yaml:2:30: reconcile.schedule: schedule "CRON_TZ=UTC" carries a time zone; use reconcile.timezone`,
	)
	refused(t, "server: {listen: ''}\nreconcile: {timezone: ''}\n",
		`c.yaml:1:10: server.listen: "" is not host:port; write one like 127.0.0.1:9464 or [::1]:9464`,
		"c.yaml:2:13: reconcile.timezone: is empty; write UTC or a name such as Europe/Berlin",
	)
}

func TestSecretFilesMustBeThereAndReadable(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	token := filepath.Join(dir, "token")
	if err := os.WriteFile(token, []byte("t"), 0o600); err != nil {
		t.Fatal(err)
	}
	mustLoad(t, tool("receipts: {bearer_token_file: "+token+"}", "notify: {url: 'http://h/n', secret_file: "+token+"}"))
	refused(t, tool("receipts:", "  bearer_token_file: "+dir, "  ca_file: /dev/null"),
		"c.yaml:5:7: tools.a.receipts.bearer_token_file: "+dir+" is a directory; name a file",
		"c.yaml:6:7: tools.a.receipts.ca_file: /dev/null is not a regular file",
	)
}
