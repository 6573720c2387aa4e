package core

import (
	"context"
	"fmt"
	"time"

	"github.com/perkey-go/perkey/internal/along"
	"github.com/perkey-go/perkey/internal/nilcheck"
)

// Guard is a [Locker] together with a [ConflictPolicy], which decides about calls whose key is
// held; see [Locker.Guard]. It is safe for concurrent use and needs no closing.
type Guard struct {
	locker *Locker
	policy ConflictPolicy
	opts   acquireOptions
	err    error
}

// Call is one piece of work for a key.
type Call struct {
	// Key names what the work must have for itself; see [ValidateKey].
	Key string
	// Name is the kind of work, such as a route or a task type. It is for logs and metrics; it may be empty.
	Name string
	// ID identifies this piece of work, such as a request id; [Locker.Inspect] shows it. It may be empty.
	ID string
	// Principal identifies the user on whose behalf the work is done, for the process that runs it
	// later. It is stored with a deferred call, so it must never be a credential. It may be empty.
	Principal string
	// Trace is the W3C traceparent of the caller's span, for the process that runs the work later
	// to link to. One that is not valid is not stored. It may be empty.
	Trace string
	// Shared takes the key together with other shared calls, as the option [Shared]
	// does, whatever the Guard's options say: for work that only reads.
	Shared bool
	// Prefer is what the caller would like to happen if the key is held. A policy
	// honors it as far as it can; see [PreferencePolicy].
	Prefer Preference
	// Encode returns the work as bytes for a queue to store. It is called only
	// when the call is deferred. Nil: the call cannot be deferred.
	Encode func() ([]byte, error)
	// DeduplicationID identifies the work among deferred calls. A queue stores one call with the same
	// DeduplicationID, Key, Name and Principal while it is queued or runs; the others get its ticket. The ticket's id is
	// a hash of the four. Empty: each call is stored.
	DeduplicationID string
	// BeforeWait is called once, before the call waits for the first time. If it returns an
	// error, the call fails with that error. It may be nil.
	BeforeWait func() error

	along along.Rider // nil: nobody
}

func init() { along.With = func(call any, rider along.Rider) { call.(*Call).along = rider } }

// Guard makes a [Guard] of the Locker and a policy, such as [RejectConflicts]; a nil policy is RejectConflicts. The
// options apply to each lease of the Guard. They do not apply to a call that its policy defers: that runs later under
// another lease, such as a delayqueue.Worker's, with the worker's options.
//
// Guard does not fail. An invalid option, a policy whose [Validator] reports an error, or whose queue has another prefix, and a nil
// Locker are reported by [Guard.Err], and by every [Guard.Do].
func (l *Locker) Guard(policy ConflictPolicy, opts ...AcquireOption) *Guard {
	g := &Guard{locker: l}
	invalid := g.setPolicy(policy)
	if l == nil {
		return g
	}
	if g.opts, g.err = l.acquireOptions(opts); g.err == nil {
		g.err = invalid
	}
	return g
}

func (g *Guard) setPolicy(policy ConflictPolicy) error {
	if _, rejects := policy.(rejectConflicts); rejects {
		policy = nil // saves the call a place in the wait queue
	}
	g.policy = policy
	if policy != nil && nilcheck.IsNil(policy) {
		return fmt.Errorf("core: %w: the guard's policy is a nil %T", ErrInvalidOption, policy)
	}
	if v, ok := policy.(Validator); ok {
		if err := v.Validate(); err != nil {
			return err
		}
	}
	var queues []string
	Honored(policy, Preference{Async: true, queues: &queues})
	for _, prefix := range queues {
		if g.locker != nil && prefix != g.locker.prefix {
			return fmt.Errorf("core: %w: the Locker's prefix is %q, and that of its policy's queue %q", ErrInvalidOption, g.locker.prefix, prefix)
		}
	}
	return nil
}

// OnFree returns a copy of the Guard that calls f when a key may be free for which one of its calls was refused. f
// runs on a goroutine of its own, which Close of the Locker waits for; its ctx ends when the Locker refuses calls. A
// release calls f once for its key, however many calls were refused before. If this process learns of a release of
// the key while a call is being refused, f is called at once; rarely this happens for the release of another key.
//
// Use a time-out as well: the notification can be lost, and none is sent when a lease ends without
// a release, such as that of a process that died. For a [MinHold], and for the period of
// [Locker.Once], f is called at the release, while the key is still held.
//
// OnFree replaces a [NotifyRelease] among the Guard's options. A call whose policy waits and then
// gives up asks for the key once more, so that Redis knows whom to tell.
func (g *Guard) OnFree(f func(ctx context.Context, key string)) *Guard {
	if g == nil {
		return nil
	}
	c := *g
	switch {
	case g.Err() != nil:
	case f == nil:
		c.err = fmt.Errorf("core: %w: OnFree(nil)", ErrInvalidOption)
	default:
		life := g.locker.life
		c.opts.notify = &listener{id: &c, tell: func(key string) {
			life.Background(func() { f(life.Context(), key) })
		}}
	}
	return &c
}

// WithPolicy returns a copy of the Guard with another policy. If that is invalid, [Guard.Err] of the copy says so.
func (g *Guard) WithPolicy(policy ConflictPolicy) *Guard {
	if g.Err() != nil {
		return g
	}
	c := *g
	c.err = c.setPolicy(policy)
	return &c
}

// Err returns why the Guard cannot work, or nil. The error wraps [ErrInvalidOption].
func (g *Guard) Err() error {
	if g == nil {
		return fmt.Errorf("core: %w: the guard is nil", ErrInvalidOption)
	}
	if g.locker == nil {
		return fmt.Errorf("core: %w: the guard has no locker", ErrInvalidOption)
	}
	return g.err
}

// Exclusive reports whether a call has its key for itself. It is false if the Guard's options have
// [Shared] or [Counted] of more than one, or are invalid.
func (g *Guard) Exclusive() bool { return g.Err() == nil && g.opts.limit == exclusive }

// MinHold returns for how long the Guard's option [MinHold] keeps each key at least; zero without it.
func (g *Guard) MinHold() time.Duration {
	if g == nil {
		return 0
	}
	return g.opts.minHold
}

// Locker returns the Guard's Locker; nil if it has none.
func (g *Guard) Locker() *Locker {
	if g == nil {
		return nil
	}
	return g.locker
}

// Policy returns the Guard's policy; nil if that is [RejectConflicts].
func (g *Guard) Policy() ConflictPolicy {
	if g == nil {
		return nil
	}
	return g.policy
}

// Honors returns the part of a preference that the Guard's policy honors.
func (g *Guard) Honors(p Preference) Preference {
	if g == nil {
		return Preference{}
	}
	return Honored(g.policy, p)
}

// Do runs fn, on the caller's goroutine, while holding call.Key. It returns nil only if fn ran wholly within one
// lease and returned nil. If the key is held the policy decides: the call waits, or Do returns a [*ConflictError] or
// a [*DeferredError] without having run fn. If ctx works under the key already, fn runs at once under that lease.
//
// The key is released when fn returns or panics, and not before. If ctx ends while fn runs, the ctx
// of fn ends too, and the key stays held until fn returns.
func (g *Guard) Do(ctx context.Context, call Call, fn func(context.Context) error) error {
	err := g.Err()
	if g == nil || g.locker == nil {
		return err
	}
	if err == nil && fn == nil {
		err = errNoFunction
	}
	lease, err := g.locker.obtain(ctx, call, g.policy, g.options(call), err)
	if err != nil {
		return err
	}
	return lease.run(ctx, fn)
}

func (g *Guard) options(call Call) acquireOptions {
	opts := g.opts
	if call.Shared {
		opts.limit = shared
	}
	return opts
}

var errNoFunction = fmt.Errorf("core: %w: the function is nil", ErrInvalidOption)
