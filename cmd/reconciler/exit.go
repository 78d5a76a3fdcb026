package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/callreceipt/reconciler/config"
	"github.com/callreceipt/reconciler/internal/task"
)

// The exit codes of DESIGN section 9.
const (
	exitDone     = 0
	exitFailed   = 1
	exitUsage    = 2
	exitPartial  = 3
	exitNotRun   = 4
	exitProblems = 5
	exitSignal   = 128
)

// exitError ends the command with a code. What is to be said may have been said already; err is nil then.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit %d", e.code)
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

func usage(err error) error { return &exitError{code: exitUsage, err: err} }

// signalError is the cause with which the context ends at the first signal.
type signalError struct{ sig syscall.Signal }

func (e *signalError) Error() string { return fmt.Sprintf("stopped by %s", e.sig) }

// exitCode turns the error of a command into its code. entered tells whether the command itself began: before that,
// whatever went wrong is usage.
func exitCode(ctx context.Context, err error, entered bool) int {
	var stopped *signalError
	if errors.Is(err, errDrained) {
		return exitDone
	}
	if errors.As(context.Cause(ctx), &stopped) {
		return exitSignal + int(stopped.sig)
	}
	var exit *exitError
	var problems *config.Problems
	switch {
	case err == nil:
		return exitDone
	case errors.As(err, &exit):
		return exit.code
	case errors.As(err, &problems), !entered:
		return exitUsage
	}
	return exitFailed
}

// outcomeCode is the exit code of a task.
func outcomeCode(o task.Outcome) int {
	switch o {
	case task.Success:
		return exitDone
	case task.Partial:
		return exitPartial
	case task.Skipped:
		return exitNotRun
	case task.Failed:
	}
	return exitFailed
}

// untilSignal ends the context at the first SIGINT or SIGTERM, so that the work in hand is finished. The second one
// ends the process at once, through quit.
func untilSignal(parent context.Context, quit func(code int)) (ctx context.Context, done func()) {
	ctx, cancel := context.WithCancelCause(parent)
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	over := make(chan struct{})
	go func() {
		for first := true; ; first = false {
			select {
			case <-over:
				return
			case s := <-signals:
				sig, _ := s.(syscall.Signal)
				if !first {
					quit(exitSignal + int(sig))
				}
				cancel(&signalError{sig: sig})
			}
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		close(over)
		cancel(nil)
	}
}
