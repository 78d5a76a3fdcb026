// Package docs_test holds the documents to what the code does.
package docs_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jmoiron/sqlx"

	"github.com/callreceipt/reconciler/config" //nolint:depguard // the README's example is loaded as the command loads it
	"github.com/callreceipt/reconciler/internal/localpg"
	"github.com/callreceipt/reconciler/internal/testdb"
	"github.com/callreceipt/reconciler/pending"
)

const (
	readme        = "../README.md"
	decisionTable = "decision-table.md"
)

func TestMain(m *testing.M) { os.Exit(localpg.Main(m)) }

func text(t *testing.T, file string) string {
	t.Helper()
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

var fence = regexp.MustCompile("(?ms)^```(\\w+)\n(.*?)^```$")

// block is the first fenced block of a language that contains a mark.
func block(t *testing.T, file, language, mark string) string {
	t.Helper()
	for _, b := range fence.FindAllStringSubmatch(text(t, file), -1) {
		if b[1] == language && strings.Contains(b[2], mark) {
			return b[2]
		}
	}
	t.Fatalf("%s has no %s block with %q", file, language, mark)
	return ""
}

// required is the configuration example without what has a default.
const required = `
database: {url: "postgres://app@db.internal:5432/orders"}
tools:
  payment.charge:
    retryable: true
    idempotent: true
    dedup_window: 168h
    receipts: {url: "http://payment.internal/receipts/query"}
partitions:
  - table: idempotency.keys
    archive: {dir: /var/lib/reconciler/archive}
`

func load(t *testing.T, yaml string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "reconciler.yaml")
	if err := os.WriteFile(file, []byte(yaml), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := config.Load(config.Options{Path: file})
	if err != nil {
		t.Fatal(err)
	}
	effective, err := c.Redacted()
	if err != nil {
		t.Fatal(err)
	}
	return string(effective)
}

func TestTheConfigurationExampleLoadsAndShowsTheDefaults(t *testing.T) {
	t.Parallel()
	example := block(t, readme, "yaml", "partitions:")
	if diff := cmp.Diff(load(t, required), load(t, example)); diff != "" {
		t.Errorf("a value that the README calls a default is none: %s", diff)
	}
}

func TestTheConfigurationExampleHasEveryKey(t *testing.T) {
	t.Parallel()
	example := block(t, readme, "yaml", "partitions:")
	key := regexp.MustCompile(`(?m)^[ -]*([a-z_.]+):`)
	written := func(yaml string) (keys []string) {
		for _, found := range key.FindAllStringSubmatch(yaml, -1) {
			keys = append(keys, found[1])
		}
		slices.Sort(keys)
		return keys
	}
	if diff := cmp.Diff(written(load(t, example)), written(example)); diff != "" {
		t.Errorf("keys in effect (-) and keys in the README (+): %s", diff)
	}
}

func TestTheDecisionTableHasEveryReason(t *testing.T) {
	t.Parallel()
	table := text(t, decisionTable)
	file, err := parser.ParseFile(token.NewFileSet(), "../reconcile/reason.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	reasons := 0
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok || len(spec.Values) != 1 {
			return true
		}
		literal, ok := spec.Values[0].(*ast.BasicLit)
		if !ok {
			return true
		}
		reason, err := strconv.Unquote(literal.Value)
		if err != nil {
			t.Fatal(err)
		}
		reasons++
		if !strings.Contains(table, "\n| `"+reason+"` | ") {
			t.Errorf("%s does not say what to do about %s", decisionTable, reason)
		}
		return true
	})
	if reasons < 19 {
		t.Errorf("only %d reasons were found in reason.go", reasons)
	}
}

func TestBothDecisionTablesHaveEveryRule(t *testing.T) {
	t.Parallel()
	for _, file := range []string{readme, decisionTable} {
		content := text(t, file)
		for rule := 1; rule <= 12; rule++ {
			if !strings.Contains(content, fmt.Sprintf("\n| %d | ", rule)) {
				t.Errorf("%s lacks rule %d", file, rule)
			}
		}
	}
}

func park(t *testing.T, db *sqlx.DB, callID, tool, status string, attempt int, before string) {
	t.Helper()
	_, err := db.ExecContext(t.Context(), `
		INSERT INTO reconciler.pending_confirmations (call_id, biz_id, tool, operation, status, attempt, retry_before, next_check_at)
		VALUES ($1, 'B', $2, 'charge', $3, $4, now() + nullif($5, '')::interval, now() - interval '1 minute')`, callID, tool, status, attempt, before)
	if err != nil {
		t.Fatal(err)
	}
}

func TestTheStatementThatTakesRetriesTakesExactlyWhatItShould(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	const tool = "payment.charge"
	park(t, db, "good-1", tool, "RETRY", 1, "1 hour")
	park(t, db, "good-2", tool, "RETRY", 2, "")
	park(t, db, "good-3", tool, "RETRY", 1, "1 hour")
	park(t, db, "late", tool, "RETRY", 1, "-1 second")
	park(t, db, "spent", tool, "RETRY", 2147483647, "1 hour")
	park(t, db, "other", "sms.send", "RETRY", 1, "1 hour")
	for _, status := range []string{"PENDING", "MANUAL", "SUCCESS", "FAILED"} {
		park(t, db, status, tool, status, 1, "")
	}
	take := func(n int) (names []string) {
		var taken []pending.Retry
		if err := db.SelectContext(t.Context(), &taken, block(t, readme, "sql", "SKIP LOCKED"), tool, n); err != nil {
			t.Fatal(err)
		}
		for _, r := range taken {
			names = append(names, fmt.Sprintf("%s %d", r.CallID, r.Attempt))
		}
		return names
	}
	first := take(2)
	if len(first) != 2 {
		t.Errorf("asked for 2 calls, got %v", first)
	}
	all := slices.Sorted(slices.Values(append(first, take(100)...)))
	if diff := cmp.Diff([]string{"good-1 2", "good-2 3", "good-3 2"}, all); diff != "" {
		t.Error(diff)
	}
	if again := take(100); len(again) != 0 {
		t.Errorf("taken twice: %v", again)
	}
	var rows []string
	err := db.SelectContext(t.Context(), &rows, `
		SELECT concat_ws(' ', p.call_id, p.status, p.attempt, p.version, p.retry_before IS NULL, e.kind, e.attempt, e.actor)
		FROM reconciler.pending_confirmations p LEFT JOIN reconciler.call_events e USING (call_id) WHERE p.version > 0 ORDER BY 1`)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"good-1 PENDING 2 1 t sent 2 orchestrator", "good-2 PENDING 3 1 t sent 3 orchestrator", "good-3 PENDING 2 1 t sent 2 orchestrator",
	}
	if diff := cmp.Diff(want, rows); diff != "" {
		t.Error(diff)
	}
}

func TestTheStatementThatTakesRetriesWritesWhatTakeRetriesWrites(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	// Every column that a taking may touch holds something before.
	db.MustExec(`
		INSERT INTO reconciler.pending_confirmations (call_id, biz_id, tool, operation, status, reason, not_found_count, not_found_since, retry_before,
			next_check_at, last_sent_at, last_error, checks, unanswered, notify_at, notify_version, notified_at)
		SELECT 'C-' || tool, 'B', tool, 'charge', 'RETRY', 'not_found', 2, now(), now() + interval '1 hour',
			now() + interval '1 hour', now() - interval '1 hour', 'timeout', 4, 5, now(), 1, now()
		FROM unnest(ARRAY['by SQL', 'by Go']) tool`)
	var taken []pending.Retry
	if err := db.SelectContext(t.Context(), &taken, block(t, readme, "sql", "SKIP LOCKED"), "by SQL", 1); err != nil || len(taken) != 1 {
		t.Fatalf("%v %v", taken, err)
	}
	if taken, err := pending.TakeRetries(t.Context(), db, "by Go", 1); err != nil || len(taken) != 1 {
		t.Fatalf("%v %v", taken, err)
	}
	// The instants of the taking differ by themselves: only whether they are recent is compared.
	row := func(tool string) (found string) {
		err := db.GetContext(t.Context(), &found, `
			SELECT jsonb_pretty(to_jsonb(p) - ARRAY['call_id', 'tool', 'last_sent_at', 'next_check_at'] || jsonb_build_object(
				'sent just now', last_sent_at > now() - interval '10 minutes', 'due', next_check_at <= clock_timestamp(),
				'ledger', (SELECT jsonb_agg(to_jsonb(e) - ARRAY['call_id', 'at']) FROM reconciler.call_events e WHERE e.call_id = p.call_id)))
			FROM reconciler.pending_confirmations p WHERE tool = $1`, tool)
		if err != nil {
			t.Fatal(err)
		}
		return found
	}
	if diff := cmp.Diff(row("by Go"), row("by SQL")); diff != "" {
		t.Errorf("TakeRetries (-) and the statement of the README (+): %s", diff)
	}
}

func TestTheParkingStatementParksOnce(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	for range 2 {
		_, err := db.ExecContext(t.Context(), block(t, readme, "sql", "$8"),
			"C1", "B1", "payment.charge", "charge", 1, "2024-05-01T10:00:00Z", "2024-05-01T10:00:00Z", `{"amount": 1}`)
		if err != nil {
			t.Fatal(err)
		}
	}
	var got string
	err := db.GetContext(t.Context(), &got, `SELECT string_agg(concat_ws(' ', call_id, idempotency_key, status), ',') FROM reconciler.pending_confirmations`)
	if err != nil || got != "C1 B1:charge PENDING" {
		t.Errorf("%q %v", got, err)
	}
}

func TestTheREADMELinksToEveryDocument(t *testing.T) {
	t.Parallel()
	documents, err := filepath.Glob("*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range documents {
		if !strings.Contains(text(t, readme), "](docs/"+d) {
			t.Errorf("the README does not link to %s", d)
		}
	}
}

func TestEveryLinkLeadsSomewhere(t *testing.T) {
	t.Parallel()
	documents, err := filepath.Glob("*.md")
	if err != nil {
		t.Fatal(err)
	}
	link := regexp.MustCompile(`\]\(([^)#\s]*)(?:#([^)\s]+))?\)`)
	for _, from := range append(documents, readme, "examples/README.md") {
		for _, found := range link.FindAllStringSubmatch(fence.ReplaceAllString(text(t, from), ""), -1) {
			if strings.Contains(found[1], "://") {
				continue
			}
			target := from
			if found[1] != "" {
				target = filepath.Join(filepath.Dir(from), found[1])
			}
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s links to %s: %v", from, found[1], err)
				continue
			}
			if anchor := found[2]; anchor != "" && !slices.Contains(anchors(text(t, target)), anchor) {
				t.Errorf("%s links to #%s, and %s has no such heading", from, anchor, target)
			}
		}
	}
}

var (
	heading    = regexp.MustCompile(`(?m)^#+ (.+)$`)
	notInNames = regexp.MustCompile(`[^a-z0-9 _-]`)
)

// anchors are the names that headings get.
func anchors(document string) (names []string) {
	for _, h := range heading.FindAllStringSubmatch(fence.ReplaceAllString(document, ""), -1) {
		names = append(names, strings.ReplaceAll(notInNames.ReplaceAllString(strings.ToLower(h[1]), ""), " ", "-"))
	}
	return names
}
