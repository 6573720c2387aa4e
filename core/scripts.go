package core

import (
	_ "embed"

	"github.com/redis/go-redis/v9"
)

// The scripts are plain EVAL scripts, without a #! line: they must run on
// Redis 6.2, and release must work when Redis is out of memory, which a
// #! script without allow-oom does not.
var (
	//go:embed lua/acquire.lua
	acquireSource string
	//go:embed lua/renew.lua
	renewSource string
	//go:embed lua/release.lua
	releaseSource string

	acquireScript = newScript(acquireSource)
	renewScript   = newScript(renewSource)
	releaseScript = newScript(releaseSource)
)

// script is a script as go-redis takes it in a command: boxed once.
type script struct{ source, hash any }

func newScript(source string) *script {
	return &script{source: source, hash: redis.NewScript(source).Hash()}
}
