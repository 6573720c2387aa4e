package delayqueue_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

func TestOutage_AStoppedWorkerDoesNotWaitForRedis(t *testing.T) {
	t.Parallel()
	for name, away := range map[string]func(*redistest.Server){"refuses": (*redistest.Server).Kill, "hangs": (*redistest.Server).Pause} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			b := setup(t, &redistest.Env{Addr: server.Addr, Real: true, Prefix: "p"})
			started := make(chan struct{})
			w := b.start(func(ctx context.Context, _ delayqueue.Message) error {
				close(started)
				<-ctx.Done()
				return ctx.Err()
			})
			b.enqueue(delayqueue.Job{})
			next(t, started)
			away(server)
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			stopped := make(chan error)
			go func() { stopped <- w.Stop(ctx) }()
			require.ErrorIs(t, next(t, stopped), context.Canceled, "the claim lasts 30 s")
		})
	}
}

// On a Redis whose memory is full nothing can be enqueued, and nobody gets a lock. But what does harm can be stopped, and what is in the queue
// runs, so that memory gets free: that takes locks too.
func TestOutage_AFullRedis(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ cluster, known bool }{
		"one server": {}, "a cluster that knows the scripts of Pause and Resume": {cluster: true, known: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := t.Context()
			var b *bench
			var nodes func(context.Context, func(context.Context, *redis.Client) error) error
			if c.cluster {
				cluster := redistest.StartCluster(t, 3, 0)
				b, nodes = onCluster(t, cluster, "q"), cluster.Client(t).ForEachMaster
			} else {
				server := redistest.Start(t, "--maxmemory-policy", "noeviction")
				b = setup(t, &redistest.Env{Addr: server.Addr, Real: true, Prefix: "t"}, delayqueue.WithPartitions(16))
				nodes = func(ctx context.Context, do func(context.Context, *redis.Client) error) error { return do(ctx, b.rdb) }
			}
			ids := b.enqueueAll(64, func(i int) delayqueue.Job {
				return delayqueue.Job{Key: []string{"", fmt.Sprint("k", i%20)}[i%2], Delay: time.Second, Payload: []byte("work")}
			})
			_, err := b.locker.TryAcquire(ctx, "other") // its script is known from now on
			require.NoError(t, err)
			if c.known {
				require.NoError(t, b.queue.Pause(ctx, time.Minute))
				require.NoError(t, b.queue.Resume(ctx))
			}
			require.NoError(t, nodes(ctx, func(ctx context.Context, node *redis.Client) error {
				return node.ConfigSet(ctx, "maxmemory", "1mb").Err()
			}))
			for i := range 20 {
				_, err := b.locker.TryAcquire(ctx, fmt.Sprint("k", i))
				require.ErrorIs(t, err, core.ErrUnavailable)
				require.ErrorContains(t, err, "OOM")
			}
			require.ErrorContains(t, errOf(b.queue.Enqueue(ctx, delayqueue.Job{})), "OOM")

			require.NoError(t, b.queue.Pause(ctx, time.Hour))
			require.True(t, b.stats().Paused)
			var r ran
			b.start(r.handle)
			time.Sleep(1500 * time.Millisecond) // they are due
			require.Empty(t, r.ids())
			require.NoError(t, b.queue.Pause(ctx, time.Hour), "again")
			require.NoError(t, b.queue.Resume(ctx))
			require.False(t, b.stats().Paused)
			redistest.Eventually(t, func() bool { return len(r.ids()) == len(ids) }, "what is there is run")
			require.ElementsMatch(t, ids, r.ids())
		})
	}
}

// apart is a queue on one Redis whose messages' keys are locked on another.
type apart struct {
	*bench
	locks, queues *redistest.Proxy
	guard         *core.Guard
	lockServer    *redis.Client
}

// eachAway has one of the two, which is behind this proxy, be away, in either way, and come back.
func eachAway(t *testing.T, proxy func(*apart) *redistest.Proxy, test func(t *testing.T, a *apart, goes, returns func())) {
	t.Helper()
	t.Parallel()
	for name, away := range map[string]func(p *redistest.Proxy){
		"refuses": func(p *redistest.Proxy) { p.Refuse(true); p.Cut() },
		"hangs":   func(p *redistest.Proxy) { p.Blackhole(redistest.Requests | redistest.Replies) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := setupApart(t)
			test(t, a, func() { away(proxy(a)) }, func() { proxy(a).Refuse(false); proxy(a).Blackhole(0) })
		})
	}
}

func setupApart(t *testing.T) *apart {
	locks, queues := redistest.Start(t), redistest.Start(t, "--appendonly", "yes")
	a := &apart{locks: redistest.NewProxy(t, locks.Addr), queues: redistest.NewProxy(t, queues.Addr)}
	client := func(addr string) *redis.Client {
		return redistest.Client(t, &redis.Options{Addr: addr, MaxRetries: 1, DialerRetries: 1})
	}
	a.lockServer = client(locks.Addr)
	a.bench = setup(t, &redistest.Env{Addr: queues.Addr, Real: true, Prefix: "t"})
	a.queue = a.newQueue(client(a.queues.Addr))
	a.locker, a.other = a.lockerOn(client(a.locks.Addr)), a.lockerOn(client(locks.Addr))
	a.guard = a.locker.Guard(delayqueue.Policy(a.queue))
	return a
}

// park has the policy store a call whose key is held.
func (a *apart) park(key string) (id string) {
	a.t.Helper()
	return park(a.t, a.guard, core.Call{Key: key, Encode: nothing})
}

func (a *apart) call(key string) error {
	return a.guard.Do(a.t.Context(), core.Call{Key: key, Encode: nothing}, mustNotRun)
}

func (a *apart) reserved(key string) time.Duration {
	a.t.Helper()
	info := of(a.other.Inspect(a.t.Context(), key))(a.t)
	return info.Reserved
}

// Each part is where it belongs: the locks, their reservations and what tells of their release on
// one Redis, the messages and what tells of them on the other.
func TestTwoRedises_ParkedAndWokenAndDrained(t *testing.T) {
	t.Parallel()
	a := setupApart(t)
	var r ran
	a.start(r.handle, delayqueue.WithConflictBackoff(5*time.Minute, 5*time.Minute))
	held := a.hold("k")
	ids := []string{a.park("k"), a.park("k"), a.park("k")}
	require.Positive(t, a.reserved("k"))
	redistest.Eventually(t, func() bool { return a.status(ids[0]).Conflicts > 0 }, "it met the held key")
	time.Sleep(100 * time.Millisecond)
	require.NoError(t, held.Release(t.Context()))
	for _, id := range ids {
		s := of(a.queue.Wait(t.Context(), id))(t)
		require.Equal(t, delayqueue.StateDone, s.State)
	}
	require.Equal(t, ids, r.ids())
	redistest.Eventually(t, func() bool { return a.reserved("k") == 0 }, "nobody is left")
	for _, name := range redistest.Keys(t, a.lockServer, "") {
		require.True(t, strings.HasPrefix(name, "t:lock{}:"), name)
	}
	for _, name := range redistest.Keys(t, a.rdb, "") {
		require.True(t, strings.HasPrefix(name, "t:queue:"), name)
	}
}

// The queue's Redis is away: what would be parked is refused as unavailable, locks work, and a handler is told that its claim is lost.
func TestTwoRedises_TheQueuesIsAway(t *testing.T) {
	eachAway(t, func(a *apart) *redistest.Proxy { return a.queues }, func(t *testing.T, a *apart, goes, returns func()) {
		held := a.hold("k")
		id := a.park("k")
		started, lost := make(chan struct{}), make(chan struct{})
		a.start(func(ctx context.Context, m delayqueue.Message) error {
			if m.Key == "" && m.Attempt == 1 {
				close(started)
				<-ctx.Done()
				close(lost)
			}
			return nil
		}, delayqueue.WithClaimLease(2*time.Second))
		long := a.enqueue(delayqueue.Job{})
		next(t, started)
		redistest.Eventually(t, func() bool { return a.status(id).Conflicts > 0 }, "a worker works")
		before := a.status(id)
		goes()
		err := a.call("k")
		require.ErrorIs(t, err, core.ErrUnavailable)
		require.NotErrorIs(t, err, core.ErrConflict)
		require.NotErrorIs(t, err, core.ErrDeferred)
		for range 20 { // while the queue's Redis is away
			require.NoError(t, a.locker.Do(t.Context(), "free", func(context.Context) error { return nil }))
		}
		require.ErrorIs(t, errOf(a.locker.TryAcquire(t.Context(), "k")), core.ErrConflict)
		require.NoError(t, held.Release(t.Context()))
		next(t, lost) // its claim could not be extended
		returns()
		a.reaches(long, delayqueue.StateDone)
		s := a.waitFor(id)
		require.Equal(t, delayqueue.StateDone, s.State)
		require.LessOrEqual(t, s.Attempts-s.Losses, 1, "a claim whose reply was lost counts as a loss")
		require.GreaterOrEqual(t, s.Conflicts, before.Conflicts)
	})
}

// The locks' Redis is away: what is parked waits, is not lost, and no attempt is spent.
func TestTwoRedises_TheLocksIsAway(t *testing.T) {
	eachAway(t, func(a *apart) *redistest.Proxy { return a.locks }, func(t *testing.T, a *apart, goes, returns func()) {
		var ids []string
		for _, key := range []string{"a", "a", "b", "c", ""} {
			ids = append(ids, a.enqueue(delayqueue.Job{Key: key, Delay: 200 * time.Millisecond}))
		}
		ids, keyless := ids[:4], ids[4]
		goes()
		var r ran
		seen := newEvents()
		a.start(r.handle, delayqueue.WithObserver(seen))
		a.reaches(keyless, delayqueue.StateDone)
		for range 6 { // some rounds
			if e := next(t, seen.settled); e.Message.ID != keyless {
				require.Equal(t, delayqueue.OutcomeReturned, e.Outcome)
				require.ErrorIs(t, e.Err, core.ErrUnavailable)
			}
		}
		for _, id := range ids {
			s := a.status(id)
			require.False(t, s.State.Ended())
			require.Equal(t, [2]int{0, 0}, [2]int{s.Conflicts, s.Losses})
		}
		require.Equal(t, []string{keyless}, r.ids())
		returns()
		for _, id := range ids {
			s := a.reaches(id, delayqueue.StateDone)
			require.Equal(t, [3]int{1, 0, 0}, [3]int{s.Attempts, s.Conflicts, s.Losses})
		}
		require.Len(t, r.ids(), len(ids)+1)
		require.NotErrorIs(t, a.call("free"), core.ErrUnavailable)
	})
}
