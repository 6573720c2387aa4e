package core_test

import (
	"os"
	"testing"

	"github.com/perkey-go/perkey/internal/test/redistest"
)

// children are what this test binary is instead, by the variable that says so.
var children = map[string]func(){holderVar: runHolder}

func TestMain(m *testing.M) {
	for name, run := range children {
		if os.Getenv(name) != "" {
			run()
			return
		}
	}
	redistest.Main(m)
}
