package receipt

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// listen answers each connection, once its request is read, with whatever talk does to it.
func listen(t *testing.T, talk func(conn *net.TCPConn, closed <-chan struct{})) string {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed := make(chan struct{})
	var talks sync.WaitGroup
	talks.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			talks.Go(func() {
				defer func() { _ = conn.Close() }()
				if r, err := http.ReadRequest(bufio.NewReader(conn)); err == nil {
					_, _ = io.Copy(io.Discard, r.Body)
					talk(conn.(*net.TCPConn), closed)
				}
			})
		}
	})
	t.Cleanup(func() {
		close(closed)
		_ = l.Close()
		talks.Wait()
	})
	return "http://" + l.Addr().String()
}

func TestTroubleOnTheWire(t *testing.T) {
	t.Parallel()
	full := answerOf(item())
	head := fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n", len(full))
	silence := func(says string) func(*net.TCPConn, <-chan struct{}) {
		return func(conn *net.TCPConn, closed <-chan struct{}) {
			_, _ = io.WriteString(conn, says)
			<-closed
		}
	}
	hangUp := func(says string) func(*net.TCPConn, <-chan struct{}) {
		return func(conn *net.TCPConn, _ <-chan struct{}) { _, _ = io.WriteString(conn, says) }
	}
	for name, c := range map[string]struct {
		talk    func(*net.TCPConn, <-chan struct{})
		timeout time.Duration
		kind    Kind
	}{
		"no byte until the timeout":         {silence(""), hasty, KindTimeout},
		"half a status line":                {silence("HTTP/1.1 2"), hasty, KindTimeout},
		"headers, then silence":             {silence(head), hasty, KindTimeout},
		"one byte at a time":                {drip(head + full), hasty, KindTimeout},
		"an error body one byte at a time":  {drip("HTTP/1.1 200 OK\r\n\r\n<" + full), hasty, KindTimeout},
		"hung up at once":                   {hangUp(""), patient, KindLost},
		"hung up in the headers":            {hangUp(head[:30]), patient, KindLost},
		"body shorter than Content-Length":  {hangUp(head + full[:len(full)-1]), patient, KindLost},
		"no body at all":                    {hangUp(head), patient, KindLost},
		"chunks that end early":             {hangUp("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{\"rec\r\n"), patient, KindLost},
		"a chunk size that is none":         {hangUp("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"), patient, KindLost},
		"array cut without Content-Length":  {hangUp("HTTP/1.1 200 OK\r\n\r\n" + full[:len(full)-2]), patient, KindMalformed},
		"not HTTP":                          {hangUp("SSH-2.0-OpenSSH_9.2\r\n"), patient, KindLost},
		"100 KB of headers":                 {hangUp("HTTP/1.1 200 OK\r\n" + strings.Repeat("X-A: "+strings.Repeat("a", 1000)+"\r\n", 100) + "\r\n" + full), patient, KindLost},
		"reset before the answer":           {reset(""), patient, KindLost},
		"reset in the body":                 {reset(head + full[:20]), patient, KindLost},
		"two lengths, a smuggled second":    {hangUp("HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello"), patient, KindLost},
		"answered, and the connection kept": {silence(head + full), patient, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cl := client(t, Config{URL: listen(t, c.talk), Timeout: c.timeout})
			a, err := cl.Query(t.Context(), []string{"B1"})
			if c.kind != "" {
				refused(t, a, err, Unanswered, c.kind)
			} else if err != nil || a.Of["B1"].Presence != Present {
				t.Errorf("got %+v, %v", a, err)
			}
		})
	}
}

// drip sends a byte every 5 ms, so that the connection is never idle for long.
func drip(says string) func(*net.TCPConn, <-chan struct{}) {
	return func(conn *net.TCPConn, closed <-chan struct{}) {
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for i := range len(says) {
			if _, err := io.WriteString(conn, says[i:i+1]); err != nil {
				return
			}
			select {
			case <-tick.C:
			case <-closed:
				return
			}
		}
	}
}

// reset ends the connection with a RST.
func reset(says string) func(*net.TCPConn, <-chan struct{}) {
	return func(conn *net.TCPConn, _ <-chan struct{}) {
		_, _ = io.WriteString(conn, says)
		_ = conn.SetLinger(0)
	}
}

func TestConnectionRefused(t *testing.T) {
	t.Parallel()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = l.Close()
	a, err := client(t, Config{URL: "http://" + l.Addr().String()}).Query(t.Context(), []string{"B1"})
	refused(t, a, err, Unanswered, KindRefused)
}

func TestAHostThatDoesNotExist(t *testing.T) {
	t.Parallel()
	a, err := client(t, Config{URL: "http://receipts.invalid/"}).Query(t.Context(), []string{"B1"})
	refused(t, a, err, Unanswered, KindDNS)
}

func TestADeadKeptAliveConnectionDoesNotSendTheQueryTwice(t *testing.T) {
	t.Parallel()
	full := answerOf(item())
	var mu sync.Mutex
	requests := 0
	url := listen(t, func(conn *net.TCPConn, _ <-chan struct{}) {
		mu.Lock()
		requests++
		mu.Unlock()
		_, _ = fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(full), full)
		_, _ = http.ReadRequest(bufio.NewReader(conn)) // the second query is read and never answered
		mu.Lock()
		requests++
		mu.Unlock()
	})
	c := client(t, Config{URL: url})
	if _, err := c.Query(t.Context(), []string{"B1"}); err != nil {
		t.Fatal(err)
	}
	a, err := c.Query(t.Context(), []string{"B1"})
	refused(t, a, err, Unanswered, KindLost)
	mu.Lock()
	defer mu.Unlock()
	if requests != 2 {
		t.Errorf("%d requests for two queries", requests)
	}
}

func TestTheTransportCannotSendTheQueryAgain(t *testing.T) {
	t.Parallel()
	req, trouble := client(t, Config{URL: "http://127.0.0.1/"}).request(t.Context(), []byte("{}"), nil)
	if trouble != nil || req.GetBody != nil {
		t.Errorf("the request can be rewound, or %v", trouble)
	}
}

func TestAnAnswerAnnouncedAsTooLargeIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	url := listen(t, func(conn *net.TCPConn, closed <-chan struct{}) {
		_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 104857600\r\n\r\n")
		<-closed
	})
	a, err := client(t, Config{URL: url, Timeout: hasty}).Query(t.Context(), []string{"B1"})
	refused(t, a, err, BadBatch, KindTooLarge)
}

func TestAnAnswerBeyondTheLimitIsNeitherReadNorTruncated(t *testing.T) {
	const most = 1 << 20
	padded := func(size int) string {
		return `{"receipts":[` + item() + `]` + strings.Repeat(" ", size-len(item())-15) + `}`
	}
	for name, c := range map[string]struct {
		header string
		body   func(w io.Writer)
		taken  bool
	}{
		"a byte less":             {"", func(w io.Writer) { _, _ = io.WriteString(w, padded(most)) }, true},
		"a byte more":             {"", func(w io.Writer) { _, _ = io.WriteString(w, padded(most+1)) }, false},
		"100 MB":                  {"", endless(100 << 20), false},
		"100 MB, announced":       {"Content-Length: 104857600", endless(100 << 20), false},
		"gzip bomb of 32 MB":      {"Content-Encoding: gzip", zip(strings.Repeat(" ", 32<<20)), false},
		"a million items, zipped": {"Content-Encoding: gzip", zip(strings.Repeat(`{"bizId":"B1","status":"NOT_FOUND"},`, 1_000_000)), false},
	} {
		t.Run(name, func(t *testing.T) {
			url := serve(t, func(w http.ResponseWriter, _ *http.Request) {
				if k, v, ok := strings.Cut(c.header, ": "); ok {
					w.Header().Set(k, v)
				}
				c.body(w)
			})
			cl := client(t, Config{URL: url, MaxBytes: most})
			var a Answer
			var err error
			used := allocated(func() { a, err = cl.Query(t.Context(), []string{"B1"}) })
			if used > 16*most { // the servers of this process included
				t.Errorf("%d bytes allocated for a limit of %d", used, most)
			}
			if !c.taken {
				refused(t, a, err, BadBatch, KindTooLarge)
			} else if err != nil || a.Of["B1"].Presence != Present {
				t.Errorf("got %+v, %v", a, err)
			}
		})
	}
}

func endless(size int) func(io.Writer) {
	block := bytes.Repeat([]byte(" "), 32<<10)
	return func(w io.Writer) {
		for range size / len(block) {
			if _, err := w.Write(block); err != nil {
				return
			}
		}
	}
}

func zip(text string) func(io.Writer) {
	var b bytes.Buffer
	z, _ := gzip.NewWriterLevel(&b, gzip.BestSpeed)
	_, _ = io.WriteString(z, `{"receipts":[`+text)
	_ = z.Close()
	return func(w io.Writer) { _, _ = w.Write(b.Bytes()) }
}
