package store

import (
	_ "embed" // for constantsSource
	"regexp"
	"strconv"
	"time"
)

// The numbers that scripts and Go agree on are written in lua/constants.lua alone.
//
//go:embed lua/constants.lua
var constantsSource string

var (
	// ClaimLease is how long a waiter that was granted the key has to take it up.
	ClaimLease = time.Duration(constant("CLAIM")) * time.Millisecond
	// FenceBlock is how many fences an exclusive grant may use up.
	FenceBlock = constant("BLOCK")
	// maxQueue is how many tokens can wait for a key in Redis.
	maxQueue = constant("QUEUE")
	// hiddenDigits is how many digits at the end of a token no message shows.
	hiddenDigits = int(constant("SECRET"))
)

// constant reads a number that scripts know by this name. It panics if there is none: the
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
