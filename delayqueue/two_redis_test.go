package delayqueue_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

// apart is a queue on one Redis whose messages' keys are locked on another.
type apart struct {
	*bench
	locks, queues *redistest.Proxy
	guard         *core.Guard
	lockServer    *redis.Client
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
	for locker, addr := range map[**core.Locker]string{&a.locker: a.locks.Addr, &a.other: locks.Addr} {
		l, err := core.New(client(addr), core.WithPrefix("t"))
		require.NoError(t, err)
		t.Cleanup(func() { _ = l.Close() })
		*locker = l
	}
	a.guard = a.locker.Guard(delayqueue.Policy(a.queue))
	return a
}

// park has the policy store a call whose key is held.
func (a *apart) park(key string) (id string) {
	a.t.Helper()
	var deferred *core.DeferredError
	require.ErrorAs(a.t, a.call(key), &deferred)
	return deferred.Ticket.ID
}

func (a *apart) call(key string) error {
	return a.guard.Do(a.t.Context(), core.Call{Key: key, Encode: func() ([]byte, error) { return []byte("work"), nil }}, mustNotRun)
}

func (a *apart) reserved(key string) time.Duration {
	a.t.Helper()
	info, err := a.other.Inspect(a.t.Context(), key)
	require.NoError(a.t, err)
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
		s, err := a.queue.Wait(t.Context(), id)
		require.NoError(t, err)
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

	held = a.hold("k") // cancelled: a worker ends the reservation
	id := a.park("k")
	redistest.Eventually(t, func() bool { return a.queue.Cancel(t.Context(), id) == nil }, "it is not claimed at the moment")
	redistest.Eventually(t, func() bool { return a.reserved("k") == 0 }, "nobody is left")
	require.NoError(t, held.Release(t.Context()))
}

// The queue's Redis is away: what would be parked is refused as unavailable, and locks work.
func TestTwoRedises_TheQueuesIsAway(t *testing.T) {
	t.Parallel()
	for name, away := range map[string]func(*apart){
		"refuses": func(a *apart) { a.queues.Refuse(true); a.queues.Cut() },
		"hangs":   func(a *apart) { a.queues.Blackhole(redistest.Requests | redistest.Replies) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := setupApart(t)
			held := a.hold("k")
			id := a.park("k")
			var r ran
			a.start(r.handle, delayqueue.WithClaimLease(2*time.Second))
			redistest.Eventually(t, func() bool { return a.status(id).Conflicts > 0 }, "a worker works")
			before := a.status(id)
			away(a)
			err := a.call("k")
			require.ErrorIs(t, err, core.ErrUnavailable)
			require.NotErrorIs(t, err, core.ErrConflict)
			require.NotErrorIs(t, err, core.ErrDeferred)
			for range 20 { // while the queue's Redis is away
				require.NoError(t, a.locker.Do(t.Context(), "free", func(context.Context) error { return nil }))
			}
			_, err = a.locker.TryAcquire(t.Context(), "k")
			require.ErrorIs(t, err, core.ErrConflict)
			require.NoError(t, held.Release(t.Context()))
			a.queues.Refuse(false)
			a.queues.Blackhole(0)
			s, err := a.queue.Wait(t.Context(), id)
			require.NoError(t, err)
			require.Equal(t, delayqueue.StateDone, s.State)
			require.LessOrEqual(t, s.Attempts-s.Losses, 1, "a claim whose reply was lost counts as a loss")
			require.GreaterOrEqual(t, s.Conflicts, before.Conflicts)
		})
	}
}

// The locks' Redis is away: what is parked waits, is not lost, and no attempt is spent.
func TestTwoRedises_TheLocksIsAway(t *testing.T) {
	t.Parallel()
	for name, away := range map[string]func(*apart){
		"refuses": func(a *apart) { a.locks.Refuse(true); a.locks.Cut() },
		"hangs":   func(a *apart) { a.locks.Blackhole(redistest.Requests | redistest.Replies) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := setupApart(t)
			var ids []string
			for _, key := range []string{"a", "a", "b", "c"} {
				ids = append(ids, a.enqueue(delayqueue.Job{Key: key, Delay: 200 * time.Millisecond}))
			}
			keyless := a.enqueue(delayqueue.Job{Delay: 200 * time.Millisecond})
			away(a)
			var r ran
			seen := newEvents()
			a.start(r.handle, delayqueue.WithObserver(seen))
			require.Equal(t, delayqueue.StateDone, a.reaches(keyless, delayqueue.StateDone).State)
			for range 6 { // some rounds
				e := next(t, seen.settled)
				if e.Message.ID == keyless {
					continue
				}
				require.Equal(t, delayqueue.OutcomeReturned, e.Outcome)
				require.ErrorIs(t, e.Err, core.ErrUnavailable)
			}
			for _, id := range ids {
				s := a.status(id)
				require.False(t, s.State.Ended())
				require.Equal(t, [2]int{0, 0}, [2]int{s.Conflicts, s.Losses})
			}
			require.Equal(t, []string{keyless}, r.ids())
			a.locks.Refuse(false)
			a.locks.Blackhole(0)
			for _, id := range ids {
				s := a.reaches(id, delayqueue.StateDone)
				require.Equal(t, [3]int{1, 0, 0}, [3]int{s.Attempts, s.Conflicts, s.Losses})
			}
			require.Len(t, r.ids(), len(ids)+1)
			require.NotErrorIs(t, a.call("free"), core.ErrUnavailable)
		})
	}
}
