package localpg

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/lib/pq"
)

const (
	portTries = 5
	readyPoll = 20 * time.Millisecond
	logTail   = 4096 // bytes of the server's log that go into an error
)

var errPortTaken = errors.New("the port was taken meanwhile")

func (s *Server) data() string    { return filepath.Join(s.dir, "data") }
func (s *Server) logFile() string { return filepath.Join(s.dir, "server.log") }

func (s *Server) launch(ctx context.Context, port func() (int, error)) error {
	if err := os.Mkdir(s.dir, 0o700); err != nil {
		return err
	}
	if err := s.account.own(s.dir); err != nil {
		return err
	}
	if err := s.initdb(ctx); err != nil {
		return err
	}
	var err error
	for range portTries {
		if s.port, err = port(); err != nil {
			return err
		}
		if err = s.run(ctx); !errors.Is(err, errPortTaken) {
			return err
		}
	}
	return fmt.Errorf("%d ports in a row: %w", portTries, err)
}

func (s *Server) initdb(ctx context.Context) error {
	pwfile := filepath.Join(s.dir, "password")
	if err := os.WriteFile(pwfile, []byte(s.password+"\n"), 0o600); err != nil {
		return err
	}
	if err := s.account.own(pwfile); err != nil {
		return err
	}
	var out bytes.Buffer
	cmd := s.command("initdb", "-D", s.data(), "-U", superuser, "--auth=scram-sha-256", "--pwfile="+pwfile,
		"--no-sync", "--no-locale", "--encoding=UTF8", "--no-instructions")
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.SysProcAttr = s.account.attributes(syscall.SIGKILL)
	c, err := startChild(cmd)
	if err != nil {
		return err
	}
	if err := s.watchdog.guard(c.cmd.Process.Pid); err != nil {
		c.killGroup()
		return err
	}
	select {
	case <-c.done:
	case <-ctx.Done():
		c.killGroup()
		err = context.Cause(ctx)
	}
	if err := s.watchdog.guard(0); err != nil { // the number may soon belong to somebody else
		return err
	}
	if err == nil && c.err != nil {
		err = fmt.Errorf("%w\n%s", c.err, strings.TrimSpace(out.String()))
	}
	if err != nil {
		return fmt.Errorf("initdb: %w", err)
	}
	return os.Remove(pwfile)
}

// run starts postgres on s.port and waits until it accepts connections. On an error no process is left.
func (s *Server) run(ctx context.Context) error {
	log := s.options.Log
	if log == nil {
		f, err := os.Create(s.logFile())
		if err != nil {
			return err
		}
		defer f.Close() //nolint:errcheck // postgres has its own descriptor
		log = f
	}
	cmd := s.command("postgres", serverArgs(s.data(), s.port, s.options.Settings)...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.WaitDelay = time.Second
	cmd.SysProcAttr = s.account.attributes(syscall.SIGQUIT)
	c, err := startChild(cmd)
	if err != nil {
		return err
	}
	s.postgres = c
	if err := s.ready(ctx); err != nil {
		c.end(syscall.SIGQUIT, syscall.SIGKILL)
		return err
	}
	return nil
}

// ready polls until the server lets us in. The password tells our server from another one on the same port. That one may
// also say nothing at all, and lib/pq heeds no context while it logs in: connect_timeout (seconds) ends it.
func (s *Server) ready(ctx context.Context) error {
	connector, err := pq.NewConnector(s.DSN("") + "&connect_timeout=3")
	if err != nil {
		return err
	}
	db := sql.OpenDB(connector)
	defer db.Close()
	tick := time.NewTicker(readyPoll)
	defer tick.Stop()
	for {
		ping := db.PingContext(ctx)
		if ping == nil {
			return nil
		}
		select {
		case <-s.postgres.done:
			if !portIsFree(s.port) {
				return errPortTaken
			}
			return fmt.Errorf("postgres ended at once: %w%s", s.postgres.err, s.tail())
		case <-ctx.Done():
			return fmt.Errorf("%w, and postgres does not accept connections yet: %w%s", context.Cause(ctx), ping, s.tail())
		case <-tick.C:
		}
	}
}

func portIsFree(port int) bool {
	l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port))) //nolint:noctx // a local bind
	if err != nil {
		return false
	}
	_ = l.Close()
	return true
}

// tail is the end of the server's log on lines of its own, or nothing where the caller has the log himself.
func (s *Server) tail() string {
	f, err := os.Open(s.logFile())
	if err != nil {
		return ""
	}
	defer f.Close() //nolint:errcheck // opened for reading
	if info, err := f.Stat(); err == nil && info.Size() > logTail {
		_, _ = f.Seek(-logTail, io.SeekEnd)
	}
	text, _ := io.ReadAll(f)
	return "\n" + strings.TrimSpace(string(text))
}

// command runs one of the server's programs in a folder its account may enter, and without the caller's PG* variables.
// LC_ALL is set because postgres refuses to start on macOS without a valid locale.
func (s *Server) command(program string, args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(s.bin, program), args...) //nolint:noctx // it outlives the context of its start
	cmd.Dir = s.dir
	cmd.Env = serverEnv(os.Environ())
	return cmd
}

func serverEnv(environ []string) []string {
	env := make([]string, 0, len(environ)+1)
	for _, kv := range environ {
		if !strings.HasPrefix(kv, "PG") && !strings.HasPrefix(kv, "LC_") && !strings.HasPrefix(kv, "LANG") {
			env = append(env, kv)
		}
	}
	return append(env, "LC_ALL=C")
}
