package localpg

import (
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
)

//go:embed watchdog.sh
var watchdogScript string

// watchdog is a shell in a session of its own that outlives us by the moment it takes to clean up. It waits at a pipe
// whose write end closes with us; Go marks that end close-on-exec, so no other process keeps it open.
type watchdog struct {
	pipe io.WriteCloser
	*child
}

func startWatchdog(dir string) (*watchdog, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer r.Close()                                                                     //nolint:errcheck // the shell has its own descriptor
	cmd := exec.Command("/bin/sh", "-c", watchdogScript, "reconciler-pg-watchdog", dir) //nolint:noctx // it outlives every context
	cmd.Stdin = r
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	c, err := startChild(cmd)
	if err != nil {
		return nil, errors.Join(err, w.Close())
	}
	return &watchdog{pipe: w, child: c}, nil
}

// guard names the process group that has to be killed when we die; 0 is none.
func (w *watchdog) guard(group int) error {
	if _, err := fmt.Fprintln(w.pipe, group); err != nil {
		return fmt.Errorf("the watchdog is gone: %w", err)
	}
	return nil
}

// release lets the watchdog go over what is left, normally nothing, and waits for its end.
func (w *watchdog) release() error {
	err := w.pipe.Close()
	if !w.gone(3 * signalPatience) {
		err = errors.Join(err, errors.New("it is still at work"))
	}
	return err
}
