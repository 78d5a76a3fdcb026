package receipt

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if err := os.Setenv("NO_PROXY", "*"); err != nil { // the servers here are local
		panic(err)
	}
	goleak.VerifyTestMain(m)
}
