package core

// The options of a Locker, [Option], and those of one call, [AcquireOption].

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/perkey-go/perkey/core/internal/store"
	"github.com/perkey-go/perkey/internal/ident"
	"github.com/perkey-go/perkey/internal/nilcheck"
)

const (
	// DefaultTTL is the default of [WithTTL].
	DefaultTTL = 15 * time.Second
	// DefaultFirstLease is the default of [WithFirstLease].
	DefaultFirstLease = 10 * time.Second
	// MinTTL is the shortest lease.
	MinTTL = 100 * time.Millisecond
	// MaxTTL is the longest lease.
	MaxTTL = 24 * time.Hour
)

// settings are what Options set.
type settings struct {
	prefix     string
	ttl        time.Duration
	firstLease time.Duration // see WithFirstLease
	observer   Observer
	log        *slog.Logger          // see WithLogger
	renewer    redis.UniversalClient // nil: one like the Locker's
	// Bounds on waiting calls.
	maxPerKey, maxWaiters int
}

func newSettings(opts []Option) (settings, error) {
	s := settings{
		prefix: ident.DefaultPrefix, ttl: DefaultTTL, firstLease: DefaultFirstLease,
		maxPerKey: DefaultMaxWaiters, maxWaiters: 10 * DefaultMaxWaiters,
	}
	for _, opt := range opts {
		if opt == nil {
			return s, fmt.Errorf("core: %w: an option is nil", ErrInvalidOption)
		}
		if err := opt(&s); err != nil {
			return s, err
		}
	}
	if s.observer == nil {
		s.observer = DefaultObserver(s.log)
	}
	return s, nil
}

// Option configures a [Locker].
type Option func(*settings) error

// WithTTL sets the length of a renewed lease: how long a key stays held after its holder's process
// died. A lease is renewed after a third of it. Default 15 s; at least 100 ms, at most 24 h.
func WithTTL(d time.Duration) Option {
	return func(s *settings) error {
		s.ttl = d
		return checkTTL("WithTTL", d)
	}
}

// WithFirstLease bounds the lease of a grant until its first renewal, which is sent after a third
// of it. If a reply is lost and its process or connection is gone, nobody learns of the grant, and
// its key stays held for this long. If Redis is away for less than two thirds of it, no holder
// loses its lease, however young. A key that another process's release hands over is granted for 1
// s until its first renewal, whatever this option says.
//
// Default 10 s; at least 100 ms, at most 24 h. A shorter TTL bounds the first lease too, so
// WithFirstLease(core.MaxTTL) makes it the whole TTL.
func WithFirstLease(d time.Duration) Option {
	return func(s *settings) error {
		s.firstLease = d
		return checkTTL("WithFirstLease", d)
	}
}

// WithPrefix sets the prefix of the names of all keys and channels in Redis. Lockers exclude one
// another only under one prefix. Default "perkey"; 1 to 64 bytes, no braces, white space or control
// bytes.
func WithPrefix(prefix string) Option {
	return func(s *settings) error {
		if !ident.ValidPrefix(prefix) {
			return fmt.Errorf("core: %w: WithPrefix(%q): want 1 to %d bytes, without braces, white space and control bytes",
				ErrInvalidOption, prefix, ident.MaxPrefixLen)
		}
		s.prefix = prefix
		return nil
	}
}

// WithObserver sets the [Observer]. The Locker then logs nothing by itself. Default:
// [DefaultObserver], which logs lost leases and warnings; see [WithLogger]. [NopObserver] logs
// nothing. A nil Observer, or one that is a nil pointer, is an [ErrInvalidOption].
func WithObserver(o Observer) Option {
	return func(s *settings) error {
		if nilcheck.IsNil(o) {
			return fmt.Errorf("core: %w: WithObserver(nil)", ErrInvalidOption)
		}
		s.observer = o
		return nil
	}
}

// WithLogger sets the logger of a Locker without [WithObserver]: it gets lost leases, at most ten
// of them in a second, and warnings. With an Observer it has no effect. Default: [slog.Default] at
// the time of use. A nil logger is an [ErrInvalidOption].
func WithLogger(log *slog.Logger) Option {
	return func(s *settings) error {
		if log == nil {
			return fmt.Errorf("core: %w: WithLogger(nil)", ErrInvalidOption)
		}
		s.log = log
		return nil
	}
}

// DefaultMaxWaiters is the default of [WithMaxWaiters] for one key. The default for all keys
// together is ten times as many.
const DefaultMaxWaiters = 10_000

// WithMaxWaiters bounds the calls of the Locker that wait at the same time: perKey for one key,
// total for all keys. A call beyond that does not wait, whatever its policy says. It fails with a
// [*ConflictError] if its key is known to be held, and with [ErrUnavailable] otherwise. In Redis at
// most 1,024 Lockers wait for one key. Default 10,000 and 100,000; perKey is at least 1, and total
// is at least perKey.
func WithMaxWaiters(perKey, total int) Option {
	return func(s *settings) error {
		s.maxPerKey, s.maxWaiters = perKey, total
		if perKey < 1 || total < perKey {
			return fmt.Errorf("core: %w: WithMaxWaiters(%d, %d): want 1 <= perKey <= total", ErrInvalidOption, perKey, total)
		}
		return nil
	}
}

// WithRenewalClient sets the client for renewals. It stays the caller's to close, after the Locker.
// Default: a client like the Locker's, without its hooks and with up to 9 connections of its own to
// each node, so that other commands that use up the pool cannot keep leases from being renewed. The
// default client follows a Sentinel failover. A client that is given has to do so itself, as
// go-redis's failover client does. Give one if a hook makes the Locker's connections. Nil is an
// [ErrInvalidOption].
func WithRenewalClient(rdb redis.UniversalClient) Option {
	return func(s *settings) error {
		if nilcheck.IsNil(rdb) {
			return fmt.Errorf("core: %w: WithRenewalClient(nil)", ErrInvalidOption)
		}
		s.renewer = rdb
		return nil
	}
}

// AcquireOption configures one call that takes a key, or every call of a [Guard].
type AcquireOption func(*acquireOptions) error

// acquireOptions are what AcquireOptions set.
type acquireOptions struct {
	ttl     time.Duration
	first   time.Duration // the Locker's bound on the first lease
	limit   int           // how many may hold the key together; 0: any number
	maxHold time.Duration // renewals end so long after the grant; 0: never
	minHold time.Duration // the key stays taken so long after the grant
	notify  *listener     // is told when the key is released
	reserve time.Duration // parked work: how long its key is reserved

	replicas    int           // that must have the grant
	replicaWait time.Duration // for them

	name, id string // of the work, for people
	what     string // the two as a record stores them
}

// firstLease is how long a grant lasts until its first renewal.
func (o *acquireOptions) firstLease() time.Duration {
	if o.maxHold > 0 {
		return min(o.ttl, o.first, o.maxHold)
	}
	return min(o.ttl, o.first)
}

// replyTimeout is how long a request waits for its reply: a grant that arrives after its first
// lease is of no use.
func (o *acquireOptions) replyTimeout() time.Duration { return min(o.firstLease(), store.ReplyTimeout) }

// bounded reports whether a lease with these options must be granted by Redis.
func (o *acquireOptions) bounded() bool { return o.maxHold > 0 || o.minHold > 0 }

const (
	exclusive = store.Exclusive
	shared    = store.Shared
)

// Shared takes the key together with any number of other shared holders, and not beside an
// exclusive one. It is the read side of a read-write lock; calls without it are the write side.
// Processes are served in order of arrival: a shared call that arrives after a waiting exclusive
// one is served after it. When the first of a process's waiting shared calls gets the key, all that
// wait there at that moment get it too.
func Shared() AcquireOption {
	return func(o *acquireOptions) error {
		o.limit = shared
		return nil
	}
}

// Counted takes the key if fewer than n hold it: a counting semaphore. All calls for one key should
// give the same n. While n is being changed each call uses its own n, so a smaller one takes effect
// as the holders leave. 1 is exclusive; at most [MaxCount].
func Counted(n int) AcquireOption {
	return func(o *acquireOptions) error {
		o.limit = n
		if n < 1 || n > MaxCount {
			return fmt.Errorf("core: %w: Counted(%d): want 1 to %d", ErrInvalidOption, n, MaxCount)
		}
		return nil
	}
}

// MaxCount is the greatest n of [Counted].
const MaxCount = 1_000_000

// MaxHold ends the lease d after its grant at the latest: it is not renewed any longer, and its
// context ends with a cause that wraps [ErrLeaseLost]. [Lease.Extend] can still lengthen it.
// Default: no bound; 100 ms to 24 h.
func MaxHold(d time.Duration) AcquireOption {
	return func(o *acquireOptions) error {
		o.maxHold = d
		return checkTTL("MaxHold", d)
	}
}

// MinHold keeps the key held until d after its grant, even if it is released earlier: for work that
// should not run again so soon. The release itself returns at once. If Redis cannot be told before
// the lease ends, or before the Locker is closed, the key is free when the lease ends. Default:
// none; 100 ms to 24 h.
func MinHold(d time.Duration) AcquireOption {
	return func(o *acquireOptions) error {
		o.minHold = d
		return checkTTL("MinHold", d)
	}
}

// Named describes the call that takes the key, for [Locker.Inspect], logs and metrics: name is the
// kind of work, id identifies this piece of it. Either may be empty; Redis stores the first 100
// bytes of each. Calls of a Guard have [Call].Name and ID instead.
func Named(name, id string) AcquireOption {
	return func(o *acquireOptions) error {
		o.name, o.id = name, id
		return nil
	}
}

// LeaseTTL overrides the Locker's TTL, [WithTTL]. The lease is still renewed. 100 ms to 24 h.
func LeaseTTL(d time.Duration) AcquireOption {
	return func(o *acquireOptions) error {
		o.ttl = d
		return checkTTL("LeaseTTL", d)
	}
}

// FixedLease makes the lease end d after its grant, unless [Lease.Extend] lengthens it or it is
// released first: it is not renewed. It is [LeaseTTL] and [MaxHold] in one; 100 ms to 24 h.
func FixedLease(d time.Duration) AcquireOption {
	return func(o *acquireOptions) error {
		o.ttl, o.maxHold = d, d
		return checkTTL("FixedLease", d)
	}
}

// NotifyRelease sends the key on ch once, without blocking, when the key that was found held may be
// free. As with [os/signal.Notify], ch must have room. The notification can be lost: wait with a
// time-out as well. A call whose policy waits and then gives up asks for the key once more, so that
// Redis knows whom to tell. A nil ch is an [ErrInvalidOption].
func NotifyRelease(ch chan<- string) AcquireOption {
	return func(o *acquireOptions) error {
		if ch == nil {
			return fmt.Errorf("core: %w: NotifyRelease(nil)", ErrInvalidOption)
		}
		o.notify = &listener{id: ch, tell: func(key string) { send(ch, key) }}
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
	o, err := l.tryOptions(opts)
	if err == nil && o.reserve > 0 {
		err = fmt.Errorf("core: %w: Reserved is for TryAcquire", ErrInvalidOption)
	}
	return o, err
}

func (l *Locker) tryOptions(opts []AcquireOption) (acquireOptions, error) {
	if len(opts) == 0 { // without o, which is on the heap: options get its address
		return acquireOptions{ttl: l.ttl, first: l.firstLease, limit: exclusive}, nil
	}
	o := acquireOptions{ttl: l.ttl, first: l.firstLease, limit: exclusive}
	if err := o.apply(opts); err != nil {
		return o, err
	}
	if !l.store.Queues() {
		o.reserve = 0
	}
	if o.replicas > 0 {
		if err := l.store.Replicates(); err != nil {
			return o, fmt.Errorf("core: %w: WaitReplicas: %w", ErrInvalidOption, err)
		}
	}
	return o, nil
}

func (o *acquireOptions) apply(opts []AcquireOption) error {
	for _, opt := range opts {
		if opt == nil {
			return fmt.Errorf("core: %w: an option is nil", ErrInvalidOption)
		}
		if err := opt(o); err != nil {
			return err
		}
	}
	return nil
}
