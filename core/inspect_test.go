package core_test

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
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

func TestInspect_TellsWhoHoldsAKeyAndWhoWaits(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		ctx := t.Context()
		holder, waiting, asking := newLocker(t, env), newLocker(t, env), newLocker(t, env)
		info, err := asking.Inspect(ctx, "k")
		require.NoError(t, err)
		require.True(t, info.Free())
		require.Equal(t, core.KeyInfo{Key: "k", At: info.At}, *info)

		before := info.At
		lease := testbed.Take(t, holder, "k", core.Named("POST /orders/:id", "a b;c@d+e~f/g,ü"), core.LeaseTTL(time.Minute))
		next := waitFor(t, waiting, "k", core.Named("job", "7"))
		last := waitFor(t, asking, "k")

		info, err = asking.Inspect(ctx, "k")
		require.NoError(t, err)
		require.False(t, info.Free())
		require.Equal(t, core.ModeExclusive, info.Mode)
		require.Len(t, info.Holders, 1)
		h := info.Holders[0]
		require.Equal(t, []any{1, os.Getpid(), "POST /orders/:id", "a b;c@d+e~f/g,ü", lease.Fence(), 1, time.Minute},
			[]any{info.Held, h.PID, h.Name, h.ID, h.Fence, h.Limit, h.TTL})
		require.True(t, strings.HasPrefix(h.Locker, h.Host+"/"+strconv.Itoa(h.PID)+"/"))
		require.False(t, h.Since.Before(before) || h.Since.After(info.At), "%s <= %s <= %s", before, h.Since, info.At)
		require.Positive(t, h.Remaining)
		require.LessOrEqual(t, h.Remaining, core.DefaultFirstLease, "not renewed yet")

		require.Equal(t, 2, info.Waiting)
		require.Len(t, info.Waiters, 2)
		require.Equal(t, []string{"job", "7", "", ""}, []string{info.Waiters[0].Name, info.Waiters[0].ID, info.Waiters[1].Name, info.Waiters[1].ID})
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

func TestInspect_TellsTheModes(t *testing.T) {
	t.Parallel()
	redistest.InVirtualTime(t, func(t *testing.T, env *redistest.Env) {
		ctx := t.Context()
		a, b := newLocker(t, env), newLocker(t, env, core.WithTTL(2*time.Second))
		for _, c := range []struct {
			opt   core.AcquireOption
			mode  core.Mode
			limit int
		}{{core.Shared(), core.ModeShared, 0}, {core.Counted(3), core.ModeCounted, 3}} {
			key := string(c.mode)
			leases := []*core.Lease{testbed.Take(t, a, key, c.opt), testbed.Take(t, a, key, c.opt)}
			dead := testbed.Take(t, b, key, c.opt, core.FixedLease(2*time.Second))
			waiting := waitFor(t, b, key)
			info, err := a.Inspect(ctx, key)
			require.NoError(t, err)
			require.Equal(t, 3, info.Held)
			require.Equal(t, c.mode, info.Mode)
			for i, lease := range append(slices.Clone(leases), dead) {
				h, ttl := info.Holders[i], []time.Duration{core.DefaultTTL, core.DefaultTTL, 2 * time.Second}[i]
				require.Equal(t, []any{lease.Fence(), c.mode, c.limit, ttl}, []any{h.Fence, h.Mode, h.Limit, h.TTL})
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

func TestInspect_AKeyWithManyHoldersIsShownInPart(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		l, rdb := newLocker(t, env), env.Client(t)
		lease := testbed.Take(t, l, "k", core.Shared())
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

// listAll goes through all pages, and returns each key's last report.
func listAll(t *testing.T, l *core.Locker, count int) []*core.KeyInfo {
	t.Helper()
	all := map[string]*core.KeyInfo{}
	cursor := ""
	for {
		page, err := l.List(t.Context(), cursor, count)
		require.NoError(t, err)
		for _, info := range page.Keys {
			all[info.Key] = info
		}
		if cursor = page.Next; cursor == "" {
			break
		}
	}
	return slices.SortedFunc(maps.Values(all), func(a, b *core.KeyInfo) int { return strings.Compare(a.Key, b.Key) })
}

// requireListed checks the keys that are listed, whose holders' ids are as they.
func requireListed(t *testing.T, l *core.Locker, want []string) {
	t.Helper()
	for _, count := range []int{7, 1000} {
		var keys []string
		for _, info := range listAll(t, l, count) {
			keys = append(keys, info.Key)
			require.Equal(t, info.Key, info.Holders[0].ID)
		}
		require.Equal(t, want, keys)
	}
}

func TestList_ShowsEveryKeyInUseAndNoJunk(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		ctx, rdb := t.Context(), env.Client(t)
		env.Prefix += `*?[a]\x`
		l := newLocker(t, env)
		require.Empty(t, listAll(t, l, 1))
		var want []string
		for i := range 300 {
			key := fmt.Sprintf("key %03d", i)
			testbed.Take(t, l, key, core.Named("n", key))
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

		requireListed(t, l, want)
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

func TestList_GoesOverAllPrimariesOfACluster(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, 3, 0)
	rdb := c.Client(t)
	l := lockerOn(t, rdb, "p")
	var want []string
	for i := range 100 {
		key := fmt.Sprintf("key %03d", i)
		testbed.Take(t, l, key, core.Named("n", key))
		want = append(want, key)
	}
	requireListed(t, l, want)
	for _, cursor := range []string{"5", "0", "5@127.0.0.1:1", "@"} {
		_, err := l.List(t.Context(), cursor, 10)
		require.ErrorIs(t, err, core.ErrInvalidCursor, cursor)
	}
	info, err := l.Inspect(t.Context(), want[0])
	require.NoError(t, err)
	require.True(t, force(t, l, want[0], info.Holders[0].Fence))
}

func TestInspect_ThatFailsSaysWhy(t *testing.T) {
	t.Parallel()
	env := redistest.Embedded(t)
	l := newLocker(t, env)
	down := lockerOn(t, redistest.Client(t, &redis.Options{Addr: "127.0.0.1:1", MaxRetries: noRetries, DialerRetries: 1}), "p")
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	require.NoError(t, env.Client(t).Set(t.Context(), core.RecordName(env.Prefix, "junk"), "junk", 0).Err())
	fails := func(ctx context.Context, l *core.Locker, key string, want error) {
		_, err := l.Inspect(ctx, key)
		require.ErrorIs(t, err, want)
		_, err = l.ForceRelease(ctx, key, 1)
		require.ErrorIs(t, err, want)
		if key == "k" {
			_, err = l.List(ctx, "", 1)
			require.ErrorIs(t, err, want)
		}
	}
	fails(t.Context(), l, "", core.ErrInvalidKey)
	fails(t.Context(), l, "a\nb", core.ErrInvalidKey)
	fails(gone, l, "k", context.Canceled)
	fails(t.Context(), l, "junk", core.ErrUnavailable)
	fails(t.Context(), down, "k", core.ErrUnavailable)
	require.NoError(t, l.Close())
	fails(t.Context(), l, "k", core.ErrClosed)
}
