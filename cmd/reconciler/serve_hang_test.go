package main

import (
	"net"
	"net/url"
	"syscall"
	"testing"

	"github.com/callreceipt/reconciler/internal/eventually"
)

// A server whose storage hangs takes every connection and answers none.
func TestServeIsHonestAndStopsWhileTheDatabaseHangs(t *testing.T) {
	t.Parallel()
	s := newScene(t, "batch_size: 10", "charge")
	hang := s.throughGate()
	s.park("charge", 10)
	d := s.serve()
	s.untilSettled("charge")
	const backlog = `reconciler_pending_calls{status="PENDING",tool="charge"}`
	d.shows(backlog, 0)
	hang()
	d.notReady("database")
	eventually.True(t, "nobody takes the last number for the backlog of now", func() bool { _, there := d.metric(backlog); return !there })

	if err := d.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	await(t, d.over, "the end of the process")
	if code := d.cmd.ProcessState.ExitCode(); code != exitDone {
		t.Errorf("it ends with %d", code)
	}
}

// throughGate leads the daemon to its database through a gate that can be closed: what is sent then does not arrive, and nobody is
// told.
func (s *scene) throughGate() (closeGate func()) {
	s.t.Helper()
	u, err := url.Parse(s.url)
	if err != nil {
		s.t.Fatal(err)
	}
	server := u.Host
	l, err := new(net.ListenConfig).Listen(s.t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		s.t.Fatal(err)
	}
	u.Host = l.Addr().String()
	s.url = u.String()
	g := &gate{shut: make(chan struct{}), over: make(chan struct{})}
	s.t.Cleanup(func() {
		close(g.over)
		_ = l.Close()
	})
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			upstream, err := new(net.Dialer).DialContext(s.t.Context(), "tcp", server)
			if err != nil {
				_ = client.Close()
				return
			}
			go g.pass(client, upstream)
			go g.pass(upstream, client)
		}
	}()
	return func() { close(g.shut) }
}

// gate lets everything through until it is shut, and ends all connections when the test is over.
type gate struct{ shut, over chan struct{} }

func (g *gate) pass(from, to net.Conn) {
	defer to.Close()
	go func() {
		<-g.over
		_ = from.Close()
	}()
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		select {
		case <-g.shut:
			<-g.over
			return
		default:
		}
		if _, failed := to.Write(buffer[:n]); err != nil || failed != nil {
			return
		}
	}
}
