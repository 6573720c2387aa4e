package core_test

import (
	"context"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/reservation"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
)

// The work of a call whose key is still held by whom the call was refused for cannot have run: it is told at the release.
func TestReservation_ParkedWorkIsToldOfTheRelease(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		l, other := newLocker(t, env), newLocker(t, env)
		_ = testbed.Take(t, l, "first") // it subscribes: then calls are told that they may have missed a release
		listening(t, l)
		for _, left := range []bool{true, false} {
			key, told := fmt.Sprint("left ", left), make(chan struct{}, 100)
			lease := testbed.Take(t, other, key)
			work := &parkedWork{func() bool { told <- struct{}{}; return left }}
			guard := l.Guard(deferring(work, func() {}))
			var calls sync.WaitGroup
			for range 20 {
				calls.Go(func() { assert.ErrorIs(t, guard.Do(t.Context(), core.Call{Key: key}, mustNotRun), core.ErrDeferred) })
			}
			calls.Wait()
			require.Empty(t, told, "it is held")
			require.NoError(t, lease.Release(t.Context()))
			<-told
			if left {
				require.Positive(t, reservedFor(t, l, key))
			} else {
				redistest.Eventually(t, func() bool { return reservedFor(t, l, key) == 0 }, "it is reserved for nobody")
			}
			require.LessOrEqual(t, len(told), 1, "a release is told once, however many calls there were, or twice if nothing is left")
		}
	})
}

// parkedWork is told that its key may be free, and says whether any of it is left.
type parkedWork struct{ freed func() bool }

func (w *parkedWork) Left(context.Context, string, bool) (bool, error) { return w.freed(), nil }

// deferring is a policy that stores calls, so to speak.
func deferring(work reservation.Work, stored func()) core.ConflictPolicy {
	return policyFunc(func(context.Context, core.Conflict) (core.Decision, error) {
		stored()
		return reservations.Reserving(core.Deferred(core.Ticket{ID: "id"}), time.Minute, work, false), nil
	})
}

func TestReservation_NoCallOvertakesOneThatWasDeferredBeforeItBegan(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		ctx := t.Context()
		holder, l := newLocker(t, env), newLocker(t, env)
		lease := testbed.Take(t, holder, "k")
		guard := l.Guard(deferring(nil, func() { require.Zero(t, reservedFor(t, l, "k"), "once it is stored") }))
		var deferred *core.DeferredError
		require.ErrorAs(t, guard.Do(ctx, core.Call{Key: "k"}, mustNotRun), &deferred)
		require.Equal(t, "id", deferred.Ticket.ID)
		waits := waitFor(t, newLocker(t, env), "k")
		require.NoError(t, lease.Release(ctx))
		refused(t, l, "k")
		guard = l.Guard(deferring(nil, func() {}))
		require.ErrorIs(t, guard.Do(ctx, core.Call{Key: "k"}, mustNotRun), core.ErrDeferred, "nor is that one overtaken")
		passedBy(t, holder, "k", waits)
		require.NoError(t, guard.Do(ctx, core.Call{Key: "k"}, nothing))
	})
}

func TestReservation_ACallIsDeferredThoughItsKeyCannotBeReserved(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		lease := testbed.Take(t, newLocker(t, env), "k")
		l, proxy, _ := throughProxy(t, env, noRetries)
		guard := l.Guard(deferring(nil, func() { proxy.Refuse(true) }))
		require.ErrorIs(t, guard.Do(t.Context(), core.Call{Key: "k"}, mustNotRun), core.ErrDeferred)
		release(t, lease)
	})
}

// The work of the parked call has run by the time that anybody asks.
func TestReservation_ALostReplyToReserveKeepsNoKeyForNobody(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		var lose, asked atomic.Bool
		l := hooked(t, env, hooks{script: func(cmd redis.Cmder, next func() error) error {
			err := next()
			if err == nil && lose.CompareAndSwap(true, false) {
				return refuse(cmd, io.ErrUnexpectedEOF)
			}
			return err
		}})
		other := newLocker(t, env)
		held := testbed.Take(t, other, "k")
		guard := l.Guard(deferring(&parkedWork{func() bool { asked.Store(true); return false }}, func() { lose.Store(true) }))
		require.ErrorIs(t, guard.Do(t.Context(), core.Call{Key: "k"}, mustNotRun), core.ErrDeferred)
		require.False(t, lose.Load(), "a reply was lost")
		redistest.Eventually(t, func() bool { return reservedFor(t, other, "k") == 0 }, "the key is kept for nobody")
		require.True(t, asked.Load())
		require.NoError(t, held.Release(t.Context()))
	})
}
