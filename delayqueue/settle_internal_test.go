package delayqueue

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
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
	locker, err := core.New(q.rdb, core.WithPrefix(q.prefix))
	require.NoError(t, err)
	t.Cleanup(func() { _ = locker.Close() })
	seen := &settledObserver{}
	w, err := NewWorker(q, locker, h, append([]WorkerOption{WithLogger(slog.New(slog.DiscardHandler)), WithObserver(seen)}, opts...)...)
	require.NoError(t, err)
	return w, seen
}

// takes has a Worker that is not started claim a message.
func (w *Worker) takes(t *testing.T, token string) *claim {
	t.Helper()
	b, err := w.queue.manifests.partitions[0].Claim(t.Context(), token, time.Minute, 1)
	require.NoError(t, err)
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
				q, err := New(env.Client(t), "q", WithPrefix(env.Prefix), WithMaxAttempts(2))
				require.NoError(t, err)
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
		for _, encrypted := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, encrypted=%v", name, encrypted), func(t *testing.T) {
				env := redistest.Embedded(t)
				opts := []Option{WithPrefix(env.Prefix)}
				if encrypted {
					opts = append(opts, WithEncryption(Keyring{Current: "k", Keys: map[string][]byte{"k": randomKey()}}))
				}
				q, err := New(env.Client(t), "q", opts...)
				require.NoError(t, err)
				var logged bytes.Buffer
				w, _ := internalWorker(t, q, c.handler, WithLogger(slog.New(slog.NewTextHandler(&logged, &slog.HandlerOptions{Level: slog.LevelDebug}))))
				enqueueTest(t, q, "id", "")
				w.process(w.takes(t, "token"))
				if encrypted {
					require.Contains(t, logged.String(), c.shown)
					assertHidden(t, logged.String(), []byte(secret))
				} else {
					require.Contains(t, logged.String(), secret)
				}
			})
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
		require.Len(t, w.slots.taken, 1, "the message is alone")

		go func() { taken <- w.takeSlots() }()
		synctest.Wait()
		<-w.slots.alone
		w.moreSlots <- struct{}{}
		require.Equal(t, 1, <-taken)
	})
}

// Pause, or Stop, comes after a turn decided to go on, and before its settlement.
func TestPause_ASettlementOfAPausedWorkerClaimsNothing(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		q := testQueue(t, env)
		w, _ := internalWorker(t, q, func(context.Context, Message) error { return nil })
		enqueueTest(t, q, "first", "k")
		enqueueTest(t, q, "behind", "k")
		c := w.takes(t, "token")
		w.Pause()
		followed := w.settle(c, outcome{end: store.Finished, ofKey: true})
		require.Nil(t, followed, "claimed all the same")
		s, err := q.Status(t.Context(), "behind")
		require.NoError(t, err)
		require.Equal(t, StateQueued, s.State)
	})
}
