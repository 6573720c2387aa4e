package store

import (
	"embed"

	"github.com/perkey-go/perkey/internal/luascript"
)

//go:embed lua
var files embed.FS

// Sources are the scripts as Redis gets them, by the names of their files.
var Sources = map[string]string{}

func load(name string) *luascript.Script {
	s := luascript.Load(files, name)
	Sources[name] = s.Source()
	return s
}

var (
	acquireScript    = load("acquire")
	acquireAllScript = load("acquireall")
	admitScript      = load("admit")
	renewScript      = load("renew")
	publishScript    = load("publish")
	refreshScript    = load("refresh")
	raiseScript      = load("raise")
	releaseScript    = load("release")
	downgradeScript  = load("downgrade")
	reserveScript    = load("reserve")
	unreserveScript  = load("unreserve")
	inspectScript    = load("inspect")
	forceScript      = load("force")
)
