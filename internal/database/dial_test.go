package database

import (
	"errors"
	"net"
	"os"
	"testing"
	"time"

	"github.com/lib/pq"
)

// The driver waits for ever for a server whose host is gone without a word, whatever the context says.
func TestASilentServerIsNotWaitedForForEver(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	c, err := patient{50 * time.Millisecond}.DialTimeout("tcp", listener.Addr().String(), time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) || !Unreachable(err) {
		t.Errorf("got %v", err)
	}
	if _, err := c.Write(make([]byte, 64<<20)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a write that nobody takes: %v", err)
	}
}

func TestThePatienceIsThatOfTheStatementsAndALittleMore(t *testing.T) {
	t.Parallel()
	for timeout, want := range map[string]pq.Dialer{"60s": patient{75 * time.Second}, "": nil, "0": nil, "0s": nil} {
		cfg := pq.Config{Runtime: map[string]string{"statement_timeout": timeout}}
		if got := patience(cfg); got != want {
			t.Errorf("%q: %v, want %v", timeout, got, want)
		}
	}
}
