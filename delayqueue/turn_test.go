package delayqueue_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
)

// fences is a handler that records the fence of each message's lease, which is the time of Redis, in µs.
type fences struct {
	ran
	of map[string]int64
}

func (f *fences) handle(ctx context.Context, m delayqueue.Message) error {
	lease, ok := core.LeaseFrom(ctx)
	if !ok || lease.Key() != m.Key {
		return delayqueue.SkipRetry(errors.New("no lease"))
	}
	f.mu.Lock()
	f.of[m.ID] = lease.Fence()
	f.mu.Unlock()
	return f.ran.handle(ctx, m)
}

func TestWorker_MessagesOfAKeyRunInOneTurnUnderOneLease(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		var ids []string
		for i := range 20 {
			ids = append(ids, b.enqueue(delayqueue.Job{ID: fmt.Sprint(i), Key: "k"}))
		}
		f := &fences{of: map[string]int64{}}
		for range 2 {
			b.start(f.handle, delayqueue.WithConcurrency(4))
		}
		for _, id := range ids {
			require.Equal(t, 1, b.reaches(id, delayqueue.StateDone).Attempts)
		}
		require.Equal(t, ids, f.ids())
		fence := f.of["0"]
		for i, id := range ids {
			if f.of[id] != fence { // a slow machine takes longer than a turn for them
				require.Greater(t, f.of[id]-fence, (50 * time.Millisecond).Microseconds(), "of message %s", id)
				fence = f.of[id]
			}
			require.Zero(t, f.all()[i].Conflicts, "a worker met its own lock")
		}
		require.NoError(t, b.hold("k").Release(t.Context()), "the key is free, and not reserved")
	})
}

func TestWorker_ATurnEndsForOtherKeys(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		for i := range 20 {
			b.enqueue(delayqueue.Job{ID: fmt.Sprint("long", i), Key: "long"})
		}
		other := b.enqueue(delayqueue.Job{ID: "other", Key: "other"})
		r := &ran{}
		b.start(func(ctx context.Context, m delayqueue.Message) error {
			time.Sleep(30 * time.Millisecond)
			return r.handle(ctx, m)
		}, delayqueue.WithConcurrency(1))
		b.reaches(other, delayqueue.StateDone)
		b.reaches("long19", delayqueue.StateDone)
		require.NotEqual(t, "other", r.ids()[20], "it need not wait for all of the other key")
		var long []string
		for _, id := range r.ids() {
			if id != "other" {
				long = append(long, id)
			}
		}
		for i, id := range long {
			require.Equal(t, fmt.Sprint("long", i), id)
		}
	})
}

// The window is the queue's of who parks: a worker's without serves what others have parked too.
func TestWorker_WithoutReservationWindowAFreshCallMayOvertake(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		with := b.newQueue(b.rdb)
		b.start((&ran{}).handle)
		for _, q := range []*delayqueue.Queue{b.queue, with} {
			lease := b.hold("k")
			id := park(t, b.other.Guard(delayqueue.Policy(q)), core.Call{Key: "k", Encode: nothing})
			require.NoError(t, lease.Release(t.Context()))
			if q != with {
				require.NoError(t, b.hold("k").Release(t.Context()))
			}
			b.reaches(id, delayqueue.StateDone)
		}
	}, delayqueue.WithReservationWindow(0))
}

func TestCancel_TellsWhatItCannotCancel(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		ctx := t.Context()
		goOn, running := make(chan struct{}), make(chan struct{})
		b.start(func(context.Context, delayqueue.Message) error { close(running); <-goOn; return nil })
		id := b.enqueue(delayqueue.Job{Key: "k"})
		<-running
		require.ErrorIs(t, b.queue.Cancel(ctx, id), delayqueue.ErrRunning)
		require.Zero(t, b.cancelAll(delayqueue.Filter{}))
		close(goOn)
		s := b.waitFor(id)
		require.Equal(t, delayqueue.StateDone, s.State)
		require.ErrorIs(t, b.queue.Cancel(ctx, id), delayqueue.ErrEnded)
		for _, id := range []string{"unknown", "", "b l a n k"} {
			require.ErrorIs(t, b.queue.Cancel(ctx, id), delayqueue.ErrNotFound)
		}
		delayed := b.enqueue(delayqueue.Job{Delay: time.Minute})
		require.NoError(t, b.queue.Cancel(ctx, delayed))
		require.NoError(t, b.queue.Cancel(ctx, delayed), "twice is once")
	}, delayqueue.WithPartitions(3))
}

func TestResult_IsKeptWithItsMessage(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		for name, opts := range map[string][]delayqueue.Option{"plain": nil, "sealed": {delayqueue.WithEncryption(keyring)}} {
			t.Run(name, func(t *testing.T) {
				env := *env
				env.Prefix += name
				b := setup(t, &env, append(opts, delayqueue.WithMaxResult(10))...)
				id := b.enqueue(delayqueue.Job{Key: "k", Name: "n", Principal: "me", Payload: []byte("secret")}) // all of it seals the result
				require.ErrorIs(t, errOf(b.queue.Result(t.Context(), id)), delayqueue.ErrNotFound)
				b.start(func(ctx context.Context, m delayqueue.Message) error {
					if err := delayqueue.SetResult(ctx, make([]byte, 11)); !errors.Is(err, delayqueue.ErrResultTooLarge) {
						return delayqueue.SkipRetry(fmt.Errorf("too large: %w", err))
					}
					_ = delayqueue.SetResult(ctx, []byte("earlier"))
					_ = delayqueue.SetResult(ctx, m.Payload)
					if m.Attempt == 1 {
						return errors.New("cause: secret")
					}
					return nil
				})
				s := b.reaches(id, delayqueue.StateDone)
				require.Equal(t, "cause: secret", s.Cause)
				require.Equal(t, "secret", b.result(id))
				stored := ""
				for _, key := range []string{"m", "r", "s0", "s1", "s2", "s3", "n0", "n1", "n2", "n3", "d0", "d1", "d2", "d3"} {
					stored += fmt.Sprint(b.rdb.HGetAll(t.Context(), env.Prefix+":queue:{q}:"+key).Val())
				}
				require.Contains(t, stored, id)
				require.Equal(t, name == "plain", len(opts) == 0)
				if name == "sealed" {
					require.NotContains(t, stored, "secret")
				}
			})
		}
		require.ErrorIs(t, delayqueue.SetResult(t.Context(), nil), delayqueue.ErrNoHandler)
	})
}

func TestWorker_AMessageOfAnotherKeyringIsLeftToWhoHasIt(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		b := setup(t, env, delayqueue.WithEncryption(ringOf("a")))
		ev := newEvents()
		r := &ran{}
		plain := b.unencrypted()
		other := b.newQueue(b.rdb, delayqueue.WithEncryption(ringOf("b")))
		b.startOn(other, r.handle, delayqueue.WithObserver(ev))
		id := b.enqueue(delayqueue.Job{Key: "k", Payload: []byte("secret")})
		e := next(t, ev.settled)
		require.Equal(t, delayqueue.OutcomeReturned, e.Outcome)
		require.ErrorIs(t, e.Err, delayqueue.ErrSealed)
		require.Equal(t, 0, b.status(id).Attempts)

		forged := enqueueOn(t, plain, delayqueue.Job{Payload: []byte("forged")})
		for e.Message.ID != forged.ID {
			e = next(t, ev.settled)
		}
		require.Equal(t, delayqueue.OutcomeReturned, e.Outcome)
		require.ErrorContains(t, e.Err, "not sealed")
		require.Equal(t, 0, b.status(forged.ID).Attempts, "a process that accepts it may run it")
		require.Empty(t, r.ids())
	})
}

func TestMiddleware_WrapsTheHandlerFromOutsideIn(t *testing.T) {
	b := setup(t, redistest.Embedded(t))
	var order []string
	wrap := func(name string) delayqueue.Middleware {
		return func(next delayqueue.Handler) delayqueue.Handler {
			return func(ctx context.Context, m delayqueue.Message) error {
				order = append(order, name)
				return next(ctx, m)
			}
		}
	}
	b.start(func(context.Context, delayqueue.Message) error { order = append(order, "handler"); return nil },
		delayqueue.WithMiddleware(wrap("outer"), wrap("middle")), delayqueue.WithMiddleware(wrap("inner")))
	b.reaches(b.enqueue(delayqueue.Job{}), delayqueue.StateDone)
	require.Equal(t, []string{"outer", "middle", "inner", "handler"}, order)

	for _, m := range []delayqueue.Middleware{nil, func(delayqueue.Handler) delayqueue.Handler { return nil }} {
		require.ErrorIs(t, errOf(delayqueue.NewWorker(b.queue, b.locker, (&ran{}).handle, delayqueue.WithMiddleware(m))), core.ErrInvalidOption)
	}
}

// Only a message's own payload is another worker's business.
func TestRegression_AHandlersErrorAboutAnUnknownKeySpendsAnAttempt(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		ring := func(id string) *delayqueue.Queue {
			q := testbed.NewQueue(t, b.rdb, "other", delayqueue.WithPrefix(b.env.Prefix), delayqueue.WithEncryption(ringOf(id)))
			return q
		}
		ticket := of(ring("a").Enqueue(t.Context(), delayqueue.Job{Payload: []byte("x")}))(t)
		reader := ring("b")
		b.start(func(ctx context.Context, _ delayqueue.Message) error {
			_, err := reader.Payload(ctx, ticket.ID)
			return err
		})
		s := b.reaches(b.enqueue(delayqueue.Job{}), delayqueue.StateDead)
		require.Equal(t, 2, s.Attempts)
	}, delayqueue.WithMaxAttempts(2))
}

func TestConflict_AHeldKeySpendsNoAttemptAndNoPlace(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		lease := b.hold("k")
		first, second := b.enqueue(delayqueue.Job{Key: "k"}), b.enqueue(delayqueue.Job{Key: "k"})
		var r ran
		b.start(r.handle, delayqueue.WithConcurrency(1))
		redistest.Eventually(t, func() bool { return b.status(first).Conflicts >= 20 }, "the message does not try")
		require.Zero(t, b.status(second).Conflicts, "only the head of a line tries")
		others := []string{}
		for _, key := range []string{"other", "", "other", ""} { // it keeps no slot meanwhile
			others = append(others, b.enqueue(delayqueue.Job{Key: key}))
			b.reaches(others[len(others)-1], delayqueue.StateDone)
		}

		require.NoError(t, lease.Release(t.Context()))
		b.reaches(second, delayqueue.StateDone)
		require.Equal(t, append(others, first, second), r.ids())
		s := b.status(first)
		require.Equal(t, []int{1, 0}, []int{s.Attempts, s.Losses})
		require.Equal(t, s.Conflicts, r.all()[len(others)].Conflicts)
	}, delayqueue.WithMaxAttempts(1))
}

func TestConflict_AConflictInsideAHandlerSpendsNoAttempt(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		b.start(func(_ context.Context, m delayqueue.Message) error {
			if m.Conflicts < 2 {
				return fmt.Errorf("of another key: %w", core.ErrConflict)
			}
			return nil
		})
		s := b.reaches(b.enqueue(delayqueue.Job{Key: "k"}), delayqueue.StateDone)
		require.Equal(t, [2]int{1, 2}, [2]int{s.Attempts, s.Conflicts})
	}, delayqueue.WithMaxAttempts(1))
}
