package console

import (
	"time"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/ops"
)

// Fleet is what processes tell of themselves.
type Fleet struct{ Processes []Process }

// Process is one of them.
type Process struct {
	ID, Host, Version, Go, Service string
	Lockers                        []string
	PID                            int
	Started, At                    time.Time
	Snapshot                       ops.Snapshot
	Local                          core.Local
	Workers                        []Worker
	Events                         []Event
}

// Worker is a worker of a process.
type Worker struct {
	Queue           string
	Slots, Running  int
	LastClaim       time.Time
	Paused, Stopped bool
}

// Event is a notable event.
type Event struct {
	At                   time.Time
	Source, Kind         string
	Queue, Key, Name, ID string
	Fence                int64
	Took                 time.Duration
	Detail               string
	Count                int64
}
