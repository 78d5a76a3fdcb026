package main

import (
	"flag"
	"runtime"
	"strconv"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/callreceipt/reconciler/internal/localpg"
)

// suite runs the tests in the order that both of its halves need: testscript first looks whether this process is to play
// reconciler, which must start no server; else it puts the program into PATH, runs the suite, and exits with its code.
// localpg.Main ends the server before that exit.
type suite struct{ m *testing.M }

func (s suite) Run() int {
	// Most of these tests wait for a process that waits itself. More of them than there are cores are at it together, unless the
	// command line says otherwise.
	if err := flag.Set("test.parallel", strconv.Itoa(max(waiting, runtime.GOMAXPROCS(0)))); err != nil {
		panic(err) // testing has that flag
	}
	return localpg.Main(s.m)
}

// waiting is how many tests run at once.
const waiting = 8

func TestMain(m *testing.M) {
	testscript.Main(suite{m}, map[string]func(){"reconciler": main})
}
