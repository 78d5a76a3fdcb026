package toolcall

import (
	"flag"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jmoiron/sqlx"
	"golang.org/x/sync/errgroup"

	"github.com/callreceipt/reconciler/internal/testdb"
)

var update = flag.Bool("update", false, "write the decision table into docs/calling.md")

const (
	document   = "../docs/calling.md"
	tableBegin = "<!-- The table is written by: go test ./toolcall -run TestTheDecisionTable -update -->\n"
	tableEnd   = "<!-- end of the table -->\n"
)

// The servers that a call meets. A connection that is tight cannot take a large request unread.
var servers = []struct {
	name    string
	fate    fate
	tight   bool
	request []byte
	timeout time.Duration
}{
	{"refuses the connection", nil, false, small, patient},
	{"accepts, never reads a large request", neverReads, true, large, hasty},
	{"resets early in a large request", resetsEarly, true, large, patient},
	{"accepts, never reads a small request", neverReads, false, small, hasty},
	{"resets after half of a small request", resetsHalfway, false, middle, patient},
	{"reads all, never answers", neverAnswers, false, small, hasty},
	{"hangs up in the middle of the answer", answersHalf, false, small, patient},
}

// What the receipt endpoint says of the call, the nth time it is asked.
var looks = []struct {
	name    string
	answer  func(callID string, w http.ResponseWriter, r *http.Request, n int)
	timeout time.Duration
}{
	{"SUCCESS", says("SUCCESS"), patient},
	{"FAILED", says("FAILED"), patient},
	{"PROCESSING", says("PROCESSING"), patient},
	{"PROCESSING, then SUCCESS", says("PROCESSING", "SUCCESS"), patient},
	{"NOT_FOUND", says("NOT_FOUND"), patient},
	{"500", func(_ string, w http.ResponseWriter, _ *http.Request, _ int) {
		w.WriteHeader(http.StatusInternalServerError)
	}, patient},
	{"no answer", func(_ string, w http.ResponseWriter, r *http.Request, n int) { hangs(w, r, n) }, hasty},
	{"SUCCESS and FAILED", func(id string, w http.ResponseWriter, _ *http.Request, _ int) {
		list(w, receiptOf(id, "SUCCESS"), receiptOf(id, "FAILED"))
	}, patient},
	{"SUCCESS of another bizId", func(id string, w http.ResponseWriter, _ *http.Request, _ int) {
		list(w, strings.Replace(receiptOf(id, "SUCCESS"), "B1", "B2", 1))
	}, patient},
}

func says(statuses ...string) func(string, http.ResponseWriter, *http.Request, int) {
	return func(callID string, w http.ResponseWriter, _ *http.Request, n int) {
		list(w, receiptOf(callID, statuses[min(n, len(statuses))-1]))
	}
}

// situation is one line of the table before lines are merged: indexes of servers and looks, and tags as 0 and 1.
type situation struct{ server, needsReceipt, repeatable, look int }

// ending is what came of it.
type ending struct{ sends, asks, returned, row string }

// TestTheDecisionTable calls every server under every tag while the receipt endpoint says everything, and compares what happened
// with the table in the document.
func TestTheDecisionTable(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("504 situations, most of which wait for a time-out")
	}
	db := testdb.New(t)
	var mu sync.Mutex
	found := map[situation]ending{}
	var group errgroup.Group
	group.SetLimit(16)
	for s := range servers {
		for l := range looks {
			for bits := range 8 {
				retryable, idempotent, needsReceipt := bits&1 > 0, bits&2 > 0, bits&4 > 0
				at := situation{server: s, look: l, needsReceipt: bits >> 2, repeatable: (bits & 1) & (bits >> 1)}
				group.Go(func() error {
					got := live(t, db, fmt.Sprintf("C-%d-%d-%d", s, l, bits), s, l, func(t *Tool) {
						t.Retryable, t.Idempotent, t.NeedsReceipt = retryable, idempotent, needsReceipt
					})
					mu.Lock()
					defer mu.Unlock()
					if before, again := found[at]; again && before != got {
						t.Errorf("retryable without idempotent is not what idempotent without retryable is, or neither:\n%+v\n%+v\n%+v", at, before, got)
					}
					found[at] = got
					return nil
				})
			}
		}
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	if t.Failed() {
		return
	}
	content, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, ok := strings.Cut(string(content), tableBegin)
	old, tail, ended := strings.Cut(rest, tableEnd)
	if !ok || !ended {
		t.Fatalf("%s lacks the marks around the table", document)
	}
	table := render(found)
	if *update {
		if err := os.WriteFile(document, []byte(head+tableBegin+table+tableEnd+tail), 0o644); err != nil { //nolint:gosec // a document
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(old, table); diff != "" {
		t.Errorf("%s (-) and what happened (+), see -update: %s", document, diff)
	}
}

// live lives through one situation. Where the machine was so busy that a connection or a request did not come about within the
// time that is meant for the answer, there was no such situation, and it is tried again with more time.
func live(t *testing.T, db *sqlx.DB, name string, server, look int, tags func(*Tool)) ending {
	slower := 1
	for ; slower < 16; slower *= 2 {
		if got, came := liveOnce(t, db, fmt.Sprintf("%s-%d", name, slower), server, look, slower, tags); came {
			return got
		}
	}
	t.Errorf("%s: with %d times the patience there were still requests that never reached a server that listens", name, slower/2)
	return ending{}
}

func liveOnce(t *testing.T, db *sqlx.DB, callID string, server, look, slower int, tags func(*Tool)) (got ending, came bool) {
	d := newDownstream(t, servers[server].fate, servers[server].tight)
	receipts := answers(t, func(w http.ResponseWriter, r *http.Request, n int) { looks[look].answer(callID, w, r, n) })
	c := newClient(t, Config{DB: db, Tools: []Tool{theTool(d.url, receipts.url, tags, func(t *Tool) {
		t.Endpoint.Timeout, t.Receipts.Timeout = servers[server].timeout*time.Duration(slower), looks[look].timeout*time.Duration(slower)
	})}})
	out, err := c.Do(t.Context(), theCall(callID, func(c *Call) { c.Request = servers[server].request }))
	if err != nil {
		t.Errorf("%s: %v", callID, err)
	}
	c.Close()

	var tried, arrived []string
	asks := 0
	for _, s := range out.Steps {
		switch s.Action {
		case ActionSend:
			tried = append(tried, fmt.Sprint(s.Attempt))
			came = came || s.Result != ResultNotConnected
		case ActionAsk:
			asks++
		case ActionWait, ActionPark, ActionEnd:
		}
	}
	came = came == (servers[server].fate != nil) && asks == len(receipts.requests())
	seen := d.seen()
	for _, r := range seen {
		came = came && r.Attempt > 0
		arrived = append(arrived, fmt.Sprint(r.Attempt))
	}
	if !came || (servers[server].fate != nil && len(seen) != len(tried)) {
		return ending{}, false
	}
	for _, r := range seen {
		want := sentRequest{Attempt: r.Attempt, BizID: "B1", CallID: callID, Key: "B1:charge", Op: "charge", At: seen[0].At, Head: "B1:charge"}
		if diff := cmp.Diff(want, r); diff != "" || r.At == "" {
			t.Errorf("%s was sent as another call: %s", callID, diff)
		}
	}
	if servers[server].fate != nil && !slices.Equal(arrived, tried) || out.Attempt != len(arrived) {
		t.Errorf("%s: sent %v, seen by the server %v, attempt %d", callID, tried, arrived, out.Attempt)
	}
	for _, q := range receipts.requests() {
		if q != fmt.Sprintf(`{"callIds":[%q]}`, callID) {
			t.Errorf("%s: asked %s", callID, q)
		}
	}
	return ending{sends: strings.Join(tried, ", "), asks: fmt.Sprint(asks), returned: string(out.Status), row: parkedRow(t, db, callID, out)}, true
}

// parkedRow is what the table holds of a call, which must be what was returned.
func parkedRow(t *testing.T, db *sqlx.DB, callID string, out Outcome) string {
	var found []string
	err := db.Select(&found, `
		SELECT concat_ws(' ', status, 'attempt ' || attempt || ',', timeout_kind, reason, receipt, CASE WHEN request IS NULL OR last_sent_at < issued_at THEN 'WRONG' END)
		FROM reconciler.pending_confirmations WHERE call_id = $1`, callID)
	if err != nil {
		t.Error(err)
	}
	if suspended := out.Status == Suspended; suspended != (len(found) == 1) || len(found) > 1 {
		t.Errorf("%s: returned %s and parked %q", callID, out.Status, found)
	}
	if len(found) == 0 {
		return "–"
	}
	if !strings.HasSuffix(found[0], string(out.Timeout)) {
		t.Errorf("%s: returned %s and parked %q", callID, out.Timeout, found)
	}
	return found[0]
}

// line is situations with one ending: in each dimension the set of its values, as bits.
type line struct {
	of [4]int // server, needsReceipt, repeatable, look
	ending
}

// render merges lines that differ in one dimension alone, and writes them.
func render(found map[situation]ending) string {
	lines := make([]line, 0, len(found))
	for s, e := range found {
		lines = append(lines, line{[4]int{1 << s.server, 1 << s.needsReceipt, 1 << s.repeatable, 1 << s.look}, e})
	}
	for _, dimension := range []int{3, 2, 1, 0} {
		merged := map[line]int{}
		for _, l := range lines {
			set := l.of[dimension]
			l.of[dimension] = 0
			merged[l] |= set
		}
		lines = lines[:0]
		for l, set := range merged {
			l.of[dimension] = set
			lines = append(lines, l)
		}
	}
	slices.SortFunc(lines, func(a, b line) int { return slices.Compare(order(a), order(b)) })
	var b strings.Builder
	b.WriteString("| | the downstream |\n|---|---|\n")
	for i := range servers {
		fmt.Fprintf(&b, "| %s | %s |\n", letter(i), servers[i].name)
	}
	b.WriteString("\n| downstream | needs a receipt | may be repeated | the receipt endpoint says | `attempt` of each send | asks | `Do` returns | the row |\n")
	b.WriteString("|---|---|---|---|---|---|---|---|\n")
	for _, l := range lines {
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s | %s | %s |\n",
			names(l.of[0], len(servers), " ", letter), names(l.of[1], 2, "", yesNo), names(l.of[2], 2, "", yesNo),
			names(l.of[3], len(looks), "; ", func(i int) string { return looks[i].name }), l.sends, l.asks, l.returned, l.row)
	}
	return b.String()
}

func order(l line) []int { return append(slices.Clone(l.of[:]), len(l.sends)) }

func yesNo(i int) string { return []string{"no", "yes"}[i] }

func letter(i int) string { return string(rune('A' + i)) }

// names lists a set; a full one is "any".
func names(set, of int, separator string, name func(int) string) string {
	if set == 1<<of-1 {
		return "any"
	}
	var list []string
	for i := range of {
		if set&(1<<i) > 0 {
			list = append(list, name(i))
		}
	}
	return strings.Join(list, separator)
}
