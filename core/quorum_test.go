package core_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
)

// newQuorum makes a quorum that is closed with the test.
func newQuorum(t *testing.T, clients []redis.UniversalClient, opts ...core.Option) *core.Locker {
	t.Helper()
	l, err := core.NewQuorum(clients, opts...)
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// overServers makes a quorum of real servers.
func overServers(t *testing.T, servers []*redistest.Server, opts ...core.Option) *core.Locker {
	t.Helper()
	var clients []redis.UniversalClient
	for _, s := range servers {
		clients = append(clients, redistest.Client(t, &redis.Options{Addr: s.Addr}))
	}
	l := newQuorum(t, clients, opts...)
	warm(t, l)
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
	t.Run("handed over", func(t *testing.T) { testNoOverlap(t, 3, 4, 0) })
	t.Run("each granted", func(t *testing.T) { testNoOverlap(t, 3, 2, time.Millisecond) })
}

// testNoOverlap has calls of several lockers contend for a key. A grant is not handed over
// between leases of different lengths.
func testNoOverlap(t *testing.T, lockers, each int, differ time.Duration) {
	t.Parallel()
	const rounds = 15
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
		l := newQuorum(t, clients)
		l.WaitForNodes(time.Minute, clients) // a busy machine is no outage
		for call := range each {
			wg.Go(func() {
				for range rounds {
					assert.NoError(t, l.Do(t.Context(), "k", calls.work, core.LeaseTTL(core.DefaultTTL+time.Duration(call)*differ)))
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
		leases := make([]*core.Lease, 12)
		var wg sync.WaitGroup
		for i := range leases { // at once: their fences meet
			wg.Go(func() {
				var err error
				leases[i], err = []*core.Locker{l, other}[i%2].Acquire(t.Context(), "k", core.Shared())
				assert.NoError(t, err)
			})
		}
		wg.Wait()
		refused(t, l, "k")
		release(t, leases...)
		var mu sync.Mutex
		var inside, most int
		fences := map[int64]bool{}
		work := func(ctx context.Context) error {
			lease, _ := core.LeaseFrom(ctx)
			mu.Lock()
			inside++
			most = max(most, inside)
			assert.False(t, fences[lease.Fence()], "a fence twice")
			fences[lease.Fence()] = true
			mu.Unlock()
			time.Sleep(time.Second)
			mu.Lock()
			defer mu.Unlock()
			inside--
			return nil
		}
		for range 4 {
			for _, l := range []*core.Locker{l, other} {
				wg.Go(func() { assert.NoError(t, l.Do(t.Context(), "n", work, core.Counted(3))) })
			}
		}
		wg.Wait()
		require.Equal(t, 3, most)
		time.Sleep(time.Second)
		require.Empty(t, records(nodes))
	})
}

func TestQuorum_AQuorumsCallerCanLeave(t *testing.T) {
	t.Parallel()
	onFakeNodes(t, 3, func(t *testing.T, nodes []*fakeNode) {
		l := overNodes(t, nodes)
		warm(t, l)
		allOf(nodes[:2], (*fakeNode).stop)
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		start := time.Now()
		require.ErrorIs(t, errOf(l.Acquire(ctx, "k")), context.DeadlineExceeded)
		require.Equal(t, 100*time.Millisecond, time.Since(start))
		allOf(nodes, (*fakeNode).live)
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
			assert.ErrorIs(t, errOf(one.TryAcquire(ctx, "k")), core.ErrConflict, "one of the nodes is another deployment")
			return l.Do(ctx, "k", nothing)
		}))
	})
}

func TestQuorum_AQuorumAnnouncesThatAKeyIsFree(t *testing.T) {
	t.Parallel()
	servers := startServers(t, 3)
	holder, other := overServers(t, servers), overServers(t, servers)
	lease := testbed.Take(t, holder, "k")
	free := make(chan string, 1)
	refused(t, other, "k", core.NotifyRelease(free))
	listening(t, other)
	for len(free) > 0 { // the subscription itself is news
		<-free
	}
	refused(t, other, "k", core.NotifyRelease(free))
	require.NoError(t, lease.Release(t.Context()))
	require.Equal(t, "k", <-free)
}

func TestQuorum_ACloseOfAQuorumWaitsForEverything(t *testing.T) {
	t.Parallel()
	servers := startServers(t, 3)
	l := overServers(t, servers)
	servers[0].Pause()
	t.Cleanup(servers[0].Resume)
	lease := testbed.Take(t, l, "k")
	waiting := make(chan error)
	go func() { waiting <- errOf(l.Acquire(t.Context(), "k")) }()
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
				lease := testbed.Take(t, l, fmt.Sprint(rand.Int()))
				require.NoError(t, lease.Release(t.Context()))
				time.Sleep(apart)
			}
			return nodes[0].unread() - before
		}
		t.Logf("until it is known: %d", calls(40, 100*time.Millisecond))
		require.Less(t, calls(50, 20*time.Millisecond), 20, "besides probes")
		nodes[0].live()
		time.Sleep(10 * time.Second)
		require.Empty(t, records(nodes))
		nodes[1].die() // it is asked again
		lease := testbed.Take(t, l, "k")
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
	for _, opt := range []core.Option{core.WithRenewalClient(a), core.WithTTL(0)} {
		_, err := core.NewQuorum([]redis.UniversalClient{a, b, c}, opt)
		require.ErrorIs(t, err, core.ErrInvalidOption)
	}
	l, err := core.NewQuorum([]redis.UniversalClient{a, b, c})
	require.NoError(t, err)
	require.NoError(t, l.Close())
}

func TestQuorum_WhatAQuorumCannotDoIsAnErrorAndWhatItCanWorks(t *testing.T) {
	t.Parallel()
	onFakeNodes(t, 3, func(t *testing.T, nodes []*fakeNode) {
		l, other := overNodes(t, nodes, core.WithObserver(core.SlogObserver(nil))), overNodes(t, nodes)
		lease := testbed.Take(t, l, "k")
		for _, ask := range []func() error{
			func() error { _, err := l.Inspect(t.Context(), "k"); return err },
			func() error { _, err := l.List(t.Context(), "", 10); return err },
			func() error { _, err := l.ForceRelease(t.Context(), "k", lease.Fence()); return err },
			func() error { return lease.Downgrade(t.Context()) },
			func() error { return reserve(t, l, "k", time.Minute) },
			func() error { return unreserve(t, l, lease) },
		} {
			require.ErrorIs(t, ask(), errors.ErrUnsupported)
		}
		refused(t, other, "k", reservations.Reserved(time.Minute))
		require.ErrorIs(t, other.Guard(deferring(nil, func() {})).Do(t.Context(), core.Call{Key: "k"}, mustNotRun), core.ErrDeferred)
		require.ErrorIs(t, errOf(l.TryAcquire(t.Context(), "other", core.WaitReplicas(1, time.Second))), core.ErrInvalidOption)

		token := detach(t, lease)
		resumed := resume(t, other, token)
		require.Equal(t, lease.Fence(), resumed.Fence())
		time.Sleep(time.Minute)
		require.NoError(t, resumed.Release(t.Context()))

		set, err := l.TryAcquireAll(t.Context(), []string{"a", "b", "c"})
		require.NoError(t, err)
		require.ErrorIs(t, errOf(other.TryAcquireAll(t.Context(), []string{"d", "c"})), core.ErrConflict)
		require.NoError(t, set.Release(t.Context()))
		time.Sleep(time.Second)
		require.Empty(t, records(nodes))
	})
}
