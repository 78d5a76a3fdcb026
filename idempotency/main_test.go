package idempotency_test

import (
	"os"
	"testing"

	"github.com/callreceipt/reconciler/internal/localpg"
)

func TestMain(m *testing.M) { os.Exit(localpg.Main(m)) }
