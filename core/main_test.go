package core_test

import (
	"os"
	"testing"

	"github.com/perkey-go/perkey/internal/test/redistest"
)

func TestMain(m *testing.M) {
	if os.Getenv(holderVar) != "" {
		runHolder()
		return
	}
	if os.Getenv(stoppedVar) != "" {
		runStopped()
		return
	}
	if os.Getenv(clientVar) != "" {
		runClient()
		return
	}
	redistest.Main(m)
}
