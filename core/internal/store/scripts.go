package store

// The scripts, and the numbers that they share with Go.

import (
	"embed"
	"regexp"
	"strconv"
	"time"

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
	acquiresScript   = load("acquires")
	acquireAllScript = load("acquireall")
	admitScript      = load("admit")
	renewScript      = load("renew")
	publishScript    = load("publish")
	refreshScript    = load("refresh")
	raiseScript      = load("raise")
	releaseScript    = load("release")
	releasesScript   = load("releases")
	downgradeScript  = load("downgrade")
	reserveScript    = load("reserve")
	unreserveScript  = load("unreserve")
	inspectScript    = load("inspect")
	forceScript      = load("force")
)

// The numbers that scripts and Go agree on are written in lua/constants.lua alone.
//
//go:embed lua/constants.lua
var constantsSource string

var (
	// ClaimLease is the lease of a waiter that was granted the key, until its first renewal.
	ClaimLease = time.Duration(constant("CLAIM")) * time.Millisecond
	// WaiterLife is how long a token stays in a key's FIFO without a refresh.
	WaiterLife = time.Duration(constant("ALIVE")) * time.Millisecond
	// FenceBlock is how many fences an exclusive grant may use up.
	FenceBlock = constant("BLOCK")
	// usualTTL is the TTL of a record that does not say one.
	usualTTL = time.Duration(constant("USUAL")) * time.Millisecond
	// maxQueue is how many tokens can wait for a key in Redis.
	maxQueue = constant("QUEUE")
	// hiddenDigits is how many digits at the end of a token no message shows.
	hiddenDigits = int(constant("SECRET"))
)

// constant reads a number from constants.lua by its name there. It panics if there is none: the
// names are constants themselves.
func constant(name string) int64 {
	found := regexp.MustCompile(`(?m)^local ` + name + ` = (\d+)\b`).FindStringSubmatch(constantsSource)
	if found == nil {
		panic("store: lua/constants.lua has no " + name)
	}
	n, err := strconv.ParseInt(found[1], 10, 64)
	if err != nil {
		panic(err)
	}
	return n
}
