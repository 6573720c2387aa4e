package store

import (
	"embed"

	"github.com/perkey-go/perkey/internal/luascript"
)

//go:embed lua
var files embed.FS

var (
	enqueueScript  = luascript.Load(files, "enqueue")
	claimScript    = luascript.Load(files, "claim")
	extendScript   = luascript.Load(files, "extend")
	settleScript   = luascript.Load(files, "settle")
	wakeScript     = luascript.Load(files, "wake")
	cancelScript   = luascript.Load(files, "cancel")
	redriveScript  = luascript.Load(files, "redrive")
	purgeScript    = luascript.Load(files, "purge")
	pageScript     = luascript.Load(files, "page")
	untilScript    = luascript.Load(files, "until")
	statsScript    = luascript.Load(files, "stats")
	manifestScript = luascript.Load(files, "manifest")
	payloadsScript = luascript.Load(files, "payloads")
	freeScript     = luascript.Load(files, "free")
)

// Scripts are those of messages, by their names, for tests that break them or look for their calls.
var Scripts = map[string]*luascript.Script{
	"enqueue": enqueueScript, "claim": claimScript, "extend": extendScript, "settle": settleScript, "wake": wakeScript, "cancel": cancelScript,
	"redrive": redriveScript, "purge": purgeScript, "page": pageScript, "payloads": payloadsScript, "free": freeScript,
}
