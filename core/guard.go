package core

import (
	"context"
	"fmt"

	"github.com/perkey-go/perkey/internal/nilcheck"
)

// Guard is a Locker together with what to do about conflicts; see [Locker.Guard]. It is safe for
// concurrent use and needs no closing.
type Guard struct {
	locker *Locker
	policy ConflictPolicy
	opts   acquireOptions
	err    error
}

// Call is one piece of work for a key.
type Call struct {
	// Key is what the work must have for itself; see ValidateKey.
	Key string
	// Name says what kind of work it is, such as a route or a task type. It is
	// for logs and metrics; it may be empty.
	Name string
	// ID identifies this piece of work, such as a request id, for those who inspect the
	// key. It may be empty.
	ID string
	// Principal is on whose behalf the work is done, such as a user's id, for the process that
	// runs it later. It is stored with a deferred call, so it is never a credential.
	// It may be empty.
	Principal string
	// Trace is the W3C traceparent of the caller's span, for the process that runs the work later
	// to link to. One that is not valid is not stored. It may be empty.
	Trace string
	// Shared takes the key together with other shared calls, as the option Shared
	// does, whatever the Guard's options say: for work that only reads.
	Shared bool
	// Prefer is what the caller would like to happen if the key is held. Policies
	// honor it as far as they can; see [PreferencePolicy].
	Prefer Preference
	// Encode returns the work in the form that a queue stores. It runs only to
	// defer the call. Nil: the call cannot be deferred.
	Encode func() ([]byte, error)
	// BeforeWait runs once, before the call waits for the first time. Its error
	// refuses the call. It may be nil.
	BeforeWait func() error
}

// Guard makes a Guard: the Locker together with a policy, such as [RejectConflicts]; nil is that too.
// Options apply to each lease of the Guard's; a call that its policy defers runs later under a lease of another's,
// such as a delayqueue.Worker, which has options of its own.
//
// What an option, or a policy that is a Validator, finds wrong is reported by Err,
// and by every Do. So is a nil Locker.
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
		return v.Validate()
	}
	return nil
}

// OnFree returns a copy of the Guard that calls f when a key that one of its calls was refused may be
// free, on a goroutine of its own, which Close of the Locker waits for. f's ctx ends when the Locker
// refuses calls. A release calls f once for its key, however many calls were refused before. A call that is
// refused while this process learns of a release, of its key or by chance of another, calls f at once.
//
// Use a timeout as well: the notification can be lost, and none comes when a lease ends without a release, such as that
// of a process that died, or when a [MinHold] or the period of [Locker.Once] ends: there the release calls f,
// while the key is still held.
//
// OnFree takes the place of a [NotifyRelease] among the Guard's options. A call whose policy waits, and
// gives up, asks for the key once more, so that Redis knows whom to tell.
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

// WithPolicy returns a copy of the Guard with another policy. What is wrong with that is reported by Err.
func (g *Guard) WithPolicy(policy ConflictPolicy) *Guard {
	if g.Err() != nil {
		return g
	}
	c := *g
	c.err = c.setPolicy(policy)
	return &c
}

// Err reports why the Guard cannot work, or nil. It wraps ErrInvalidOption.
func (g *Guard) Err() error {
	if g == nil {
		return fmt.Errorf("core: %w: the guard is nil", ErrInvalidOption)
	}
	if g.locker == nil {
		return fmt.Errorf("core: %w: the guard has no locker", ErrInvalidOption)
	}
	return g.err
}

// Exclusive reports whether a call has its key for itself: not if the Guard's options are
// Shared or Counted for more than one.
func (g *Guard) Exclusive() bool { return g.Err() == nil && g.opts.limit == exclusive }

// Locker returns the Guard's Locker; nil if it has none.
func (g *Guard) Locker() *Locker {
	if g == nil {
		return nil
	}
	return g.locker
}

// Policy returns the Guard's policy; nil if that is RejectConflicts.
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

// Do runs fn, on the caller's goroutine, while holding call.Key. It returns nil
// only if fn ran wholly within one lease and returned nil. If the key is held
// the policy decides: the call waits, or Do returns a *ConflictError or a
// *DeferredError without having run fn. A ctx that works under the key already
// passes straight through.
//
// The key is released when fn returns, also when it panics, and not before:
// if ctx ends while fn runs, fn's own ctx ends, and the key stays held for as
// long as fn takes.
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
