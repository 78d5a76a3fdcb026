//go:build !linux

package localpg

import "syscall"

// dieWith does nothing here: only Linux signals the children of a dead process. The watchdog does it alone.
func dieWith(*syscall.SysProcAttr, syscall.Signal) {}
