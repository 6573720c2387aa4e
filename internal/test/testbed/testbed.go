// Package testbed is what tests of guarded HTTP services stand on: a locker that tells what it sees, a rival that
// takes keys away from it, and a client that reads whole responses.
package testbed

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/internal/test/embedded"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

const (
	// Secret is a part of every key, and of no response.
	Secret = "s3cret-42"
	// OrderPath is where the tests' order is served, behind /orders/{id}.
	OrderPath = "/orders/" + Secret
	// OrderKey is the order's key.
	OrderKey = "order:" + Secret
)

// timeout is how long a key is waited for that should be free: a call that has just
// left may still be in Redis's queue for an instant.
const timeout = 5 * time.Second

// Fixture is a Redis, the Locker under test and its rival.
type Fixture struct {
	Redis  *redis.Client
	Prefix string
	Locker *core.Locker
	Rival  *core.Locker
	// Conflicts has each call of the Locker that met a held key, once: as soon as it waits
	// or was refused. Renewals are what the Locker saw. They have room for 10,000.
	Conflicts chan Conflict
	Renewals  chan core.Renewed
}

// Conflict is a call that met a held key.
type Conflict struct{ Key, Name string }

type watcher struct {
	core.NopObserver
	f *Fixture
}

func (w watcher) OnRenewed(_ context.Context, e core.Renewed) { w.f.Renewals <- e }

func (w watcher) OnWaiting(_ context.Context, e core.Waiting) {
	w.f.Conflicts <- Conflict{e.Key, e.Name}
}

func (w watcher) OnOutcome(_ context.Context, e core.Outcome) {
	if refused := e.Kind == core.OutcomeConflict || e.Kind == core.OutcomeDeferred; refused && !e.DidWait {
		w.f.Conflicts <- Conflict{e.Key, e.Name}
	}
}

// New makes a Fixture on env. The options are for the Locker under test.
func New(t testing.TB, env *redistest.Env, opts ...core.Option) *Fixture {
	t.Helper()
	return On(t, env.Client(t), env.Prefix, opts...)
}

// NewFragile makes a Fixture on an embedded Redis that the test may break. Its client is FragileClient's.
func NewFragile(t testing.TB) (*Fixture, *embedded.Server) {
	t.Helper()
	server, err := embedded.Start()
	require.NoError(t, err)
	t.Cleanup(server.Close)
	return On(t, FragileClient(t, server.Addr()), "t"), server
}

// FragileClient returns a client that fails at once, and leaves no goroutine that dials a dead server: go-redis
// starts one after as many failures as its pool is large.
func FragileClient(t testing.TB, addr string) *redis.Client {
	t.Helper()
	return redistest.Client(t, &redis.Options{Addr: addr, PoolSize: 1000, MaxRetries: -1, DialerRetries: 1})
}

// On makes a Fixture on rdb.
func On(t testing.TB, rdb *redis.Client, prefix string, opts ...core.Option) *Fixture {
	t.Helper()
	b := &Fixture{
		Redis: rdb, Prefix: prefix,
		Conflicts: make(chan Conflict, 10000), Renewals: make(chan core.Renewed, 10000),
	}
	b.Locker = NewLocker(t, rdb, append([]core.Option{core.WithPrefix(prefix), core.WithObserver(watcher{f: b})}, opts...)...)
	b.Rival = NewLocker(t, rdb, core.WithPrefix(prefix))
	return b
}

// NewLocker makes a Locker that is closed with the test.
func NewLocker(t testing.TB, rdb redis.UniversalClient, opts ...core.Option) *core.Locker {
	t.Helper()
	l, err := core.New(rdb, opts...)
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// Hold takes the order's key away, until the end of the test or of release, which may be called twice.
func (b *Fixture) Hold(t testing.TB) (release func()) {
	t.Helper()
	return b.HoldKey(t, OrderKey)
}

// HoldKey is Hold for any key.
func (b *Fixture) HoldKey(t testing.TB, key string, opts ...core.AcquireOption) (release func()) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	lease, err := b.Rival.Acquire(ctx, key, opts...)
	require.NoError(t, err)
	release = func() { _ = lease.Release(context.Background()) }
	t.Cleanup(release)
	context.AfterFunc(t.Context(), release) // a server whose waiters are deaf is closed before
	return release
}

// RequireFree checks that the order is held by nobody.
func (b *Fixture) RequireFree(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	lease, err := b.Rival.Acquire(ctx, OrderKey)
	require.NoError(t, err, "the key is not free")
	require.NoError(t, lease.Release(context.Background()))
}

// AssertHeld checks that the order is held by somebody.
func (b *Fixture) AssertHeld(t testing.TB) {
	t.Helper()
	lease, err := b.Rival.TryAcquire(context.Background(), OrderKey)
	if assert.ErrorIs(t, err, core.ErrConflict, "the key is not held") || err != nil {
		return
	}
	_ = lease.Release(context.Background())
}

// LoseLeases takes every record of a lease out of Redis, unless a busy machine has lost it already.
func (b *Fixture) LoseLeases(t testing.TB) {
	t.Helper()
	names := redistest.Keys(t, b.Redis, b.Prefix+":lock")
	if len(names) > 0 {
		assert.NoError(t, b.Redis.Del(context.Background(), names...).Err())
	}
}

// NewQueue makes a queue.
func NewQueue(t testing.TB, rdb redis.UniversalClient, name string, opts ...delayqueue.Option) *delayqueue.Queue {
	t.Helper()
	q, err := delayqueue.New(rdb, name, opts...)
	require.NoError(t, err)
	return q
}

// Work starts a worker that is stopped with the test.
func Work(t testing.TB, q *delayqueue.Queue, l *core.Locker, h delayqueue.Handler, opts ...delayqueue.WorkerOption) *delayqueue.Worker {
	t.Helper()
	w, err := delayqueue.NewWorker(q, l, h, opts...)
	require.NoError(t, err)
	require.NoError(t, w.Start())
	t.Cleanup(func() { assert.NoError(t, w.Stop(context.Background())) })
	return w
}

// Enqueue stores a job.
func Enqueue(t testing.TB, q *delayqueue.Queue, job delayqueue.Job) {
	t.Helper()
	_, err := q.Enqueue(t.Context(), job)
	require.NoError(t, err)
}

// Take takes a key that is free.
func Take(t testing.TB, l *core.Locker, key string, opts ...core.AcquireOption) *core.Lease {
	t.Helper()
	lease, err := l.TryAcquire(t.Context(), key, opts...)
	require.NoError(t, err)
	return lease
}
