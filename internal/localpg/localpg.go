// Package localpg runs a private, throw-away PostgreSQL from the machine's own binaries, for the demo and for the tests.
//
//	Start:  find binaries -> start watchdog -> make directory -> initdb -> postgres -> accepts connections
//	Stop:   SIGINT -> (SIGQUIT -> SIGKILL) -> remove directory -> watchdog ends
//	death of this process, however it comes: the watchdog's pipe closes -> SIGQUIT (SIGKILL) -> remove directory
//
// The server listens on 127.0.0.1 only, under a random superuser password. It survives a kill of its own processes,
// but not of the machine: fsync is off. Nothing is left behind, neither a process nor a file.
package localpg

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"
)

const (
	superuser = "postgres"
	// startLimit bounds a start under a context without a deadline. It takes about a second on an idle machine;
	// fetching the binaries has a bound of its own.
	startLimit = 2 * time.Minute
	// signalPatience is how long each of SIGINT and SIGQUIT may take before the next harder signal.
	signalPatience = 15 * time.Second
)

// Options is how a server is started. The zero value is good for tests and for the demo.
type Options struct {
	// Log receives the server's log. Nil keeps it in the server's directory, and puts its tail into the error of a
	// start that went wrong.
	Log io.Writer
	// Settings are further run-time parameters (name to value); they win over the defaults of this package. The address,
	// the port, the socket and the directories are not open to choice.
	Settings map[string]string
}

// Server is a running PostgreSQL that belongs to this process.
type Server struct {
	dir      string // everything of this server; data directory and log are in it
	options  Options
	account  account
	bin      string // the folder of postgres and initdb
	password string
	port     int
	postgres *child
	watchdog *watchdog

	stopOnce sync.Once
	stopErr  error
}

// launcher is what a start takes from its surroundings.
type launcher struct {
	search  search
	account account
	temp    []string            // folders in which the server's directory may be made, best first
	port    func() (int, error) // a port of 127.0.0.1 nobody listens on
}

// Start brings a server up and returns once it accepts connections. The context bounds the start only; Stop ends the
// server. The first start on a machine without PostgreSQL fetches one, which takes as long as the network needs.
func Start(ctx context.Context, opt Options) (*Server, error) {
	acc := serverAccount()
	l := launcher{search: defaultSearch(acc), account: acc, temp: tempDirs(acc), port: freePort}
	return l.start(ctx, opt)
}

func (l launcher) start(ctx context.Context, opt Options) (*Server, error) {
	if err := checkSettings(opt.Settings); err != nil {
		return nil, err
	}
	bin, err := l.search.find(ctx, l.account)
	if err != nil {
		return nil, err
	}
	base, err := usableTemp(l.temp, l.account)
	if err != nil {
		return nil, err
	}
	s := &Server{
		dir:      filepath.Join(base, "reconciler-pg-"+randomHex(8)),
		options:  opt,
		account:  l.account,
		bin:      bin,
		password: randomHex(16),
	}
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	// The watchdog comes first: there is no instant at which a kill of this process would leave something.
	if s.watchdog, err = startWatchdog(s.dir); err != nil {
		return nil, fmt.Errorf("starting the watchdog of a local PostgreSQL: %w", err)
	}
	if err := s.launch(ctx, l.port); err != nil {
		return nil, errors.Join(fmt.Errorf("starting a local PostgreSQL from %s: %w", bin, err), s.Stop())
	}
	return s, nil
}

// DSN is the URL of a database on this server; the empty name is the maintenance database. It holds the password of the
// superuser.
func (s *Server) DSN(database string) string {
	if database == "" {
		database = superuser
	}
	u := url.URL{
		Scheme:   "postgres",
		User:     url.UserPassword(superuser, s.password),
		Host:     net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)),
		Path:     "/" + database,
		RawQuery: "sslmode=disable",
	}
	return u.String()
}

// Pid is the process id of the postmaster.
func (s *Server) Pid() int { return s.postgres.cmd.Process.Pid }

// Stop ends the server, also one with connections, and removes everything it had. Only the first call does something;
// the others wait for it and return the same.
func (s *Server) Stop() error {
	s.stopOnce.Do(func() { s.stopErr = s.stop() })
	return s.stopErr
}

func (s *Server) stop() error {
	var errs []error
	if s.postgres != nil && !s.postgres.end(syscall.SIGINT, syscall.SIGQUIT, syscall.SIGKILL) {
		errs = append(errs, fmt.Errorf("stopping local PostgreSQL: process %d survived SIGKILL", s.Pid()))
	}
	if err := os.RemoveAll(s.dir); err != nil {
		errs = append(errs, fmt.Errorf("removing local PostgreSQL: %w", err))
	}
	if err := s.watchdog.release(); err != nil {
		errs = append(errs, fmt.Errorf("ending the watchdog of %s: %w", s.dir, err))
	}
	return errors.Join(errs...)
}

func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // binds a local port, there is nothing to wait for
	if err != nil {
		return 0, fmt.Errorf("looking for a free port: %w", err)
	}
	defer l.Close() //nolint:errcheck // nothing was accepted on it
	return l.Addr().(*net.TCPAddr).Port, nil
}

func randomHex(bytes int) string {
	b := make([]byte, bytes)
	_, _ = rand.Read(b) // documented never to fail
	return hex.EncodeToString(b)
}
