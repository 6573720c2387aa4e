package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/perkey-go/perkey/internal/luascript"
	"github.com/perkey-go/perkey/internal/unixms"
)

// End is how an attempt ends.
type End int

// The ends of an attempt. After the first three the message has ended; after the others it is due again after a delay. The last
// six spend no attempt.
const (
	Finished    End = iota // its handler returned nil
	Died                   // the message is a dead letter
	Outlived               // it failed, and the message would be too old for its next attempt
	Failed                 // it failed
	Postponed              // what it needs is unavailable
	Conflicted             // another key was held
	KeyHeld                // its key was held: a wake of the key makes the message due
	Returned               // it did not begin, or was broken off
	Unreachable            // it did not begin, since its key could not be asked for: as KeyHeld
	HandedBack             // somebody else may be able to run the message
)

// endCodes are what settle.lua calls them.
var endCodes = [...]string{
	Finished: "d", Died: "x", Outlived: "E", Failed: "r", Postponed: "b", Conflicted: "b", KeyHeld: "bw", Returned: "b", Unreachable: "bw", HandedBack: "h",
}

// Final reports whether the message has ended.
func (e End) Final() bool { return e <= Outlived }

// AwaitsKey reports whether a wake of its key makes the message due.
func (e End) AwaitsKey() bool { return e == KeyHeld || e == Unreachable }

// HasCause reports whether the message has another cause from now on.
func (e End) HasCause() bool { return e >= Died && e <= Postponed || e == HandedBack }

// What a dead letter halts.
const (
	HaltsNothing = "-"
	HaltsParked  = "p" // the messages of its key
	HaltsKey     = "k" // all calls of its key
)

// Settlement ends an attempt, and claims the next message.
type Settlement struct {
	Message *Message
	Token   string // of its claim
	End     End
	Lost    bool          // whether the attempt ran to its end is not known
	Halts   string        // of a dead letter
	Delay   time.Duration // of what is due again
	Cause   []byte        // if the End has one
	Result  []byte

	Next  string // the token to claim the next message with; "" for none
	OfKey bool   // the next of its key; else any that is due
	Lease time.Duration
	First time.Time // when it was sent first; Settle sets it

	// The result.
	Err     error
	Held    bool     // the claim was the caller's
	Claimed *Message // the next one
	AnyDue  bool     // a message is due now
	Sent    time.Time
	done    chan struct{}
}

// errClockBack: Redis answered by a clock that is behind the one that was known, as another node's
// may be after a failover. What this settlement claimed when it was sent first can have an earlier end than
// was asked for: it is sent again, by the new clock.
var errClockBack = errors.New("redis has another clock, which is behind")

var fitSettles = fits(func(s *Settlement) int { return len(s.Result) })

// Settle ends an attempt, together with others. The result is there once done is closed; after an error the caller settles again.
func (p *Partition) Settle(s *Settlement) (done <-chan struct{}) {
	s.done = make(chan struct{})
	_ = p.settles.Add(s) // never closed
	return s.done
}

// SettleTogether ends attempts by one call of the script.
func (p *Partition) SettleTogether(batch []*Settlement) {
	args := make([]any, 0, 2+12*len(batch))
	again := make([]bool, len(batch))
	lease, ends, clock, now := time.Duration(0), int64(math.MaxInt64), p.clock.Load(), time.Now()
	for i, s := range batch {
		lease = max(lease, s.Lease)
		if again[i] = !s.First.IsZero(); !again[i] {
			s.First = now
		}
		ends = min(ends, clock.at(s.First)+s.Lease.Milliseconds())
	}
	args = append(args, lease.Milliseconds(), ends)
	var long []string
	for _, s := range batch {
		args = s.appendArgs(args)
		if s.Message.long {
			long = append(long, s.Message.ID)
		}
	}
	ctx, sent := context.Background(), time.Now()
	reply, err := p.change(ctx, settleScript, long, args...)
	anyDue, answered := false, time.Time{}
	if err == nil && len(reply) != len(batch)+3 {
		err = luascript.ErrReply
	}
	if err == nil {
		var ok bool
		if answered, ok = p.readClock(reply[len(batch)]); !ok {
			err = luascript.ErrReply
		}
		anyDue = reply[len(batch)+1] == int64(1)
		p.noteForgotten(reply[len(batch)+2])
	}
	var next []*Message
	for i, s := range batch {
		if s.Err = err; err == nil {
			s.Err = s.read(reply[i], answered)
			if s.Err == nil && again[i] && s.Claimed == nil && answered.UnixMilli() < clock.at(now) {
				s.Err = errClockBack
			}
		}
		if s.Claimed != nil {
			next = append(next, s.Claimed)
		}
	}
	err = p.fetch(ctx, lease, next) // to settle again with the tokens brings them again
	for _, s := range batch {
		if s.Err = cmp.Or(s.Err, err); s.Err != nil {
			s.Err = Unavailable(ctx, "settle", s.Err)
		}
		s.AnyDue, s.Sent = anyDue, sent
		if s.done != nil {
			close(s.done)
		}
	}
}

const never = 1e13 // ms: when a message whose record cannot be read becomes too old

// count is the history of the message from now on.
func (s *Settlement) count() Attempts {
	m := s.Message
	a := Attempts{Attempts: m.Attempts, Conflicts: m.Conflicts, Losses: m.Losses, Handed: m.Handed, Cause: m.Cause}
	if s.End.HasCause() {
		a.Cause = string(s.Cause)
	}
	if s.End >= Postponed {
		a.Attempts = max(0, a.Attempts-1)
	}
	if s.End == Conflicted || s.End == KeyHeld {
		a.Conflicts++
	}
	if s.End == Postponed || s.End == HandedBack {
		a.Handed++
	}
	if s.Lost {
		a.Losses++
	}
	return a
}

// appendArgs appends the arguments of settle.lua.
func (s *Settlement) appendArgs(args []any) []any {
	m, how, slot := s.Message, endCodes[s.End], ""
	switch {
	case s.End == Died:
		how += s.Halts
	case s.End.Final() && m.given:
		how += "g"
	}
	if m.coalesces {
		slot = "s" + About(m.Key, m.Name, m.Principal)
	}
	args = append(args, m.ID, m.Key, m.Principal, m.seq, m.state, how, slot, m.size)
	if s.End.Final() {
		args = append(args, s.ending(), s.Result)
	} else {
		args = append(args, s.attempts(), fmt.Sprint(Milliseconds(s.Delay), " ", cmp.Or(unixms.Of(m.ExpiresAt), never)))
	}
	switch {
	case s.Next == "":
		return append(args, "", "")
	case s.OfKey:
		return append(args, s.Next, "k")
	default:
		return append(args, s.Next, "a")
	}
}

// read reads the reply for this one.
func (s *Settlement) read(reply any, now time.Time) error {
	s.Held, s.Claimed = false, nil
	f, ok := reply.([]any)
	switch {
	case !ok:
		f = []any{reply}
	case len(f) == messageFields:
		f = []any{int64(1), reply}
	}
	if len(f) == 0 || f[0] != int64(0) && f[0] != int64(1) {
		return luascript.ErrReply
	}
	s.Held = f[0] == int64(1)
	if len(f) > 1 && f[1] != nil {
		if s.Claimed, ok = readMessage(f[1], now); !ok {
			return luascript.ErrReply
		}
	}
	return nil
}
