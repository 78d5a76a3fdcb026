package config

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

func TestUnknownKeysAreRefusedAtEveryLevelWithTheNearestKnownOne(t *testing.T) {
	t.Parallel()
	refused(t, `databse: {}
database:
  ulr: x
server: {liste: x}
reconcile:
  shedule: x
tools:
  a:
    needs_receipt: false
    setle: 30s
    check_backoff: {initail: 1s}
    receipts:
      batchsize: 1
    retry: {zebra: 1}
    notify:
      secret-file: x
partitions:
- tabel: x
  table: a.b
  archive: {dir: x, "di\nr": x}
  columns: {bizid: x}
  database: {file: x}
`,
		"c.yaml:1:1: databse: unknown key; did you mean database?",
		"c.yaml:3:3: database.ulr: unknown key; did you mean url?",
		"c.yaml:4:10: server.liste: unknown key; did you mean listen?",
		"c.yaml:6:3: reconcile.shedule: unknown key; did you mean schedule?",
		"c.yaml:10:5: tools.a.setle: unknown key; did you mean settle?",
		"c.yaml:11:21: tools.a.check_backoff.initail: unknown key; did you mean initial?",
		"c.yaml:13:7: tools.a.receipts.batchsize: unknown key; did you mean batch_size?",
		"c.yaml:14:13: tools.a.retry.zebra: unknown key; known here: mode, url, timeout, bearer_token_file, ca_file",
		"c.yaml:16:7: tools.a.notify.secret-file: unknown key; did you mean secret_file?",
		"c.yaml:18:3: partitions[0].tabel: unknown key; did you mean table?",
		`c.yaml:20:21: partitions[0].archive."di\nr": unknown key; did you mean dir?`,
		"c.yaml:21:13: partitions[0].columns.bizid: unknown key; did you mean biz_id?",
		"c.yaml:22:14: partitions[0].database.file: unknown key; known here: url, url_file",
	)
}

func TestWrongTypesAreRefusedAllAtOnce(t *testing.T) {
	t.Parallel()
	refused(t, `database: {url: 5432, url_file: {a: b}}
server: x
reconcile: [a]
tools:
  a:
    needs_receipt: yes
    retryable: "true"
    max_attempts: "3"
    not_found_confirmations: 010
    idempotency_table: 0123
    settle: 30
    manual_after: 1 day
    dedup_window: -1h
    schedule: null
    check_backoff: {initial: 99999d, max: 87601h}
    receipts: {rate: fast, batch_size: 1.5, retries: 1_0, bearer_token_file: true, concurrency: [1]}
    retry: {timeout: "10", mode: ~}
  b: 5
partitions: {table: x}
`,
		"c.yaml:1:12: database.url: must be text, not a number; put it in quotes",
		"c.yaml:1:23: database.url_file: must be a single value, not a mapping",
		"c.yaml:2:1: server: must be a mapping with keys such as listen, reload_token_file, not a text",
		"c.yaml:3:1: reconcile: must be a mapping with keys such as schedule, timezone, retention, not a list",
		"c.yaml:6:5: tools.a.needs_receipt: must be true or false, not yes",
		"c.yaml:7:5: tools.a.retryable: must be true or false, not true in quotes",
		"c.yaml:8:5: tools.a.max_attempts: must be a whole number in plain digits, not 3 in quotes",
		"c.yaml:9:5: tools.a.not_found_confirmations: must be a whole number in plain digits, not 010",
		`c.yaml:10:5: tools.a.idempotency_table: must be text, but YAML reads 0123 as a number; write "0123" in quotes`,
		"c.yaml:11:5: tools.a.settle: 30 has no unit; write 30s if seconds are meant",
		`c.yaml:12:5: tools.a.manual_after: "1 day" is not a duration; write one like 30s, 24h or 7d`,
		"c.yaml:13:5: tools.a.dedup_window: -1h is negative",
		"c.yaml:14:5: tools.a.schedule: has no value; write one or remove the key",
		"c.yaml:15:21: tools.a.check_backoff.initial: 99999d is too long; at most 87600h",
		"c.yaml:15:38: tools.a.check_backoff.max: 87601h is too long; at most 87600h",
		"c.yaml:16:16: tools.a.receipts.rate: must be a number such as 50 or 0.5, not fast",
		"c.yaml:16:28: tools.a.receipts.batch_size: must be a whole number in plain digits, not 1.5",
		"c.yaml:16:45: tools.a.receipts.retries: must be a whole number in plain digits, not 1_0",
		`c.yaml:16:59: tools.a.receipts.bearer_token_file: must be text, but YAML reads true as a truth value; write "true" in quotes`,
		"c.yaml:16:84: tools.a.receipts.concurrency: must be a single value, not a list",
		"c.yaml:17:13: tools.a.retry.timeout: 10 has no unit; write 10s if seconds are meant",
		"c.yaml:17:28: tools.a.retry.mode: has no value; write one or remove the key",
		"c.yaml:18:3: tools.b: must be a mapping with keys such as retryable, idempotent, needs_receipt, settle, not_found_confirmations, dedup_window, max_attempts, "+
			"retry_failed, idempotency_table, manual_after, check_backoff, schedule, receipts, retry, notify, not a number",
		"c.yaml:19:1: partitions: must be a list, not a mapping",
	)
}

func TestKeysWrittenTwiceAreRefusedAndTheFirstCounts(t *testing.T) {
	t.Parallel()
	refused(t, "server: {listen: ':1'}\ntools:\n  a: {needs_receipt: false}\n  a: {needs_receipt: false, settle: 1s, settle: 2s}\nserver: {}\n",
		"c.yaml:4:3: tools.a: this key is already written in line 3; remove one of them",
		"c.yaml:5:1: server: this key is already written in line 1; remove one of them",
	)
}

func TestWhatIsNotOneYAMLDocumentIsRefusedWithItsPlace(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"server: {}\n---\nserver: {}\n":   "c.yaml:2:1: a second document begins here; one file holds one document, remove the ---",
		"server:\n\tlisten: x\n":          `c.yaml:2:1: a tab character; use spaces (inside double quotes write \t)`,
		"server: # a\tb\n  listen: a\tb":  `c.yaml:2:12: a tab character; use spaces (inside double quotes write \t)`,
		"a: \x00":                         "c.yaml:1:4: control character U+0000; the file must be plain text",
		"é: \xff":                         "c.yaml:1:4: is not UTF-8 text",
		"\xff\xfes\x00":                   "c.yaml:1:1: is not UTF-8 text",
		"\ufeffsrv: 1":                    "c.yaml:1:1: srv: unknown key; known here: database, server, reconcile, tools, partitions",
		"- a\n":                           "c.yaml:1:1: must begin with a key such as database: or tools:, not with a list",
		"hello\n":                         "c.yaml:1:1: must begin with a key such as database: or tools:, not with a text",
		"database: {url: hush":            "c.yaml:1:11: is not valid YAML: could not find flow mapping end token '}'",
		"tools:\n  1: {}\n":               "c.yaml:2:3: tools: a key must be text; put 1 in quotes",
		"server: !!map {}\n":              "c.yaml:1:1: server: YAML tags such as !!map are not used here; remove it",
		"server: *a\nreconcile: &a {}":    "c.yaml:1:1: server: alias *a has no anchor &a above it",
		"server: &a {}\nreconcile: &a {}": "c.yaml:2:12: anchor &a is defined twice; give each anchor its own name",
	} {
		t.Run("", func(t *testing.T) {
			t.Parallel()
			_, err := load(text)
			if err == nil || err.Error() != want {
				t.Errorf("%q\ngot  %v\nwant %s", text, err, want)
			}
		})
	}
}

func TestControlCharactersInValuesAreRefused(t *testing.T) {
	t.Parallel()
	refused(t, "partitions:\n- {table: a.b, archive: {dir: \"a\\nb\"}, terminal_statuses: [\"\\u0085\"]}\n",
		"c.yaml:2:26: partitions[0].archive.dir: contains a control character or a line break; write it on one line",
		"c.yaml:2:60: partitions[0].terminal_statuses[0]: contains a control character or a line break; write it on one line",
	)
}

func TestAnchorsAndMergesFollowYAML(t *testing.T) {
	t.Parallel()
	c := mustLoad(t, `tools:
  a: &base
    needs_receipt: false
    settle: 1m
    check_backoff: &backoff {initial: 1s, max: 2s}
  b: *base
  c:
    <<: *base
    settle: 2m
    check_backoff: {initial: 3s}
  d: {<<: [{settle: 3m}, *base]}
`)
	if c.Tools["b"] != c.Tools["a"] {
		t.Errorf("the alias is %+v", c.Tools["b"])
	}
	merged := c.Tools["c"]
	if merged.NeedsReceipt || merged.Settle != Duration(2*time.Minute) {
		t.Errorf("the merge is %+v", merged)
	}
	if want := (Backoff{Duration(3 * time.Second), Duration(time.Hour)}); merged.CheckBackoff != want {
		t.Errorf("a mapping of its own replaces the merged one: %+v", merged.CheckBackoff)
	}
	if d := c.Tools["d"]; d.Settle != Duration(3*time.Minute) || d.NeedsReceipt {
		t.Errorf("the first of several merges wins: %+v", d)
	}
}

func TestAliasesThatMultiplyAreBounded(t *testing.T) {
	t.Parallel()
	var wide strings.Builder
	wide.WriteString("tools:\n  t0: &t0 {settle: 1s}\n")
	for i := 1; i < 40; i++ {
		fmt.Fprintf(&wide, "  t%d: &t%d {<<: [*t%d, *t%d, *t%d]}\n", i, i, i-1, i-1, i-1)
	}
	for _, text := range []string{wide.String(), "tools: {a: &a {<<: *a}}", "partitions: &p [*p, *p]", "tools: &t {a: *t}"} {
		_, err := load(text)
		if err == nil {
			t.Errorf("%.60s: accepted", text)
		}
	}
	_, err := load(wide.String())
	if !strings.Contains(err.Error(), "aliases expand to more than 100000 values") {
		t.Errorf("got %v", err)
	}
}

func TestDepthAndSizeAreBoundedBeforeTheParserRuns(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"nests deeper than 32 levels": "a: " + strings.Repeat("[", 40_000),
		"more than 1000 anchors":      "a:\n" + strings.Repeat("- &x y\n", 1001),
		"levels, or":                  strings.Repeat("- ", 40_000),
		"more than the 50000":         strings.Repeat("a: b\n", 100_000),
	} {
		if _, err := load(text); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%.10s: got %v, want %q", text, err, name)
		}
	}
}

func TestDurationsReadAndWriteThemselvesShort(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"0": "0s", "0s": "0s", "30s": "30s", "90s": "1m30s", "168h": "168h", "7d": "168h", "60m": "1h", "1h30m": "1h30m", "10m": "10m", "1.5s": "1.5s", "3650d": "87600h",
	} {
		d, err := parseDuration(text)
		if err != nil || d.String() != want {
			t.Errorf("%s is %s (%v), want %s", text, d, err, want)
		}
	}
	for _, text := range []string{"", "30", "1.5", "d", "-1d", "1.5d", "+7d", "1w", "30 s", "1e3", "inf", "3651d", "4096d", "9999999999h", "-1s", "00"} {
		if d, err := parseDuration(text); err == nil {
			t.Errorf("%q is accepted as %s", text, d)
		}
	}
}
