package delayqueue

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue/internal/store"
	"github.com/perkey-go/perkey/internal/luascript"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

// A process that was frozen past the end of its claim, or beyond its message's age, goes on before its timers do.
func TestClaim_AClaimThatEndedDuringAFreezeStartsNoHandler(t *testing.T) {
	eachQueue(t, func(t *testing.T, q *Queue) {
		var runs int
		var frozen *claim
		freeze := func() {
			frozen.expiry.Stop()
			frozen.deadline = time.Now().Add(-time.Millisecond)
		}
		w, _ := internalWorker(t, q, func(ctx context.Context, m Message) error {
			runs++
			switch m.ID { // either look shows it
			case "frozen inside":
				freeze()
				require.ErrorIs(t, ctx.Err(), context.Canceled)
				require.ErrorIs(t, context.Cause(ctx), ErrClaimLost)
			case "frozen inside, and waits":
				freeze()
				select {
				case <-ctx.Done():
				case <-time.After(time.Minute):
					t.Error("it waits for a timer")
				}
			}
			return ctx.Err()
		})
		for _, key := range []string{"", "k"} {
			runs = 0
			for _, id := range []string{"frozen", "too old", "frozen inside", "frozen inside, and waits", "well"} {
				m := &store.Message{ID: id, Key: key, Attempts: 1}
				c := w.claims.add(w.ctx, q, q.manifests.partitions[0], m, "token", time.Now().Add(time.Hour))
				switch frozen = c; id {
				case "frozen":
					freeze()
				case "too old":
					c.startBy = time.Now().Add(-time.Millisecond)
				}
				w.process(c)
			}
			require.Equal(t, 3, runs)
		}
	})
}

// replyError is what Redis replies with.
type replyError string

func (e replyError) Error() string { return string(e) }

func (replyError) RedisError() {}

// Redis answers while a slot moves, for seconds perhaps. What fails once at the end of that, such as a call that
// the slot outran, is no long outage.
func TestClaim_AClaimThatFailsAfterAMoveIsSoonSentAgain(t *testing.T) {
	for name, last := range map[string]error{
		"outrun": replyError("ASK 1 127.0.0.1:1"), "moved": replyError("MOVED 1 127.0.0.1:1"),
		"down": replyError("CLUSTERDOWN The cluster is down"), "lost": errors.New("connection reset"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			redistest.InVirtualTime(t, func(t *testing.T, env *redistest.Env) {
				q := testQueue(t, env)
				var n, over atomic.Int64
				q.rdb.(*redis.Client).AddHook(aroundScript{store.Scripts["claim"], func(next func() error) error {
					switch n := n.Add(1); {
					case n < 9:
						return replyError("TRYAGAIN Multiple keys request during rehashing of slot")
					case n == 9:
						over.Store(time.Now().UnixNano())
						return last
					}
					return next()
				}})
				ran := make(chan time.Time, 1)
				w, _ := internalWorker(t, q, func(context.Context, Message) error {
					ran <- time.Now()
					return nil
				})
				enqueueTest(t, q, "id", "k")
				require.NoError(t, w.Start())
				defer func() { _ = w.Stop(context.Background()) }()
				require.Less(t, (<-ran).Sub(time.Unix(0, over.Load())), 3*time.Second)
			})
		})
	}
}

// The slots of a claim whose reply took too long are others' meanwhile, who may keep them for as long as there is work.
func TestClaim_ThatWasSlowDoesNotWaitForASlot(t *testing.T) {
	for name, full := range map[string]bool{"there is one ahead": false, "there is none": true} {
		t.Run(name, func(t *testing.T) {
			q := testQueue(t, redistest.Embedded(t))
			w, _ := internalWorker(t, q, func(context.Context, Message) error { return nil }, WithConcurrency(1))
			enqueueTest(t, q, "id", "")
			b := of(q.manifests.partitions[0].Claim(t.Context(), "token", time.Minute, 1))(t)
			w.slots.taken <- struct{}{}
			for range cap(w.slots.ahead) {
				if full {
					w.slots.ahead <- struct{}{}
				}
			}
			begun := make(chan struct{})
			go func() {
				defer close(begun)
				w.fetcherOf(q.manifests.partitions[0]).beginAll(b, "token", time.Now(), 0)
			}()
			select {
			case <-begun:
			case <-time.After(time.Minute):
				t.Fatal("it waits for a slot")
			}
			w.handlers.Wait()
			s := statusTest(t, q, "id")
			require.Equal(t, map[bool]State{false: StateDone, true: StateQueued}[full], s.State)
			require.Equal(t, map[bool]int{false: 1}[full], s.Attempts)
		})
	}
}

// marksAlone reports it if nobody learns that a message was run alone when its worker died.
func marksAlone(t *testing.T, env *redistest.Env, hooks ...redis.Hook) error {
	t.Helper()
	q := hookedQueue(t, env, "q", hooks)
	p := q.manifests.partitions[0]
	enqueueTest(t, q, "id", "")
	for try := range 3 {
		c := claimTest(t, q, fmt.Sprint("try.", try+1), 1)[0]
		if was := c.stored.Alone; was != (try > 0) {
			return violated("try %d: it was run alone: %v", try, was)
		}
		for range 2 { // the second as after a lost reply
			if held, err := p.Extend(t.Context(), q.rdb, time.Minute, true, c.stored); err != nil || !held[0] {
				return violated("it is held: %v, %v", held, err)
			}
		}
		if try == 2 {
			if !settleTest(t, c, outcome{end: store.Failed, err: errTooOld}) {
				return violated("its claim cannot be settled")
			}
			break
		}
		require.NoError(t, q.rdb.ZAdd(t.Context(), p.Keys[store.KeyRunning], scored(1, store.MemberOf("id", ""))).Err()) // its worker dies
	}
	if claimTest(t, q, "last.1", 1)[0].stored.Alone {
		return violated("its attempt has ended, and it was run alone")
	}
	return nil
}

func TestLastAttempt_IsNotedInRedis(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) { require.NoError(t, marksAlone(t, env)) })
}

func TestClaim_MutantsOfTheLastAttemptAreCaught(t *testing.T) {
	t.Parallel()
	requireCaught(t, marksAlone, []mutant{
		{"what runs alone is not noted", "extend", "      add(ATTEMPTS, id, state:sub(1, 1) .. 'alone!' .. state:sub(8))\n", ""},
		{"a loss forgets it", "claim", "'-', mark and mark", "'-', mark and '------'"},
		{"a noted message is not held", "", "state:sub(8) == sent:sub(8)", "state:sub(2) == sent:sub(2)"},
	})
}

// aroundScript runs a script as run does.
type aroundScript struct {
	script *luascript.Script
	run    func(next func() error) error
}

func (h aroundScript) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h aroundScript) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if !redistest.IsScript(cmd) || cmd.Args()[1] != h.script.Hash() && cmd.Args()[1] != h.script.Source() {
			return next(ctx, cmd)
		}
		err := h.run(func() error { return next(ctx, cmd) })
		cmd.SetErr(err)
		return err
	}
}

func (h aroundScript) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// settledObserver has the last outcome.
type settledObserver struct {
	NopObserver
	last Settled
}

func (o *settledObserver) OnSettled(_ context.Context, s Settled) { o.last = s }

// internalWorker is a Worker that is not started, and what was told of its last settlement.
func internalWorker(t *testing.T, q *Queue, h Handler, opts ...WorkerOption) (*Worker, *settledObserver) {
	t.Helper()
	seen := &settledObserver{}
	w := of(NewWorker(q, lockerTest(t, q), h, append([]WorkerOption{WithLogger(slog.New(slog.DiscardHandler)), WithObserver(seen)}, opts...)...))(t)
	return w, seen
}

// takes has a Worker that is not started claim a message.
func (w *Worker) takes(t *testing.T, token string) *claim {
	t.Helper()
	b := of(w.queue.manifests.partitions[0].Claim(t.Context(), token, time.Minute, 1))(t)
	require.Len(t, b.Messages, 1)
	return w.claims.add(w.ctx, w.queue, w.queue.manifests.partitions[0], b.Messages[0], token, time.Now().Add(time.Minute))
}

// Why a message that is to run alone goes back is told as it is.
func TestLastAttempt_ThatCannotBeAloneTellsWhy(t *testing.T) {
	for name, c := range map[string]struct {
		prepare func(t *testing.T, w *Worker)
		reply   error
		want    error
		delayed bool
	}{
		"redis refuses":    {reply: replyError("NOPERM no permissions"), want: core.ErrUnavailable, delayed: true},
		"another is alone": {prepare: func(_ *testing.T, w *Worker) { w.slots.alone <- struct{}{} }, want: errNotAlone},
		"the claim is lost": {prepare: func(t *testing.T, w *Worker) {
			require.NoError(t, w.queue.rdb.Del(t.Context(), w.queue.manifests.partitions[0].Keys[store.KeyAttempts]).Err())
		}, want: ErrClaimLost},
		"stopped": {prepare: func(t *testing.T, w *Worker) {
			w.slots.taken <- struct{}{}
			require.NoError(t, w.Stop(t.Context()))
		}, want: ErrStopped},
	} {
		t.Run(name, func(t *testing.T) {
			redistest.Each(t, func(t *testing.T, env *redistest.Env) {
				q := testQueue(t, env, WithMaxAttempts(2))
				q.rdb.(*redis.Client).AddHook(aroundScript{store.Scripts["extend"], func(next func() error) error {
					if c.reply != nil {
						return c.reply
					}
					return next()
				}})
				w, seen := internalWorker(t, q, func(context.Context, Message) error {
					t.Error("it runs")
					return nil
				})
				enqueueTest(t, q, "last", "")
				require.NoError(t, q.rdb.HSet(t.Context(), q.manifests.partitions[0].Keys[store.KeyAttempts], "last", "-------1 0 1 0  died").Err())
				last := w.takes(t, "token")
				if c.prepare != nil {
					c.prepare(t, w)
				}
				w.slots.taken <- struct{}{}
				w.begin(last)
				w.handlers.Wait()
				require.ErrorIs(t, seen.last.Err, c.want)
				require.NotErrorIs(t, seen.last.Err, errNoSlot)
				require.Equal(t, c.delayed, seen.last.Delay > 0)
			})
		})
	}
}

// cardError is a handler's error with a secret in it.
type cardError struct{ number string }

func (e *cardError) Error() string { return "declined: " + e.number }

// What Redis has sealed is not in the log either.
func TestSettle_LogsNoErrorOfAnEncryptedQueue(t *testing.T) {
	const secret = "4111 1111"
	for name, c := range map[string]struct {
		handler Handler
		shown   string
	}{
		"wrapped":  {func(context.Context, Message) error { return fmt.Errorf("pay %s: %w", secret, &cardError{secret}) }, "*delayqueue.cardError"},
		"no retry": {func(context.Context, Message) error { return SkipRetry(&cardError{secret}) }, "*delayqueue.cardError"},
		"panics":   {func(context.Context, Message) error { panic(secret) }, "*delayqueue.panicError"},
	} {
		for _, opts := range [][]Option{nil, {WithEncryption(keyringOf(randomKey()))}} {
			q := testQueue(t, redistest.Embedded(t), opts...)
			var logged bytes.Buffer
			w, _ := internalWorker(t, q, c.handler, WithLogger(slog.New(slog.NewTextHandler(&logged, &slog.HandlerOptions{Level: slog.LevelDebug}))))
			enqueueTest(t, q, "id", "")
			w.process(w.takes(t, "token"))
			if len(opts) > 0 {
				require.Contains(t, logged.String(), c.shown, name)
				assertHidden(t, logged.String(), []byte(secret))
			} else {
				require.Contains(t, logged.String(), secret, name)
			}
		}
	}
}

// A fetcher that waits for a slot when a message is about to run alone takes none that becomes free.
func TestClaim_TakesNoSlotBesideAMessageThatIsToRunAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &fetcher{
			Worker:    &Worker{slots: newSlots(2, true, nil), stopping: make(chan struct{})},
			moreSlots: make(chan struct{}, 1), timer: time.NewTimer(time.Hour),
		}
		w.slots.taken <- struct{}{} // the message's
		w.slots.taken <- struct{}{} // another one's
		taken := make(chan int)
		go func() { taken <- w.takeSlots() }()
		synctest.Wait()
		w.slots.alone <- struct{}{}
		w.slots.free(1)
		require.Zero(t, <-taken)
		require.False(t, w.slots.take(), "nor for what is claimed already")
		require.Len(t, w.slots.taken, 1, "the message is alone")

		go func() { taken <- w.takeSlots() }()
		synctest.Wait()
		<-w.slots.alone
		w.moreSlots <- struct{}{}
		require.Equal(t, 1, <-taken)
		w.slots.free(1)
		require.True(t, w.slots.take(), "there is room for what is claimed already")
	})
}

// Pause, or Stop, comes after a turn decided to go on, and before its settlement.
func TestPause_ASettlementOfAPausedWorkerClaimsNothing(t *testing.T) {
	eachQueue(t, func(t *testing.T, q *Queue) {
		w, _ := internalWorker(t, q, func(context.Context, Message) error { return nil })
		enqueueTest(t, q, "first", "k")
		enqueueTest(t, q, "behind", "k")
		c := w.takes(t, "token")
		w.Pause()
		followed := w.settle(c, outcome{end: store.Finished, ofKey: true})
		require.Nil(t, followed, "claimed all the same")
		s := statusTest(t, q, "behind")
		require.Equal(t, StateQueued, s.State)
	})
}

// The defaults: 1, 2, 4, 8, 16 and then every 30 s, each up to a fifth shorter.
func TestLaterDelay_ServiceThatIsAwayForAMinute(t *testing.T) {
	const away, age = time.Minute, 15 * time.Minute
	for range 1_000 {
		now, tries := time.Duration(0), 0
		for now < away {
			tries++
			delay, inTime := laterDelay(tries, bounds{time.Second, time.Minute}, 0, age-now)
			require.True(t, inTime)
			require.LessOrEqual(t, delay, 30*time.Second)
			now += delay
		}
		require.Less(t, now, away+30*time.Second, "it is done by then")
		require.LessOrEqual(t, tries, 7)
		require.Greater(t, tries, 5, "more than attempts")
	}
}

func TestLaterDelay_TriesUntilTheAgeEnds(t *testing.T) {
	for range 200 {
		age := time.Duration(rand.N(int64(10 * time.Minute)))
		left, tries := age, 0
		for {
			tries++
			delay, inTime := laterDelay(tries, bounds{time.Second, time.Minute}, 0, left)
			if !inTime {
				break
			}
			require.GreaterOrEqual(t, delay, 800*time.Millisecond)
			require.Less(t, delay, left)
			left -= delay
		}
		require.LessOrEqual(t, left, min(age, time.Second), "no more than the shortest delay is left")
		require.LessOrEqual(t, tries, 40)
	}
}

func TestLaterDelay_IsNoShorterThanWhatTheOtherSideSays(t *testing.T) {
	delay, inTime := laterDelay(1, bounds{time.Second, time.Minute}, 5*time.Minute, 6*time.Minute)
	require.Equal(t, 5*time.Minute, delay, "though it is beyond 30 s and half of what is left")
	require.True(t, inTime)
	_, inTime = laterDelay(1, bounds{time.Second, time.Minute}, 5*time.Minute, 5*time.Minute)
	require.False(t, inTime)
	delay, _ = laterDelay(20, bounds{time.Second, time.Minute}, time.Millisecond, time.Hour)
	require.GreaterOrEqual(t, delay, 24*time.Second)
	delay, _ = laterDelay(1, bounds{time.Minute, time.Hour}, 0, time.Hour)
	require.LessOrEqual(t, delay, 30*time.Second)
}
