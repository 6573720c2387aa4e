// Package retry is the conflict policy that waits and asks again, with exponential backoff and
// jitter, until it gets the key or reaches a limit.
package retry

import (
	"context"
	"fmt"
	"time"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/backoff"
	"github.com/perkey-go/perkey/internal/nilcheck"
)

// Defaults of a Policy's zero fields.
const (
	DefaultInitial = 20 * time.Millisecond
	DefaultMax     = 500 * time.Millisecond
	DefaultMaxWait = 2 * time.Second
)

// Jitter says how delays are randomized, so that calls that collided once do not collide again.
type Jitter int

const (
	// FullJitter takes a random delay up to the exponential one. The default.
	FullJitter Jitter = iota
	// DecorrelatedJitter takes a random delay from Initial to three times the delay before.
	DecorrelatedJitter
)

// Policy lets a call whose key is held wait, and ask again after delays that grow from Initial to Max. The release of
// the key wakes it earlier. When MaxAttempts or MaxWait is reached, or the next delay would outlast the ctx's deadline,
// Then decides.
//
// A call's preference (core.Preference) can shorten the wait, never lengthen it. If the call
// prefers to be deferred and Then defers, it does not wait at all.
//
// The zero Policy is ready to use. A Policy has no state and is safe for concurrent use.
type Policy struct {
	// Initial is the first delay before jitter. Zero: 20 ms. Initial, Max and MaxWait are zero or at least 1 ms.
	Initial time.Duration
	// Max is the longest delay before jitter. Zero: 500 ms, or Initial if that is longer.
	Max time.Duration
	// MaxWait is the longest time from the first attempt to the last, which is made when it is over. Zero: 2 s.
	MaxWait time.Duration
	// MaxAttempts is how often the call may ask for the key, the first time included. Waiting for
	// another call of the same process counts as one. Zero: as often as MaxWait allows.
	MaxAttempts int
	// Jitter says how delays are randomized.
	Jitter Jitter
	// Then decides when waiting has not helped. Nil: the call is rejected.
	Then core.ConflictPolicy
}

var (
	_ core.ConflictPolicy   = Policy{}
	_ core.PreferencePolicy = Policy{}
)

// Validate returns an error that wraps core.ErrInvalidOption if a field is invalid, Then included.
// core.Locker.Guard calls it.
func (p Policy) Validate() error {
	invalid := func(format string, args ...any) error {
		return fmt.Errorf("retry: %w: Policy.%s", core.ErrInvalidOption, fmt.Sprintf(format, args...))
	}
	for _, f := range []struct {
		name string
		d    time.Duration
	}{{"Initial", p.Initial}, {"Max", p.Max}, {"MaxWait", p.MaxWait}} {
		switch {
		case f.d < 0:
			return invalid("%s is negative: %s", f.name, f.d)
		case f.d > 0 && f.d < time.Millisecond:
			return invalid("%s is %s: want at least 1ms, or 0 for the default: is its unit missing?", f.name, f.d)
		}
	}
	switch {
	case p.Max > 0 && p.Initial > p.Max:
		return invalid("Initial %s is longer than Max %s", p.Initial, p.Max)
	case p.MaxAttempts < 0:
		return invalid("MaxAttempts is negative: %d", p.MaxAttempts)
	case p.Jitter != FullJitter && p.Jitter != DecorrelatedJitter:
		return invalid("Jitter is unknown: %d", p.Jitter)
	}
	if p.Then != nil && nilcheck.IsNil(p.Then) {
		return invalid("Then is a nil %T", p.Then)
	}
	if v, ok := p.Then.(interface{ Validate() error }); ok {
		return v.Validate()
	}
	return nil
}

// OnConflict implements core.ConflictPolicy.
func (p Policy) OnConflict(ctx context.Context, c core.Conflict) (core.Decision, error) {
	if err := p.Validate(); err != nil {
		return core.Reject(), err
	}
	left := p.maxWait(c.Call) - c.Waited
	delay := min(p.delay(c), left)
	deadline, bounded := ctx.Deadline()
	if left <= 0 || p.MaxAttempts > 0 && c.Attempt >= p.MaxAttempts || bounded && time.Until(deadline) <= delay {
		if p.Then == nil {
			return core.Reject(), nil
		}
		return p.Then.OnConflict(ctx, c)
	}
	return core.RetryAfter(delay), nil
}

// maxWait is how long a call may wait, and wants to.
func (p Policy) maxWait(call core.Call) time.Duration {
	most := orDefault(p.MaxWait, DefaultMaxWait)
	switch prefers := p.Honors(call.Prefer); {
	case prefers.Bounded:
		return min(most, max(prefers.Wait, 0))
	case prefers.Async && call.Encode != nil: // else nothing can be deferred
		return 0
	}
	return most
}

// Waits implements core.WaitingPolicy.
func (p Policy) Waits() bool { return p.MaxAttempts != 1 }

// Honors implements core.PreferencePolicy: waiting can be bounded, and work can be
// deferred if Then defers it. A bound of MaxWait or longer changes nothing.
func (p Policy) Honors(prefers core.Preference) core.Preference {
	then := core.Honored(p.Then, prefers)
	if prefers.Bounded && prefers.Wait >= orDefault(p.MaxWait, DefaultMaxWait) && !then.Bounded {
		return core.Preference{}
	}
	prefers.Async = then.Async
	return prefers
}

func (p Policy) delay(c core.Conflict) time.Duration {
	initial := orDefault(p.Initial, DefaultInitial)
	most := orDefault(p.Max, max(DefaultMax, initial))
	initial = min(initial, most)
	if p.Jitter == DecorrelatedJitter {
		return backoff.Decorrelated(c.LastDelay, initial, most)
	}
	return backoff.Full(c.Attempt, initial, most)
}

func orDefault(d, def time.Duration) time.Duration {
	if d == 0 {
		return def
	}
	return d
}
