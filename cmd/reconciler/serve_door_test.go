package main

import (
	"io"
	"net"
	"net/url"
	"sync"
	"testing"
)

// door stands before a database, at an address that stays the same. While it is closed, connections are refused.
type door struct {
	t      *testing.T
	url    string // through the door
	listen string
	behind string

	mu       sync.Mutex
	listener net.Listener // nil while it is closed
	passing  map[net.Conn]bool
}

// newDoor makes a closed door before the database at dsn.
func newDoor(t *testing.T, dsn string) *door {
	t.Helper()
	u, err := url.Parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	d := &door{t: t, behind: u.Host, listen: "127.0.0.1:0", passing: map[net.Conn]bool{}}
	d.open()
	d.listen = d.listener.Addr().String()
	d.close()
	u.Host = d.listen
	d.url = u.String()
	t.Cleanup(d.close)
	return d
}

func (d *door) open() {
	d.t.Helper()
	listener, err := new(net.ListenConfig).Listen(d.t.Context(), "tcp", d.listen)
	if err != nil {
		d.t.Fatal(err)
	}
	d.mu.Lock()
	d.listener = listener
	d.mu.Unlock()
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			go d.pass(client)
		}
	}()
}

// close refuses new connections and cuts those there are.
func (d *door) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.listener != nil {
		d.listener.Close()
		d.listener = nil
	}
	for c := range d.passing {
		c.Close()
	}
}

// pass carries bytes until either side ends.
func (d *door) pass(client net.Conn) {
	server, err := new(net.Dialer).Dial("tcp", d.behind)
	if err != nil {
		client.Close()
		return
	}
	d.mu.Lock()
	if d.listener == nil { // it came in the last moment
		client.Close()
		server.Close()
	}
	d.passing[client], d.passing[server] = true, true
	d.mu.Unlock()
	var both sync.WaitGroup
	carry := func(to, from net.Conn) {
		_, _ = io.Copy(to, from) // the end of either is the end of both
		to.Close()
		from.Close()
	}
	both.Go(func() { carry(server, client) })
	both.Go(func() { carry(client, server) })
	both.Wait()
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.passing, client)
	delete(d.passing, server)
}
