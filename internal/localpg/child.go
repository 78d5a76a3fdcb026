package localpg

import (
	"os/exec"
	"runtime"
	"syscall"
	"time"
)

// child is a process of ours that must not outlive us.
type child struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when the process is gone
	err  error         // of its end; to be read after done
}

// startChild starts cmd from a thread that lives as long as the process: the parent-death signal fires at the death
// of the thread that forked, and Go ends the thread of a locked goroutine with that goroutine.
func startChild(cmd *exec.Cmd) (*child, error) {
	c := &child{cmd: cmd, done: make(chan struct{})}
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: nobody else shall get this thread
		err := cmd.Start()
		started <- err
		if err == nil {
			c.err = cmd.Wait()
			close(c.done)
		}
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return c, nil
}

// end sends the signals one after the other, each when the one before brought nothing within signalPatience, and tells
// whether the process is gone.
func (c *child) end(signals ...syscall.Signal) bool {
	for _, sig := range signals {
		_ = c.cmd.Process.Signal(sig) // an error means that it is gone already, which the wait below sees
		if c.gone(signalPatience) {
			return true
		}
	}
	return false
}

// killGroup kills the process and those it started, and waits for it.
func (c *child) killGroup() {
	_ = syscall.Kill(-c.cmd.Process.Pid, syscall.SIGKILL)
	c.gone(signalPatience)
}

func (c *child) gone(within time.Duration) bool {
	timer := time.NewTimer(within)
	defer timer.Stop()
	select {
	case <-c.done:
		return true
	case <-timer.C:
		return false
	}
}
