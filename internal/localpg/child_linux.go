package localpg

import "syscall"

// dieWith asks the kernel to send sig to the child when the thread that starts it dies.
func dieWith(attr *syscall.SysProcAttr, sig syscall.Signal) { attr.Pdeathsig = sig }
