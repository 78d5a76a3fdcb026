package chaos

import (
	"os"
	"testing"

	"github.com/callreceipt/reconciler/internal/localpg"
)

// roleVariable makes this test binary the program that is to be killed.
const roleVariable = "CHAOS_ROLE"

func TestMain(m *testing.M) {
	if os.Getenv(roleVariable) == "downstream" {
		serveDownstream()
		return
	}
	os.Exit(localpg.Main(m))
}

// size is the small size, or the full one.
func size(small, full int) int {
	if os.Getenv("CHAOS_FULL") == "1" {
		return full
	}
	return small
}
