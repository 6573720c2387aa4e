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
		for i := range 10 {
			ids = append(ids, b.enqueue(delayqueue.Job{ID: fmt.Sprint(i), Key: "k"}))
		}
		f := &fences{of: map[string]int64{}}
		b.start(f.handle, delayqueue.WithConcurrency(4))
		for _, id := range ids {
			require.Equal(t, 1, b.reaches(id, delayqueue.StateDone).Attempts)
		}
		require.Equal(t, ids, f.ids())
		fence := f.of["0"]
		for _, id := range ids {
			if f.of[id] != fence { // a slow machine takes longer than a turn for ten messages
				require.Greater(t, f.of[id]-fence, (50 * time.Millisecond).Microseconds(), "of message %s", id)
				fence = f.of[id]
			}
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

func TestWorker_AFreshCallDoesNotOvertakeAParkedOne(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		guard := b.other.Guard(delayqueue.Policy(b.queue))
		call := core.Call{Key: "k", Principal: "alice", Encode: func() ([]byte, error) { return []byte("parked"), nil }}
		lease := b.hold("k")
		var parked []string
		for range 3 {
			var deferred *core.DeferredError
			require.ErrorAs(t, guard.Do(t.Context(), call, mustNotRun), &deferred)
			parked = append(parked, deferred.Ticket.ID)
		}
		require.NoError(t, lease.Release(t.Context()))

		// No worker has come yet: the key is free, and kept.
		_, err := b.other.TryAcquire(t.Context(), "k")
		require.ErrorIs(t, err, core.ErrConflict)
		var deferred *core.DeferredError
		require.ErrorAs(t, guard.Do(t.Context(), call, mustNotRun), &deferred, "and who comes now stands behind them")
		parked = append(parked, deferred.Ticket.ID)

		r := &ran{}
		b.start(r.handle)
		b.reaches(parked[3], delayqueue.StateDone)
		require.Equal(t, parked, r.ids())
		require.Equal(t, "alice", r.all()[0].Principal)
		fresh, err := b.other.TryAcquire(t.Context(), "k")
		require.NoError(t, err, "when all are done the key is free at once")
		require.NoError(t, fresh.Release(t.Context()))
	})
}

func TestWorker_WithoutReservationWindowAFreshCallMayOvertake(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		lease := b.hold("k")
		call := core.Call{Key: "k", Encode: func() ([]byte, error) { return nil, nil }}
		require.ErrorIs(t, b.other.Guard(delayqueue.Policy(b.queue)).Do(t.Context(), call, mustNotRun), core.ErrDeferred)
		require.NoError(t, lease.Release(t.Context()))
		require.NoError(t, b.hold("k").Release(t.Context()))
	}, delayqueue.WithReservationWindow(0))
}

func TestWorker_ACancelledMessageNeverRunsAndKeepsNobodyUp(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		ctx := t.Context()
		r := &ran{}
		b.start(r.handle)
		lease := b.hold("k")
		call := core.Call{Key: "k", Encode: func() ([]byte, error) { return []byte("work"), nil }}
		var deferred *core.DeferredError
		require.ErrorAs(t, b.other.Guard(delayqueue.Policy(b.queue)).Do(ctx, call, mustNotRun), &deferred)
		id := deferred.Ticket.ID
		redistest.Eventually(t, func() bool { return b.status(id).Conflicts > 0 }, "no worker met the held key")

		// It may be claimed for a moment, to see whether its key is free by now.
		redistest.Eventually(t, func() bool { return !errors.Is(b.queue.Cancel(ctx, id), delayqueue.ErrRunning) }, "it is never queued")
		require.NoError(t, b.queue.Cancel(ctx, id), "twice is once")
		require.Equal(t, delayqueue.StateCancelled, b.status(id).State)
		require.NoError(t, lease.Release(ctx))
		redistest.Eventually(t, func() bool {
			lease, err := b.other.TryAcquire(ctx, "k")
			return err == nil && lease.Release(ctx) == nil
		}, "the key stays reserved for nobody")
		require.Empty(t, r.ids())
		_, err := b.queue.Result(ctx, id)
		require.ErrorIs(t, err, delayqueue.ErrNotFound)
	})
}

func TestCancel_TellsWhatItCannotCancel(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		ctx := t.Context()
		goOn, running := make(chan struct{}), make(chan struct{})
		b.start(func(context.Context, delayqueue.Message) error { close(running); <-goOn; return nil })
		id := b.enqueue(delayqueue.Job{Key: "k"})
		<-running
		require.ErrorIs(t, b.queue.Cancel(ctx, id), delayqueue.ErrRunning)
		close(goOn)
		s, err := b.queue.Wait(ctx, id)
		require.NoError(t, err)
		require.Equal(t, delayqueue.StateDone, s.State)
		require.ErrorIs(t, b.queue.Cancel(ctx, id), delayqueue.ErrEnded)
		for _, id := range []string{"unknown", "", "b l a n k"} {
			require.ErrorIs(t, b.queue.Cancel(ctx, id), delayqueue.ErrNotFound)
		}
		delayed := b.enqueue(delayqueue.Job{Delay: time.Minute})
		require.NoError(t, b.queue.Cancel(ctx, delayed))
	}, delayqueue.WithPartitions(3))
}

func TestResult_IsKeptWithItsMessage(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		keys := delayqueue.Keyring{Current: "a", Keys: map[string][]byte{"a": []byte("0123456789abcdef0123456789abcdef")}}
		for name, opts := range map[string][]delayqueue.Option{"plain": nil, "sealed": {delayqueue.WithEncryption(keys)}} {
			t.Run(name, func(t *testing.T) {
				env := *env
				env.Prefix += name
				b := setup(t, &env, append(opts, delayqueue.WithMaxResult(10))...)
				id := b.enqueue(delayqueue.Job{Key: "k", Name: "n", Principal: "me", Payload: []byte("secret")}) // all of it seals the result
				_, err := b.queue.Result(t.Context(), id)
				require.ErrorIs(t, err, delayqueue.ErrNotFound)
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
				result, err := b.queue.Result(t.Context(), id)
				require.NoError(t, err)
				require.Equal(t, "secret", string(result))
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
		ring := func(id string) delayqueue.Option {
			return delayqueue.WithEncryption(delayqueue.Keyring{Current: id, Keys: map[string][]byte{id: []byte("0123456789abcdef0123456789abcde" + id)}})
		}
		b := setup(t, env, ring("a"))
		ev := newEvents()
		r := &ran{}
		plain := b.unencrypted()
		other := b.newQueue(b.rdb, ring("b"))
		b.startOn(other, r.handle, delayqueue.WithObserver(ev))
		id := b.enqueue(delayqueue.Job{Key: "k", Payload: []byte("secret")})
		e := next(t, ev.settled)
		require.Equal(t, delayqueue.OutcomeReturned, e.Outcome)
		require.ErrorIs(t, e.Err, delayqueue.ErrSealed)
		require.Equal(t, 0, b.status(id).Attempts)

		forged, err := plain.Enqueue(t.Context(), delayqueue.Job{Payload: []byte("forged")})
		require.NoError(t, err)
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
		_, err := delayqueue.NewWorker(b.queue, b.locker, (&ran{}).handle, delayqueue.WithMiddleware(m))
		require.ErrorIs(t, err, core.ErrInvalidOption)
	}
}
