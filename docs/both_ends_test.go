package docs_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"github.com/jmoiron/sqlx"

	"github.com/callreceipt/reconciler/idempotency"
	"github.com/callreceipt/reconciler/toolcall"
)

// What the two sides have: a database, and a client or a guard.
var (
	ctx    = context.Background()
	db     *sqlx.DB
	logger *slog.Logger
	tools  *toolcall.Client
	guard  *idempotency.Guard
)

func Example_caller() {
	out, err := tools.Do(ctx, toolcall.Call{
		Tool: "payment.charge", CallID: "ORD-8-0001", BizID: "ORD-8", Request: json.RawMessage(`{"amount": 1999}`),
	})
	switch {
	case err != nil, out.Status == toolcall.NotSent:
		log.Print("not sent, or not even parked: ", err)
	case out.Status == toolcall.Success:
		fmt.Printf("charged: %s\n", out.Receipt.Result)
	case out.Status == toolcall.Failed:
		fmt.Printf("declined: %s\n", out.Receipt.Result)
	case out.Status == toolcall.Suspended:
		fmt.Println("the reconciler settles it, pending.Await waits for that")
	}
}

func Example_downstream() {
	http.Handle("/charge", guard.Handler(func(ctx context.Context, tx *sqlx.Tx, r idempotency.Request) (json.RawMessage, error) {
		_, err := tx.ExecContext(ctx, `INSERT INTO payments (biz_id) VALUES ($1)`, r.BizID)
		return json.RawMessage(`{"charged": true}`), err
	}))
	http.Handle("/receipts/query", idempotency.NewReceipts(db, logger))
}

func TestTheExcerptsOfTheREADMEAreThoseThatAreCompiled(t *testing.T) {
	t.Parallel()
	unindented := func(source string) string { return indent.ReplaceAllString(source, "") }
	compiled := unindented(text(t, "both_ends_test.go"))
	excerpts := blocks(t, readme, "go")
	for _, excerpt := range excerpts {
		if !strings.Contains(compiled, unindented(excerpt)) {
			t.Errorf("this is not in both_ends_test.go:\n%s", excerpt)
		}
	}
	if len(excerpts) != 2 {
		t.Errorf("%d excerpts, want one of each side", len(excerpts))
	}
}
