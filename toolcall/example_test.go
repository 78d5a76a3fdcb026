package toolcall_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/callreceipt/reconciler/pending"
	"github.com/callreceipt/reconciler/receipt"
	"github.com/callreceipt/reconciler/toolcall"
)

// What an orchestrator has: a context, a database with the reconciler's tables, and a place for what cannot be parked.
var (
	ctx  = context.Background()
	db   *sqlx.DB
	keep = func(pending.Suspension) {}
)

// A whole orchestrator.
func Example() {
	client, err := toolcall.New(toolcall.Config{
		DB:  db,
		Log: slog.Default(),
		Tools: []toolcall.Tool{{
			Name: "payment.charge", Operation: "charge",
			Retryable: true, Idempotent: true, NeedsReceipt: true,
			Endpoint: receipt.Config{URL: "http://payment.internal/charge", Timeout: 3 * time.Second},
			Receipts: receipt.Config{URL: "http://payment.internal/receipts/query", Timeout: time.Second},
		}},
	})
	if err != nil {
		log.Panic(err)
	}
	defer client.Close()

	outcome, err := client.Do(ctx, toolcall.Call{
		Tool: "payment.charge", CallID: "ORD-8-0001", BizID: "ORD-8", Request: json.RawMessage(`{"amount": 1999}`),
	})
	if lost, ok := errors.AsType[*toolcall.NotParkedError](err); ok {
		keep(lost.Suspension) // pending.Suspend takes it later, as it is
		return
	}
	switch outcome.Status {
	case toolcall.Success:
		fmt.Printf("charged: %s\n", outcome.Receipt.Result)
	case toolcall.Failed:
		fmt.Printf("declined: %s\n", outcome.Receipt.Result)
	case toolcall.Suspended:
		fmt.Println("not known yet: pending.Await waits for the verdict, or a webhook brings it")
	case toolcall.NotSent:
		fmt.Println("not executed, and may be called again:", err)
	}
}

// The order and the parked call are written together, or neither is.
func ExampleCall_transaction() {
	var client *toolcall.Client

	outcome, err := client.Do(ctx, toolcall.Call{
		Tool: "payment.charge", CallID: "ORD-8-0001", BizID: "ORD-8", Request: json.RawMessage(`{"amount": 1999}`),
		Transaction: func(ctx context.Context, park func(sqlx.ExtContext) error) error {
			tx, err := db.BeginTxx(ctx, nil)
			if err != nil {
				return err
			}
			defer func() { _ = tx.Rollback() }()
			if _, err := tx.ExecContext(ctx, `UPDATE orders SET state = 'unknown' WHERE id = 'ORD-8'`); err != nil {
				return err
			}
			if err := park(tx); err != nil {
				return err
			}
			return tx.Commit()
		},
	})

	fmt.Println(outcome.Status, err)
}

// A process that died may have sent the call. It had written the callId and the instant down before.
func ExampleCall_sent() {
	var client *toolcall.Client
	var issued time.Time

	outcome, err := client.Do(ctx, toolcall.Call{
		Tool: "payment.charge", CallID: "ORD-8-0001", BizID: "ORD-8", Request: json.RawMessage(`{"amount": 1999}`),
		IssuedAt: issued, Sent: 1,
	})

	fmt.Println(outcome.Status, err)
}

func TestTheExcerptsOfTheDocumentAreThoseThatAreCompiled(t *testing.T) {
	t.Parallel()
	read := func(file string) string {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return regexp.MustCompile(`(?m)^\t+`).ReplaceAllString(string(content), "")
	}
	compiled := read("example_test.go")
	excerpts := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(read("../docs/calling.md"), -1)
	for _, e := range excerpts {
		if !strings.Contains(compiled, e[1]) {
			t.Errorf("this is not in example_test.go:\n%s", e[1])
		}
	}
	if len(excerpts) != 3 {
		t.Errorf("%d excerpts, want one for each example", len(excerpts))
	}
}
