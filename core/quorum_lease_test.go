package core_test

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/test/testbed"
)

func TestQuorum_AQuorumsLeaseOutlivesAMinorityAndEndsInTimeWithoutAMajority(t *testing.T) {
	t.Parallel()
	for name, fail := range map[string]func(*fakeNode){"dead": (*fakeNode).die, "stopped": (*fakeNode).stop} {
		for _, many := range []int{3, 5} {
			t.Run(fmt.Sprint(name, many), func(t *testing.T) {
				t.Parallel()
				onFakeNodes(t, many, func(t *testing.T, nodes []*fakeNode) {
					l := overNodes(t, nodes, core.WithTTL(10*time.Second))
					lease := testbed.Take(t, l, "k")
					time.Sleep(11 * time.Second)
					minority := (many - 1) / 2
					allOf(nodes[:minority], fail)
					time.Sleep(21 * time.Second) // two TTLs
					require.NoError(t, lease.Context().Err())
					require.NoError(t, lease.Extend(t.Context(), 20*time.Second))

					fail(nodes[minority])
					endsLost(t, lease)
					for _, n := range nodes[minority+1:] {
						require.Positive(t, n.TTL(record))
					}
					require.ErrorIs(t, lease.Release(t.Context()), core.ErrLeaseLost)
					allOf(nodes, (*fakeNode).live)
					time.Sleep(30 * time.Second)
					require.Empty(t, records(nodes))
				})
			})
		}
	}
}

func TestQuorum_AQuorumsLeaseThatAMajorityForgotIsLost(t *testing.T) {
	t.Parallel()
	onFakeNodes(t, 3, func(t *testing.T, nodes []*fakeNode) {
		l := overNodes(t, nodes)
		for forgetful := 1; forgetful <= 3; forgetful++ {
			lease := testbed.Take(t, l, "k")
			time.Sleep(time.Millisecond) // every node has granted
			for _, n := range nodes[:forgetful] {
				n.Del(record)
			}
			if forgetful == 1 {
				require.NoError(t, lease.Extend(t.Context(), time.Second))
				require.NoError(t, lease.Release(t.Context()))
				continue
			}
			if forgetful == 2 {
				require.ErrorIs(t, lease.Extend(t.Context(), time.Second), core.ErrLeaseLost)
			}
			require.ErrorIs(t, lease.Release(t.Context()), core.ErrLeaseLost)
		}
		time.Sleep(time.Millisecond)
		require.Empty(t, records(nodes))
	})
}

func TestQuorum_AQuorumsLeaseEndsBeforeAFastNodeFreesTheKey(t *testing.T) {
	t.Parallel()
	for _, rate := range []float64{1.0099, 0.9901} {
		onFakeNodes(t, 3, func(t *testing.T, nodes []*fakeNode) {
			for _, n := range nodes {
				n.rate = rate
			}
			l := overNodes(t, nodes)
			other := overNodes(t, nodes)
			for _, d := range []time.Duration{3 * time.Second, 15 * time.Second} {
				lease := testbed.Take(t, l, "k", core.FixedLease(d))
				<-lease.Context().Done()
				refused(t, other, "k")
				time.Sleep(d / 10)
				next := testbed.Take(t, other, "k")
				require.NoError(t, next.Release(t.Context()))
				require.Error(t, lease.Release(t.Context()))
				time.Sleep(time.Second)
			}
		})
	}
}

func TestQuorum_AQuorumsFencesGrowWhateverTheClocksSay(t *testing.T) {
	t.Parallel()
	modes := map[string][]core.AcquireOption{"exclusive": nil, "shared": {core.Shared()}, "counted": {core.Counted(2)}}
	for name, mode := range modes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			clocks := []time.Duration{40 * time.Millisecond}
			if mode == nil {
				clocks = append(clocks, 5*time.Millisecond, time.Hour)
			}
			for i, apart := range clocks {
				rounds := 15 // every two nodes are down in every kind of round
				if mode == nil && i == 0 {
					rounds = 30 // and lost in two ways; the kinds do not depend on the clocks
				}
				onFakeNodes(t, 5, func(t *testing.T, nodes []*fakeNode) {
					for i, n := range nodes {
						n.ahead = time.Duration(i-2) * apart
					}
					l := overNodes(t, nodes)
					warm(t, l)
					var last int64
					for round := range rounds {
						down := []*fakeNode{nodes[round*2%5], nodes[(round*2+1)%5]}
						if name == "counted" { // two holders take four of five nodes each
							down = down[:1]
						}
						last = fencesGrow(t, l, mode, round, nodes, down, last)
					}
				})
			}
		})
	}
}

// fencesGrow plays a round: while some nodes are down the key is granted, with a fence greater than last, and it is released, lost
// or handed over. It returns the greatest fence.
func fencesGrow(t *testing.T, l *core.Locker, mode []core.AcquireOption, round int, nodes, down []*fakeNode, last int64) int64 {
	t.Helper()
	opts := append(slices.Clip(mode), core.LeaseTTL(time.Second))
	allOf(down, (*fakeNode).stop)
	lease, err := l.TryAcquire(t.Context(), "k", opts...)
	for range 100 {
		if !errors.Is(err, core.ErrUnavailable) {
			break
		}
		time.Sleep(10 * time.Millisecond) // those that are back have not answered a probe yet
		lease, err = l.TryAcquire(t.Context(), "k", opts...)
	}
	require.NoError(t, err)
	require.Greater(t, lease.Fence(), last, "round %d, clocks %s apart", round, nodes[1].clock()-nodes[0].clock())
	last = lease.Fence()
	var lost *core.Lease
	switch round % 3 {
	case 0:
		require.NoError(t, lease.Release(t.Context()))
	case 1: // by the next round the key is free, and nobody has released it
		next := acquiring(t, l, "k", opts...)
		time.Sleep(time.Millisecond)
		require.NoError(t, lease.Release(t.Context()))
		lost = granted(t, next)
		last = max(last, lost.Fence())
		allOf(nodes, (*fakeNode).stop)
		time.Sleep(1100 * time.Millisecond)
	default: // other calls go on with the grant
		allOf(down, (*fakeNode).live)
		last = handOver(t, l, lease, mode)
	}
	allOf(nodes, (*fakeNode).live)
	if lost != nil && round%2 == 1 {
		require.ErrorIs(t, lost.Release(t.Context()), core.ErrLeaseLost)
	}
	time.Sleep(1100 * time.Millisecond) // what a stopped node has granted late is over
	return last
}

// handOver releases the lease to waiting calls, and returns the greatest of their fences.
func handOver(t *testing.T, l *core.Locker, lease *core.Lease, mode []core.AcquireOption) (last int64) {
	t.Helper()
	last = lease.Fence()
	var wg sync.WaitGroup
	var mu sync.Mutex
	for range 5 {
		wg.Go(func() {
			next, err := l.Acquire(t.Context(), "k", append(slices.Clip(mode), core.LeaseTTL(time.Second))...)
			if !assert.NoError(t, err) {
				return
			}
			mu.Lock()
			assert.True(t, next.Fence() > last || len(mode) > 0, "fence went from %d to %d", last, next.Fence())
			last = max(last, next.Fence())
			mu.Unlock()
			assert.NoError(t, next.Release(t.Context()))
		})
	}
	time.Sleep(time.Millisecond)
	require.NoError(t, lease.Release(t.Context()))
	wg.Wait()
	return last
}

func TestQuorum_AGrantThatIsTooLateForItsLeaseIsGivenBack(t *testing.T) {
	t.Parallel()
	onFakeNodes(t, 3, func(t *testing.T, nodes []*fakeNode) {
		l := overNodes(t, nodes, core.WithFirstLease(3*time.Second))
		l.WaitForNodes(time.Minute, clientsOf(t, nodes))
		warmAll(t, l, nodes)
		allOf(nodes[1:], (*fakeNode).stop)
		done := make(chan error)
		go func() { done <- errOf(l.TryAcquire(t.Context(), "k")) }()
		time.Sleep(2950 * time.Millisecond) // less than the lease, but more than can be trusted
		allOf(nodes, (*fakeNode).live)
		require.ErrorIs(t, <-done, core.ErrUnavailable)
		time.Sleep(40 * time.Millisecond)
		require.Empty(t, records(nodes))
	})
}

func TestQuorum_ALateNodeKeepsTheKeyWhileItIsHeldAndNotLonger(t *testing.T) {
	t.Parallel()
	onFakeNodes(t, 3, func(t *testing.T, nodes []*fakeNode) {
		l := overNodes(t, nodes)
		warmAll(t, l, nodes)
		for _, late := range []bool{false, true} {
			nodes[2].stop()
			lease := testbed.Take(t, l, "k")
			if late {
				require.NoError(t, lease.Release(t.Context()))
				nodes[2].live()
			} else {
				nodes[2].live()
				time.Sleep(time.Millisecond)
				require.True(t, nodes[2].Exists(record))
				nodes[0].die() // the late one counts now
				time.Sleep(time.Minute)
				require.NoError(t, lease.Context().Err())
				nodes[0].live()
				require.NoError(t, lease.Release(t.Context()))
			}
			time.Sleep(100 * time.Millisecond)
			require.Empty(t, records(nodes), late)
			time.Sleep(time.Minute)
		}
	})
}

func TestQuorum_GrantsOfAQuorumWhoseAnswersWereLostAreGivenBack(t *testing.T) {
	t.Parallel()
	onFakeNodes(t, 3, func(t *testing.T, nodes []*fakeNode) {
		l := overNodes(t, nodes)
		warmAll(t, l, nodes)
		allOf(nodes[:2], (*fakeNode).loseAnswers)
		require.ErrorIs(t, errOf(l.TryAcquire(t.Context(), "k")), core.ErrUnavailable)
		allOf(nodes[:2], (*fakeNode).live)
		time.Sleep(2 * time.Second)
		require.Empty(t, records(nodes))
	})
}

func TestQuorum_TheBlockOfAForgottenHolderCountsAsUsed(t *testing.T) {
	t.Parallel()
	onFakeNodes(t, 1, func(t *testing.T, nodes []*fakeNode) {
		rdb := nodes[0].client(t)
		l := lockerOn(t, rdb, "perkey")
		lease := testbed.Take(t, l, "k", core.FixedLease(time.Second))
		ahead := lease.Fence() + time.Hour.Microseconds() // as another node's clock may be
		inflate(t, rdb, record)
		require.NoError(t, rdb.HSet(t.Context(), record, "fence", ahead).Err())
		require.NoError(t, rdb.Expire(t.Context(), record, 2*time.Hour).Err())
		time.Sleep(2 * time.Second)
		require.ErrorIs(t, lease.Release(t.Context()), core.ErrLeaseLost)
		time.Sleep(time.Second)
		next := testbed.Take(t, l, "k")
		require.Greater(t, next.Fence(), ahead+65535)
		require.NoError(t, next.Release(t.Context()))
	})
}
