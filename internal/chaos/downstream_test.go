package chaos

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"log"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/callreceipt/reconciler/idempotency"
	"github.com/callreceipt/reconciler/internal/database"
)

// effectsSchema is the downstream's business. Nothing in it hides a second execution.
const effectsSchema = `
	CREATE TABLE effects (
		idempotency_key text NOT NULL,
		call_id         text NOT NULL,
		nonce           text NOT NULL
	)`

// serveDownstream is the program of a downstream: a guarded business function, and receipts. It listens on the address in its
// environment until it is killed.
func serveDownstream() {
	db, err := database.Open(os.Getenv("CHAOS_DSN"))
	if err != nil {
		log.Fatal(err)
	}
	guard, err := idempotency.New(idempotency.Config{DB: db})
	if err != nil {
		log.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle("POST /charge", guard.Handler(charge))
	mux.Handle("POST /receipts/query", idempotency.NewReceipts(db, nil))
	listener, err := net.Listen("tcp", os.Getenv("CHAOS_LISTEN"))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(listener.Addr())
	log.Fatal(http.Serve(listener, mux))
}

// charge has an effect whose nonce tells one execution from another, and refuses what the payload says is to be refused.
func charge(ctx context.Context, tx *sqlx.Tx, r idempotency.Request) (json.RawMessage, error) {
	var order struct{ Refuse bool }
	if err := json.Unmarshal(r.Body, &order); err != nil {
		return nil, err
	}
	nonce := fmt.Sprintf("%016x", rand.Uint64())
	_, err := tx.ExecContext(ctx, `INSERT INTO effects (idempotency_key, call_id, nonce) VALUES ($1, $2, $3)`, r.IdempotencyKey, r.CallID, nonce)
	if err != nil {
		return nil, err
	}
	if order.Refuse {
		return nil, idempotency.Refuse(json.RawMessage(`{"refused": true}`))
	}
	return json.RawMessage(`{"nonce":  "` + nonce + `"}`), nil
}

// mortal is a downstream in a process of its own, which is killed and started again on the same address.
type mortal struct {
	t       testing.TB
	dsn     string
	address string // host:port, the same in every life

	mu  sync.Mutex
	cmd *exec.Cmd
}

func newMortal(t testing.TB, dsn string) *mortal {
	t.Helper()
	m := &mortal{t: t, dsn: dsn, address: "127.0.0.1:0"}
	m.start()
	t.Cleanup(m.kill)
	return m
}

func (m *mortal) start() {
	m.t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), roleVariable+"=downstream", "CHAOS_DSN="+m.dsn, "CHAOS_LISTEN="+m.address)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		m.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		m.t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		m.t.Fatalf("the downstream did not start: %v", err)
	}
	m.cmd, m.address = cmd, strings.TrimSpace(line)
}

// kill is kill -9.
func (m *mortal) kill() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.cmd != nil {
		_ = m.cmd.Process.Kill()
		_ = m.cmd.Wait() // killed
		m.cmd = nil
	}
}

// dieAndRise kills and starts it again n times, at random moments, and calls dead while it is dead.
func (m *mortal) dieAndRise(ctx context.Context, n int, dead func()) {
	for range n {
		select {
		case <-ctx.Done():
			return
		case <-time.After(50*time.Millisecond + rand.N(250*time.Millisecond)):
		}
		m.kill()
		dead()
		m.start()
	}
}
