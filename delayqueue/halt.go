package delayqueue

// Halt is what a dead letter keeps from running: see [WithHaltOnDeath].
type Halt int

const (
	// HaltNothing lets the next message of the key run.
	HaltNothing Halt = iota
	// HaltParked keeps the messages of the key from being run that are in the queue. Fresh
	// calls of the key run.
	HaltParked
	// HaltKey keeps fresh calls out too: they meet a conflict, as while the key is reserved
	// for parked work, for 24 h at most after the death.
	HaltKey
)

// haltLetters are what the scripts are told of it.
var haltLetters = [...]string{HaltNothing: "-", HaltParked: "p", HaltKey: "k"}

// WithHaltOnDeath has a message that becomes a dead letter halt its key: the messages of the key that are queued,
// and those that come, wait until the letter is redriven or purged, or its WithDeadRetention is
// over. They expire as ever when they become too old. A letter that is redriven takes its old place, before all
// others of its key. Stats.Halted counts the keys. The worker's queue decides, not the one that
// took the job. Default HaltNothing.
func WithHaltOnDeath(h Halt) Option {
	return func(q *Queue) error {
		q.halt = h
		if h < HaltNothing || h > HaltKey {
			return invalidOption("WithHaltOnDeath(%d): want HaltNothing, HaltParked or HaltKey", h)
		}
		return nil
	}
}
