package core

import (
	"cmp"
	"context"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/perkey-go/perkey/internal/absent"
	"github.com/perkey-go/perkey/internal/ident"
	"github.com/perkey-go/perkey/internal/listener"
)

// Locker takes keys on one Redis deployment, or on a majority of several. It is safe
// for concurrent use, and one per process and deployment is enough: its leases share
// one goroutine for renewal and one subscription for wake-ups.
//
// The zero Locker is not useful: use New, or NewQuorum.
type Locker struct {
	rdb      redis.UniversalClient
	single   bool                 // one node serves all keys
	cluster  *redis.ClusterClient // rdb, if it is one
	quorum   *quorum              // asked in place of rdb, if there is one
	prefix   string
	ttl      time.Duration
	observer Observer
	// For renewals, which must not queue for connections behind everything else.
	renewer    redis.UniversalClient
	ownRenewer bool
	// Bounds on waiting calls.
	maxPerKey, maxWaiters int
	// How many fences an exclusive hold may use.
	fences int64
	// The longest a waiting call goes without asking again, whatever its policy
	// says: the announcement that it waits for can have been lost.
	pollFloor time.Duration

	id       string // names this Locker's channel
	lanesMu  sync.Mutex
	lanes    map[*redis.Client]*lane
	commands sync.Pool   // not global: a pool would carry channels between synctest's bubbles
	mapped   atomic.Bool // the Cluster's slots are known
	mapping  atomic.Bool // they are being asked for
	renewals *renewals
	waiters  *waiters
	notices  *notices
	wakeups  subscriptions
	deaf     bool          // there is no subscription, and the observer knows; the listener's
	cancels  chan struct{} // holds one per acquire that is being cancelled
	returns  chan struct{} // holds one per lease that is given back in the background

	mu      sync.Mutex
	state   atomic.Int32 // written under mu
	closing chan struct{}
	running sync.WaitGroup // every goroutine but the listener's
	started sync.Once      // what begins with the first lease
}

const (
	lockerOpen int32 = iota
	lockerDraining
	lockerClosed
)

// maxCancels bounds what is tried again in the background while Redis does not
// answer. What is past it frees itself when its lease ends.
const maxCancels = 64

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
	l.connect(rdb)
	l.wakeups = subscriptions{listener.New(rdb, channelPrefix(l.prefix)+l.id, l.heardAgain, l.unheard, l.heard)}
	return l, nil
}

func checkClient(rdb redis.UniversalClient) error {
	if absent.Is(rdb) {
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

// newLocker makes a Locker that has no Redis yet.
func newLocker(opts []Option) (*Locker, error) {
	l := &Locker{
		prefix:    ident.DefaultPrefix,
		ttl:       DefaultTTL,
		observer:  NopObserver{},
		pollFloor: time.Second,
		maxPerKey: DefaultMaxWaiters, maxWaiters: 10 * DefaultMaxWaiters,
		fences:  fenceBlock,
		id:      newLockerID(),
		lanes:   map[*redis.Client]*lane{},
		cancels: make(chan struct{}, maxCancels),
		returns: make(chan struct{}, maxCancels),
		closing: make(chan struct{}),
	}
	l.commands.New = newCommand
	for _, opt := range opts {
		if opt == nil {
			return nil, fmt.Errorf("core: %w: an option is nil", ErrInvalidOption)
		}
		if err := opt(l); err != nil {
			return nil, err
		}
	}
	l.waiters = newWaiters(l)
	l.notices = newNotices()
	l.renewals = newRenewals(l)
	return l, nil
}

func (l *Locker) connect(rdb redis.UniversalClient) {
	l.rdb = rdb
	switch client := rdb.(type) {
	case *redis.Client:
		l.single = true
	case *redis.ClusterClient:
		l.cluster = client
	}
	if l.renewer == nil {
		l.renewer, l.ownRenewer = renewerOf(rdb)
	}
}

// subscriptions are one for each Redis that can have something to tell.
type subscriptions []*listener.Listener

// Start opens them in the background. Only the first call does anything.
func (s subscriptions) Start() {
	for _, sub := range s {
		sub.Start()
	}
}

// Up reports whether all are open, as far as is known.
func (s subscriptions) Up() bool {
	for _, sub := range s {
		if !sub.Up() {
			return false
		}
	}
	return true
}

// Close closes them, and waits for their goroutines. It may be called twice.
func (s subscriptions) Close() {
	for _, sub := range s {
		sub.Close()
	}
}

// sameAs reports whether two Lockers hold the same thing when they hold a key.
func (l *Locker) sameAs(other *Locker) bool {
	return l.prefix == other.prefix && l.rdb == other.rdb && l.quorum.sameAs(other.quorum)
}

// renewerOf makes a client like rdb with a few connections of its own, which the
// user's commands cannot use up. It does not try anything twice, since renewals are
// sent again anyway. It returns rdb itself when that is of another kind.
func renewerOf(rdb redis.UniversalClient) (renewer redis.UniversalClient, own bool) {
	switch client := rdb.(type) {
	case *redis.Client:
		opt := *client.Options()
		opt.PoolSize, opt.MinIdleConns, opt.MaxIdleConns, opt.MaxActiveConns = renewalFlights, 0, 0, 0
		opt.MaxRetries, opt.DialerRetries = -1, 1
		opt.PushNotificationProcessor = nil // registers handlers of its own
		// rdb's own, which a connection that it opens meanwhile may change. Renewals are
		// tried again soon enough without word of a server's maintenance.
		opt.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
		return redis.NewClient(&opt), true
	case *redis.ClusterClient:
		opt := *client.Options()
		opt.PoolSize, opt.MinIdleConns, opt.MaxIdleConns, opt.MaxActiveConns = renewalFlights, 0, 0, 0
		opt.MaxRetries, opt.DialerRetries = -1, 1
		return redis.NewClusterClient(&opt), true
	}
	return rdb, false
}

// node is the node that serves a record, on a Cluster whose slots are known. It is
// nil otherwise: go-redis finds the way.
func (l *Locker) node(record string) *redis.Client {
	if l.cluster == nil {
		return nil
	}
	if !l.mapped.Load() {
		if l.mapping.CompareAndSwap(false, true) { // it may take long
			l.background(func() {
				_, err := l.cluster.MasterForKey(context.Background(), record)
				l.mapped.Store(err == nil)
				l.mapping.Store(false)
			})
		}
		return nil
	}
	node, err := l.cluster.MasterForKey(context.Background(), record)
	if err != nil {
		return nil
	}
	return node
}

// mark says how this Locker's calls learn of a grant.
func (l *Locker) mark() any {
	switch {
	case l.quorum != nil:
		return notQueued
	case !l.wakeups.Up():
		return markPolls
	case l.single:
		return markListens
	default:
		return markElsewhere
	}
}

// heard takes a message from a script: a word, what goes with it, and the key.
func (l *Locker) heard(message string) {
	now := time.Now()
	word, rest, _ := strings.Cut(message, " ")
	switch word {
	case "grant":
		f := strings.SplitN(rest, " ", 5)
		if len(f) < 5 {
			return
		}
		fence, err1 := strconv.ParseInt(f[1], 10, 64)
		ends, err2 := strconv.ParseInt(f[2], 10, 64)
		if err1 == nil && err2 == nil {
			l.waiters.told(f[0], f[4], fence, f[3] != "0", now, ends)
		}
	case "wanted":
		l.waiters.wantedBy(rest)
	case "reserved":
		l.waiters.reservedBy(rest)
	case "free":
		l.notices.freed(rest)
	case "lost":
		l.takenBy(rest, forced)
	case "released":
		l.takenBy(rest, elsewhere)
	}
}

// takenBy takes word that a grant is over: its first fence, and the key.
func (l *Locker) takenBy(words, why string) {
	fence, key, _ := strings.Cut(words, " ")
	if n, err := strconv.ParseInt(fence, 10, 64); err == nil {
		l.taken(key, n, why)
	}
}

// TryAcquire takes key if it is free, and returns a *ConflictError if it is held, waited
// for or reserved. It blocks for one round trip to Redis, and no longer than ctx allows.
func (l *Locker) TryAcquire(ctx context.Context, key string, opts ...AcquireOption) (*Lease, error) {
	o, err := l.tryOptions(opts)
	if err != nil {
		return nil, err
	}
	return l.obtain(ctx, Call{Key: key, Name: o.name, ID: o.id}, nil, o)
}

// Acquire takes key, and waits until it is free. It returns when it has the
// key, when ctx ends, when Redis is unavailable, or when the Locker is closed.
// After an error the key is not held: if a grant was under way it is given back,
// and frees itself within 3 s should Redis be out of reach.
func (l *Locker) Acquire(ctx context.Context, key string, opts ...AcquireOption) (*Lease, error) {
	o, err := l.acquireOptions(opts)
	if err != nil {
		return nil, err
	}
	return l.obtain(ctx, Call{Key: key, Name: o.name, ID: o.id}, patience{}, o)
}

// Do runs fn while holding key, for which it waits as Acquire does. It returns
// nil only if fn ran wholly within one lease and returned nil. The ctx of fn
// ends when the lease does.
func (l *Locker) Do(ctx context.Context, key string, fn func(context.Context) error, opts ...AcquireOption) error {
	if fn == nil {
		return errNoFunction
	}
	lease, err := l.Acquire(ctx, key, opts...)
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
	l.refuseCalls(lockerDraining)
	var err error
	select {
	case <-l.renewals.empty():
	case <-ctx.Done():
		err = fmt.Errorf("core: shutdown: %d leases were still held: %w", l.renewals.count(), context.Cause(ctx))
	}
	l.closeAll()
	done := make(chan struct{})
	go func() { // ends when go-redis has given up what is under way
		defer close(done)
		l.wait()
	}()
	select {
	case <-done:
	case <-ctx.Done():
		err = cmp.Or(err, fmt.Errorf("core: shutdown: commands were still under way: %w", context.Cause(ctx)))
	}
	return err
}

// Close closes the Locker at once: waiting calls return ErrClosed, and the
// contexts of leases still held end with a cause that wraps ErrLeaseLost and
// ErrClosed. Their keys stay taken until the leases run out, or until they are
// released, since their holders may not have stopped yet. It waits for the
// Locker's goroutines, and may be called twice.
func (l *Locker) Close() error {
	l.refuseCalls(lockerDraining)
	l.waiters.sendAway()
	l.closeAll()
	l.wait()
	return nil
}

func (l *Locker) closeAll() {
	l.refuseCalls(lockerClosed)
	for _, e := range l.renewals.stop() {
		l.end(e.hold, e.lease, fmt.Errorf("core: %q: %w: %w", e.hold.key(), ErrLeaseLost, ErrClosed))
	}
	if l.quorum != nil {
		l.quorum.close()
	}
	l.lanesMu.Lock()
	defer l.lanesMu.Unlock()
	for _, lane := range l.lanes {
		lane.close()
	}
}

func (l *Locker) wait() {
	l.wakeups.Close()
	l.running.Wait()
	if l.quorum != nil {
		l.quorum.wait()
	}
	if l.ownRenewer {
		_ = l.renewer.Close()
	}
}

func (l *Locker) refuseCalls(state int32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.state.Load() == lockerOpen {
		close(l.closing)
	}
	l.state.Store(max(l.state.Load(), state))
}

// begin starts what a Locker with leases needs: their renewal, and the subscription
// that brings word of one that was taken away.
func (l *Locker) begin() {
	l.background(l.renewals.run)
	l.wakeups.Start()
	l.background(l.checkEviction)
}

// background runs f on a goroutine that Close waits for. It reports false, and
// does not run f, when the Locker is closed.
func (l *Locker) background(f func()) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.state.Load() == lockerClosed {
		return false
	}
	l.running.Go(f)
	return true
}

// enlist has Close wait for the caller, until running.Done. It reports false when the
// Locker is closed.
func (l *Locker) enlist() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.state.Load() == lockerClosed {
		return false
	}
	l.running.Add(1)
	return true
}

// later runs f in the background, or at once when the Locker is closed.
func (l *Locker) later(f func()) {
	if !l.background(f) {
		f()
	}
}

// end ends the context of a lost hold's lease, then tells everybody.
func (l *Locker) end(h *hold, lease *Lease, cause error) {
	if lease != nil {
		lease.cancel(cause)
	}
	l.waiters.lost(h)
	l.notices.freed(h.key())
	if lease != nil {
		l.observer.OnLost(lease.Context(), Lost{Key: h.key(), Name: lease.name, Held: lease.granted.elapsed(time.Now()), Cause: cause})
	}
}
