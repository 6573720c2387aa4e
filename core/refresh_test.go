package core_test

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/test/testbed"
)

// refreshedFields are the fields of a record that keep those alive who wait for long.
func refreshedFields(t *testing.T, rdb *redis.Client, record string) (fields []string) {
	t.Helper()
	for _, field := range rdb.HKeys(t.Context(), record).Val() {
		if strings.HasPrefix(field, "w:") {
			fields = append(fields, field)
		}
	}
	return fields
}

// idleCalls has calls wait on lockers of their own, in order, and says who had the key.
type idleCalls struct {
	turns  []int // guarded by the key
	wg     sync.WaitGroup
	leave  context.CancelFunc
	record string
}

func startIdle(t *testing.T, rdb *redis.Client, lockers ...*core.Locker) *idleCalls {
	t.Helper()
	ctx, leave := context.WithCancel(t.Context())
	c := &idleCalls{leave: leave, record: core.RecordName("p", "k")}
	t.Cleanup(leave)
	for i, l := range lockers {
		warm(t, l)
		listening(t, l)
		c.wg.Go(func() {
			_ = l.Do(ctx, "k", func(context.Context) error {
				c.turns = append(c.turns, i)
				time.Sleep(10 * time.Millisecond)
				return nil
			})
		})
		synctest.Wait()
		require.Equal(t, i+1, strings.Count(rdb.HGet(ctx, c.record, "queue").Val(), " "))
	}
	return c
}

func TestRefresh_KeepsEntriesInTheQueueWithoutQuestions(t *testing.T) {
	t.Parallel()
	onFakeNodes(t, 1, func(t *testing.T, nodes []*fakeNode) {
		rdb, hooked := nodes[0].client(t), nodes[0].client(t)
		var asked, scripts atomic.Int64
		hooked.AddHook(hooks{
			script: func(cmd redis.Cmder, next func() error) error {
				if isScript(cmd, "acquire") {
					asked.Add(1)
				}
				return next()
			},
			pipeline: func(next func() error) error { scripts.Add(1); return next() },
		})
		holder := lockerOn(t, rdb, "p")
		lease := testbed.Take(t, holder, "k")
		var lockers []*core.Locker
		for range 5 {
			lockers = append(lockers, lockerOn(t, hooked, "p", core.WithRenewalClient(hooked)))
		}
		c := startIdle(t, rdb, lockers...)
		queue := rdb.HGet(t.Context(), c.record, "queue").Val()
		asked.Store(0)
		scripts.Store(0)
		time.Sleep(45 * time.Second)
		require.Zero(t, asked.Load())
		require.InDelta(t, 5*45/4.5, scripts.Load(), 20, "a refresh of each about every 4.5 s")
		require.Equal(t, queue, rdb.HGet(t.Context(), c.record, "queue").Val(), "it is not written again")
		require.Len(t, refreshedFields(t, rdb, c.record), 5)
		info, err := holder.Inspect(t.Context(), "k")
		require.NoError(t, err)
		require.Equal(t, 5, info.Waiting)

		require.NoError(t, lease.Release(t.Context()))
		time.Sleep(5 * time.Millisecond)
		require.Len(t, refreshedFields(t, rdb, c.record), 4, "who has the key waits no more")
		c.wg.Wait()
		require.Equal(t, []int{0, 1, 2, 3, 4}, c.turns)
		require.Zero(t, asked.Load(), "all were told")
	})
}

// A question under a new mark writes the queue anew: what was refreshed before goes.
func TestRefresh_LeavesNoFieldBehind(t *testing.T) {
	t.Parallel()
	onFakeNodes(t, 1, func(t *testing.T, nodes []*fakeNode) {
		rdb := nodes[0].client(t)
		holder, l := lockerOn(t, rdb, "p"), lockerOn(t, rdb, "p")
		_ = testbed.Take(t, holder, "k")
		c := startIdle(t, rdb, l)
		time.Sleep(15 * time.Second)
		fields := refreshedFields(t, rdb, c.record)
		require.Len(t, fields, 1)
		token := strings.TrimPrefix(fields[0], "w:")
		ask := func(mark string) {
			require.NoError(t, rdb.Eval(t.Context(), core.Scripts["acquire"], []string{c.record}, token, 1000, 0, "x", mark, "").Err())
		}
		ask("@")
		require.Len(t, refreshedFields(t, rdb, c.record), 1)
		ask("+")
		require.Empty(t, refreshedFields(t, rdb, c.record))
		time.Sleep(15 * time.Second)
		require.Len(t, refreshedFields(t, rdb, c.record), 1)
		c.leave()
		c.wg.Wait()
		synctest.Wait()
		require.Empty(t, refreshedFields(t, rdb, c.record))
	})
}

func TestRefresh_ADeadEntryIsPassedOverAfterTwentySeconds(t *testing.T) {
	t.Parallel()
	for dead, late := range map[time.Duration]time.Duration{
		15 * time.Second: 10 * time.Second, // its claim, and until the next one looks
		25 * time.Second: 20 * time.Millisecond,
	} {
		onFakeNodes(t, 1, func(t *testing.T, nodes []*fakeNode) {
			rdb := nodes[0].client(t)
			holder, l := lockerOn(t, rdb, "p"), lockerOn(t, rdb, "p")
			lease := testbed.Take(t, holder, "k")
			record := core.RecordName("p", "k")
			require.NoError(t, rdb.Eval(t.Context(), core.Scripts["acquire"], []string{record}, "1:stranger.00000000000000000000000000000002", 1000, 0, "x", "+", "").Err())
			warm(t, l)
			listening(t, l)
			done := make(chan error)
			go func() { done <- l.Do(t.Context(), "k", nothing) }()
			time.Sleep(dead)
			info, err := holder.Inspect(t.Context(), "k")
			require.NoError(t, err)
			start := time.Now()
			require.NoError(t, lease.Release(t.Context()))
			require.NoError(t, <-done)
			took := time.Since(start)
			require.Less(t, took, late)
			if dead < 20*time.Second {
				require.Equal(t, 2, info.Waiting)
				require.Greater(t, took, 900*time.Millisecond, "it had its claim")
			} else {
				require.Equal(t, 1, info.Waiting)
			}
		})
	}
}

// The record names no waiter, so the release wakes none.
func TestRefresh_FindsWhatWasLost(t *testing.T) {
	t.Parallel()
	for waited, late := range map[time.Duration]time.Duration{
		10 * time.Millisecond: time.Second, 2 * time.Second: 2 * time.Second, time.Minute: 5 * time.Second,
	} {
		onFakeNodes(t, 1, func(t *testing.T, nodes []*fakeNode) {
			rdb := nodes[0].client(t)
			holder, l := lockerOn(t, rdb, "p"), lockerOn(t, rdb, "p")
			lease := testbed.Take(t, holder, "k")
			c := startIdle(t, rdb, l)
			time.Sleep(waited)
			require.NoError(t, rdb.HDel(t.Context(), c.record, "queue", "waiting").Err())
			start := time.Now()
			require.NoError(t, lease.Release(t.Context()))
			c.wg.Wait()
			require.Equal(t, []int{0}, c.turns)
			require.Less(t, time.Since(start), late+50*time.Millisecond)
		})
	}
}
