package delayqueue_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

func TestClaimsAhead_NoMoreHandlersRunThanTheConcurrency(t *testing.T) {
	const concurrency, messages = 4, 600
	b := setup(t, redistest.Real(t), delayqueue.WithMaxDepthPerKey(messages))
	var enqueued sync.WaitGroup
	for i := range messages {
		enqueued.Go(func() {
			j := delayqueue.Job{}
			if i%4 == 0 {
				j.Key = fmt.Sprint("key ", i%20)
			}
			_, err := b.queue.Enqueue(t.Context(), j)
			if err != nil {
				t.Error(err)
			}
		})
	}
	enqueued.Wait()
	var inside, most, claimed, done atomic.Int64
	var mu sync.Mutex
	note := func(most *atomic.Int64, n int64) {
		mu.Lock()
		defer mu.Unlock()
		most.Store(max(most.Load(), n))
	}
	b.start(func(ctx context.Context, _ delayqueue.Message) error {
		note(&most, inside.Add(1))
		defer inside.Add(-1)
		runtime.Gosched()
		if n := done.Add(1); n%20 == 0 {
			note(&claimed, b.rdb.ZCard(ctx, b.key("w")).Val())
		}
		return nil
	}, delayqueue.WithConcurrency(concurrency))
	redistest.Eventually(t, func() bool { return b.inState() == [3]int64{} }, "messages are left")
	require.EqualValues(t, messages, done.Load())
	require.LessOrEqual(t, most.Load(), int64(concurrency))
	require.Greater(t, claimed.Load(), int64(concurrency), "nothing was claimed ahead")
	require.LessOrEqual(t, claimed.Load(), int64(4*concurrency))
}

// Handlers were quick, and are not any more: what was claimed ahead is run by another Worker, as if it had not been claimed.
func TestClaimsAhead_WhatWouldWaitGoesBack(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		const concurrency, slow = 4, 40
		b := setup(t, env)
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
	for n := b.rdb.ZCard(ctx, b.key("w")).Val(); ; {
		if was := most.Load(); n <= was || most.CompareAndSwap(was, n) {
			return
		}
	}
}

// A message that has lost its worker may do so again: what waited beside it would spend an attempt each time.
func TestClaimsAhead_NothingWaitsBesideWhatLostItsWorker(t *testing.T) {
	const concurrency, messages = 4, 900
	b := setup(t, redistest.Real(t))
	poison := map[string]bool{}
	for i := range messages {
		j := delayqueue.Job{ID: fmt.Sprintf("%05d", i)}
		if i%300 == 150 || i%300 == 151 {
			poison[j.ID] = true
			if i%2 == 0 {
				j.Key = "key"
			}
		}
		b.enqueue(j)
	}
	for id := range poison {
		require.NoError(t, b.rdb.HSet(t.Context(), b.key("r"), id, "-------1 0 1 0  its worker died").Err())
	}
	var most, ahead atomic.Int64
	var all ran
	b.start(func(ctx context.Context, m delayqueue.Message) error {
		if poison[m.ID] {
			for range 3 {
				b.claimed(ctx, &most)
				time.Sleep(time.Millisecond)
			}
		} else if m.ID[3:] == "00" {
			b.claimed(ctx, &ahead)
		}
		return all.handle(ctx, m)
	}, delayqueue.WithConcurrency(concurrency))
	redistest.Eventually(t, func() bool { return b.inState() == [3]int64{} }, "messages are left")
	require.Len(t, all.all(), messages)
	require.Greater(t, ahead.Load(), int64(concurrency), "nothing was claimed ahead")
	require.Positive(t, most.Load())
	require.LessOrEqual(t, most.Load(), int64(concurrency))
}

// In its last attempt a message that has lost its workers has a Worker for itself: if that dies too, it was not another's doing.
func TestLastAttempt_IsAloneInItsWorker(t *testing.T) {
	const concurrency, messages, attempts = 4, 600, 3
	each(t, func(t *testing.T, b *bench) {
		states := map[string]string{ // how it has come to its last attempt, or beyond
			"last": "-------2 0 2 0  died", "last of key": "-------2 0 2 0  died", "died before it ran": "-------4 0 4 0  died",
			"died alone": "-alone!3 0 3 0  died", "failed, and died": "-------3 0 1 0  died",
		}
		dead := map[string]bool{"died alone": true, "failed, and died": true}
		for i := range messages {
			b.enqueue(delayqueue.Job{ID: fmt.Sprint(i)})
			for name, state := range states {
				if i != messages/2 {
					continue
				}
				job := delayqueue.Job{ID: strings.NewReplacer(" ", "-", ",", "").Replace(name), Name: name}
				if name == "last of key" {
					job.Key = "key"
				}
				require.NoError(t, b.rdb.HSet(t.Context(), b.key("r"), b.enqueue(job), state).Err())
			}
		}
		var most atomic.Int64
		var all ran
		b.start(func(ctx context.Context, m delayqueue.Message) error {
			if m.Name != "" {
				for range 5 {
					b.claimed(ctx, &most)
					time.Sleep(time.Millisecond)
				}
			}
			return all.handle(ctx, m)
		}, delayqueue.WithConcurrency(concurrency))
		redistest.Eventually(t, func() bool { return b.inState() == [3]int64{0, 0, int64(len(dead))} }, "messages are left")
		require.Len(t, all.all(), messages+len(states)-len(dead))
		require.EqualValues(t, 1, most.Load())
		for name := range states {
			want := delayqueue.StateDone
			if dead[name] {
				want = delayqueue.StateDead
			}
			require.Equal(t, want, b.status(strings.NewReplacer(" ", "-", ",", "").Replace(name)).State, name)
		}
	}, delayqueue.WithMaxAttempts(attempts))
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

// A claim of another partition is answered so late that its slots were given back.
func TestLastAttempt_IsAloneThoughAClaimWasSlow(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		options := []delayqueue.Option{delayqueue.WithMaxAttempts(2), delayqueue.WithPartitions(2)}
		b := setup(t, env, options...)
		parts := [2]string{env.Prefix + ":queue:{q/2.2}:", env.Prefix + ":queue:{q/1.2}:"}
		lasts := 0
		b.enqueue(delayqueue.Job{ID: "last"})
		if b.rdb.HExists(t.Context(), parts[1]+"m", "last").Val() {
			lasts = 1
		}
		require.NoError(t, b.rdb.HSet(t.Context(), parts[lasts]+"r", "last", "-------1 0 1 0  died").Err())
		for i := 0; b.rdb.HLen(t.Context(), parts[1-lasts]+"m").Val() < 4; i++ {
			b.enqueue(delayqueue.Job{ID: fmt.Sprint(i)})
		}
		started := make(chan struct{})
		rdb := env.Client(t)
		rdb.AddHook(hookFunc(func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
			err := next(ctx, cmd)
			if isScript(cmd, "claim", strings.TrimSuffix(parts[1-lasts], ":")) {
				<-started
			}
			return err
		}))
		var alone, beside atomic.Bool
		b.startOn(b.newQueue(rdb, options...), func(_ context.Context, m delayqueue.Message) error {
			if m.ID == "last" {
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
	})
}

func TestClaimsAhead_NotWhereAMessageHasOneAttempt(t *testing.T) {
	const concurrency = 4
	b := setup(t, redistest.Real(t), delayqueue.WithMaxAttempts(1))
	for range 300 {
		b.enqueue(delayqueue.Job{})
	}
	var most, n atomic.Int64
	b.start(func(ctx context.Context, _ delayqueue.Message) error {
		if n.Add(1)%20 == 0 {
			b.claimed(ctx, &most)
		}
		return nil
	}, delayqueue.WithConcurrency(concurrency))
	redistest.Eventually(t, func() bool { return b.inState() == [3]int64{} }, "messages are left")
	require.LessOrEqual(t, most.Load(), int64(concurrency))
}

// A message kills each of its workers at once. What was claimed ahead, and never started, does not die of that.
func TestClaimsAhead_AMessageThatKillsItsWorkerBuriesNoOther(t *testing.T) {
	const crowd, attempts = 20, 2
	losses := 0
	for range 20 { // until something waited beside it
		b := setup(t, redistest.Real(t), delayqueue.WithMaxAttempts(attempts))
		warm := func() {
			for range 200 {
				b.enqueue(delayqueue.Job{})
			}
		}
		warm()
		killer := b.enqueue(delayqueue.Job{ID: "a", Name: "kills"})
		ids := make([]string, crowd)
		for i := range ids {
			ids[i] = b.enqueue(delayqueue.Job{ID: fmt.Sprintf("b%02d", i)})
		}
		for range attempts {
			var dead atomic.Bool // the process is, to Redis
			died, rdb := make(chan struct{}), b.env.Client(t)
			rdb.AddHook(hookFunc(func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
				if dead.Load() {
					cmd.SetErr(errors.New("dead"))
					return cmd.Err()
				}
				return next(ctx, cmd)
			}))
			w, err := delayqueue.NewWorker(b.newQueue(rdb, delayqueue.WithMaxAttempts(attempts)), b.locker, func(ctx context.Context, m delayqueue.Message) error {
				if m.Name == "kills" {
					dead.Store(true)
					close(died)
					<-ctx.Done()
				}
				return ctx.Err()
			}, quick(delayqueue.WithConcurrency(1), delayqueue.WithClaimLease(200*time.Millisecond))...)
			require.NoError(t, err)
			require.NoError(t, w.Start())
			<-died
			now, stop := context.WithCancel(t.Context())
			stop()
			require.Error(t, w.Stop(now))
			warm()
			require.Equal(t, delayqueue.StateRunning, b.status(killer).State)
		}
		b.start(func(context.Context, delayqueue.Message) error { return nil })
		b.reaches(killer, delayqueue.StateDead)
		for _, id := range ids {
			losses += b.reaches(id, delayqueue.StateDone).Losses
		}
		if losses > 0 {
			break
		}
	}
	require.Positive(t, losses, "nothing waited beside it")
}
