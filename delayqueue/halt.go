package delayqueue

import "github.com/perkey-go/perkey/delayqueue/internal/store"

// Halt says what does not run after a dead letter: see [WithHaltOnDeath].
type Halt int

const (
	// HaltNothing lets the next message of the key run.
	HaltNothing Halt = iota
	// HaltParked halts the messages of the key that are in the queue. Fresh
	// calls of the key run.
	HaltParked
	// HaltKey halts fresh calls too: they meet a conflict, as while the key is reserved
	// for parked work, for at most 24 h after the death.
	HaltKey
)

var halts = [...]string{HaltNothing: store.HaltsNothing, HaltParked: store.HaltsParked, HaltKey: store.HaltsKey}

// WithHaltOnDeath sets what a dead letter halts. With [HaltParked] or [HaltKey] the other messages
// of its key, queued and new ones, wait until the dead letter is redriven or purged, or its
// [WithDeadRetention] is over, or it is forgotten for lack of room: see [WarnForgotten]. They still
// expire when they become too old. A dead letter that is redriven returns to its old place, before
// all others of its key. [Stats].Halted counts the keys that are halted. The option of the worker's
// Queue counts, not that of the Queue that stored the job. Default [HaltNothing].
func WithHaltOnDeath(h Halt) Option {
	return func(q *settings) error {
		q.halt = h
		if h < HaltNothing || h > HaltKey {
			return invalidOption("WithHaltOnDeath(%d): want HaltNothing, HaltParked or HaltKey", h)
		}
		return nil
	}
}
