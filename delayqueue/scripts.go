package delayqueue

import (
	"embed"

	"github.com/perkey-go/perkey/internal/luascript"
)

var (
	//go:embed lua
	scripts embed.FS

	enqueueScript = luascript.Load(scripts, "enqueue")
	claimScript   = luascript.Load(scripts, "claim")
	extendScript  = luascript.Load(scripts, "extend")
	settleScript  = luascript.Load(scripts, "settle")
	wakeScript    = luascript.Load(scripts, "wake")
	cancelScript  = luascript.Load(scripts, "cancel")
	redriveScript = luascript.Load(scripts, "redrive")
	purgeScript   = luascript.Load(scripts, "purge")
	pageScript    = luascript.Load(scripts, "page")
	untilScript   = luascript.Load(scripts, "until")
	statsScript   = luascript.Load(scripts, "stats")

	manifestScript = luascript.Load(scripts, "manifest")
	payloadsScript = luascript.Load(scripts, "payloads")
	freeScript     = luascript.Load(scripts, "free")
)
