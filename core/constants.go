package core

import (
	_ "embed"
	"regexp"
	"strconv"
	"time"
)

// The numbers that scripts and the Locker agree on are written in lua/constants.lua alone.
//
//go:embed lua/constants.lua
var constantsSource string

var (
	// claimLease is how long a waiter that was granted the key has to take it up.
	claimLease = time.Duration(constant("CLAIM")) * time.Millisecond
	// fenceBlock is how many fences an exclusive grant may use up.
	fenceBlock = constant("BLOCK")
	// maxQueue is how many entries can wait for a key in Redis.
	maxQueue = constant("QUEUE")
	// secretLen is how many digits at the end of an entry no message shows.
	secretLen = int(constant("SECRET"))
)

// constant reads a number that scripts know by this name. It panics if there is none: the
// names are constants themselves.
func constant(name string) int64 {
	found := regexp.MustCompile(`(?m)^local ` + name + ` = (\d+)\b`).FindStringSubmatch(constantsSource)
	if found == nil {
		panic("core: lua/constants.lua has no " + name)
	}
	n, err := strconv.ParseInt(found[1], 10, 64)
	if err != nil {
		panic(err)
	}
	return n
}
