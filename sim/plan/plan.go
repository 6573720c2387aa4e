// Package plan is what the host and a world tell each other.
package plan

import "time"

// Worlds are the kinds of worlds: calls for keys; a queue and its workers; a service whose clients ask again.
var Worlds = []string{"locks", "queue", "web"}

// Faults are the kinds of faults, each with what happens.
var Faults = map[string]string{
	"lost": "a request or its reply is lost, with its connection", "late": "a message takes up to a second longer", "deaf": "a message that Redis publishes is lost",
	"cut": "a connection breaks", "half-open": "a connection carries nothing more, and nobody is told", "slow": "everything takes 50 to 1,200 ms longer",
	"stop": "a process stands still for 0.2 to 6 s", "die": "a process dies, or its machine", "deploy": "a process is told to end within 3 s, and another starts",
	"restart": "Redis is away for up to 7 s", "wipe": "Redis restarts without its data", "full": "Redis refuses what needs memory", "read-only": "Redis refuses to write",
	"forget": "Redis forgets its scripts", "busy": "a script takes Redis 0.5 to 5 ms, one after the other", "clock-back": "the clock of Redis is set back by up to 3 s", "clock-forward": "it is set forward",
}

// Config is what a world is asked for. What is zero is decided by the seed.
type Config struct {
	Seed          uint64
	World         string
	Processes     int
	Seconds       int      // of faults, in virtual time
	With, Without []string // kinds of faults that happen in any case, or not at all
	Mutant        string   // which one this is, if it was built with mutants
	Strict        []string // what is not promised and counts as broken too: that "redis" keeps its data and its time, that no handler is "deaf" to its ctx
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
