package chaos

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"
	"golang.org/x/sync/errgroup"

	"github.com/callreceipt/reconciler/internal/eventually"
	"github.com/callreceipt/reconciler/internal/testdb"
	"github.com/callreceipt/reconciler/migrations"
	"github.com/callreceipt/reconciler/pending"
	"github.com/callreceipt/reconciler/receipt"
	"github.com/callreceipt/reconciler/toolcall"
)

// daemonConfig makes a minute of production a few seconds. A call that must not be repeated goes to a person when it was lost on its
// way; everything else is settled by its receipt.
const daemonConfig = `
database: {url: %q}
server: {listen: "127.0.0.1:0"}
reconcile: {schedule: "@every 5s"}
tools:
  charge: &tool
    retryable: true
    idempotent: true
    dedup_window: 168h
    settle: 3s
    not_found_confirmations: 2
    max_attempts: 20
    check_backoff: {initial: 1s, max: 2s}
    receipts: {url: "%[2]s/receipts/query", timeout: 2s, rate: 1000, concurrency: 8, batch_size: 50}
    retry: {url: "%[2]s/charge", timeout: 2s}
  charge-once:
    <<: *tool
    retryable: false
    idempotent: false
`

// Calls through the caller's library, a network that cuts connections at any byte, a downstream that is killed, and the daemon: every
// intent is executed at most once, every outcome is what the downstream executed, and nothing is open in the end but what waits for
// a person because its tool must not repeat it.
func TestEveryCallEndsAsTheDownstreamExecutedIt(t *testing.T) {
	t.Parallel()
	calls, kills := size(400, 10_000), size(2, 20)
	dsn, theirs := testdb.URL(t), testdb.URL(t, migrations.Downstream)
	ours, books := testdb.Open(t, dsn), testdb.Open(t, theirs)
	books.MustExec(effectsSchema)
	victim := newMortal(t, theirs)
	address := func() string { return victim.address }
	callers, daemons := newProxy(t, 25, address), newProxy(t, 10, address)
	startDaemon(t, fmt.Sprintf(daemonConfig, dsn, daemons.url()))

	client := callerOf(t, ours, callers.url())
	ended := make([]toolcall.Outcome, calls)
	ctx, stop := context.WithTimeout(t.Context(), 10*time.Minute)
	defer stop()
	var killer sync.WaitGroup
	killer.Go(func() { victim.dieAndRise(ctx, kills, func() {}) })
	var work errgroup.Group
	work.SetLimit(64)
	for i := range calls {
		work.Go(func() (err error) {
			ended[i], err = client.Do(ctx, order(i))
			return err
		})
	}
	if err := work.Wait(); err != nil {
		t.Fatal(err)
	}
	killer.Wait()
	eventually.True(t, "no call is open but with a person", func() bool {
		return number(t, ours, `SELECT count(*) FROM reconciler.pending_confirmations WHERE status IN ('PENDING', 'RETRY')`) == 0
	})
	disagreements(t, books)
	judge(t, ours, books, ended)
}

// order is the call of number i: every tenth is one that the downstream refuses, every seventh must not be repeated, and every
// fifth is an intent of an earlier call under a new callId, as a careless caller makes it.
func order(i int) toolcall.Call {
	intent, tool := i, "charge"
	switch {
	case i%7 == 0:
		tool = "charge-once"
	case i%5 == 0 && i%7 != 1: // then the one before is of this tool too
		intent = i - 1
	}
	return toolcall.Call{
		Tool: tool, CallID: fmt.Sprintf("CALL-%06d", i), BizID: fmt.Sprintf("ORD-%06d", intent), Operation: "charge",
		Request: json.RawMessage(fmt.Sprintf(`{"refuse": %t}`, intent%10 == 3)),
	}
}

func callerOf(t testing.TB, db *sqlx.DB, url string) *toolcall.Client {
	t.Helper()
	endpoint := receipt.Config{URL: url + "/charge", Timeout: time.Second}
	receipts := receipt.Config{URL: url + "/receipts/query", Timeout: time.Second}
	client, err := toolcall.New(toolcall.Config{DB: db, Tools: []toolcall.Tool{
		{Name: "charge", Retryable: true, Idempotent: true, NeedsReceipt: true, Endpoint: endpoint, Receipts: receipts},
		{Name: "charge-once", NeedsReceipt: true, Endpoint: endpoint, Receipts: receipts},
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return client
}

// judge compares how each call ended with the downstream's own books.
func judge(t *testing.T, ours, books *sqlx.DB, ended []toolcall.Outcome) {
	t.Helper()
	var rows []struct {
		CallID string `db:"call_id"`
		Status pending.Status
		Reason string
	}
	if err := ours.Select(&rows, `SELECT call_id, status, coalesce(reason, '') AS reason FROM reconciler.pending_confirmations`); err != nil {
		t.Fatal(err)
	}
	parked := map[string]int{}
	for i, r := range rows {
		parked[r.CallID] = i
	}
	var keys []string
	if err := books.Select(&keys, `SELECT idempotency_key FROM effects ORDER BY 1`); err != nil {
		t.Fatal(err)
	}
	counts := map[string]int{}
	for i, o := range ended {
		call := order(i)
		_, executed := slices.BinarySearch(keys, call.BizID+":charge")
		status, reason := string(o.Status), ""
		at, isParked := parked[call.CallID]
		if isParked != (o.Status == toolcall.Suspended) {
			t.Errorf("%s: the caller was told %s, and it is in the table: %t", call.CallID, o.Status, isParked)
		}
		if isParked {
			status, reason = "parked, "+string(rows[at].Status), rows[at].Reason
		}
		counts[status]++
		switch status {
		case string(toolcall.Success), "parked, SUCCESS":
			if !executed {
				t.Errorf("%s: %s, and nothing was executed", call.CallID, status)
			}
		case string(toolcall.Failed), "parked, FAILED", string(toolcall.NotSent):
			if executed {
				t.Errorf("%s: %s, and it was executed", call.CallID, status)
			}
		case "parked, MANUAL":
			if call.Tool != "charge-once" || reason != "not_retryable" || executed {
				t.Errorf("%s of %s waits for a person (%s); executed: %t", call.CallID, call.Tool, reason, executed)
			}
		default:
			t.Errorf("%s: %s", call.CallID, status)
		}
	}
	t.Logf("%d calls: %v; %d effects", len(ended), counts, len(keys))
}

// startDaemon builds the real binary and runs it until the test ends.
func startDaemon(t *testing.T, config string) {
	t.Helper()
	dir := t.TempDir()
	binary, file := filepath.Join(dir, "reconciler"), filepath.Join(dir, "reconciler.yaml")
	if out, err := exec.Command("go", "build", "-o", binary, "github.com/callreceipt/reconciler/cmd/reconciler").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(binary, "serve", "--config", file)
	cmd.Stderr = log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		if err := cmd.Wait(); err != nil || t.Failed() {
			text, _ := os.ReadFile(log.Name())
			t.Errorf("the daemon ended with %v\n%s", err, text[max(0, len(text)-4000):])
		}
		_ = log.Close()
	})
}
