package core

import (
	"embed"

	"github.com/perkey-go/perkey/internal/luascript"
)

var (
	//go:embed lua
	scripts embed.FS

	acquireScript    = luascript.Load(scripts, "acquire")
	acquireAllScript = luascript.Load(scripts, "acquireall")
	admitScript      = luascript.Load(scripts, "admit")
	renewScript      = luascript.Load(scripts, "renew")
	publishScript    = luascript.Load(scripts, "publish")
	refreshScript    = luascript.Load(scripts, "refresh")
	raiseScript      = luascript.Load(scripts, "raise")
	releaseScript    = luascript.Load(scripts, "release")
	downgradeScript  = luascript.Load(scripts, "downgrade")
	reserveScript    = luascript.Load(scripts, "reserve")
	unreserveScript  = luascript.Load(scripts, "unreserve")
	inspectScript    = luascript.Load(scripts, "inspect")
	forceScript      = luascript.Load(scripts, "force")
)
