package core

import (
	"cmp"
	"context"
	"fmt"
	"reflect"
	"runtime"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/perkey-go/perkey/core/internal/lifecycle"
	"github.com/perkey-go/perkey/core/internal/store"
	"github.com/perkey-go/perkey/internal/nilcheck"
	"github.com/perkey-go/perkey/internal/observing"
)

// Locker takes keys on one Redis deployment, or on a majority of several. One per process and
// deployment is enough: all its leases share one goroutine for renewal and one subscription for
// wake-ups. It is safe for concurrent use.
//
// The zero Locker is not useful: use [New] or [NewQuorum]. Close it with [Locker.Shutdown] or
// [Locker.Close].
type Locker struct {
	settings
	life  *lifecycle.Lifecycle
	id    string // names this Locker's channel
	store store.Store

	leases        *leaseTable
	renewals      *renewals
	waiters       *waiters
	notifications *notifications

	warnedContext, warnedLocker sync.Once
}

// New makes a Locker on rdb. The client stays the caller's to close, after the Locker. New does not
// talk to Redis: the calls that need a server report one that is down. Its error wraps
// [ErrInvalidOption].
func New(rdb redis.UniversalClient, opts ...Option) (*Locker, error) {
	if err := checkClient(rdb); err != nil {
		return nil, err
	}
	l, err := newLocker(opts)
	if err != nil {
		return nil, err
	}
	l.use(store.NewDeployment(rdb, l.storeConfig()))
	return l, nil
}

func checkClient(rdb redis.UniversalClient) error {
	if nilcheck.IsNil(rdb) {
		return fmt.Errorf("core: %w: the redis client is nil", ErrInvalidOption)
	}
	if _, ok := rdb.(*redis.Ring); ok {
		return fmt.Errorf("core: %w: a redis.Ring moves keys to another server when one does not answer: two callers would hold one key", ErrInvalidOption)
	}
	if !reflect.TypeOf(rdb).Comparable() { // reentry tells deployments apart by their client
		return fmt.Errorf("core: %w: a redis client of type %T cannot be compared: use a pointer", ErrInvalidOption, rdb)
	}
	return nil
}

// newLocker makes a Locker that has no store yet.
func newLocker(opts []Option) (*Locker, error) {
	s, err := newSettings(opts)
	if err != nil {
		return nil, err
	}
	l := &Locker{settings: s, life: lifecycle.New(), id: store.NewLockerID()}
	l.notifications = newNotifications()
	l.renewals = newRenewals(l)
	l.leases = newLeaseTable(l.begin, l.renewals.wake, l.end)
	return l, nil
}

func (l *Locker) storeConfig() store.Config {
	return store.Config{ID: l.id, Prefix: l.prefix, TTL: l.ttl, Renewer: l.renewer, Life: l.life, Events: (*storeEvents)(l)}
}

// use gives a new Locker its store.
func (l *Locker) use(s store.Store) {
	l.store = s
	l.waiters = newWaiters(l)
}

// sameAs reports whether two Lockers exclude one another: they have one prefix and one store.
func (l *Locker) sameAs(other *Locker) bool {
	return l.prefix == other.prefix && l.store.SameAs(other.store)
}

// storeEvents is the Locker as the [store.Events] of its store.
type storeEvents Locker

func (e *storeEvents) Message(m store.Message) {
	l := (*Locker)(e)
	switch m.Kind {
	case store.Granted:
		l.waiters.grantMessage(m, time.Now())
		runtime.Gosched() // the call that has the key now goes first, before the next message is read
	case store.Ends:
		l.waiters.ends(m, time.Now())
	case store.Wanted:
		l.waiters.wantedBy(m.Key, m.Fence)
	case store.Reserved:
		l.waiters.reservedBy(m.Key)
	case store.Freed:
		l.notifications.freed(m.Key)
	case store.Forced:
		l.taken(m.Key, m.Fence, forced)
	case store.Released:
		l.taken(m.Key, m.Fence, elsewhere)
	}
}

func (e *storeEvents) LookAgain() {
	e.waiters.askAgain()
	e.notifications.freedAll()
}

func (e *storeEvents) RenewSoon() { e.leases.soon() }

func (e *storeEvents) Orphaned(key, token string, reply store.AcquireReply) {
	e.waiters.orphaned(key, token, reply)
}

func (e *storeEvents) Unclaimed(key string) {
	observing.TellAside(context.Background(), nil, "core", func() { e.observer.OnUnclaimed(context.Background(), Unclaimed{Key: key}) })
}

func (e *storeEvents) Warn(w store.Warning) {
	(*Locker)(e).warn(warningOf(w))
}

// ID names the Locker among those of all processes, as [Participant] shows it.
func (l *Locker) ID() string { return l.id }

// Prefix returns the prefix that [WithPrefix] set: the Locker's names in Redis begin with it.
func (l *Locker) Prefix() string { return l.prefix }

// TryAcquire takes key if it is free, and otherwise returns a [*ConflictError]: the key is held,
// waited for or reserved. It blocks for one round trip to Redis, and no longer than ctx allows.
// After an error the key is not held; see [Locker.Acquire].
func (l *Locker) TryAcquire(ctx context.Context, key string, opts ...AcquireOption) (*Lease, error) {
	o, err := l.tryOptions(opts)
	return l.obtain(ctx, Call{Key: key, Name: o.name, ID: o.id}, nil, o, err)
}

// Acquire takes key, and waits until it is free. It returns when it has the key, when ctx ends,
// when the Locker is closed, or, with [ErrUnavailable], when Redis fails before the call knows that
// the key is held. A call that knows of a holder waits for Redis to return.
//
// After an error the key is not held. If a grant was under way it is released; should Redis be out
// of reach, it expires within the first lease ([WithFirstLease]).
func (l *Locker) Acquire(ctx context.Context, key string, opts ...AcquireOption) (*Lease, error) {
	o, err := l.acquireOptions(opts)
	return l.obtain(ctx, Call{Key: key, Name: o.name, ID: o.id}, waitForever{}, o, err)
}

// Do runs fn while holding key. It waits for the key as [Locker.Acquire] does, and releases it when
// fn returns or panics. It returns nil only if fn ran wholly within one lease and returned nil. The
// ctx of fn ends when the lease does. After any other return fn may have run in part; if the error
// wraps [ErrLeaseLost], what fn did may have overlapped with the next holder.
func (l *Locker) Do(ctx context.Context, key string, fn func(context.Context) error, opts ...AcquireOption) error {
	o, err := l.acquireOptions(opts)
	if fn == nil {
		err = errNoFunction
	}
	lease, err := l.obtain(ctx, Call{Key: key, Name: o.name, ID: o.id}, waitForever{}, o, err)
	if err != nil {
		return err
	}
	return lease.run(ctx, fn)
}

// Shutdown refuses new calls, lets calls that wait fail with [ErrClosed], and waits until every
// lease was released or ctx ends. Then it closes the Locker, as [Locker.Close] does. It returns
// ctx's error if leases were still held, or if the last commands to Redis did not end in time: call
// Shutdown or Close again to wait for those. It may be called more than once.
func (l *Locker) Shutdown(ctx context.Context) error {
	l.life.Drain()
	var err error
	select {
	case <-l.leases.empty():
	case <-ctx.Done():
		err = fmt.Errorf("core: shutdown: %d leases were still held: %w", l.leases.count(), context.Cause(ctx))
	}
	l.closeAll()
	return cmp.Or(err, l.waitForStore(ctx, "shutdown"))
}

// closeTimeout bounds how long Close waits for commands that go-redis has in flight: Close returns
// within 2 s.
const closeTimeout = 1900 * time.Millisecond

// Close closes the Locker at once. Calls that wait return [ErrClosed], and the contexts of leases
// that are still held end with a cause that wraps [ErrLeaseLost] and ErrClosed. Their keys stay
// held until the leases expire or are released, since their holders may not have stopped yet. Close
// waits for the Locker's goroutines, and may be called more than once.
//
// Commands to a Redis that does not answer end when go-redis gives them up. Close waits for them
// for 2 s at most, and then returns an error that wraps [context.DeadlineExceeded]: call it again
// to wait again.
func (l *Locker) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	l.life.Drain()
	l.waiters.awaitEmpty()
	l.closeAll()
	return l.waitForStore(ctx, "close")
}

// waitForStore waits for the goroutines of a Locker that is closed.
func (l *Locker) waitForStore(ctx context.Context, op string) error {
	done := make(chan struct{})
	go func() { // ends when go-redis has given up what is under way
		defer close(done)
		l.store.Wait()
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("core: %s: commands were still under way: %w", op, context.Cause(ctx))
	}
}

func (l *Locker) closeAll() {
	l.life.Close()
	for _, e := range l.leases.stop() {
		l.end(e.grant, e.lease, fmt.Errorf("core: %q: %w: %w", e.grant.key(), ErrLeaseLost, ErrClosed))
	}
	l.store.Close()
}

// begin starts what a Locker needs once it has leases: the renewal loop, and the subscription,
// whose messages tell of leases that were taken away.
func (l *Locker) begin() {
	l.life.Background(l.renewals.run)
	l.store.Start()
	l.life.Background(l.checkEviction)
}

// end ends a lost grant: first the context of its lease, so that the holder stops, then it tells
// the wait queue, the listeners and the observer.
func (l *Locker) end(g *grant, lease *Lease, cause error) {
	if lease != nil {
		lease.cancel(cause)
	}
	l.waiters.lost(g)
	l.notifications.freed(g.key())
	if lease != nil {
		e := Lost{Key: g.key(), Name: lease.name, Fence: lease.fence, Held: lease.granted.Elapsed(time.Now()), Kind: lossOf(cause), Cause: cause}
		observing.TellAside(lease.Context(), nil, "core", func() { l.observer.OnLost(lease.Context(), e) })
		close(lease.told)
	}
}
