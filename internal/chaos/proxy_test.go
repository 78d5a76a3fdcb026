package chaos

import (
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"
)

// proxy is a network that forwards TCP connections, and does to some of them what networks do.
type proxy struct {
	to       func() string // host:port, asked for each connection
	percent  int           // of connections that meet a fault
	listener net.Listener
	life     sync.WaitGroup
	closed   chan struct{}
}

func newProxy(t testing.TB, percent int, to func() string) *proxy {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{to: to, percent: percent, listener: listener, closed: make(chan struct{})}
	p.life.Go(p.accept)
	t.Cleanup(func() {
		close(p.closed)
		_ = listener.Close()
		p.life.Wait()
	})
	return p
}

func (p *proxy) url() string { return "http://" + p.listener.Addr().String() }

func (p *proxy) accept() {
	for {
		conn, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.life.Go(func() { p.carry(conn.(*net.TCPConn)) })
	}
}

// carry forwards both ways until one side ends, or the fault strikes: after so many bytes of the request or of the answer the
// connection is reset or falls silent.
func (p *proxy) carry(in *net.TCPConn) {
	defer func() { _ = in.Close() }()
	out, err := net.Dial("tcp", p.to())
	if err != nil {
		return
	}
	defer func() { _ = out.Close() }()
	request, answer := int64(-1), int64(-1) // bytes that pass before the fault; -1 is all
	if rand.IntN(100) < p.percent {
		switch rand.IntN(3) {
		case 0: // lost on its way, or in the middle
			request = rand.Int64N(300)
		case 1: // executed, and no answer
			answer = 0
		case 2: // executed, and half an answer
			answer = rand.Int64N(300)
		}
	}
	struck := make(chan struct{}, 2)
	for _, way := range []struct {
		to, from net.Conn
		bytes    int64
	}{{out, in, request}, {in, out, answer}} {
		p.life.Go(func() {
			defer func() { struck <- struct{}{} }()
			if way.bytes < 0 {
				_, _ = io.Copy(way.to, way.from) // ends with the connection
				return
			}
			_, _ = io.CopyN(way.to, way.from, way.bytes)
			if way.bytes > 0 || rand.IntN(2) == 0 {
				return // cut
			}
			p.silence()
		})
	}
	select {
	case <-struck:
	case <-p.closed:
	}
	if rand.IntN(2) == 0 {
		_ = in.SetLinger(0) // a reset in place of a polite end
	}
}

// silence is longer than anybody waits.
func (p *proxy) silence() {
	select {
	case <-p.closed:
	case <-time.After(5 * time.Second):
	}
}
