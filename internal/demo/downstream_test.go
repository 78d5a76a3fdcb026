package demo

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/callreceipt/reconciler/internal/testdb"
	"github.com/callreceipt/reconciler/migrations"
	"github.com/callreceipt/reconciler/receipt"
)

// listening is a downstream that was handed this plan.
func listening(t *testing.T, plan ...[]Call) (*downstream, *sqlx.DB) {
	t.Helper()
	db := testdb.New(t, migrations.Downstream)
	d, err := newDownstream(t.Context(), db, plan, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	t.Cleanup(func() {
		if err := d.close(t.Context()); err != nil {
			t.Error(err)
		}
	})
	if err := d.listen(); err != nil {
		t.Fatal(err)
	}
	return d, db
}

// send sends a call and returns the receipt that it is answered with; one without a status when no receipt came.
func (d *downstream) send(t *testing.T, c Call, attempt int) receipt.Receipt {
	t.Helper()
	client, err := receipt.NewClient(receipt.Config{URL: d.url + "/" + c.Tool.Operation, Timeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	request, err := json.Marshal(map[string]string{"account": c.Account})
	if err != nil {
		t.Fatal(err)
	}
	kept, _ := client.Send(t.Context(), receipt.Attempt{
		CallID: c.CallID, BizID: c.BizID, Operation: c.Tool.Operation, IdempotencyKey: c.Key(), Number: attempt, IssuedAt: time.Now(), Request: request,
	})
	return kept
}

// A second execution must show in the books, or the demo could not find one.
func TestAKeyIsExecutedOnceAndWithoutAGuardTheBooksShowEveryExecution(t *testing.T) {
	t.Parallel()
	d, db := listening(t)
	for _, tool := range Tools {
		c := Call{CallID: "A-" + tool.Operation, BizID: "A", Tool: tool, Account: accountOrdinary}
		var arrivals sync.WaitGroup
		for attempt := 1; attempt <= 8; attempt++ {
			arrivals.Go(func() {
				if kept := d.send(t, c, attempt); kept.Status != receipt.StatusSuccess || kept.CallID != c.CallID {
					t.Errorf("%s, attempt %d: %+v", tool.Name, attempt, kept)
				}
			})
		}
		arrivals.Wait()
	}
	books, err := readBooks(t.Context(), db)
	if err != nil {
		t.Fatal(err)
	}
	executed := map[string]int{}
	for _, e := range books.Effects {
		executed[e.IdempotencyKey]++
	}
	if want := map[string]int{"A:charge": 1, "A:reserve": 1, "A:send": 8}; fmt.Sprint(executed) != fmt.Sprint(want) {
		t.Errorf("executed %v, want %v", executed, want)
	}
	if len(books.Keys) != 2 || len(books.Receipts) != 3 || books.Keys[0].Ref != books.Effects[0].Ref && books.Keys[0].Ref != books.Effects[1].Ref {
		t.Errorf("%+v", books)
	}
}

func TestASecondCallOfAnIntentIsGivenTheResultOfTheFirst(t *testing.T) {
	t.Parallel()
	d, db := listening(t)
	first := Call{CallID: "A-1", BizID: "A", Tool: Tools[0], Account: accountOrdinary}
	second := first
	second.CallID = "A-2"
	one, two := d.send(t, first, 1), d.send(t, second, 1)
	books, err := readBooks(t.Context(), db)
	if err != nil || len(books.Effects) != 1 || len(books.Receipts) != 2 {
		t.Fatalf("%+v, %v", books, err)
	}
	if two.CallID != "A-2" || two.Status != receipt.StatusSuccess || string(two.Result) != string(one.Result) ||
		!strings.Contains(string(one.Result), books.Effects[0].Ref) {
		t.Errorf("the first was answered %s with %s, the second %s with %s", one.Status, one.Result, two.Status, two.Result)
	}
}

func TestWhatIsDeclinedLeavesAReceiptAndNoEffect(t *testing.T) {
	t.Parallel()
	d, db := listening(t)
	for _, tool := range Tools {
		if kept := d.send(t, Call{CallID: "A-" + tool.Operation, BizID: "A", Tool: tool, Account: accountDeclined}, 1); kept.Status != receipt.StatusFailed {
			t.Errorf("%s: %+v", tool.Name, kept)
		}
	}
	if books, err := readBooks(t.Context(), db); err != nil || len(books.Effects) != 0 || len(books.Receipts) != 3 || len(books.Keys) != 2 {
		t.Errorf("%+v, %v", books, err)
	}
}

func TestSlowWorkIsProcessingUntilItIsDone(t *testing.T) {
	t.Parallel()
	d, db := listening(t)
	for _, tool := range Tools[:2] {
		c := Call{CallID: "A-" + tool.Operation, BizID: "A", Tool: tool, Account: accountBrief}
		done := make(chan receipt.Receipt, 1)
		go func() { done <- d.send(t, c, 1) }()
		meanwhile := d.await(t, c)
		if kept := <-done; meanwhile != receipt.StatusProcessing || kept.Status != receipt.StatusSuccess {
			t.Errorf("%s: meanwhile %s, in the end %+v", tool.Name, meanwhile, kept)
		}
	}
	if books, err := readBooks(t.Context(), db); err != nil || len(books.Effects) != 2 {
		t.Errorf("%+v, %v", books, err)
	}
}

// await asks for the receipt of a call until there is one, and returns its status.
func (d *downstream) await(t *testing.T, c Call) receipt.Status {
	t.Helper()
	client, err := receipt.NewClient(receipt.Config{URL: d.url + receiptsPath, Timeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	for t.Context().Err() == nil {
		answer, err := client.QueryCalls(t.Context(), []string{c.CallID})
		if err != nil {
			t.Fatal(err)
		}
		if seen := answer.Of[c.CallID]; seen.Presence == receipt.Present {
			return seen.Receipts[0].Status
		}
	}
	return ""
}

func TestNobodyIsReachedBeforeTheServiceListens(t *testing.T) {
	t.Parallel()
	s, err := bind("a service", http.NotFoundHandler())
	if err != nil {
		t.Fatal(err)
	}
	get := func() error {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.url, bytes.NewReader(nil))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.DefaultClient.Do(req)
		if err == nil {
			_ = resp.Body.Close()
		}
		return err
	}
	if err := get(); err == nil || !strings.Contains(err.Error(), "refused") {
		t.Errorf("before it listens: %v", err)
	}
	if err := s.listen(); err != nil {
		t.Fatal(err)
	}
	if err := get(); err != nil {
		t.Errorf("once it listens: %v", err)
	}
	if err := s.close(t.Context()); err != nil {
		t.Error(err)
	}
}
