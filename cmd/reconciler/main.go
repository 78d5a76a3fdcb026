// Command reconciler settles calls whose outcome is unknown, from the receipts of their downstreams.
//
// Rules of its output: stdout is data and nothing else; stderr is logs, progress and errors. A table is for people, so its
// times are relative and its colours appear on a terminal only; -o json and -o jsonl are for machines, and their field names
// are a contract. The exit code says what happened:
//
//	0 done, also when there was nothing to do     4 not run: another holder has the lease
//	1 failed                                      5 a check found problems
//	2 usage or configuration                      128+n ended by signal n
//	3 partly done, safe to run again
package main

import (
	"context"
	"os"
	_ "time/tzdata" // schedules know every zone, also in an image without one
)

func main() {
	os.Exit(run(context.Background(), os.Args[1:], stdio{out: os.Stdout, err: os.Stderr}, os.Environ()))
}
