package docs_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jmoiron/sqlx"

	"github.com/callreceipt/reconciler/internal/testdb"
	"github.com/callreceipt/reconciler/pending"
)

// byHand runs the statement of the README that contains a mark. It stands between the lines <<'EOF' and EOF of a shell block.
func byHand(t *testing.T, db *sqlx.DB, mark string) {
	t.Helper()
	_, statement, _ := strings.Cut(block(t, readme, "sh", mark), "<<'EOF'\n")
	statement, _, found := strings.Cut(statement, "\nEOF\n")
	if !found {
		t.Fatalf("the README has no statement with %q", mark)
	}
	if _, err := db.ExecContext(t.Context(), statement); err != nil {
		t.Fatalf("%v in %s", err, statement)
	}
}

// parkNotified parks a call whose verdict has the version 3.
func parkNotified(t *testing.T, db *sqlx.DB, callID, tool, status, notifyAt string) {
	t.Helper()
	_, err := db.ExecContext(t.Context(), `
		INSERT INTO reconciler.pending_confirmations (call_id, biz_id, tool, operation, status, reason, version,
			notify_at, notify_version, notify_since, notify_attempts, notified_at)
		VALUES ($1, 'B', $2, 'charge', $3, 'not_retryable', 7, nullif($4, '')::timestamptz, 3, now() - interval '1 hour', 80,
			CASE WHEN $4 = '' THEN now() END)`, callID, tool, status, notifyAt)
	if err != nil {
		t.Fatal(err)
	}
}

// due lists what would be delivered, each with the version of its verdict and the failures so far.
func due(t *testing.T, db *sqlx.DB, tool string) []string {
	t.Helper()
	verdicts, err := pending.NewStore(db).DueNotifications(t.Context(), tool, 100)
	if err != nil {
		t.Fatal(err)
	}
	list := []string{}
	for _, n := range verdicts {
		list = append(list, fmt.Sprintf("%s %s %d %d", n.CallID, n.Status, n.NotifyVersion, n.Attempts))
	}
	slices.Sort(list)
	return list
}

func TestVerdictsThatWereGivenUpAreDeliveredAgainByTheStatement(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	parkNotified(t, db, "given-up", "payment.charge", "SUCCESS", "infinity")
	parkNotified(t, db, "later", "payment.charge", "FAILED", "2999-01-01Z")
	parkNotified(t, db, "told", "payment.charge", "MANUAL", "")
	parkNotified(t, db, "other", "sms.send", "SUCCESS", "infinity")
	byHand(t, db, "'infinity'")
	// Under the version it had, so that a receiver that has it already knows it.
	if diff := cmp.Diff([]string{"given-up SUCCESS 3 0"}, due(t, db, "payment.charge")); diff != "" {
		t.Error(diff)
	}
	if left := due(t, db, "sms.send"); len(left) > 0 {
		t.Errorf("another tool's were touched: %v", left)
	}
}

func TestWhatAPersonSettlesIsDeliveredWhereMANUALWas(t *testing.T) {
	t.Parallel()
	for name, notifyAt := range map[string]string{"told": "", "not told yet": "2999-01-01Z", "given up": "infinity"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := testdb.New(t)
			parkNotified(t, db, "ORD-3-0001", "sms.send", "MANUAL", notifyAt)
			byHand(t, db, "evidence")
			if diff := cmp.Diff([]string{"ORD-3-0001 SUCCESS 8 0"}, due(t, db, "sms.send")); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestWhatAPersonSettlesIsNotDeliveredWithoutAWebhook(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	park(t, db, "ORD-3-0001", "sms.send", "MANUAL", 1, "")
	byHand(t, db, "evidence")
	var got string
	err := db.GetContext(t.Context(), &got, `SELECT concat_ws(' ', status, version, notify_at IS NULL, notify_version IS NULL) FROM reconciler.pending_confirmations`)
	if err != nil || got != "SUCCESS 1 t t" {
		t.Errorf("%q %v", got, err)
	}
}

func TestACallThatIsReopenedIsNotToldOf(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	parkNotified(t, db, "ORD-3-0001", "sms.send", "MANUAL", "2020-01-01Z")
	byHand(t, db, "reopened")
	if left := due(t, db, "sms.send"); len(left) > 0 {
		t.Errorf("%v", left)
	}
	var got string
	err := db.GetContext(t.Context(), &got, `SELECT concat_ws(' ', p.status, e.kind, e.actor) FROM reconciler.pending_confirmations p JOIN reconciler.call_events e USING (call_id)`)
	if err != nil || got != "PENDING reopened person:jane" {
		t.Errorf("%q %v", got, err)
	}
}
