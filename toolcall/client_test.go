package toolcall

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"

	"github.com/callreceipt/reconciler/internal/eventually"
	"github.com/callreceipt/reconciler/internal/testdb"
)

// 10 goroutines make 20 calls each through one client. The last digit of a callId says what becomes of it: answered, lost and
// executed, lost and refused, lost for good.
func TestManyGoroutinesShareOneClient(t *testing.T) {
	t.Parallel()
	statuses := map[byte]string{'0': "SUCCESS", '1': "SUCCESS", '2': "FAILED", '3': "NOT_FOUND"}
	want := map[byte]Status{'0': Success, '1': Success, '2': Failed, '3': Suspended}
	last := func(id string) byte { return id[len(id)-1] }
	var sends sync.Map // callId to *atomic.Int32
	handler := func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		var asked struct{ CallIDs []string }
		if r.URL.Path == "/receipts" {
			if err := json.Unmarshal(body, &asked); err != nil || len(asked.CallIDs) != 1 {
				t.Errorf("asked %s", body)
				return
			}
			list(w, receiptOf(asked.CallIDs[0], statuses[last(asked.CallIDs[0])]))
			return
		}
		send := parseRequest(body)
		count, _ := sends.LoadOrStore(send.CallID, new(atomic.Int32))
		if n := count.(*atomic.Int32).Add(1); int(n) != send.Attempt {
			t.Errorf("send %d of %s has attempt %d", n, send.CallID, send.Attempt)
		}
		if last(send.CallID) != '0' {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		_, _ = io.WriteString(w, receiptOf(send.CallID, "SUCCESS"))
	}
	a := serve(t, handler)
	db := testdb.New(t)
	var events atomic.Int32
	c := newClient(t, Config{DB: db, Observe: func(Event) { events.Add(1) }, Tools: []Tool{theTool(a, a+"/receipts", func(t *Tool) { t.Concurrency = 4 })}})
	var workers sync.WaitGroup
	for g := range 10 {
		workers.Go(func() {
			for n := range 20 {
				id := fmt.Sprintf("C-%d-%d-%d", g, n, n%4)
				out, err := c.Do(t.Context(), theCall(id))
				if err != nil || out.Status != want[last(id)] || out.CallID != id {
					t.Errorf("%s: %+v, %v", id, out, err)
				}
			}
		})
	}
	workers.Wait()
	if n := len(rows(t, db)); n != 50 {
		t.Errorf("%d rows", n)
	}
	sends.Range(func(id, n any) bool {
		if most := map[byte]int32{'3': 3}[last(id.(string))]; n.(*atomic.Int32).Load() != max(most, 1) {
			t.Errorf("%s was sent %d times", id, n.(*atomic.Int32).Load())
		}
		return true
	})
	if events.Load() < 200 {
		t.Errorf("%d events", events.Load())
	}
}

// serve answers until the test ends.
func serve(t testing.TB, handler http.HandlerFunc) (url string) {
	t.Helper()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: handler}
	var served sync.WaitGroup
	served.Go(func() { _ = server.Serve(listener) })
	t.Cleanup(func() {
		_ = server.Close()
		served.Wait()
	})
	return "http://" + listener.Addr().String()
}

func TestNoMoreSendsAreUnderWayThanTheToolAllows(t *testing.T) {
	t.Parallel()
	var now, most atomic.Int32
	release := make(chan struct{})
	url := serve(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		n := now.Add(1)
		for old := most.Load(); n > old && !most.CompareAndSwap(old, n); old = most.Load() {
		}
		<-release
		now.Add(-1)
		w.WriteHeader(http.StatusTeapot)
	})
	db := testdb.New(t)
	c := newClient(t, Config{DB: db, Tools: []Tool{theTool(url, url, func(t *Tool) { t.Concurrency, t.NeedsReceipt, t.Retryable = 3, false, false })}})
	var workers sync.WaitGroup
	for n := range 12 {
		workers.Go(func() {
			if out, err := c.Do(t.Context(), theCall(fmt.Sprint("C", n))); out.Status != Suspended || err != nil {
				t.Errorf("%+v, %v", out, err)
			}
		})
	}
	eventually.True(t, "three sends are under way", func() bool { return now.Load() == 3 })
	close(release)
	workers.Wait()
	if most.Load() != 3 || len(rows(t, db)) != 12 {
		t.Errorf("%d at once, %d rows", most.Load(), len(rows(t, db)))
	}
}

func TestACloseLeavesNothingBehind(t *testing.T) { // not parallel: it counts goroutines
	dsn := testdb.URL(t) // the server of the tests runs from here on
	before := goleak.IgnoreCurrent()
	t.Run("use", func(t *testing.T) {
		db := testdb.Open(t, dsn)
		c := newClient(t, Config{DB: db, Tools: []Tool{lost(t)}})
		if _, err := c.Do(t.Context(), theCall("C1")); err != nil {
			t.Error(err)
		}
		c.Close()
		if out, err := c.Do(t.Context(), theCall("C2")); err != nil || out.Status != Suspended { // a Close ends idle connections alone
			t.Errorf("%+v, %v", out, err)
		}
	})
	goleak.VerifyNone(t, before)
}

// People embed these packages: what they bring along is a part of their programs.
func TestTheEmbeddedLibrariesBringNoDaemonAlong(t *testing.T) {
	t.Parallel()
	args := []string{"list", "-deps", "../toolcall"}
	if _, err := os.Stat("../idempotency"); err == nil {
		args = append(args, "../idempotency")
	}
	out, err := exec.CommandContext(t.Context(), "go", args...).Output()
	if err != nil {
		t.Fatal(err)
	}
	deps := strings.Fields(string(out))
	if len(deps) < 50 {
		t.Fatalf("only %d dependencies", len(deps))
	}
	for _, dep := range deps {
		for _, heavy := range []string{
			"github.com/spf13/", "github.com/robfig/cron", "github.com/pressly/goose", "github.com/goccy/go-yaml", "github.com/caarlos0/env", "github.com/prometheus/",
			"github.com/callreceipt/reconciler/config", "github.com/callreceipt/reconciler/metrics", "github.com/callreceipt/reconciler/reconcile",
			"github.com/callreceipt/reconciler/migrations", "testing",
		} {
			if dep == heavy || strings.HasPrefix(dep, heavy) && strings.HasSuffix(heavy, "/") || strings.HasPrefix(dep, heavy+"/") {
				t.Errorf("%s is among the dependencies", dep)
			}
		}
	}
}
