package history

import (
	"fmt"
	"time"
)

// Kind is what a client asked for.
type Kind string

// The kinds.
const (
	Acquire Kind = "acquire"
	Release Kind = "release"
)

// Mode is how a key is held.
type Mode string

// The modes. The empty Mode is Exclusive.
const (
	Exclusive Mode = ""
	Shared    Mode = "shared"
	Counted   Mode = "counted"
)

// Outcome is what a client was told.
type Outcome string

// The outcomes. The empty one is Unknown: the client was killed before an answer.
const (
	OK       Outcome = "ok"
	Conflict Outcome = "conflict" // the key is held; nothing was taken
	Lost     Outcome = "lost"     // of a release: the lease was over before
	Unknown  Outcome = ""         // it may have happened, now or later, or not
)

// Op is one call of a client. Times are of Now; zero is not known.
type Op struct {
	ID     int64 `json:"id"`
	Client int   `json:"client"` // the process
	Kind   Kind  `json:"kind"`
	Key    string
	Mode   Mode          `json:",omitempty"`
	Limit  int           `json:",omitempty"` // how many hold a Counted key at most
	Lease  time.Duration `json:",omitempty"` // of an acquire: what was asked for
	Wait   bool          `json:",omitempty"` // of an acquire: it waits while the key is held
	Of     int64         `json:",omitempty"` // of a release: the ID of its acquire

	Call    int64
	Return  int64   `json:",omitempty"`
	Outcome Outcome `json:",omitempty"`
	Fence   int64   `json:",omitempty"`

	// The window of a grant: the holder had it at Seen, and its context was
	// alive still at Alive. No window was seen if Alive is zero.
	Seen  int64 `json:",omitempty"`
	Alive int64 `json:",omitempty"`

	// Over is when the client had stopped to renew for certain, or was dead. From
	// then on the lease, if there is one, runs out.
	Over int64 `json:",omitempty"`
}

func (o Op) String() string {
	outcome := o.Outcome
	if outcome == Unknown {
		outcome = "unknown"
	}
	s := fmt.Sprintf("#%d client %d %s %s%s [%d, %d] %s", o.ID, o.Client, o.Kind, o.Key, o.mode(), o.Call, o.Return, outcome)
	if o.Fence != 0 {
		s += fmt.Sprintf(", fence %d, window [%d, %d]", o.Fence, o.Seen, o.Alive)
	}
	if o.Of != 0 {
		s += fmt.Sprintf(", of #%d", o.Of)
	}
	return s
}

func (o Op) mode() string {
	switch o.Mode {
	case Counted:
		return fmt.Sprintf(" (one of %d)", o.Limit)
	case Shared:
		return " (shared)"
	default:
		return ""
	}
}

// granted reports whether the op is a grant that its client saw.
func (o Op) granted() bool { return o.Kind == Acquire && o.Outcome == OK }

// exclude reports whether a and b cannot hold one key together, whoever else does.
func exclude(a, b Op) bool { return a.Mode != b.Mode || a.alone() }

// alone reports whether nobody holds the key beside the op.
func (o Op) alone() bool { return o.Mode == Exclusive || o.Mode == Counted && o.Limit <= 1 }

// Died tells a history that a process was dead at a time: what it held is renewed no more.
func Died(ops []Op, client int, at int64) {
	for i := range ops {
		if o := &ops[i]; o.Client == client && o.Over == 0 {
			o.Over = at
		}
	}
}
