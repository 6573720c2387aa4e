package core

import (
	"fmt"
	"time"

	"github.com/perkey-go/perkey/internal/ident"
)

const (
	// DefaultTTL is the lease's length unless WithTTL says otherwise.
	DefaultTTL = 15 * time.Second
	// MinTTL is the shortest lease.
	MinTTL = 100 * time.Millisecond
	// MaxTTL is the longest lease.
	MaxTTL = 24 * time.Hour
)

// Option configures a Locker.
type Option func(*Locker) error

// WithTTL sets the length of a renewed lease: how long a key stays taken after
// its holder's process died. It is renewed at a third. Default 15 s; at least
// 100 ms, at most 24 h.
func WithTTL(d time.Duration) Option {
	return func(l *Locker) error {
		l.ttl = d
		return checkTTL("WithTTL", d)
	}
}

// WithPrefix sets what the names of all keys and channels in Redis begin with.
// Lockers exclude one another only under one prefix. Default "perkey"; 1 to 64
// bytes, no braces, white space or control bytes.
func WithPrefix(prefix string) Option {
	return func(l *Locker) error {
		if !ident.ValidPrefix(prefix) {
			return fmt.Errorf("core: %w: WithPrefix(%q): want 1 to %d bytes, without braces, white space and control bytes",
				ErrInvalidOption, prefix, ident.MaxPrefixLen)
		}
		l.prefix = prefix
		return nil
	}
}

// WithObserver sets who is told what happens. Default: nobody.
func WithObserver(o Observer) Option {
	return func(l *Locker) error {
		if o == nil {
			return fmt.Errorf("core: %w: WithObserver(nil)", ErrInvalidOption)
		}
		l.observer = o
		return nil
	}
}

// AcquireOption configures one Acquire, or every call of a Guard.
type AcquireOption func(*acquireOptions) error

type acquireOptions struct {
	ttl    time.Duration
	fixed  bool          // the lease ends ttl after its grant: it is not renewed
	notify chan<- string // gets the key when it is released
}

// LeaseTTL overrides the Locker's TTL. The lease is renewed all the same.
func LeaseTTL(d time.Duration) AcquireOption {
	return func(o *acquireOptions) error {
		o.ttl, o.fixed = d, false
		return checkTTL("LeaseTTL", d)
	}
}

// FixedLease makes the lease end d after its grant, unless Extend or Release
// comes first: it is not renewed.
func FixedLease(d time.Duration) AcquireOption {
	return func(o *acquireOptions) error {
		o.ttl, o.fixed = d, true
		return checkTTL("FixedLease", d)
	}
}

// NotifyRelease sends the key on ch once, without blocking, when the key that
// was found held is announced to be free. As with signal.Notify, ch must have
// room. An announcement can be lost: a time-out must stand beside it.
func NotifyRelease(ch chan<- string) AcquireOption {
	return func(o *acquireOptions) error {
		if ch == nil {
			return fmt.Errorf("core: %w: NotifyRelease(nil)", ErrInvalidOption)
		}
		o.notify = ch
		return nil
	}
}

func checkTTL(name string, d time.Duration) error {
	if d < MinTTL || d > MaxTTL {
		return fmt.Errorf("core: %w: %s(%s): want %s to %s", ErrInvalidOption, name, d, MinTTL, MaxTTL)
	}
	return nil
}

func (l *Locker) acquireOptions(opts []AcquireOption) (acquireOptions, error) {
	if len(opts) == 0 {
		return acquireOptions{ttl: l.ttl}, nil
	}
	o := acquireOptions{ttl: l.ttl}
	for _, opt := range opts {
		if opt == nil {
			return o, fmt.Errorf("core: %w: an option is nil", ErrInvalidOption)
		}
		if err := opt(&o); err != nil {
			return o, err
		}
	}
	return o, nil
}
