// Package plan is what the host and a world tell each other.
package plan

import "time"

// Worlds are the kinds of worlds: calls for keys; a queue and its workers; a service whose clients ask again.
var Worlds = []string{"locks", "queue", "web"}

// Config is what a world is asked for. What is zero is decided by the seed.
type Config struct {
	Seed          uint64
	World         string
	Processes     int
	Seconds       int      // of faults, in virtual time
	With, Without []string // kinds of faults that happen in any case, or not at all
	Mutant        string   // which one this is, if it was built with mutants
	Trace         bool     // every command that Redis runs is among the events
}

// Report is what came of a world.
type Report struct {
	Processes  int
	Calls      map[string]int // by kind
	Faults     map[string]int
	Virtual    time.Duration
	Digest     string // of everything that happened, and when
	Order      string // of what happened, in its order
	Violations []string
	Events     []string // until the first violation
	Stacks     string   // of all goroutines then
}
