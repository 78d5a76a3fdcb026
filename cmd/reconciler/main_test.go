package main

import (
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/callreceipt/reconciler/internal/localpg"
)

// suite runs the tests in the order that both of its halves need: testscript first looks whether this process is to play
// reconciler, which must start no server; else it puts the program into PATH, runs the suite, and exits with its code.
// localpg.Main ends the server before that exit.
type suite struct{ m *testing.M }

func (s suite) Run() int { return localpg.Main(s.m) }

func TestMain(m *testing.M) {
	testscript.Main(suite{m}, map[string]func(){"reconciler": main})
}
