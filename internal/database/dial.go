package database

import (
	"context"
	"net"
	"time"

	"github.com/lib/pq"
)

// answerGrace is how much longer than its statement_timeout a server may take to answer.
const answerGrace = 15 * time.Second

// patient dials connections on which no answer is waited for longer than a server that lives needs: the driver waits for ever, whatever
// the context says, for one that hangs or whose host is gone without a word.
type patient struct{ limit time.Duration }

// patience returns a dialer for cfg, or nil where statements may take as long as they want.
func patience(cfg pq.Config) pq.Dialer {
	limit, err := time.ParseDuration(cfg.Runtime["statement_timeout"])
	if err != nil || limit <= 0 {
		return nil
	}
	return patient{limit + answerGrace}
}

func (p patient) Dial(network, address string) (net.Conn, error) {
	return p.DialContext(context.Background(), network, address)
}

func (p patient) DialTimeout(network, address string, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	return p.DialContext(ctx, network, address)
}

func (p patient) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	c, err := new(net.Dialer).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return &conn{Conn: c, limit: p.limit}, nil
}

// conn bounds each wait. The driver reads only when an answer is due, so an idle connection is not cut.
type conn struct {
	net.Conn
	limit time.Duration
	set   bool // the driver has a deadline of its own, that of connecting
}

func (c *conn) SetDeadline(t time.Time) error {
	c.set = !t.IsZero()
	return c.Conn.SetDeadline(t)
}

func (c *conn) Read(b []byte) (int, error) {
	if !c.set {
		_ = c.SetReadDeadline(time.Now().Add(c.limit)) //nolint:forbidigo // of the network, nothing is judged by it
	}
	return c.Conn.Read(b)
}

func (c *conn) Write(b []byte) (int, error) {
	if !c.set {
		_ = c.SetWriteDeadline(time.Now().Add(c.limit)) //nolint:forbidigo // of the network, nothing is judged by it
	}
	return c.Conn.Write(b)
}
