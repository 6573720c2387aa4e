package core_test

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
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
)

func TestReservation_AReservationThatComesLateIsEnded(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		ctx := t.Context()
		l, other := newLocker(t, env), newLocker(t, env)
		for key, want := range map[string]bool{"ran": false, "parked": true} {
			lease, err := other.TryAcquire(ctx, key)
			require.NoError(t, err)
			guard := l.Guard(policyFunc(func(context.Context, core.Conflict) (core.Decision, error) {
				return reservations.Reserving(core.Deferred(core.Ticket{ID: "id"}), time.Minute, func(context.Context) (bool, error) { return want, nil }), nil
			}))
			require.ErrorIs(t, guard.Do(ctx, core.Call{Key: key}, mustNotRun), core.ErrDeferred)
			if want {
				time.Sleep(20 * time.Millisecond)
				require.Positive(t, reservedFor(t, l, key))
			} else {
				redistest.Eventually(t, func() bool { return reservedFor(t, l, key) == 0 }, "it is reserved for nobody")
			}
			require.NoError(t, lease.Release(ctx))
		}
	})
}

// deferring is a policy that stores calls, so to speak.
func deferring(stored func()) core.ConflictPolicy {
	return policyFunc(func(context.Context, core.Conflict) (core.Decision, error) {
		stored()
		return reservations.Reserving(core.Deferred(core.Ticket{ID: "id"}), time.Minute, nil), nil
	})
}

func TestReservation_ACallThatIsDeferredReservesItsKey(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		ctx := t.Context()
		holder, l := newLocker(t, env), newLocker(t, env)
		lease, err := holder.TryAcquire(ctx, "k")
		require.NoError(t, err)
		guard := l.Guard(deferring(func() { require.Zero(t, reservedFor(t, l, "k"), "once it is stored") }))
		var deferred *core.DeferredError
		require.ErrorAs(t, guard.Do(ctx, core.Call{Key: "k"}, mustNotRun), &deferred)
		require.Equal(t, "id", deferred.Ticket.ID)
		require.NoError(t, lease.Release(ctx))
		_, err = l.TryAcquire(ctx, "k")
		require.ErrorIs(t, err, core.ErrConflict)
		guard = l.Guard(deferring(func() {}))
		require.ErrorIs(t, guard.Do(ctx, core.Call{Key: "k"}, mustNotRun), core.ErrDeferred, "nor is that one overtaken")
		first := parked(t, holder, "k")
		require.NoError(t, first.Release(ctx))
		require.NoError(t, unreserve(t, holder, first))
		require.NoError(t, guard.Do(ctx, core.Call{Key: "k"}, func(context.Context) error { return nil }))
	})
}

func TestReservation_ACallIsDeferredThoughItsKeyCannotBeReserved(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		holder := newLocker(t, env)
		lease, err := holder.TryAcquire(t.Context(), "k")
		require.NoError(t, err)
		l, proxy, _ := throughProxy(t, env, noRetries)
		guard := l.Guard(deferring(func() { proxy.Refuse(true) }))
		require.ErrorIs(t, guard.Do(t.Context(), core.Call{Key: "k"}, mustNotRun), core.ErrDeferred)
		require.NoError(t, lease.Release(t.Context()))
	})
}

// history of calls for a key: when each began, was told of its deferral, and ran. The times are places in one order.
type callHistory struct {
	span             time.Duration // of a reservation
	clock, ids       atomic.Int64
	mu               sync.Mutex
	began, told, ran map[int64]int64 // by call
	parked           []int64
}

func (h *callHistory) note(of map[int64]int64, call int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	of[call] = h.clock.Add(1)
}

// next takes the call that was parked first.
func (h *callHistory) next() (call int64, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.parked) == 0 {
		return 0, false
	}
	call, h.parked = h.parked[0], h.parked[1:]
	return call, true
}

func (h *callHistory) idle() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.parked) == 0
}

func (h *callHistory) work(call int64) {
	h.note(h.ran, call)
	time.Sleep(100 * time.Microsecond)
}

// call runs its work under the key at once, or it waits; or it is parked, if it stores.
func (h *callHistory) call(ctx context.Context, l *core.Locker, stores bool) error {
	id := h.ids.Add(1)
	h.note(h.began, id)
	policy := policyFunc(func(context.Context, core.Conflict) (core.Decision, error) {
		if !stores {
			return core.RetryAfter(time.Hour), nil
		}
		h.mu.Lock()
		defer h.mu.Unlock()
		h.parked = append(h.parked, id)
		return reservations.Reserving(core.Deferred(core.Ticket{}), h.span, nil), nil
	})
	err := l.Guard(policy).Do(ctx, core.Call{Key: "k"}, func(context.Context) error {
		h.work(id)
		return nil
	})
	if errors.Is(err, core.ErrDeferred) {
		h.note(h.told, id)
		err = nil
	}
	return err
}

// runParked is a worker of what is parked.
func (h *callHistory) runParked(ctx context.Context, t *testing.T, l *core.Locker) {
	t.Helper()
	freed := make(chan string, 1)
	for ctx.Err() == nil {
		if h.idle() {
			time.Sleep(100 * time.Microsecond)
			continue
		}
		lease, err := l.TryAcquire(t.Context(), "k", core.NotifyRelease(freed), reservations.Reserved(h.span))
		if errors.Is(err, core.ErrConflict) {
			select {
			case <-freed:
			case <-time.After(20 * time.Millisecond):
			}
			continue
		}
		if err != nil {
			t.Error(err)
			return
		}
		if id, ok := h.next(); ok {
			h.work(id)
		}
		assert.NoError(t, lease.Release(t.Context()))
		if h.idle() {
			if err := unreserve(t, l, lease); !errors.Is(err, reservation.ErrRenewed) {
				assert.NoError(t, err)
			}
		}
	}
}

func TestReservation_NoCallOvertakesOneThatWasDeferredBeforeItBegan(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		const callers, calls = 4, 60
		h := callHistory{span: 10 * time.Second, began: map[int64]int64{}, told: map[int64]int64{}, ran: map[int64]int64{}}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var fresh, others sync.WaitGroup
		for range callers {
			// Each has a process of its own: in one, the first calls after a reservation may come before its message.
			l := newLocker(t, env)
			fresh.Go(func() {
				for range calls {
					if err := h.call(ctx, l, true); err != nil {
						t.Error(err)
					}
					time.Sleep(rand.N(15 * time.Millisecond)) // now and then nothing is parked
				}
			})
		}
		waiting, working := newLocker(t, env), newLocker(t, env)
		others.Go(func() {
			for ctx.Err() == nil {
				if err := h.call(ctx, waiting, false); err != nil && ctx.Err() == nil {
					t.Error(err)
				}
				time.Sleep(time.Millisecond)
			}
		})
		others.Go(func() { h.runParked(ctx, t, working) })
		fresh.Wait()
		redistest.Eventually(t, h.idle, "all parked work is begun")
		cancel()
		others.Wait()

		require.NotEmpty(t, h.told, "calls were deferred")
		require.Greater(t, len(h.ran), len(h.told), "and others ran at once")
		t.Logf("%d calls, %d deferred", len(h.began), len(h.told))
		for first, told := range h.told {
			for later, began := range h.began {
				if ran := h.ran[later]; began > told && ran != 0 && ran < h.ran[first] {
					t.Errorf("call %d was deferred at %d, call %d began at %d, and ran before it", first, told, later, began)
				}
			}
		}
	})
}

// lastParked parks a call whose work has run by the time that anybody asks. The reply to what reserves its key is lost.
type lastParked struct{ lose, asked *atomic.Bool }

func (p lastParked) OnConflict(context.Context, core.Conflict) (core.Decision, error) {
	p.lose.Store(true)
	return reservations.Reserving(core.Deferred(core.Ticket{ID: "id"}), time.Minute, func(context.Context) (bool, error) {
		p.asked.Store(true)
		return false, nil
	}), nil
}

func TestReservation_ALostReplyToReserveKeepsNoKeyForNobody(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		var lose, asked atomic.Bool
		rdb := env.Client(t)
		rdb.AddHook(hooks{script: func(cmd redis.Cmder, next func() error) error {
			err := next()
			if err == nil && lose.CompareAndSwap(true, false) {
				return refuse(cmd, io.ErrUnexpectedEOF)
			}
			return err
		}})
		l, err := core.New(rdb, core.WithPrefix(env.Prefix))
		require.NoError(t, err)
		defer func() { _ = l.Close() }()
		other := newLocker(t, env)
		held, err := other.TryAcquire(t.Context(), "k")
		require.NoError(t, err)
		guard := l.Guard(lastParked{&lose, &asked})
		require.ErrorIs(t, guard.Do(t.Context(), core.Call{Key: "k"}, mustNotRun), core.ErrDeferred)
		require.False(t, lose.Load(), "a reply was lost")
		redistest.Eventually(t, func() bool { return reservedFor(t, other, "k") == 0 }, "the key is kept for nobody")
		require.True(t, asked.Load())
		require.NoError(t, held.Release(t.Context()))
	})
}
