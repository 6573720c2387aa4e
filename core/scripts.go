package core

import (
	_ "embed"
	"strings"

	"github.com/redis/go-redis/v9"
)

// The scripts are plain EVAL scripts, without a #! line: they must run on
// Redis 6.2, and release must work when Redis is out of memory, which a
// #! script without allow-oom does not.
var (
	//go:embed lua/acquire.lua
	acquireSource string
	//go:embed lua/admit.lua
	admitSource string
	//go:embed lua/acquireall.lua
	acquireAllSource string
	//go:embed lua/renew.lua
	renewSource string
	//go:embed lua/release.lua
	releaseSource string
	//go:embed lua/inspect.lua
	inspectSource string
	//go:embed lua/force.lua
	forceSource string
	//go:embed lua/downgrade.lua
	downgradeSource string
	//go:embed lua/reserve.lua
	reserveSource string
	//go:embed lua/unreserve.lua
	unreserveSource string
	//go:embed lua/raise.lua
	raiseSource string
	//go:embed lua/record.lua
	recordSource string
	//go:embed lua/message.lua
	messageSource string
	//go:embed lua/queue.lua
	queueSource string

	constants        = strings.NewReplacer("-- #include constants.lua\n", constantsSource)
	included         = strings.NewReplacer("-- #include record.lua\n", constants.Replace(recordSource), "-- #include message.lua\n", messageSource, "-- #include queue.lua\n", queueSource)
	acquireScript    = newScript(included.Replace(acquireSource))
	acquireAllScript = newScript(included.Replace(acquireAllSource))
	admitScript      = newScript(included.Replace(admitSource))
	renewScript      = newScript(constants.Replace(renewSource))
	raiseScript      = newScript(constants.Replace(raiseSource))
	releaseScript    = newScript(included.Replace(releaseSource))
	downgradeScript  = newScript(included.Replace(downgradeSource))
	reserveScript    = newScript(included.Replace(reserveSource))
	unreserveScript  = newScript(included.Replace(unreserveSource))
	inspectScript    = newScript(inspectSource)
	forceScript      = newScript(included.Replace(forceSource))
)

// script is a script as go-redis takes it in a command: boxed once.
type script struct{ source, hash any }

func newScript(source string) *script {
	return &script{source: source, hash: redis.NewScript(source).Hash()}
}
