package core_test

import (
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

// scriptMutant is a broken script, which the checkers have to catch at a workload.
type scriptMutant struct {
	name     string
	script   string // a name in core.Scripts; "": all that have the piece
	old, new string // old stands in the script exactly once
	play     string // a name in plays
}

// hook has a client run the mutant in place of the script.
func (m scriptMutant) hook(t *testing.T) (redis.Hook, *atomic.Int64) {
	t.Helper()
	return redistest.BreakScript(t, core.Scripts, m.script, m.old, m.new)
}
