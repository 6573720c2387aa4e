package store

import "time"

// State is where a message is in its life.
type State int

// The states of a message.
const (
	None   State = iota // there is no such message
	Queued              // it waits for its time, for those before it, for its key, or for somebody who runs it
	Running
	Done
	Dead // it is a dead letter
	Expired
	Cancelled
	Superseded
)

// Ended reports whether the state is final.
func (s State) Ended() bool { return s > Running }

// Status is what is stored about a message.
type Status struct {
	ID, Key, Name, Principal    string
	State                       State
	Attempts, Conflicts, Losses int
	EnqueuedAt, ExpiresAt       time.Time
	Cause                       string // of its last failed attempt, or of its death
	SupersededBy                string
}
