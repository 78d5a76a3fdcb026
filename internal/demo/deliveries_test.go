package demo

import (
	"os"
	"testing"

	"github.com/jmoiron/sqlx"

	"github.com/callreceipt/reconciler/internal/testdb"
	"github.com/callreceipt/reconciler/pending"
	"github.com/callreceipt/reconciler/reconcile"
)

// parked is a database with one parked call, whose columns the caller may set further.
func parked(t *testing.T, callID, set string) *sqlx.DB {
	t.Helper()
	db := testdb.New(t)
	if _, err := db.Exec(`
		INSERT INTO reconciler.pending_confirmations (call_id, biz_id, tool, operation) VALUES ($1, 'ORD', $2, $3)`,
		callID, Tools[0].Name, Tools[0].Operation); err != nil {
		t.Fatal(err)
	}
	if _, err := db.Exec(`UPDATE reconciler.pending_confirmations SET ` + set + `, version = version + 1`); err != nil {
		t.Fatal(err)
	}
	return db
}

func TestTheRunWaitsForAVerdictWhoseDeliveryIsPutOff(t *testing.T) {
	t.Parallel()
	db := parked(t, "A", `status = 'MANUAL', reason = 'not_retryable', notify_version = 1, notify_since = now(), notify_at = now() + interval '1 second'`)
	secret, folder, file, err := newSecret()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(folder) })
	webhook, err := startReceiver(secret, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = webhook.close(t.Context()) })
	notifier, err := reconcile.NewNotifier(reconcile.NotifierConfig{
		Tool: Tools[0].Name, URL: webhook.url + "/verdicts", SecretFile: file, DB: db, Holder: "test",
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(notifier.Close)
	over := make(chan struct{})
	close(over)
	w := &worker{tool: Tools[0], db: db, notifier: notifier}
	if err := w.deliver(t.Context(), over); err != nil || webhook.latest("A") != pending.StatusManual {
		t.Errorf("the webhook was told %q, %v", webhook.latest("A"), err)
	}
}

func TestWhoWaitsAtOnceIsToldTheVerdictOrSentHome(t *testing.T) {
	t.Parallel()
	db := parked(t, "A", `status = 'MANUAL', reason = 'not_retryable'`)
	settled := newWaits(t.Context(), db, 1)
	settled.begin(Call{CallID: "A"})
	settled.over()
	if settled.told[0] != pending.StatusManual {
		t.Errorf("told %q", settled.told[0])
	}
	if _, err := db.Exec(`UPDATE reconciler.pending_confirmations SET status = 'PENDING', version = version + 1`); err != nil {
		t.Fatal(err)
	}
	open := newWaits(t.Context(), db, 1)
	open.begin(Call{CallID: "A"})
	open.close()
	if open.told[0] != "" {
		t.Errorf("told %q", open.told[0])
	}
}
