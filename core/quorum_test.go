package core_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

// overServers makes a quorum of real servers.
func overServers(t *testing.T, servers []*redistest.Server, opts ...core.Option) *core.Locker {
	t.Helper()
	var clients []redis.UniversalClient
	for _, s := range servers {
		clients = append(clients, redistest.Client(t, &redis.Options{Addr: s.Addr}))
	}
	l, err := core.NewQuorum(clients, opts...)
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	return l
}

func startServers(t *testing.T, many int) (servers []*redistest.Server) {
	t.Helper()
	for range many {
		servers = append(servers, redistest.Start(t))
	}
	return servers
}

func TestQuorum_CallsOfAQuorumNeverOverlap(t *testing.T) {
	t.Parallel()
	t.Run("handed over", func(t *testing.T) { testNoOverlap(t, 3, 4, 15, 0) })
	t.Run("each granted", func(t *testing.T) { testNoOverlap(t, 3, 2, 15, time.Millisecond) })
}

// testNoOverlap has calls of several lockers contend for a key. A grant is not handed over
// between leases of different lengths.
func testNoOverlap(t *testing.T, lockers, each, rounds int, differ time.Duration) {
	t.Parallel()
	var nodes []*redistest.Env
	for range 3 {
		nodes = append(nodes, redistest.Embedded(t))
	}
	calls := alone{t: t}
	var wg sync.WaitGroup
	for range lockers {
		var clients []redis.UniversalClient
		for _, n := range nodes {
			clients = append(clients, n.Client(t))
		}
		l, err := core.NewQuorum(clients)
		require.NoError(t, err)
		l.WaitForNodes(time.Minute, clients) // a busy machine is no outage
		t.Cleanup(func() { _ = l.Close() })
		for call := range each {
			wg.Go(func() {
				for range rounds {
					if err := l.Do(t.Context(), "k", calls.work, core.LeaseTTL(core.DefaultTTL+time.Duration(call)*differ)); err != nil {
						t.Error(err)
					}
				}
			})
		}
	}
	wg.Wait()
	require.EqualValues(t, lockers*each*rounds, calls.ran.Load())
	for _, n := range nodes {
		requireExpires(t, n.Client(t), "perkey")
	}
}

// Each node counts for itself: holders that found different nodes away must not be more together than the limit.
func TestQuorum_CountedHoldersAreNoMoreWhileNodesAreAway(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 2, 5} {
		onFakeNodes(t, 5, func(t *testing.T, nodes []*fakeNode) {
			var leases []*core.Lease
			take := func() {
				lease, err := overNodes(t, nodes).TryAcquire(t.Context(), "k", core.Counted(n))
				if err == nil {
					leases = append(leases, lease)
					t.Cleanup(func() { _ = lease.Release(context.Background()) })
				}
				leases = slices.DeleteFunc(leases, func(l *core.Lease) bool { return l.Context().Err() != nil })
				require.LessOrEqual(t, len(leases), n)
			}
			for i := range nodes {
				for j := range i {
					nodes[i].die()
					nodes[j].die()
					take()
					nodes[i].live()
					nodes[j].live()
				}
			}
			for range 2 * n {
				take()
			}
			require.NotEmpty(t, leases)
		})
	}
}

func TestQuorum_SharedAndCountedHoldersOfAQuorum(t *testing.T) {
	t.Parallel()
	onFakeNodes(t, 3, func(t *testing.T, nodes []*fakeNode) {
		l := overNodes(t, nodes)
		other := overNodes(t, nodes)
		var leases []*core.Lease
		for range 5 {
			for _, l := range []*core.Locker{l, other} {
				lease, err := l.TryAcquire(t.Context(), "k", core.Shared())
				require.NoError(t, err)
				leases = append(leases, lease)
			}
		}
		_, err := l.TryAcquire(t.Context(), "k")
		require.ErrorIs(t, err, core.ErrConflict)
		for _, lease := range leases {
			require.NoError(t, lease.Release(t.Context()))
		}
		var inside, most atomic.Int64
		var wg sync.WaitGroup
		fences := map[int64]bool{}
		var mu sync.Mutex
		for range 10 {
			for _, l := range []*core.Locker{l, other} {
				wg.Go(func() {
					err := l.Do(t.Context(), "n", func(ctx context.Context) error {
						if n := inside.Add(1); n > most.Load() {
							most.Store(n)
						}
						lease, _ := core.LeaseFrom(ctx)
						mu.Lock()
						if fences[lease.Fence()] {
							t.Errorf("fence %d twice", lease.Fence())
						}
						fences[lease.Fence()] = true
						mu.Unlock()
						time.Sleep(time.Second)
						inside.Add(-1)
						return nil
					}, core.Counted(3))
					if err != nil {
						t.Error(err)
					}
				})
			}
		}
		wg.Wait()
		require.EqualValues(t, 3, most.Load())
		time.Sleep(time.Second)
		require.Empty(t, records(nodes))
	})
}

func TestQuorum_AQuorumsCallerCanLeave(t *testing.T) {
	t.Parallel()
	onFakeNodes(t, 3, func(t *testing.T, nodes []*fakeNode) {
		l := overNodes(t, nodes)
		warm(t, l)
		for _, n := range nodes[:2] {
			n.stop()
		}
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		start := time.Now()
		_, err := l.Acquire(ctx, "k")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, 100*time.Millisecond, time.Since(start))
		for _, n := range nodes {
			n.live()
		}
		time.Sleep(3 * time.Second)
		require.Empty(t, records(nodes))
	})
}

func TestQuorum_AQuorumReenters(t *testing.T) {
	t.Parallel()
	onFakeNodes(t, 3, func(t *testing.T, nodes []*fakeNode) {
		l := overNodes(t, nodes)
		one := lockerOn(t, nodes[0].client(t), "perkey")
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		require.NoError(t, l.Do(ctx, "k", func(ctx context.Context) error {
			synctest.Wait() // a majority granted it: now the third node has, too
			_, err := one.TryAcquire(ctx, "k")
			assert.ErrorIs(t, err, core.ErrConflict, "one of the nodes is another deployment")
			return l.Do(ctx, "k", func(context.Context) error { return nil })
		}))
	})
}

func TestQuorum_AQuorumAnnouncesThatAKeyIsFree(t *testing.T) {
	t.Parallel()
	servers := startServers(t, 3)
	holder, other := overServers(t, servers), overServers(t, servers)
	lease, err := holder.TryAcquire(t.Context(), "k")
	require.NoError(t, err)
	free := make(chan string, 1)
	_, err = other.TryAcquire(t.Context(), "k", core.NotifyRelease(free))
	require.ErrorIs(t, err, core.ErrConflict)
	listening(t, other)
	for len(free) > 0 { // the subscription itself is news
		<-free
	}
	_, err = other.TryAcquire(t.Context(), "k", core.NotifyRelease(free))
	require.ErrorIs(t, err, core.ErrConflict)
	require.NoError(t, lease.Release(t.Context()))
	require.Equal(t, "k", <-free)
}

func TestQuorum_ACloseOfAQuorumWaitsForEverything(t *testing.T) {
	t.Parallel()
	servers := startServers(t, 3)
	l := overServers(t, servers)
	warm(t, l)
	servers[0].Pause()
	t.Cleanup(servers[0].Resume)
	lease, err := l.TryAcquire(t.Context(), "k")
	require.NoError(t, err)
	waiting := make(chan error)
	go func() {
		_, err := l.Acquire(t.Context(), "k")
		waiting <- err
	}()
	time.Sleep(10 * time.Millisecond)
	require.ErrorIs(t, l.Close(), context.DeadlineExceeded, "a node hangs")
	require.ErrorIs(t, <-waiting, core.ErrClosed)
	require.ErrorIs(t, context.Cause(lease.Context()), core.ErrClosed)
	servers[0].Resume()
	redistest.Eventually(t, func() bool { return l.Close() == nil }, "it waits again")
	require.ErrorIs(t, lease.Release(t.Context()), core.ErrLeaseLost)
	for _, s := range servers {
		other := lockerOn(t, redistest.Client(t, &redis.Options{Addr: s.Addr}), "perkey")
		redistest.Eventually(t, func() bool { // its record outlasts an orphan's lease
			info, err := other.Inspect(t.Context(), "k")
			return err == nil && info.Free() && info.Waiting == 0
		}, "the key is free")
	}
}

func TestQuorum_ANodeThatHangsForLongIsNotAskedMoreAndMore(t *testing.T) {
	t.Parallel()
	onFakeNodes(t, 3, func(t *testing.T, nodes []*fakeNode) {
		l := overNodes(t, nodes, core.WithFirstLease(3*time.Second))
		warm(t, l)
		nodes[0].stop()
		calls := func(n int, apart time.Duration) (asked int) {
			before := nodes[0].unread()
			for range n {
				lease, err := l.TryAcquire(t.Context(), fmt.Sprint(rand.Int()))
				require.NoError(t, err)
				require.NoError(t, lease.Release(t.Context()))
				time.Sleep(apart)
			}
			return nodes[0].unread() - before
		}
		t.Logf("until it is known: %d", calls(150, 10*time.Millisecond))
		require.Less(t, calls(500, 2*time.Millisecond), 20, "besides probes")
		nodes[0].live()
		time.Sleep(10 * time.Second)
		require.Empty(t, records(nodes))
		nodes[1].die() // it is asked again
		lease, err := l.TryAcquire(t.Context(), "k")
		require.NoError(t, err)
		require.NoError(t, lease.Release(t.Context()))
		nodes[1].live()
	})
}

func TestQuorum_AQuorumIsCheckedWhenItIsMade(t *testing.T) {
	t.Parallel()
	a, b, c := redis.NewClient(&redis.Options{}), redis.NewClient(&redis.Options{}), redis.NewClient(&redis.Options{})
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": "127.0.0.1:1"}})
	for _, rdb := range []redis.UniversalClient{a, b, c, ring} {
		t.Cleanup(func() { _ = rdb.Close() })
	}
	for name, clients := range map[string][]redis.UniversalClient{
		"none": nil, "one": {a}, "two": {a, b}, "twice": {a, b, a}, "nil": {a, nil, b}, "ring": {a, b, ring},
	} {
		_, err := core.NewQuorum(clients)
		require.ErrorIs(t, err, core.ErrInvalidOption, name)
	}
	_, err := core.NewQuorum([]redis.UniversalClient{a, b, c}, core.WithRenewalClient(a))
	require.ErrorIs(t, err, core.ErrInvalidOption)
	_, err = core.NewQuorum([]redis.UniversalClient{a, b, c}, core.WithTTL(0))
	require.ErrorIs(t, err, core.ErrInvalidOption)
	l, err := core.NewQuorum([]redis.UniversalClient{a, b, c})
	require.NoError(t, err)
	require.NoError(t, l.Close())
}

func TestQuorum_WhatAQuorumCannotDoIsAnErrorAndWhatItCanWorks(t *testing.T) {
	t.Parallel()
	onFakeNodes(t, 3, func(t *testing.T, nodes []*fakeNode) {
		l, other := overNodes(t, nodes, core.WithObserver(core.SlogObserver(nil))), overNodes(t, nodes)
		lease, err := l.TryAcquire(t.Context(), "k")
		require.NoError(t, err)
		_, err = l.Inspect(t.Context(), "k")
		require.ErrorIs(t, err, errors.ErrUnsupported)
		_, err = l.List(t.Context(), "", 10)
		require.ErrorIs(t, err, errors.ErrUnsupported)
		_, err = l.ForceRelease(t.Context(), "k", lease.Fence())
		require.ErrorIs(t, err, errors.ErrUnsupported)
		require.ErrorIs(t, lease.Downgrade(t.Context()), errors.ErrUnsupported)
		require.ErrorIs(t, reserve(t, l, "k", time.Minute), errors.ErrUnsupported)
		require.ErrorIs(t, unreserve(t, l, lease), errors.ErrUnsupported)
		_, err = other.TryAcquire(t.Context(), "k", reservations.Reserved(time.Minute))
		require.ErrorIs(t, err, core.ErrConflict)
		later := policyFunc(func(context.Context, core.Conflict) (core.Decision, error) {
			return reservations.Reserving(core.Deferred(core.Ticket{}), time.Minute, nil, false), nil
		})
		require.ErrorIs(t, other.Guard(later).Do(t.Context(), core.Call{Key: "k"}, mustNotRun), core.ErrDeferred)
		_, err = l.TryAcquire(t.Context(), "other", core.WaitReplicas(1, time.Second))
		require.ErrorIs(t, err, core.ErrInvalidOption)

		token, err := lease.Detach(t.Context())
		require.NoError(t, err)
		resumed, err := other.Resume(t.Context(), token)
		require.NoError(t, err)
		require.Equal(t, lease.Fence(), resumed.Fence())
		time.Sleep(time.Minute)
		require.NoError(t, resumed.Release(t.Context()))

		set, err := l.TryAcquireAll(t.Context(), []string{"a", "b", "c"})
		require.NoError(t, err)
		_, err = other.TryAcquireAll(t.Context(), []string{"d", "c"})
		require.ErrorIs(t, err, core.ErrConflict)
		require.NoError(t, set.Release(t.Context()))
		time.Sleep(time.Second)
		require.Empty(t, records(nodes))
	})
}
