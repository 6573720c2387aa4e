package delayqueue_test

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

// Handlers were quick, and are not any more: what was claimed ahead is run by another Worker, as if it had not been claimed.
func TestClaimsAhead_WhatWouldWaitGoesBack(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		const concurrency, slow = 4, 40
		block := make(chan struct{})
		var blocked atomic.Int64
		for range 300 {
			b.enqueue(delayqueue.Job{})
		}
		for i := range slow {
			j := delayqueue.Job{Name: "slow"}
			if i%2 == 0 {
				j.Key = fmt.Sprint(i)
			}
			b.enqueue(j)
		}
		b.start(func(_ context.Context, m delayqueue.Message) error {
			if m.Name == "slow" {
				blocked.Add(1)
				<-block
			}
			return nil
		}, delayqueue.WithConcurrency(concurrency))
		defer close(block)
		redistest.Eventually(t, func() bool { return blocked.Load() == concurrency && b.inState()[1] == concurrency },
			"what was claimed ahead did not go back")

		var others ran
		b.start(others.handle)
		redistest.Eventually(t, func() bool { return b.inState() == [3]int64{0, concurrency, 0} }, "the other worker has not run the rest")
		for _, m := range others.all() {
			require.Equal(t, []int{1, 0, 0}, []int{m.Attempt, m.Conflicts, m.Losses})
		}
	})
}

// claimed has a handler note how many messages are claimed at most.
func (b *bench) claimed(ctx context.Context, most *atomic.Int64) {
	atMost(most, b.rdb.ZCard(ctx, b.key("w")).Val())
}

// atMost keeps the largest of some numbers.
func atMost(most *atomic.Int64, n int64) {
	for was := most.Load(); n > was && !most.CompareAndSwap(was, n); was = most.Load() {
		continue
	}
}

// No more handlers run than the concurrency, and some messages are claimed ahead. But a message that has lost its worker may do so again: what
// waited beside it would spend an attempt each time. In its last attempt it has a Worker for itself: if that dies too, it was not another's doing.
func TestClaimsAhead_NothingWaitsBesideWhatMayNotLoseItsWorker(t *testing.T) {
	t.Parallel()
	const concurrency, messages = 4, 400
	for name, c := range map[string]struct {
		attempts int
		states   map[string]string // how some have come to their attempt, or beyond
		dead     []string          // of these
		most     int64             // that are claimed while one of these runs
		ahead    bool              // others are claimed ahead
	}{
		"lost its worker": {5, map[string]string{"lost": "-------1 0 1 0  died", "lost of key": "-------1 0 1 0  died"}, nil, concurrency, true},
		"last attempt": {3, map[string]string{
			"last": "-------2 0 2 0  died", "last of key": "-------2 0 2 0  died", "died before it ran": "-------4 0 4 0  died",
			"died alone": "-alone!3 0 3 0  died", "failed, and died": "-------3 0 1 0  died",
		}, []string{"died alone", "failed, and died"}, 1, true},
		"the only one": {1, nil, nil, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t, redistest.Real(t), delayqueue.WithMaxAttempts(c.attempts))
			ids := map[string]string{}
			plain := func(int) delayqueue.Job { return delayqueue.Job{} }
			b.enqueueAll(messages/2, plain)
			for name, state := range c.states {
				ids[name] = b.enqueue(delayqueue.Job{Name: name, Key: map[bool]string{true: "key"}[strings.HasSuffix(name, "of key")]})
				require.NoError(t, b.rdb.HSet(t.Context(), b.key("r"), ids[name], state).Err())
			}
			b.enqueueAll(messages/2, plain)
			var most, ahead, inside, together, n atomic.Int64
			var all ran
			b.start(func(ctx context.Context, m delayqueue.Message) error {
				atMost(&together, inside.Add(1))
				defer inside.Add(-1)
				runtime.Gosched()
				if m.Name == "" && n.Add(1)%20 == 0 {
					b.claimed(ctx, &ahead)
				}
				for i := 0; i < 5 && m.Name != ""; i++ {
					b.claimed(ctx, &most)
					time.Sleep(time.Millisecond)
				}
				return all.handle(ctx, m)
			}, delayqueue.WithConcurrency(concurrency))
			redistest.Eventually(t, func() bool { return b.inState() == [3]int64{0, 0, int64(len(c.dead))} }, "messages are left")
			require.Len(t, all.all(), messages+len(c.states)-len(c.dead))
			require.LessOrEqual(t, together.Load(), int64(concurrency))
			require.LessOrEqual(t, ahead.Load(), int64(4*concurrency))
			require.LessOrEqual(t, most.Load(), c.most)
			require.Equal(t, len(c.states) > 0, most.Load() > 0)
			require.Equal(t, c.ahead, ahead.Load() > concurrency, "%d were claimed ahead", ahead.Load())
			for name, id := range ids {
				want := map[bool]delayqueue.State{false: delayqueue.StateDone, true: delayqueue.StateDead}[slices.Contains(c.dead, name)]
				require.Equal(t, want, b.status(id).State, name)
			}
		})
	}
}

// A handler that does not return keeps the last attempt of another message waiting, for a claim's lease at most.
func TestLastAttempt_WaitsForNoHandlerThatHangs(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		hangs := make(chan struct{})
		started := make(chan struct{})
		b.start(func(_ context.Context, m delayqueue.Message) error {
			if m.Name == "hangs" {
				close(started)
				<-hangs
			}
			return nil
		}, delayqueue.WithClaimLease(300*time.Millisecond))
		defer close(hangs)
		b.enqueue(delayqueue.Job{Name: "hangs"})
		<-started
		require.NoError(t, b.rdb.HSet(t.Context(), b.key("r"), "last", "-------1 0 1 0  died").Err())
		b.enqueue(delayqueue.Job{ID: "last"})
		b.reaches("last", delayqueue.StateDone)
		b.reaches(b.enqueue(delayqueue.Job{}), delayqueue.StateDone)
	}, delayqueue.WithMaxAttempts(2))
}

// Until Redis knows how it ended, its worker's death would be its doing.
func TestLastAttempt_IsAloneUntilItIsSettled(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		b.enqueue(delayqueue.Job{ID: "last"})
		require.NoError(t, b.rdb.HSet(t.Context(), b.key("r"), "last", "-------1 0 1 0  died").Err())
		for i := range 30 {
			b.enqueue(delayqueue.Job{ID: fmt.Sprint(i)})
		}
		var started, beside atomic.Int64
		var blocked atomic.Bool
		rdb := b.env.Client(t)
		rdb.AddHook(redistest.BeforeEach(func(cmd redis.Cmder) {
			if args := cmd.Args(); redistest.IsScript(cmd) && args[1] == delayqueue.ScriptHashes["settle"] && slices.Contains(args, any("last")) {
				before := started.Load()
				time.Sleep(100 * time.Millisecond)
				beside.Add(started.Load() - before)
				blocked.Store(true)
			}
		}))
		b.startOn(b.newQueue(rdb, delayqueue.WithMaxAttempts(2)), func(context.Context, delayqueue.Message) error {
			started.Add(1)
			time.Sleep(time.Millisecond)
			return nil
		}, delayqueue.WithConcurrency(4))
		redistest.Eventually(t, func() bool { return b.inState() == [3]int64{} }, "messages are left")
		require.True(t, blocked.Load())
		require.Zero(t, beside.Load(), "ran before the last attempt was settled")
	}, delayqueue.WithMaxAttempts(2))
}

func TestLastAttempt_IsAloneThoughAClaimWasSlow(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		last := b.enqueue(delayqueue.Job{ID: inPartition(1, "last")})
		require.NoError(t, b.rdb.HSet(t.Context(), b.env.Prefix+":queue:{q/1.2}:r", last, "-------1 0 1 0  died").Err())
		for i := range 4 {
			b.enqueue(delayqueue.Job{ID: inPartition(2, fmt.Sprint("other", i, "."))})
		}
		started := make(chan struct{})
		rdb := b.env.Client(t)
		rdb.AddHook(hookFunc(func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
			err := next(ctx, cmd)
			if isScript(cmd, "claim", b.env.Prefix+":queue:{q/2.2}") {
				<-started
			}
			return err
		}))
		var alone, beside atomic.Bool
		b.startOn(b.newQueue(rdb, b.opts...), func(_ context.Context, m delayqueue.Message) error {
			if m.ID == last {
				alone.Store(true)
				close(started)
				time.Sleep(100 * time.Millisecond)
				alone.Store(false)
			} else if alone.Load() {
				beside.Store(true)
			}
			return nil
		}, delayqueue.WithConcurrency(8))
		redistest.Eventually(t, func() bool { return b.inState() == [3]int64{} }, "messages are left")
		require.False(t, beside.Load(), "another message ran beside the last attempt")
	}, delayqueue.WithMaxAttempts(2), delayqueue.WithPartitions(2))
}
