package delayqueue

import (
	_ "embed"

	"github.com/redis/go-redis/v9"
)

// The scripts are plain EVAL scripts, without a #! line: they must run on
// Redis 6.2, and must be able to end a message when Redis is out of memory,
// which a #! script without allow-oom cannot.
var (
	//go:embed lua/common.lua
	commonSource string
	//go:embed lua/enqueue.lua
	enqueueSource string
	//go:embed lua/claim.lua
	claimSource string
	//go:embed lua/extend.lua
	extendSource string
	//go:embed lua/settle.lua
	settleSource string
	//go:embed lua/nudge.lua
	nudgeSource string
	//go:embed lua/cancel.lua
	cancelSource string
	//go:embed lua/admit.lua
	admitSource string
	//go:embed lua/receipt.lua
	receiptSource string
	//go:embed lua/redrive.lua
	redriveSource string
	//go:embed lua/purge.lua
	purgeSource string
	//go:embed lua/page.lua
	pageSource string
	//go:embed lua/stats.lua
	statsSource string

	enqueueScript = redis.NewScript(commonSource + admitSource + enqueueSource)
	claimScript   = redis.NewScript(commonSource + claimSource)
	extendScript  = redis.NewScript(commonSource + extendSource)
	settleScript  = redis.NewScript(commonSource + settleSource)
	nudgeScript   = redis.NewScript(commonSource + nudgeSource)
	cancelScript  = redis.NewScript(commonSource + cancelSource)
	redriveScript = redis.NewScript(commonSource + admitSource + receiptSource + redriveSource)
	purgeScript   = redis.NewScript(commonSource + receiptSource + purgeSource)
)
