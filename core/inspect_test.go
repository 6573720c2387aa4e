package core_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

// waitFor starts a call that waits for the key, and returns when it is in Redis's
// queue. Its result comes on the channel.
func waitFor(t *testing.T, l *core.Locker, key string, opts ...core.AcquireOption) <-chan *core.Lease {
	t.Helper()
	before, err := l.Inspect(t.Context(), key)
	require.NoError(t, err)
	leases := make(chan *core.Lease, 1)
	go func() {
		lease, err := l.Acquire(t.Context(), key, opts...)
		if err != nil {
			t.Error(err)
		}
		leases <- lease
	}()
	redistest.Eventually(t, func() bool {
		now, err := l.Inspect(t.Context(), key)
		return err == nil && now.Waiting > before.Waiting
	}, "it waits")
	return leases
}

// force takes the key from the holder with this fence.
func force(t *testing.T, l *core.Locker, key string, fence int64) bool {
	t.Helper()
	done, err := l.ForceRelease(t.Context(), key, fence)
	require.NoError(t, err)
	return done
}

func TestInspectTellsWhoHoldsAKeyAndWhoWaits(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		ctx := t.Context()
		holder, waiting, asking := newLocker(t, env), newLocker(t, env), newLocker(t, env)
		info, err := asking.Inspect(ctx, "k")
		require.NoError(t, err)
		require.True(t, info.Free())
		require.Equal(t, core.KeyInfo{Key: "k", At: info.At}, *info)

		before := info.At
		lease, err := holder.TryAcquire(ctx, "k", core.Named("POST /orders/:id", "a b;c@d+e~f/g,ü"), core.LeaseTTL(time.Minute))
		require.NoError(t, err)
		next := waitFor(t, waiting, "k", core.Named("job", "7"))
		last := waitFor(t, asking, "k")

		info, err = asking.Inspect(ctx, "k")
		require.NoError(t, err)
		require.False(t, info.Free())
		require.Equal(t, core.ModeExclusive, info.Mode)
		require.Equal(t, 1, info.Held)
		require.Len(t, info.Holders, 1)
		h := info.Holders[0]
		require.Equal(t, os.Getpid(), h.PID)
		require.True(t, strings.HasPrefix(h.Locker, h.Host+"/"+strconv.Itoa(h.PID)+"/"))
		require.Equal(t, "POST /orders/:id", h.Name)
		require.Equal(t, "a b;c@d+e~f/g,ü", h.ID)
		require.Equal(t, lease.Fence(), h.Fence)
		require.Equal(t, 1, h.Limit)
		require.Equal(t, time.Minute, h.TTL)
		require.False(t, h.Since.Before(before) || h.Since.After(info.At), "%s <= %s <= %s", before, h.Since, info.At)
		require.Positive(t, h.Remaining)
		require.LessOrEqual(t, h.Remaining, core.DefaultFirstLease, "not renewed yet")

		require.Equal(t, 2, info.Waiting)
		require.Len(t, info.Waiters, 2)
		require.Equal(t, "job", info.Waiters[0].Name)
		require.Equal(t, "7", info.Waiters[0].ID)
		require.Empty(t, info.Waiters[1].Name+info.Waiters[1].ID)
		require.NotEqual(t, info.Waiters[0].Locker, info.Waiters[1].Locker)

		require.NoError(t, lease.Release(ctx))
		handed := <-next
		info, err = holder.Inspect(ctx, "k")
		require.NoError(t, err)
		require.Equal(t, handed.Fence(), info.Holders[0].Fence)
		require.Equal(t, "job", info.Holders[0].Name, "a grant that was handed over carries what the waiter said")
		require.Equal(t, core.DefaultTTL, info.Holders[0].TTL, "and the TTL that it asked for")
		require.NoError(t, handed.Release(ctx))
		require.NoError(t, (<-last).Release(ctx))
	})
}

func TestInspectTellsTheModes(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		ctx := t.Context()
		a, b := newLocker(t, env), newLocker(t, env, core.WithTTL(200*time.Millisecond))
		for _, c := range []struct {
			opt   core.AcquireOption
			mode  core.Mode
			limit int
		}{{core.Shared(), core.ModeShared, 0}, {core.Counted(3), core.ModeCounted, 3}} {
			key := string(c.mode)
			var leases []*core.Lease
			for range 2 {
				lease, err := a.TryAcquire(ctx, key, c.opt)
				require.NoError(t, err)
				leases = append(leases, lease)
			}
			dead, err := b.TryAcquire(ctx, key, c.opt, core.FixedLease(200*time.Millisecond))
			require.NoError(t, err)
			waiting := waitFor(t, b, key)
			info, err := a.Inspect(ctx, key)
			require.NoError(t, err)
			require.Equal(t, 3, info.Held)
			require.Equal(t, c.mode, info.Mode)
			for i, lease := range append(slices.Clone(leases), dead) {
				require.Equal(t, lease.Fence(), info.Holders[i].Fence)
				require.Equal(t, c.mode, info.Holders[i].Mode)
				require.Equal(t, c.limit, info.Holders[i].Limit)
				require.Equal(t, []time.Duration{core.DefaultTTL, core.DefaultTTL, 200 * time.Millisecond}[i], info.Holders[i].TTL)
			}
			require.Equal(t, core.ModeExclusive, info.Waiters[0].Mode)

			<-dead.Context().Done()
			redistest.Eventually(t, func() bool {
				info, err := a.Inspect(ctx, key)
				return err == nil && info.Held == 2 && len(info.Holders) == 2
			}, "an expired holder is not shown")
			for _, lease := range leases {
				require.NoError(t, lease.Release(ctx))
			}
			require.NoError(t, (<-waiting).Release(ctx))
		}
	})
}

func TestAKeyWithManyHoldersIsShownInPart(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		l, rdb := newLocker(t, env), env.Client(t)
		lease, err := l.TryAcquire(t.Context(), "k", core.Shared())
		require.NoError(t, err)
		record := core.RecordName(env.Prefix, "k")
		ends := time.Now().Add(time.Minute).UnixMilli()
		const others = 3000
		fields := []any{"held", others + 1}
		for i := range others {
			fields = append(fields, fmt.Sprintf("h:0:h/1/x.%024d", i), fmt.Sprintf("%d %d ", ends, i+1))
		}
		inflate(t, rdb, record)
		require.NoError(t, rdb.HSet(t.Context(), record, fields...).Err())
		info, err := l.Inspect(t.Context(), "k")
		require.NoError(t, err)
		require.Equal(t, others+1, info.Held)
		require.Len(t, info.Holders, 1000)
		page := listAll(t, l, 10)
		require.Len(t, page, 1)
		require.Len(t, page[0].Holders, 10)
		require.NoError(t, lease.Release(t.Context()))
	})
}

func TestForceReleaseTakesAKeyFromItsHolderAndServesTheNext(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		ctx := t.Context()
		holder, waiting, admin := newLocker(t, env), newSleeper(t, env), newLocker(t, env)
		lease, err := holder.TryAcquire(ctx, "k", core.LeaseTTL(time.Hour))
		require.NoError(t, err)
		require.NoError(t, lease.Extend(ctx, time.Hour))
		listening(t, holder)
		next := waitFor(t, waiting, "k")

		require.False(t, force(t, admin, "k", lease.Fence()-1))
		require.False(t, force(t, admin, "k", lease.Fence()+65536))
		require.False(t, force(t, admin, "other", lease.Fence()))
		require.NoError(t, lease.Context().Err())
		require.True(t, force(t, admin, "k", lease.Fence()))
		<-lease.Context().Done() // its next renewal is far away
		require.ErrorIs(t, context.Cause(lease.Context()), core.ErrLeaseLost)
		require.ErrorContains(t, context.Cause(lease.Context()), "ForceRelease")

		newer := <-next
		require.Greater(t, newer.Fence(), lease.Fence())
		require.False(t, force(t, admin, "k", lease.Fence()), "an old fence does not hit a newer holder")
		require.NoError(t, newer.Extend(ctx, time.Second))
		require.ErrorIs(t, lease.Release(ctx), core.ErrLeaseLost)
		require.NoError(t, newer.Extend(ctx, time.Second))
		require.NoError(t, newer.Release(ctx))
		require.False(t, force(t, admin, "k", newer.Fence()))
		requireNothingLeft(t, env.Client(t), env.Prefix, promptly)
	})
}

func TestForceReleaseOfItsOwnLease(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		l := newLocker(t, env)
		for range 100 { // the next fence is close to the last one
			err := l.Do(t.Context(), "k", func(ctx context.Context) error {
				lease, _ := core.LeaseFrom(ctx)
				require.True(t, force(t, l, "k", lease.Fence()))
				require.ErrorIs(t, context.Cause(ctx), core.ErrLeaseLost)
				require.False(t, force(t, l, "k", lease.Fence()))
				return nil
			})
			require.ErrorIs(t, err, core.ErrLeaseLost)
		}
	})
}

func TestForceReleaseKnowsAHoldThatWasPassedOnByItsLaterFences(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		ctx := t.Context()
		l, admin := newLocker(t, env), newLocker(t, env)
		for _, later := range []bool{false, true} {
			var passed, first *core.Lease
			for passed == nil { // until a grant is handed over: that is a matter of milliseconds
				var err error
				first, err = l.Acquire(ctx, "k", core.Named("first", ""))
				require.NoError(t, err)
				leases := make(chan *core.Lease)
				go func() {
					lease, _ := l.Acquire(ctx, "k", core.Named("second", ""))
					leases <- lease
				}()
				time.Sleep(2 * time.Millisecond)
				require.NoError(t, first.Release(ctx))
				if second := <-leases; second.Fence() == first.Fence()+1 {
					passed = second
				} else {
					require.NoError(t, second.Release(ctx))
				}
			}
			info, err := admin.Inspect(ctx, "k")
			require.NoError(t, err)
			require.Equal(t, "first", info.Holders[0].Name)
			require.Equal(t, first.Fence(), info.Holders[0].Fence)
			fence := info.Holders[0].Fence
			if later {
				fence = passed.Fence()
			}
			require.True(t, force(t, admin, "k", fence))
			<-passed.Context().Done()
			require.ErrorIs(t, passed.Release(ctx), core.ErrLeaseLost)
			again, err := admin.Acquire(ctx, "k")
			require.NoError(t, err)
			require.Greater(t, again.Fence(), passed.Fence())
			require.False(t, force(t, l, "k", fence))
			require.NoError(t, again.Release(ctx))
		}
	})
}

// handedOver returns a lease of key that was handed over at least twice since its grant, and the
// fences that were used before it, the grant's first.
func handedOver(t *testing.T, l, admin *core.Locker, key string) (lease *core.Lease, before []int64) {
	const calls = 4
	for {
		leases := make(chan *core.Lease, calls)
		for range calls {
			go func() {
				lease, err := l.Acquire(t.Context(), key)
				assert.NoError(t, err)
				leases <- lease
			}()
		}
		var fences []int64
		for i := range calls {
			if lease = <-leases; lease == nil {
				return nil, nil
			}
			fences = append(fences, lease.Fence())
			if i < calls-1 {
				assert.NoError(t, lease.Release(t.Context()))
			}
		}
		info, err := admin.Inspect(t.Context(), key)
		if !assert.NoError(t, err) || !assert.Len(t, info.Holders, 1) {
			return nil, nil
		}
		if granted := slices.Index(fences, info.Holders[0].Fence); granted >= 0 && granted < calls-2 {
			return lease, fences[granted : calls-1]
		}
		assert.NoError(t, lease.Release(t.Context())) // it was not handed over: that is a matter of milliseconds
	}
}

func TestForceReleaseKnowsADowngradedHoldByAllOfItsFences(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		ctx := t.Context()
		l, admin := newLocker(t, env), newLocker(t, env)
		warm(t, l)
		listening(t, l)
		force := func(key string, fence int64) bool {
			done, err := admin.ForceRelease(ctx, key, fence)
			assert.NoError(t, err)
			return done
		}
		var keys sync.WaitGroup
		for i := range 16 {
			key := fmt.Sprintf("k%d", i)
			keys.Go(func() {
				lease, before := handedOver(t, l, admin, key)
				if lease == nil || !assert.NoError(t, lease.Downgrade(ctx)) {
					return
				}
				reader, err := admin.TryAcquire(ctx, key, core.Shared())
				if !assert.NoError(t, err) {
					return
				}
				fences := append(slices.Clone(before), lease.Fence())
				assert.False(t, force(key, before[0]-1))
				assert.False(t, force(key, lease.Fence()+1), "the rest of the block went back")
				info, err := admin.Inspect(ctx, key)
				assert.NoError(t, err)
				if assert.Len(t, info.Holders, 2) {
					assert.Equal(t, before[0], info.Holders[0].Fence, "of the grant")
					assert.Equal(t, core.ModeShared, info.Holders[0].Mode)
				}
				if fence := fences[(i+len(fences)-1)%len(fences)]; !assert.True(t, force(key, fence), "%d of %v", fence, fences) {
					return
				}
				<-lease.Context().Done()
				assert.ErrorIs(t, lease.Release(ctx), core.ErrLeaseLost)
				for _, fence := range fences {
					assert.False(t, force(key, fence), "no later holder has it")
				}
				assert.NoError(t, reader.Extend(ctx, time.Second), "it is not touched")
				assert.True(t, force(key, reader.Fence()))
			})
		}
		keys.Wait()
	})
}

func TestForceReleaseTakesOneOfManyHolders(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		ctx := t.Context()
		holder, waiting, admin := newLocker(t, env), newSleeper(t, env), newLocker(t, env)
		for name, opt := range map[string]core.AcquireOption{"shared": core.Shared(), "counted": core.Counted(3)} {
			var leases []*core.Lease
			for range 3 {
				lease, err := holder.TryAcquire(ctx, name, opt)
				require.NoError(t, err)
				leases = append(leases, lease)
			}
			listening(t, holder)
			require.False(t, force(t, admin, name, leases[2].Fence()+1), "a shared fence is no block")
			require.True(t, force(t, admin, name, leases[1].Fence()))
			<-leases[1].Context().Done()
			require.NoError(t, leases[0].Extend(ctx, time.Second))
			require.NoError(t, leases[2].Extend(ctx, time.Second))
			require.ErrorIs(t, leases[1].Release(ctx), core.ErrLeaseLost)

			if name == "counted" {
				fourth, err := waiting.TryAcquire(ctx, name, opt)
				require.NoError(t, err)
				fifth := waitFor(t, waiting, name, opt)
				require.True(t, force(t, admin, name, leases[2].Fence()))
				require.NoError(t, (<-fifth).Release(ctx), "the place goes to who waits for it")
				require.NoError(t, fourth.Release(ctx))
			} else {
				exclusive := waitFor(t, waiting, name)
				require.True(t, force(t, admin, name, leases[2].Fence()))
				require.Empty(t, exclusive)
				require.True(t, force(t, admin, name, leases[0].Fence()))
				require.NoError(t, (<-exclusive).Release(ctx))
			}
		}
	})
}

func TestForceReleaseOfAnExpiredHolderFindsNone(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		l := newLocker(t, env)
		other, err := l.TryAcquire(t.Context(), "k", core.Shared())
		require.NoError(t, err)
		lease, err := l.TryAcquire(t.Context(), "k", core.Shared(), core.FixedLease(100*time.Millisecond))
		require.NoError(t, err)
		time.Sleep(150 * time.Millisecond)
		require.False(t, force(t, l, "k", lease.Fence()))
		require.NoError(t, other.Release(t.Context()))
	})
}

// listAll goes through all pages, and returns each key's last report.
func listAll(t *testing.T, l *core.Locker, count int) []*core.KeyInfo {
	t.Helper()
	all := map[string]*core.KeyInfo{}
	cursor := ""
	for pages := 0; ; pages++ {
		require.Less(t, pages, 10_000, "it ends")
		page, err := l.List(t.Context(), cursor, count)
		require.NoError(t, err)
		for _, info := range page.Keys {
			all[info.Key] = info
		}
		if cursor = page.Next; cursor == "" {
			break
		}
	}
	infos := make([]*core.KeyInfo, 0, len(all))
	for _, info := range all {
		infos = append(infos, info)
	}
	slices.SortFunc(infos, func(a, b *core.KeyInfo) int { return strings.Compare(a.Key, b.Key) })
	return infos
}

func TestListShowsEveryKeyInUseAndNoJunk(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		ctx, rdb := t.Context(), env.Client(t)
		env.Prefix += `*?[a]\x`
		l := newLocker(t, env)
		require.Empty(t, listAll(t, l, 1))
		var want []string
		for i := range 300 {
			key := fmt.Sprintf("key %03d", i)
			_, err := l.TryAcquire(ctx, key, core.Named("n", key))
			require.NoError(t, err)
			want = append(want, key)
		}
		junk := core.RecordName(env.Prefix, "")
		require.NoError(t, rdb.Set(ctx, junk+"string", "x", time.Minute).Err())
		require.NoError(t, rdb.RPush(ctx, junk+"list", "x").Err())
		require.NoError(t, rdb.HSet(ctx, junk+"hash", "h:x", "y", "queue", "@@ ~", "held", "z").Err())
		require.NoError(t, rdb.HSet(ctx, junk, "h:1:a/1/b.c", "9999999999999 1 ").Err())
		require.NoError(t, rdb.HSet(ctx, junk+"a\nb", "h:1:a/1/b.c", "9999999999999 1 ").Err())
		require.NoError(t, rdb.HSet(ctx, core.RecordName(strings.ReplaceAll(env.Prefix, "*", "y"), "k"), "h:1:a/1/b.c", "9999999999999 1 ").Err())
		defer rdb.Del(ctx, junk+"list", junk+"hash", junk, junk+"a\nb")

		for _, count := range []int{7, 1000} {
			var keys []string
			for _, info := range listAll(t, l, count) {
				keys = append(keys, info.Key)
				require.Equal(t, info.Key, info.Holders[0].ID)
			}
			require.Equal(t, want, keys)
		}
		if env.Real {
			page, err := l.List(ctx, "", 7)
			require.NoError(t, err)
			require.Less(t, len(page.Keys), 50, "its work is bounded")
			require.NotEmpty(t, page.Next)
		}
		for _, cursor := range []string{"x", "0", "-1", "01", "1@", "1@127.0.0.1:1", " 1", "1 ", "99999999999999999999"} {
			_, err := l.List(ctx, cursor, 10)
			require.ErrorIs(t, err, core.ErrInvalidCursor, cursor)
		}
		for _, count := range []int{0, -1, 1001} {
			_, err := l.List(ctx, "", count)
			require.ErrorIs(t, err, core.ErrInvalidOption)
		}
	})
}

func TestListGoesOverAllPrimariesOfACluster(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, 3, 0)
	rdb := c.Client(t)
	l := lockerOn(t, rdb, "p")
	var want []string
	for i := range 100 {
		key := fmt.Sprintf("key %03d", i)
		_, err := l.TryAcquire(t.Context(), key)
		require.NoError(t, err)
		want = append(want, key)
	}
	for _, count := range []int{5, 1000} {
		var keys []string
		for _, info := range listAll(t, l, count) {
			keys = append(keys, info.Key)
		}
		require.Equal(t, want, keys)
	}
	for _, cursor := range []string{"5", "0", "5@127.0.0.1:1", "@"} {
		_, err := l.List(t.Context(), cursor, 10)
		require.ErrorIs(t, err, core.ErrInvalidCursor, cursor)
	}
	info, err := l.Inspect(t.Context(), want[0])
	require.NoError(t, err)
	require.True(t, force(t, l, want[0], info.Holders[0].Fence))
}

func TestInspectionThatFailsSaysWhy(t *testing.T) {
	t.Parallel()
	env := redistest.Embedded(t)
	l := newLocker(t, env)
	_, err := l.Inspect(t.Context(), "")
	require.ErrorIs(t, err, core.ErrInvalidKey)
	_, err = l.ForceRelease(t.Context(), "a\nb", 1)
	require.ErrorIs(t, err, core.ErrInvalidKey)
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = l.Inspect(gone, "k")
	require.ErrorIs(t, err, context.Canceled)
	require.NoError(t, env.Client(t).Set(t.Context(), core.RecordName(env.Prefix, "k"), "junk", 0).Err())
	_, err = l.Inspect(t.Context(), "k")
	require.ErrorIs(t, err, core.ErrUnavailable)
	_, err = l.ForceRelease(t.Context(), "k", 1)
	require.ErrorIs(t, err, core.ErrUnavailable)

	down := lockerOn(t, redistest.Client(t, &redis.Options{Addr: "127.0.0.1:1", MaxRetries: noRetries, DialerRetries: 1}), "p")
	_, err = down.Inspect(t.Context(), "k")
	require.ErrorIs(t, err, core.ErrUnavailable)
	_, err = down.List(t.Context(), "", 1)
	require.ErrorIs(t, err, core.ErrUnavailable)

	require.NoError(t, l.Close())
	_, err = l.Inspect(t.Context(), "k")
	require.ErrorIs(t, err, core.ErrClosed)
	_, err = l.List(t.Context(), "", 1)
	require.ErrorIs(t, err, core.ErrClosed)
}
