package toolcall

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// sentRequest is what a downstream saw of one send. The timestamp and what follows is missing from a request that was cut.
type sentRequest struct {
	Attempt                          int
	BizID, CallID, Key, Op, At, Head string
}

// The members of a body come in the order of their names, so that all but the bulk is in front.
var (
	inBody = regexp.MustCompile(strings.ReplaceAll(
		`"attempt":(\d+),"bizId":TEXT,"callId":TEXT,"idempotencyKey":TEXT,"operation":TEXT,"timestamp":TEXT`, "TEXT", `("(?:[^"\\]|\\.)*")`))
	inHead = regexp.MustCompile(`(?m)^Idempotency-Key: (.*?)\r$`)
)

// parseRequest makes of a request what it shows; nothing of one that never came.
func parseRequest(raw []byte) (r sentRequest) {
	found := inBody.FindSubmatch(raw)
	if found == nil {
		return r
	}
	r.Attempt, _ = strconv.Atoi(string(found[1]))
	for i, text := range []*string{&r.BizID, &r.CallID, &r.Key, &r.Op, &r.At} {
		_ = json.Unmarshal(found[i+2], text) // what cannot be read stays empty, which no test takes
	}
	if head := inHead.FindSubmatch(raw); head != nil {
		r.Head = string(head[1])
	}
	return r
}

// downstream is where calls are sent. It does to each connection what its fate says and remembers what it got.
type downstream struct {
	url    string
	ended  chan struct{} // the calls are over, nobody waits any more
	listen net.Listener  // nil when it refuses
	conns  sync.WaitGroup

	mu  sync.Mutex
	raw [][]byte // by connection, in the order of their coming
}

// fate is what happens on one connection. It returns the bytes that were read.
type fate func(d *downstream, conn *net.TCPConn) []byte

// newDownstream serves until all has been seen; without a fate nobody listens. Its connections are tight or as usual.
func newDownstream(t testing.TB, f fate, tight bool) *downstream {
	t.Helper()
	d := &downstream{ended: make(chan struct{})}
	if f == nil {
		d.url = refusing(t)
		return d
	}
	var lc net.ListenConfig
	if tight {
		lc.Control = smallWindow
	}
	listener, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	d.listen, d.url = listener, "http://"+listener.Addr().String()
	d.conns.Go(func() {
		for n := 0; ; n++ {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			d.mu.Lock()
			d.raw = append(d.raw, nil)
			d.mu.Unlock()
			d.conns.Go(func() {
				raw := f(d, conn.(*net.TCPConn))
				_ = conn.Close()
				d.mu.Lock()
				defer d.mu.Unlock()
				d.raw[n] = raw
			})
		}
	})
	return d
}

// smallWindow makes a connection hold some 30 KB that nobody has read, and not a megabyte. Whoever waits on such a connection for more
// than its first bytes may wait long: the kernel drops what does not fit, and comes back ever more seldom.
func smallWindow(_, _ string, c syscall.RawConn) error {
	var failed error
	err := c.Control(func(fd uintptr) {
		failed = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, 2048)
		if failed == nil {
			failed = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, syscall.TCP_MAXSEG, 536)
		}
	})
	if err != nil {
		return err
	}
	return failed
}

// refusing is an address at which nobody listens.
func refusing(t testing.TB) string {
	_, url := reserve(t)
	return url
}

// reserve takes an address so that nobody else gets it: a socket that is bound and does not listen.
func reserve(t testing.TB) (fd int, url string) {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Close(fd) })
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	name, err := syscall.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	return fd, fmt.Sprintf("http://127.0.0.1:%d", name.(*syscall.SockaddrInet4).Port)
}

// serveOne listens at a reserved address and serves the first who comes.
func serveOne(t testing.TB, fd int, serve func(net.Conn)) {
	t.Helper()
	copied, err := syscall.Dup(fd)
	if err == nil {
		err = syscall.Listen(copied, 1)
	}
	if err != nil {
		t.Fatal(err)
	}
	file := os.NewFile(uintptr(copied), "listener")
	listener, err := net.FileListener(file)
	_ = file.Close()
	if err != nil {
		t.Fatal(err)
	}
	var served sync.WaitGroup
	served.Go(func() {
		if conn, err := listener.Accept(); err == nil {
			serve(conn)
			_ = conn.Close()
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		served.Wait()
	})
}

// seen ends the downstream and returns what it got.
func (d *downstream) seen() []sentRequest {
	close(d.ended)
	if d.listen != nil {
		_ = d.listen.Close()
	}
	d.conns.Wait()
	var all []sentRequest
	for _, raw := range d.raw {
		all = append(all, parseRequest(raw))
	}
	return all
}

// readRequest reads one whole request.
func readRequest(r io.Reader) []byte {
	var raw bytes.Buffer
	req, err := http.ReadRequest(bufio.NewReader(io.TeeReader(r, &raw)))
	if err == nil {
		_, _ = io.Copy(io.Discard, req.Body)
	}
	return raw.Bytes()
}

// neverReads looks at the beginning of what lies on the connection only after the call.
func neverReads(d *downstream, conn *net.TCPConn) []byte {
	<-d.ended
	return readBeginning(conn)
}

// readBeginning reads no more than it takes to know the call.
func readBeginning(conn *net.TCPConn) (raw []byte) {
	_ = conn.SetReadDeadline(time.Now().Add(10 * time.Second))
	chunk := make([]byte, 1<<10)
	for {
		n, err := conn.Read(chunk)
		raw = append(raw, chunk[:n]...)
		if err != nil || parseRequest(raw).Attempt > 0 {
			return raw
		}
	}
}

// resetsEarly reads little of a large request. If it read half, the kernel would have taken the whole of it by then.
func resetsEarly(_ *downstream, conn *net.TCPConn) []byte {
	raw := readBeginning(conn)
	_ = conn.SetLinger(0)
	return raw
}

// resetsHalfway reads half of a request of middle size, which was written in one piece.
func resetsHalfway(_ *downstream, conn *net.TCPConn) []byte {
	raw := make([]byte, len(middle)/2+400)
	n, _ := io.ReadFull(conn, raw)
	_ = conn.SetLinger(0)
	return raw[:n]
}

// neverAnswers reads all there is, until the other side leaves.
func neverAnswers(_ *downstream, conn *net.TCPConn) []byte {
	raw, _ := io.ReadAll(conn)
	return raw
}

// answersHalf hangs up in the middle of a receipt.
func answersHalf(_ *downstream, conn *net.TCPConn) []byte {
	raw := readRequest(conn)
	_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 200\r\n\r\n"+`{"callId":"C`)
	return raw
}

// answering is a server for receipts, or for sends that are answered in full. What it is asked goes through answer; n counts from 1.
type answering struct {
	url string

	mu    sync.Mutex
	asked []string // bodies
}

func answers(t testing.TB, answer func(w http.ResponseWriter, r *http.Request, n int)) *answering {
	t.Helper()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	a := &answering{url: "http://" + listener.Addr().String()}
	server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		a.mu.Lock()
		a.asked = append(a.asked, string(body))
		n := len(a.asked)
		a.mu.Unlock()
		answer(w, r, n)
	})}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = server.Serve(listener)
	}()
	t.Cleanup(func() {
		_ = server.Close()
		<-served
	})
	return a
}

func (a *answering) requests() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.asked)
}

// sends are the requests as sends.
func (a *answering) sends() []sentRequest {
	var all []sentRequest
	for _, body := range a.requests() {
		all = append(all, parseRequest([]byte(body)))
	}
	return all
}

// receiptOf is a receipt of a call of bizId B1, as JSON; more are further members.
func receiptOf(callID, status string, more ...string) string {
	if status == "NOT_FOUND" {
		return fmt.Sprintf(`{"callId":%q,"status":"NOT_FOUND"}`, callID)
	}
	return fmt.Sprintf(`{"callId":%q,"bizId":"B1","status":%q%s}`, callID, status, strings.Join(append([]string{""}, more...), ","))
}

// list answers a question about one call with its receipts.
func list(w io.Writer, receipts ...string) {
	_, _ = io.WriteString(w, `{"receipts":[`+strings.Join(receipts, ",")+`]}`)
}

// hangs answers nothing until the other side leaves.
func hangs(_ http.ResponseWriter, r *http.Request, _ int) { <-r.Context().Done() }
