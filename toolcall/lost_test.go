package toolcall

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/callreceipt/reconciler/internal/database"
	"github.com/callreceipt/reconciler/internal/testdb"
)

// silent is a server that takes connections and whatever is written to them, and never says a word.
func silent(t testing.TB) (address string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var conns sync.WaitGroup
	over := make(chan struct{})
	conns.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			conns.Go(func() {
				go func() { <-over; _ = conn.Close() }()
				_, _ = io.Copy(io.Discard, conn) // until the test ends
			})
		}
	})
	t.Cleanup(func() {
		close(over)
		_ = listener.Close()
		conns.Wait()
	})
	return listener.Addr().String()
}

// The driver waits for an answer whatever the context says. Whoever calls is told all the same that the call is not parked.
func TestADatabaseThatFallsSilentHoldsNobodyUp(t *testing.T) {
	t.Parallel()
	u, err := url.Parse("postgres://u:p@" + silent(t) + "/d?sslmode=disable")
	if err != nil {
		t.Fatal(err)
	}
	db, err := database.Open(u.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	c := newClient(t, Config{DB: db, Tools: []Tool{lost(t)}})
	ended := make(chan error, 1)
	go func() {
		_, err := c.Do(context.Background(), theCall("C1"))
		ended <- err
	}()
	select {
	case err := <-ended:
		var lost *NotParkedError
		if !errors.As(err, &lost) || lost.Suspension.CallID != "C1" || !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Error("the call is still being parked")
	}
}

func TestAPanicOfTheCallersOwnCodeLosesNoCall(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	var log strings.Builder
	logger := slog.New(slog.NewTextHandler(&log, nil))

	c := newClient(t, Config{DB: db, Tools: []Tool{lost(t)}, Log: logger, Observe: func(Event) { panic("one label\ntoo many") }})
	if out, err := c.Do(t.Context(), theCall("C1")); out.Status != Suspended || err != nil || len(rows(t, db)) != 1 {
		t.Errorf("%+v, %v", out, err)
	}
	if said := log.String(); !strings.Contains(said, `one label\\ntoo many`) || !strings.Contains(said, "lost_test.go") {
		t.Errorf("logged %s", said)
	}

	log.Reset()
	c = newClient(t, Config{Tools: []Tool{lost(t)}, Log: logger})
	out, err := c.Do(t.Context(), theCall("C2", func(c *Call) {
		c.Transaction = func(context.Context, func(sqlx.ExtContext) error) error { panic("no such\norder") }
	}))
	var lost *NotParkedError
	if !errors.As(err, &lost) || lost.Suspension.CallID != "C2" || out.Status != "" || !strings.Contains(err.Error(), `panicked: no such\norder`) {
		t.Errorf("%+v, %v", out, err)
	}
	if said := log.String(); !strings.Contains(said, "[call=C2][biz=B1][try=1]") || !strings.Contains(said, "lost_test.go") {
		t.Errorf("logged %s", said)
	}
}

// The downstream answers the second send with the failure of the first, while the second may still be running.
func TestTheFailureOfAnEarlierAttemptIsNoAnswerToASend(t *testing.T) {
	t.Parallel()
	endpoint := answers(t, func(w http.ResponseWriter, _ *http.Request, n int) {
		if n == 1 {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		_, _ = io.WriteString(w, receiptOf("C1", "FAILED", `"attempt":1`))
	})
	receipts := answers(t, func(w http.ResponseWriter, _ *http.Request, n int) {
		list(w, receiptOf("C1", []string{"NOT_FOUND", "SUCCESS"}[n-1]))
	})
	c := newClient(t, Config{DB: testdb.New(t), Tools: []Tool{theTool(endpoint.url, receipts.url)}})
	out, err := c.Do(t.Context(), theCall("C1"))
	if err != nil || out.Status != Success || told(out.Steps) != "send 1 answered, ask not_found, send 2 answered, ask success" {
		t.Errorf("%s %s, %v", out.Status, told(out.Steps), err)
	}
}
