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
)

// Locker takes keys on one Redis deployment, or on a majority of several. It is safe
// for concurrent use, and one per process and deployment is enough: its leases share
// one goroutine for renewal and one subscription for wake-ups.
//
// The zero Locker is not useful: use New, or NewQuorum.
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

// New makes a Locker on rdb, which stays the caller's to close, after the
// Locker. It does not talk to Redis: a server that is down is reported by the
// calls that need it. Its error wraps ErrInvalidOption.
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

// use completes a new Locker.
func (l *Locker) use(s store.Store) {
	l.store = s
	l.waiters = newWaiters(l)
}

// sameAs reports whether two Lockers hold the same thing when they hold a key.
func (l *Locker) sameAs(other *Locker) bool {
	return l.prefix == other.prefix && l.store.SameAs(other.store)
}

// storeEvents is the Locker as the events of its store.
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

func (e *storeEvents) Orphaned(key, token string, fence, server int64) {
	e.waiters.orphaned(key, token, fence, server)
}

func (e *storeEvents) Warn(w store.Warning) {
	e.observer.OnWarning(context.Background(), warningOf(w))
}

// ID names the Locker among those of all processes, as [Participant] shows it.
func (l *Locker) ID() string { return l.id }

// Prefix returns what [WithPrefix] set: what the Locker's names in Redis begin with.
func (l *Locker) Prefix() string { return l.prefix }

// TryAcquire takes key if it is free, and returns a *ConflictError if it is held, waited
// for or reserved. It blocks for one round trip to Redis, and no longer than ctx allows.
func (l *Locker) TryAcquire(ctx context.Context, key string, opts ...AcquireOption) (*Lease, error) {
	o, err := l.tryOptions(opts)
	return l.obtain(ctx, Call{Key: key, Name: o.name, ID: o.id}, nil, o, err)
}

// Acquire takes key, and waits until it is free. It returns when it has the
// key, when ctx ends, when the Locker is closed, or, with [ErrUnavailable], when Redis
// fails before the call knows that the key is held. A call that knows of a holder waits for
// Redis to return.
// After an error the key is not held: if a grant was under way it is released,
// and frees itself within the first lease (WithFirstLease) should Redis be out of reach.
func (l *Locker) Acquire(ctx context.Context, key string, opts ...AcquireOption) (*Lease, error) {
	o, err := l.acquireOptions(opts)
	return l.obtain(ctx, Call{Key: key, Name: o.name, ID: o.id}, waitForever{}, o, err)
}

// Do runs fn while holding key, for which it waits as Acquire does. It returns
// nil only if fn ran wholly within one lease and returned nil. The ctx of fn
// ends when the lease does.
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

// Shutdown refuses new calls, sends waiting ones away with ErrClosed, and waits
// until every lease was released or ctx ends; then it closes the Locker. It
// returns ctx's error if leases were left, or if the last commands to Redis did not
// end in time: call it again, or Close, to wait for those. It may be called twice.
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

// closeTimeout bounds how long Close waits for commands that go-redis has under way: Close is back
// within 2 s.
const closeTimeout = 1900 * time.Millisecond

// Close closes the Locker at once: waiting calls return ErrClosed, and the
// contexts of leases still held end with a cause that wraps ErrLeaseLost and
// ErrClosed. Their keys stay taken until the leases run out, or until they are
// released, since their holders may not have stopped yet. It waits for the
// Locker's goroutines, and may be called twice.
//
// Commands to a Redis that does not answer end when go-redis gives them up, which Close does
// not wait for longer than 2 s: then it returns an error that wraps
// [context.DeadlineExceeded]. Call it again to wait again.
func (l *Locker) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	l.life.Drain()
	l.waiters.sendAway()
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
		l.end(e.hold, e.lease, fmt.Errorf("core: %q: %w: %w", e.hold.key(), ErrLeaseLost, ErrClosed))
	}
	l.store.Close()
}

// begin starts what a Locker with leases needs: their renewal, and the subscription,
// whose messages tell of leases that were taken away.
func (l *Locker) begin() {
	l.life.Background(l.renewals.run)
	l.store.Start()
	l.life.Background(l.checkEviction)
}

// end ends the context of a lost hold's lease, then tells everybody.
func (l *Locker) end(h *hold, lease *Lease, cause error) {
	if lease != nil {
		lease.cancel(cause)
	}
	l.waiters.lost(h)
	l.notifications.freed(h.key())
	if lease != nil {
		l.observer.OnLost(lease.Context(), Lost{
			Key: h.key(), Name: lease.name, Fence: lease.fence, Held: lease.granted.Elapsed(time.Now()), Kind: lossOf(cause), Cause: cause,
		})
	}
}
