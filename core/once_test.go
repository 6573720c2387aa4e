package core_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

// allOf has something happen to each of some nodes.
func allOf(nodes []*fakeNode, happens func(*fakeNode)) {
	for _, n := range nodes {
		happens(n)
	}
}

// onFakeLockers runs test in virtual time, with Lockers on one node and with Lockers on a quorum.
func onFakeLockers(t *testing.T, test func(t *testing.T, nodes []*fakeNode, locker func(...core.Option) *core.Locker)) {
	t.Helper()
	t.Parallel()
	for name, many := range map[string]int{"deployment": 1, "quorum": 3} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onFakeNodes(t, many, func(t *testing.T, nodes []*fakeNode) {
				test(t, nodes, func(opts ...core.Option) *core.Locker {
					if many == 1 {
						return lockerOn(t, nodes[0].client(t), "p", opts...)
					}
					return overNodes(t, nodes, opts...)
				})
			})
		})
	}
}

// A tick comes to three replicas, whose clocks are apart. Work of any length runs once.
func TestOnce_EachTickRunsOnOneReplica(t *testing.T) {
	const every = 5 * time.Second
	onFakeLockers(t, func(t *testing.T, nodes []*fakeNode, locker func(...core.Option) *core.Locker) {
		lockers := []*core.Locker{locker(), locker(), locker()}
		ticks := 6 / len(nodes) // a quorum takes more time
		var replicas, cases sync.WaitGroup
		for name, skew := range map[string]func(replica, tick int) time.Duration{
			"all at once":       func(int, int) time.Duration { return 0 },
			"200 ms late":       func(i, _ int) time.Duration { return time.Duration(i) * 200 * time.Millisecond },
			"at the edge":       func(i, _ int) time.Duration { return time.Duration(i-1) * 10 * time.Millisecond },
			"far apart":         func(i, _ int) time.Duration { return time.Duration(i) * 1500 * time.Millisecond },
			"every other early": func(_, tick int) time.Duration { return time.Duration(tick%2) * -400 * time.Millisecond },
			"another at times":  func(int, int) time.Duration { return rand.N(450 * time.Millisecond) },
		} {
			runs := make([]atomic.Int64, ticks)
			start := time.Now().Add(time.Second)
			for i, l := range lockers {
				replicas.Go(func() {
					for tick := range ticks {
						time.Sleep(time.Until(start.Add(time.Duration(tick)*every + skew(i, tick))))
						called := time.Now()
						ran, err := l.Once(t.Context(), name, every, func(context.Context) error {
							runs[tick].Add(1)
							time.Sleep(rand.N(100 * time.Millisecond))
							return nil
						})
						assert.NoError(t, err)
						if !ran {
							assert.Less(t, time.Since(called), 1500*time.Millisecond)
						}
					}
				})
			}
			cases.Go(func() {
				replicas.Wait()
				for tick := range ticks {
					assert.EqualValues(t, 1, runs[tick].Load(), "%s: tick %d", name, tick)
				}
			})
		}
		cases.Wait()
	})
}

// Each replica is the first at another node of a quorum, so that nobody has a majority.
func TestOnce_ASplitVoteLeavesNoTickOut(t *testing.T) {
	t.Parallel()
	onFakeNodes(t, 3, func(t *testing.T, nodes []*fakeNode) {
		const keys = 5
		var runs [keys]atomic.Int64
		var calls sync.WaitGroup
		for replica := range nodes {
			var clients []redis.UniversalClient
			for i, n := range nodes {
				clients = append(clients, n.distant(t, time.Duration((i-replica+3)%3)*time.Millisecond))
			}
			l := newQuorum(t, clients)
			for i := range keys {
				calls.Go(func() {
					_, err := l.Once(t.Context(), fmt.Sprint(i), time.Minute, func(context.Context) error { runs[i].Add(1); return nil })
					assert.NoError(t, err)
				})
			}
		}
		calls.Wait()
		for i := range runs {
			assert.EqualValues(t, 1, runs[i].Load(), "key %d", i)
		}
	})
}

// Whatever the calls, two runs do not start within nine tenths of a period, and do not overlap.
func TestOnce_RunsDoNotComeTooSoon(t *testing.T) {
	const every = 10 * time.Second
	onFakeLockers(t, func(t *testing.T, nodes []*fakeNode, locker func(...core.Option) *core.Locker) {
		lockers := []*core.Locker{locker(), locker()}
		var mu sync.Mutex
		var last, ended time.Time
		runs := 0
		var replicas sync.WaitGroup
		for _, l := range lockers {
			replicas.Go(func() {
				for range 20 / len(nodes) {
					time.Sleep(rand.N(3 * time.Second))
					_, err := l.Once(t.Context(), "k", every, func(context.Context) error {
						mu.Lock()
						now, long := time.Now(), rand.N(every*6/5)
						assert.GreaterOrEqual(t, now.Sub(last), every*9/10-20*time.Millisecond)
						assert.False(t, now.Before(ended))
						last, ended = now, now.Add(long)
						runs++
						mu.Unlock()
						time.Sleep(long)
						return nil
					})
					assert.NoError(t, err)
				}
			})
		}
		replicas.Wait()
		assert.Greater(t, runs, 1)
	})
}

// A run that did not succeed gives its period back.
func TestOnce_AFailedRunIsRepeatedByTheNextCall(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		one, other := newLocker(t, env), newLocker(t, env)
		failed := errors.New("failed")
		ran, err := one.Once(t.Context(), "k", time.Minute, func(context.Context) error { return failed })
		require.True(t, ran)
		require.Equal(t, failed, err)
		require.PanicsWithValue(t, "boom", func() {
			_, _ = other.Once(t.Context(), "k", time.Minute, func(context.Context) error { panic("boom") })
		})
		ran, err = one.Once(t.Context(), "k", time.Minute, func(ctx context.Context) error {
			lease, _ := core.LeaseFrom(ctx)
			_, err := other.ForceRelease(ctx, "k", lease.Fence())
			<-ctx.Done()
			return err
		})
		require.True(t, ran)
		require.ErrorIs(t, err, core.ErrLeaseLost)
		for _, want := range []bool{true, false} {
			ran, err = other.Once(t.Context(), "k", time.Minute, nothing)
			require.NoError(t, err)
			require.Equal(t, want, ran)
		}

		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		ran, err = other.Once(ctx, "k", time.Minute, mustNotRun)
		require.False(t, ran)
		require.ErrorIs(t, err, context.Canceled, "the ctx is told from a period that is kept")
	})
}

// What a ctx holds already is released by others: no period can be kept. Work under a period's lease passes through.
func TestOnce_UnderALeaseAndWrongUse(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		l, other := newLocker(t, env), newLocker(t, env)
		once := func(ctx context.Context, key string, every time.Duration, opts ...core.AcquireOption) error {
			ran, err := l.Once(ctx, key, every, mustNotRun, opts...)
			require.False(t, ran)
			return err
		}
		require.NoError(t, l.Do(t.Context(), "k", func(ctx context.Context) error {
			require.ErrorIs(t, once(ctx, "k", time.Minute), core.ErrInvalidOption)
			ran, err := l.Once(ctx, "another", time.Minute, nothing)
			require.True(t, ran)
			return err
		}))
		ran, err := l.Once(t.Context(), "k", time.Minute, func(ctx context.Context) error {
			require.ErrorIs(t, once(ctx, "k", time.Minute), core.ErrInvalidOption)
			return l.Do(ctx, "k", nothing)
		})
		require.True(t, ran)
		require.NoError(t, err)
		refused(t, other, "k")
		const longest = 366 * 24 * time.Hour
		ran, err = l.Once(t.Context(), "in months", longest, nothing)
		require.NoError(t, err)
		require.True(t, ran)
		info, err := l.Inspect(t.Context(), "in months")
		require.NoError(t, err)
		require.InDelta(t, longest*9/10, info.Holders[0].Remaining, float64(time.Minute))
		for _, opt := range []core.AcquireOption{core.Shared(), core.Counted(2), core.MinHold(time.Second), nil} {
			require.ErrorIs(t, once(t.Context(), "free", time.Minute, opt), core.ErrInvalidOption)
		}
		for _, every := range []time.Duration{0, core.MinTTL - 1, longest + 24*time.Hour} {
			require.ErrorIs(t, once(t.Context(), "free", every), core.ErrInvalidOption)
		}
		require.ErrorIs(t, once(t.Context(), "", time.Minute), core.ErrInvalidKey)
		require.ErrorIs(t, errOf(l.Once(t.Context(), "free", time.Minute, nil)), core.ErrInvalidOption)
		require.NoError(t, l.Close())
		require.ErrorIs(t, once(t.Context(), "free", time.Minute), core.ErrClosed)
	})
}

// Redis is away when a run ends: the period is kept for as long as it would have been.
func TestOnce_APeriodSurvivesAnOutageAtTheEndOfItsRun(t *testing.T) {
	const every = 20 * time.Second
	for way, fail := range map[string]func(*fakeNode){"dead": (*fakeNode).die, "silent": (*fakeNode).stop} {
		t.Run(way, func(t *testing.T) {
			onFakeLockers(t, func(t *testing.T, nodes []*fakeNode, locker func(...core.Option) *core.Locker) {
				lockers := []*core.Locker{locker(), locker()}
				start := time.Now()
				ran, err := lockers[0].Once(t.Context(), "k", every, func(context.Context) error {
					allOf(nodes, fail)
					return nil
				})
				allOf(nodes, (*fakeNode).die) // what they were sent while they were silent is lost
				require.NoError(t, err)
				require.True(t, ran)
				ran, err = lockers[1].Once(t.Context(), "k", every, mustNotRun)
				require.False(t, ran)
				require.ErrorIs(t, err, core.ErrUnavailable)
				time.Sleep(3 * time.Second)
				allOf(nodes, (*fakeNode).live)
				time.Sleep(5 * time.Second)
				ran, err = lockers[1].Once(t.Context(), "k", every, mustNotRun)
				require.NoError(t, err)
				require.False(t, ran, "%s after the start", time.Since(start))
				time.Sleep(time.Until(start.Add(every)))
				ran, err = lockers[1].Once(t.Context(), "k", every, nothing)
				require.NoError(t, err)
				require.True(t, ran, "and not for longer")
				time.Sleep(2 * time.Second) // until go-redis dials no longer
			})
		})
	}
}

// A tick comes to several processes at different times, also when its run is over.
func TestOnce_InSeveralProcesses(t *testing.T) {
	t.Parallel()
	env := redistest.Real(t)
	var replicas []*holder
	for i := range 3 {
		replicas = append(replicas, launchHolder(t, env, "k", core.DefaultTTL, "once"))
		require.Equal(t, "ready", replicas[i].line())
	}
	told := map[string]int{}
	for _, r := range replicas[:2] {
		r.tell(time.Minute.String())
	}
	for i, r := range replicas {
		if i == 2 {
			r.tell(time.Minute.String())
		}
		told[r.line()]++
	}
	require.Equal(t, map[string]int{"true <nil>": 1, "false <nil>": 2}, told)
}

// The period of a process that died is free when its lease ends.
func TestOnce_AKilledRunIsRepeated(t *testing.T) {
	t.Parallel()
	env := redistest.Real(t)
	dead, l := launchHolder(t, env, "k", time.Second, "once"), newLocker(t, env)
	require.Equal(t, "ready", dead.line())
	dead.tell(time.Hour.String())
	require.Equal(t, "running", dead.line())
	ran, err := l.Once(t.Context(), "k", time.Hour, mustNotRun)
	require.NoError(t, err)
	require.False(t, ran)
	dead.signal(syscall.SIGKILL)
	redistest.Eventually(t, func() bool {
		ran, err := l.Once(t.Context(), "k", time.Hour, nothing)
		require.NoError(t, err)
		return ran
	}, "the next call that finds the key free")
	ran, err = l.Once(t.Context(), "k", time.Hour, mustNotRun)
	require.NoError(t, err)
	require.False(t, ran)
}
