package core

// What a Locker can be told by [Option], and one call by [AcquireOption].

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
	// DefaultTTL is the lease's length unless WithTTL says otherwise.
	DefaultTTL = 15 * time.Second
	// DefaultFirstLease bounds the lease of a grant until its first renewal unless
	// WithFirstLease says otherwise.
	DefaultFirstLease = 10 * time.Second
	// MinTTL is the shortest lease.
	MinTTL = 100 * time.Millisecond
	// MaxTTL is the longest lease.
	MaxTTL = 24 * time.Hour
)

// settings is what Options say.
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

// Option configures a Locker.
type Option func(*settings) error

// WithTTL sets the length of a renewed lease: how long a key stays taken after
// its holder's process died. It is renewed at a third. Default 15 s; at least
// 100 ms, at most 24 h.
func WithTTL(d time.Duration) Option {
	return func(s *settings) error {
		s.ttl = d
		return checkTTL("WithTTL", d)
	}
}

// WithFirstLease bounds the lease of a grant until its first renewal, which comes after a
// third of it. It is a compromise. A grant whose caller never learns of it, since the reply
// is lost and the process or its connection is gone, keeps its key for so long. And a Redis
// that is away for up to two thirds of it costs no holder its lease, however young that is. A
// key that another process's release hands over is granted for 1 s until its first renewal,
// whatever this says.
// Default 10 s; at least 100 ms, at most 24 h. A TTL that is shorter bounds the first lease
// too, so that WithFirstLease(core.MaxTTL) makes it the whole TTL.
func WithFirstLease(d time.Duration) Option {
	return func(s *settings) error {
		s.firstLease = d
		return checkTTL("WithFirstLease", d)
	}
}

// WithPrefix sets what the names of all keys and channels in Redis begin with.
// Lockers exclude one another only under one prefix. Default "perkey"; 1 to 64
// bytes, no braces, white space or control bytes.
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

// WithObserver sets the [Observer]. The Locker then logs nothing by itself. Default: one that logs lost leases and
// warnings; see [WithLogger]. [NopObserver] is silence. A nil one, or a nil pointer, is an ErrInvalidOption.
func WithObserver(o Observer) Option {
	return func(s *settings) error {
		if nilcheck.IsNil(o) {
			return fmt.Errorf("core: %w: WithObserver(nil)", ErrInvalidOption)
		}
		s.observer = o
		return nil
	}
}

// WithLogger sets where a Locker without [WithObserver] logs lost leases, at most ten of them in a second, and warnings;
// with an Observer it has no effect. Default: slog's default logger at the time of use. A nil one is an ErrInvalidOption.
func WithLogger(log *slog.Logger) Option {
	return func(s *settings) error {
		if log == nil {
			return fmt.Errorf("core: %w: WithLogger(nil)", ErrInvalidOption)
		}
		s.log = log
		return nil
	}
}

// DefaultMaxWaiters is how many calls of a Locker may wait for one key, unless
// WithMaxWaiters says otherwise. For all keys together it is ten times as many.
const DefaultMaxWaiters = 10_000

// WithMaxWaiters bounds the calls that wait at the same time: perKey for one key,
// total for all. A call beyond that does not wait, whatever its policy says: it fails with a
// [*ConflictError] if its key is known to be held, and with [ErrUnavailable] otherwise. In
// Redis at most 1,024 Lockers wait for one key. Default 10,000 and 100,000;
// perKey is at least 1, and total no less than perKey.
func WithMaxWaiters(perKey, total int) Option {
	return func(s *settings) error {
		s.maxPerKey, s.maxWaiters = perKey, total
		if perKey < 1 || total < perKey {
			return fmt.Errorf("core: %w: WithMaxWaiters(%d, %d): want 1 <= perKey <= total", ErrInvalidOption, perKey, total)
		}
		return nil
	}
}

// WithRenewalClient sets the client that renewals go through, which stays the
// caller's to close, after the Locker. Default: one like the Locker's, with up to 9
// connections of its own to each node and without its hooks, so that commands of
// others that use up the pool cannot keep leases from being renewed. The default follows
// a Sentinel failover; one that is given has to do so itself, as go-redis's failover
// client does.
func WithRenewalClient(rdb redis.UniversalClient) Option {
	return func(s *settings) error {
		if nilcheck.IsNil(rdb) {
			return fmt.Errorf("core: %w: WithRenewalClient(nil)", ErrInvalidOption)
		}
		s.renewer = rdb
		return nil
	}
}

// AcquireOption configures one Acquire, or every call of a Guard.
type AcquireOption func(*acquireOptions) error

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

// replyTimeout is how long a question waits for its reply: a grant that comes after its first
// lease is of no use.
func (o *acquireOptions) replyTimeout() time.Duration { return min(o.firstLease(), store.ReplyTimeout) }

// bounded reports whether a lease with these options must be granted by Redis.
func (o *acquireOptions) bounded() bool { return o.maxHold > 0 || o.minHold > 0 }

const (
	exclusive = store.Exclusive
	shared    = store.Shared
)

// Shared takes the key together with any number of other shared holders, and with
// no exclusive one: the read side of a read-write lock, whose write side are calls
// without this option. Processes are served in order of arrival: a shared call that
// comes after a waiting exclusive one waits behind it. When the first of a process's
// waiting shared calls gets the key, the others that wait at that moment get it with it.
func Shared() AcquireOption {
	return func(o *acquireOptions) error {
		o.limit = shared
		return nil
	}
}

// Counted takes the key if fewer than n hold it: a counting semaphore. All calls for
// one key should give the same n; when it is changed, each call uses its own n, so
// that a smaller one takes effect as the holders leave. 1 is exclusive; at most MaxCount.
func Counted(n int) AcquireOption {
	return func(o *acquireOptions) error {
		o.limit = n
		if n < 1 || n > MaxCount {
			return fmt.Errorf("core: %w: Counted(%d): want 1 to %d", ErrInvalidOption, n, MaxCount)
		}
		return nil
	}
}

// MaxCount is the greatest number of holders that Counted allows.
const MaxCount = 1_000_000

// MaxHold ends the lease d after its grant at the latest: it is not renewed any
// longer, and its context ends with a cause that wraps ErrLeaseLost. Extend can
// still lengthen it. Default: no bound; 100 ms to 24 h.
func MaxHold(d time.Duration) AcquireOption {
	return func(o *acquireOptions) error {
		o.maxHold = d
		return checkTTL("MaxHold", d)
	}
}

// MinHold keeps the key taken until d after its grant, even when it is released
// earlier: for work that should not run again so soon. The release returns at once. If Redis cannot be told
// before the lease ends, or before the Locker is closed, the key is free when the lease ends.
// Default: not at all; 100 ms to 24 h.
func MinHold(d time.Duration) AcquireOption {
	return func(o *acquireOptions) error {
		o.minHold = d
		return checkTTL("MinHold", d)
	}
}

// Named says what takes the key, for Inspect, logs and metrics: name is the kind of
// work, id identifies this piece of it. Either may be empty; 100 bytes of each are
// kept. For calls of a Guard, Call.Name and Call.ID say it.
func Named(name, id string) AcquireOption {
	return func(o *acquireOptions) error {
		o.name, o.id = name, id
		return nil
	}
}

// LeaseTTL overrides the Locker's TTL. The lease is still renewed. 100 ms to 24 h.
func LeaseTTL(d time.Duration) AcquireOption {
	return func(o *acquireOptions) error {
		o.ttl = d
		return checkTTL("LeaseTTL", d)
	}
}

// FixedLease makes the lease end d after its grant, unless Extend or Release
// comes first: it is not renewed. It is LeaseTTL and MaxHold in one; 100 ms to 24 h.
func FixedLease(d time.Duration) AcquireOption {
	return func(o *acquireOptions) error {
		o.ttl, o.maxHold = d, d
		return checkTTL("FixedLease", d)
	}
}

// NotifyRelease sends the key on ch once, without blocking, when the key that
// was found held may be free. As with [os/signal.Notify], ch must have
// room. The notification can be lost: wait with a time-out as well. A call whose policy waits, and
// gives up, asks for the key once more, so that Redis knows whom to tell.
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
