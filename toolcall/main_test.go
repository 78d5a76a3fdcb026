package toolcall

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/callreceipt/reconciler/internal/localpg"
)

func TestMain(m *testing.M) {
	if err := os.Setenv("NO_PROXY", "*"); err != nil { // the servers here are local
		panic(err)
	}
	code := localpg.Main(m)
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}
