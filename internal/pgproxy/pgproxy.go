// Package pgproxy stands between a client and PostgreSQL in a test and breaks the connection at a COMMIT, where the client
// cannot know whether the transaction happened.
package pgproxy

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"net"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
)

// Fate is what becomes of one COMMIT. The client never gets an answer; the zero value is a COMMIT that never arrives.
type Fate struct {
	Arrives bool            // the server carries it out
	Late    <-chan struct{} // nil, or it arrives only when this is closed, long after the client was cut off
}

// URL listens for clients of the server at dsn (a postgres:// URL without TLS) until the test ends, and returns the URL for
// them. The nth COMMIT that comes by meets the nth fate; everything else passes.
func URL(t testing.TB, dsn string, fates ...Fate) string {
	t.Helper()
	u, err := url.Parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{server: u.Host, fates: fates, open: map[net.Conn]bool{}}
	p.group.Go(func() { p.accept(t.Context(), listener) })
	t.Cleanup(func() {
		_ = listener.Close()
		p.closeAll()
		p.group.Wait()
	})
	u.Host = listener.Addr().String()
	return u.String()
}

type proxy struct {
	server string
	group  sync.WaitGroup

	mu     sync.Mutex
	fates  []Fate
	open   map[net.Conn]bool
	closed bool
}

func (p *proxy) accept(ctx context.Context, listener net.Listener) {
	for {
		client, err := listener.Accept()
		if err != nil {
			return
		}
		server, err := new(net.Dialer).DialContext(ctx, "tcp", p.server)
		if err != nil {
			_ = client.Close()
			continue
		}
		if !p.add(client, server) {
			return
		}
		l := &link{proxy: p, client: client, server: server, answered: make(chan struct{}, 1)}
		p.group.Go(l.down)
		p.group.Go(l.up)
	}
}

func (p *proxy) add(conns ...net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range conns {
		if p.closed {
			_ = c.Close()
			continue
		}
		p.open[c] = true
	}
	return !p.closed
}

func (p *proxy) closeAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for c := range p.open {
		_ = c.Close()
	}
}

// next takes the fate of the COMMIT that has just come by.
func (p *proxy) next() (Fate, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.fates) == 0 {
		return Fate{}, false
	}
	f := p.fates[0]
	p.fates = p.fates[1:]
	return f, true
}

// link is one client and its connection to the server.
type link struct {
	*proxy
	client, server net.Conn
	cut            atomic.Bool   // the client gets nothing any more
	answered       chan struct{} // the server said something after the cut
}

// down carries answers to the client.
func (l *link) down() {
	defer func() { _ = l.client.Close() }()
	buf := make([]byte, 32<<10)
	for {
		n, err := l.server.Read(buf)
		if l.cut.Load() {
			select {
			case l.answered <- struct{}{}:
			default:
			}
		} else if n > 0 {
			if _, err := l.client.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// up carries the client's messages to the server, one by one, in order to see the COMMIT among them.
func (l *link) up() {
	defer func() { _ = l.server.Close() }()
	msg, err := message(l.client, 0) // the first message has no type
	for err == nil {
		if fate, ok := l.fateOf(msg); ok {
			l.meet(fate, msg)
			return
		}
		if _, err = l.server.Write(msg); err == nil {
			msg, err = message(l.client, 1)
		}
	}
}

// fateOf tells what becomes of a message that is a COMMIT. The driver sends it as a simple query.
func (l *link) fateOf(msg []byte) (Fate, bool) {
	if msg[0] != 'Q' || !bytes.HasPrefix(msg[5:], []byte("COMMIT")) {
		return Fate{}, false
	}
	return l.next()
}

func (l *link) meet(fate Fate, commit []byte) {
	l.cut.Store(true)
	if fate.Late != nil {
		_ = l.client.Close()
		<-fate.Late
	}
	if fate.Arrives {
		if _, err := l.server.Write(commit); err == nil {
			<-l.answered
		}
	}
	_ = l.client.Close()
}

// message reads one message of the protocol: a type of so many bytes, then a length that counts itself.
func message(r io.Reader, typeBytes int) ([]byte, error) {
	head := make([]byte, typeBytes+4)
	if _, err := io.ReadFull(r, head); err != nil {
		return nil, err
	}
	rest := int(binary.BigEndian.Uint32(head[typeBytes:])) - 4
	msg := append(head, make([]byte, max(rest, 0))...)
	_, err := io.ReadFull(r, msg[len(head):])
	return msg, err
}
