package partition

import (
	"os"
	"testing"

	"github.com/callreceipt/reconciler/internal/localpg"
)

func TestMain(m *testing.M) {
	if dsn := os.Getenv(childDSN); dsn != "" {
		child(dsn)
		return
	}
	os.Exit(localpg.Main(m))
}
