package ops_test

import (
	"os"
	"testing"

	"github.com/perkey-go/perkey/internal/test/redistest"
)

func TestMain(m *testing.M) {
	if os.Getenv(processVar) != "" {
		runProcess()
		return
	}
	redistest.Main(m)
}
