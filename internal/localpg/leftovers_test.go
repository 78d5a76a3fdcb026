package localpg

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/callreceipt/reconciler/internal/eventually"
)

// slowInitdb is a bin folder whose initdb never ends after it has done its work, with a child of its own, as the real
// one has.
func slowInitdb(t *testing.T) string {
	t.Helper()
	dir, bin := openDir(t), realBin(t)
	script(t, dir, "postgres", "exec "+bin+`/postgres "$@"`)
	script(t, dir, "initdb", bin+`/initdb "$@"; sh -c 'sleep 1000; :' at-work "$@"`)
	return dir
}

// atWork tells whether the slow initdb of a server in the folder got to its sleep.
func atWork(t *testing.T, dir string) bool {
	for _, command := range running(t, dir) {
		if strings.Contains(command, "at-work") {
			return true
		}
	}
	return false
}

// program is a run of this test binary in a role of play.
type program struct {
	*exec.Cmd
	stdin  io.WriteCloser
	stdout *bufio.Reader
	temp   string // its TMPDIR
}

func startProgram(t *testing.T, role string, credential *syscall.Credential, env ...string) *program {
	t.Helper()
	p := &program{temp: openDir(t)}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if credential != nil {
		self = copyFile(t, self)
		if err := os.Chown(p.temp, int(credential.Uid), int(credential.Gid)); err != nil {
			t.Fatal(err)
		}
	}
	p.Cmd = exec.CommandContext(t.Context(), self, "-test.run=^TestWithoutMigrationsTheDatabaseIsEmpty$") // the empty role
	p.Dir = p.temp
	p.Env = append(os.Environ(), append(env, envRole+"="+role, "TMPDIR="+p.temp)...)
	p.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: credential}
	p.Stderr = t.Output()
	if p.stdin, err = p.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	stdout, err := p.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.stdout = bufio.NewReader(stdout)
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = p.Process.Kill()
		_ = p.Wait()
	})
	return p
}

// ready waits until the program has its server, and returns the postmaster's pid.
func (p *program) ready(t *testing.T) int {
	t.Helper()
	line, err := p.stdout.ReadString('\n')
	if err != nil {
		t.Fatalf("the program ended early: %v", err)
	}
	return number(t, strings.TrimPrefix(line, "ready "))
}

func (p *program) leavesNothing(t *testing.T, postmaster int) {
	t.Helper()
	eventually.True(t, "the postmaster is gone", func() bool { return errors.Is(syscall.Kill(postmaster, 0), syscall.ESRCH) })
	eventually.True(t, "the folder is empty", func() bool { return empty(t, p.temp) })
	eventually.True(t, "the watchdog is gone", func() bool { return len(running(t, p.temp)) == 0 })
}

// copyFile puts a file where everybody may run it.
func copyFile(t *testing.T, from string) string {
	t.Helper()
	content, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	to := filepath.Join(openDir(t), "program")
	if err := os.WriteFile(to, content, 0o755); err != nil {
		t.Fatal(err)
	}
	return to
}

func TestNothingIsLeftAfterKillOfTheProgram(t *testing.T) {
	t.Parallel()
	p := startProgram(t, "wait", nil)
	postmaster := p.ready(t)
	if err := p.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	p.leavesNothing(t, postmaster)
}

func TestNothingIsLeftAfterCtrlC(t *testing.T) {
	t.Parallel()
	p := startProgram(t, "wait", nil)
	postmaster := p.ready(t)
	if err := syscall.Kill(-p.Process.Pid, syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	p.leavesNothing(t, postmaster)
}

func TestNothingIsLeftAfterAPanicOrAnExitWithoutStop(t *testing.T) {
	t.Parallel()
	for _, role := range []string{"panic", "exit"} {
		t.Run(role, func(t *testing.T) {
			t.Parallel()
			p := startProgram(t, role, nil)
			postmaster := p.ready(t)
			if err := p.stdin.Close(); err != nil {
				t.Fatal(err)
			}
			p.leavesNothing(t, postmaster)
		})
	}
}

func TestNothingIsLeftAfterKillInMidInitdb(t *testing.T) {
	t.Parallel()
	p := startProgram(t, "wait", nil, envBin+"="+slowInitdb(t))
	eventually.True(t, "initdb is at work", func() bool { return atWork(t, p.temp) })
	if err := p.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	eventually.True(t, "initdb and the watchdog are gone", func() bool { return len(running(t, p.temp)) == 0 })
	nothingLeft(t, p.temp)
}

func TestNobodyCanRunAServerAndLeavesNothing(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("not root: the other tests run as an ordinary user already")
	}
	as := &syscall.Credential{Uid: nobody, Gid: nobody}
	t.Run("after Stop", func(t *testing.T) {
		t.Parallel()
		p := startProgram(t, "stop", as)
		p.ready(t)
		if err := p.stdin.Close(); err != nil {
			t.Fatal(err)
		}
		if err := p.Wait(); err != nil {
			t.Error(err)
		}
		nothingLeft(t, p.temp)
	})
	t.Run("after a kill", func(t *testing.T) {
		t.Parallel()
		p := startProgram(t, "wait", as)
		postmaster := p.ready(t)
		if err := p.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		p.leavesNothing(t, postmaster)
	})
}

// The kernel's signal to orphans is not there on every system, so the watchdog must do without it: here the pipe closes
// while this process, and so postgres, lives on.
func TestTheWatchdogAloneCleansUp(t *testing.T) {
	t.Parallel()
	l := testLauncher(t)
	s := startTest(t, l, Options{})
	if err := s.watchdog.pipe.Close(); err != nil {
		t.Fatal(err)
	}
	<-s.watchdog.done
	nothingLeft(t, l.temp[0])
	if !s.postgres.gone(signalPatience) {
		t.Fatal("postgres lives on")
	}
	if state := s.postgres.cmd.ProcessState; !state.Exited() {
		t.Errorf("postgres had no chance to free its shared memory: %v", state)
	}
	s.watchdog.pipe = nopCloser{}
}

type nopCloser struct{ io.Writer }

func (nopCloser) Close() error { return nil }

func TestTheWatchdogSparesAProcessThatGotThePid(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(openDir(t), "server")
	other := exec.CommandContext(t.Context(), "sleep", "1000")
	c, err := startChild(other)
	if err != nil {
		t.Fatal(err)
	}
	defer c.end(syscall.SIGKILL)
	w, err := startWatchdog(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(dir, "data"), 0o700); err != nil {
		t.Fatal(err)
	}
	pidFile := fmt.Sprintf("%d\n%s/data\n", other.Process.Pid, dir)
	if err := os.WriteFile(filepath.Join(dir, "data", "postmaster.pid"), []byte(pidFile), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := w.release(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-c.done:
		t.Errorf("process %d was killed: %v", other.Process.Pid, c.err)
	default:
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the directory is still there: %v", err)
	}
}
