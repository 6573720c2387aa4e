package core_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/reservation"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
)

var reservations = reservation.Get[*core.Locker, *core.Lease, core.AcquireOption, core.Decision, core.Preference]()

// reserve reserves key.
func reserve(t *testing.T, l *core.Locker, key string, span time.Duration) error {
	t.Helper()
	_, err := reservations.Reserve(t.Context(), l, key, span)
	return err
}

// unreserve ends the reservation of the lease's key, unless it is newer than the lease.
func unreserve(t *testing.T, l *core.Locker, lease *core.Lease) error {
	t.Helper()
	return reservations.Unreserve(t.Context(), l, lease.Key(), lease.Fence())
}

// reservedFor is how long key is reserved.
func reservedFor(t *testing.T, l *core.Locker, key string) time.Duration {
	t.Helper()
	info, err := l.Inspect(t.Context(), key)
	require.NoError(t, err)
	return info.Reserved
}

// parked takes key as a worker does that runs parked work.
func parked(t *testing.T, l *core.Locker, key string) *core.Lease {
	t.Helper()
	lease := testbed.Take(t, l, key, reservations.Reserved(time.Minute))
	return lease
}

func TestReservation_AReservedKeyIsForParkedWorkAlone(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		ctx := t.Context()
		l, worker := newLocker(t, env), newLocker(t, env)
		require.NoError(t, reserve(t, l, "k", time.Minute))
		info, err := l.Inspect(ctx, "k")
		require.NoError(t, err)
		require.True(t, info.Free())
		require.InDelta(t, time.Minute, info.Reserved, float64(5*time.Second))
		page, err := l.List(ctx, "", 1000)
		require.NoError(t, err)
		require.Len(t, page.Keys, 1, "it is in use")

		for _, opts := range [][]core.AcquireOption{nil, {core.Shared()}, {core.Counted(3)}} {
			var conflict *core.ConflictError
			_, err = l.TryAcquire(ctx, "k", opts...)
			require.ErrorAs(t, err, &conflict)
			require.Zero(t, conflict.Remaining)
			_, err = l.TryAcquireAll(ctx, []string{"j", "k"}, opts...)
			require.ErrorAs(t, err, &conflict)
			require.Equal(t, "k", conflict.Key)
		}
		next := waitFor(t, l, "k")

		lease := parked(t, worker, "k")
		require.NoError(t, lease.Release(ctx))
		_, err = l.TryAcquire(ctx, "k")
		require.ErrorIs(t, err, core.ErrConflict, "it is reserved still")
		require.Empty(t, next)

		require.NoError(t, unreserve(t, worker, lease))
		fresh := <-next
		require.Greater(t, fresh.Fence(), lease.Fence())
		require.NoError(t, fresh.Release(ctx))
		require.Empty(t, redistest.Keys(t, env.Client(t), env.Prefix))
	})
}

func TestReservation_ParkedWorkGoesBeforeThoseWhoWait(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		ctx := t.Context()
		holder, waiting, worker := newLocker(t, env), newSleeper(t, env), newLocker(t, env)
		warm(t, worker)
		warm(t, waiting)
		listening(t, worker, waiting)
		lease, err := holder.TryAcquire(ctx, "k")
		require.NoError(t, err)
		fresh := waitFor(t, waiting, "k")
		reader := waitFor(t, waiting, "k", core.Shared())

		freed := make(chan string, 1)
		_, err = worker.TryAcquire(ctx, "k", core.NotifyRelease(freed), reservations.Reserved(time.Minute))
		var conflict *core.ConflictError
		require.ErrorAs(t, err, &conflict)
		require.Positive(t, conflict.Remaining)
		require.Positive(t, reservedFor(t, worker, "k"))
		require.NoError(t, lease.Context().Err())

		require.NoError(t, lease.Release(ctx))
		require.Equal(t, "k", <-freed, "though others wait")
		first := parked(t, worker, "k")
		require.Greater(t, first.Fence(), lease.Fence())
		require.NoError(t, unreserve(t, worker, first), "before the release")
		require.Empty(t, fresh)
		require.NoError(t, first.Release(ctx))
		require.NoError(t, (<-fresh).Release(ctx), "it was woken")
		require.NoError(t, (<-reader).Release(ctx))
	})
}

func TestReservation_AGrantIsNotHandedOverWhileItsKeyIsReserved(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		ctx := t.Context()
		l, worker := newLocker(t, env), newLocker(t, env)
		warm(t, l)
		listening(t, l)
		ways := map[string]func(key string){
			"by a message": func(key string) {
				_, err := worker.TryAcquire(ctx, key, reservations.Reserved(time.Minute))
				require.ErrorIs(t, err, core.ErrConflict)
				redistest.Eventually(t, func() bool { return l.HeardReserved(key) }, "word of it")
			},
			"by itself": func(key string) { require.NoError(t, reserve(t, l, key, time.Minute)) },
			"by a worker of its own": func(key string) {
				_, err := l.TryAcquire(ctx, key, reservations.Reserved(time.Minute))
				require.ErrorIs(t, err, core.ErrConflict)
			},
			"as it is taken": nil,
		}
		for key, way := range ways {
			if way == nil {
				require.NoError(t, reserve(t, worker, key, time.Minute))
			}
			lease := testbed.Take(t, l, key, reservations.Reserved(time.Minute))
			fresh := waitFor(t, l, key)
			if way != nil {
				way(key)
			}
			require.NoError(t, lease.Release(ctx))
			first := parked(t, worker, key)
			require.Empty(t, fresh, key)
			require.NoError(t, first.Release(ctx))
			require.NoError(t, unreserve(t, worker, first))
			require.NoError(t, (<-fresh).Release(ctx))
		}
	})
}

// The reply to a grant is late, as after a lost packet. Meanwhile a call is deferred, and another one comes.
func TestReservation_AGrantThatIsHeardOfLateIsNotHandedOver(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		ctx := t.Context()
		var late atomic.Bool
		made, arrives := make(chan struct{}), make(chan struct{})
		l := hooked(t, env, hooks{script: func(_ redis.Cmder, next func() error) error {
			err := next()
			if err == nil && late.CompareAndSwap(true, false) {
				close(made)
				<-arrives
			}
			return err
		}})
		warm(t, l)
		listening(t, l)

		late.Store(true)
		granted := make(chan *core.Lease, 1)
		go func() {
			lease, err := l.TryAcquire(ctx, "k")
			if err != nil {
				t.Error(err)
			}
			granted <- lease
		}()
		<-made
		require.NoError(t, reserve(t, l, "k", time.Minute))
		time.Sleep(150 * time.Millisecond)
		fresh := waitFor(t, l, "k")
		close(arrives)
		require.NoError(t, (<-granted).Release(ctx))
		first := parked(t, l, "k")
		require.Empty(t, fresh)
		require.NoError(t, first.Release(ctx))
		require.NoError(t, unreserve(t, l, first))
		require.NoError(t, (<-fresh).Release(ctx))
	})
}

func TestReservation_AReservationEndsByItself(t *testing.T) {
	t.Parallel()
	redistest.InVirtualTime(t, func(t *testing.T, env *redistest.Env) {
		ctx := t.Context()
		l, rdb := newLocker(t, env), env.Client(t)
		const long = 2 * time.Second
		begun := time.Now()
		for _, key := range []string{"idle", "tried", "waited for"} {
			require.NoError(t, reserve(t, l, key, long))
		}
		_, err := l.TryAcquire(ctx, "tried")
		require.ErrorIs(t, err, core.ErrConflict)
		lease, err := l.Acquire(ctx, "waited for")
		require.NoError(t, err)
		require.GreaterOrEqual(t, time.Since(begun), long-5*time.Millisecond)
		require.Less(t, time.Since(begun), long+2*time.Second, "it asks each second")
		require.NoError(t, lease.Release(ctx))
		redistest.Eventually(t, func() bool { return len(redistest.Keys(t, rdb, env.Prefix)) == 0 }, "nothing is left")
		_, err = l.TryAcquire(ctx, "tried")
		require.NoError(t, err)
	})
}

func TestReservation_AReservationIsLengthenedAndNeverShortened(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		ctx := t.Context()
		l, rdb := newLocker(t, env), env.Client(t)
		atLeast := func(d time.Duration) {
			t.Helper()
			require.Greater(t, reservedFor(t, l, "k"), d-10*time.Second)
			require.Greater(t, rdb.PTTL(ctx, core.RecordName(env.Prefix, "k")).Val(), d-10*time.Second, "the record stays")
		}
		require.NoError(t, reserve(t, l, "k", time.Minute))
		atLeast(time.Minute)
		require.NoError(t, reserve(t, l, "k", time.Second))
		atLeast(time.Minute)
		lease, err := l.TryAcquire(ctx, "k", reservations.Reserved(2*time.Minute))
		require.NoError(t, err)
		atLeast(2 * time.Minute)
		_, err = l.TryAcquire(ctx, "k", reservations.Reserved(3*time.Minute))
		require.ErrorIs(t, err, core.ErrConflict)
		atLeast(3 * time.Minute)
		require.NoError(t, lease.Extend(ctx, time.Minute))
		require.NoError(t, lease.Downgrade(ctx))
		_, err = l.TryAcquire(ctx, "k", core.Shared())
		require.ErrorIs(t, err, core.ErrConflict)
		atLeast(3 * time.Minute)
		require.NoError(t, lease.Release(ctx))
		atLeast(3 * time.Minute)
		lease = parked(t, l, "k")
		require.True(t, force(t, l, "k", lease.Fence()))
		atLeast(3 * time.Minute)
		require.NoError(t, unreserve(t, l, lease), "of a lost lease")
		require.Zero(t, reservedFor(t, l, "k"))
		requireNothingLeft(t, rdb, env.Prefix)
	})
}

func TestUnreserve_LeavesAReservationThatIsNewer(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		ctx := t.Context()
		l, other := newLocker(t, env), newLocker(t, env)
		reserved := func() bool { return reservedFor(t, l, "k") > 0 }

		require.NoError(t, reserve(t, l, "k", time.Minute))
		first := parked(t, l, "k")
		require.NoError(t, reserve(t, other, "k", time.Second), "more was parked")
		require.ErrorIs(t, unreserve(t, l, first), reservation.ErrRenewed)
		require.True(t, reserved())
		require.NoError(t, first.Release(ctx))
		require.ErrorIs(t, unreserve(t, l, first), reservation.ErrRenewed)
		require.True(t, reserved())

		second := parked(t, other, "k")
		require.NoError(t, second.Release(ctx))
		third := parked(t, l, "k")
		require.ErrorIs(t, unreserve(t, other, second), reservation.ErrRenewed)
		require.True(t, reserved(), "it is another worker's by now")
		_, err := other.TryAcquire(ctx, "k", reservations.Reserved(time.Minute))
		require.ErrorIs(t, err, core.ErrConflict)
		require.NoError(t, third.Release(ctx))
		require.NoError(t, unreserve(t, l, third))
		require.False(t, reserved(), "it was merely lengthened")

		unasked := testbed.Take(t, l, "k", reservations.Reserved(time.Minute))
		require.False(t, reserved(), "nothing was parked")
		_, err = other.TryAcquire(ctx, "k", reservations.Reserved(time.Minute))
		require.ErrorIs(t, err, core.ErrConflict)
		require.NoError(t, unasked.Release(ctx))
		require.ErrorIs(t, unreserve(t, l, unasked), reservation.ErrRenewed)
		require.True(t, reserved(), "who was refused is next")
	})
}

func TestReservation_LostRepliesChangeNothingAboutReservations(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		ctx := t.Context()
		l, proxy, _ := throughProxy(t, env, 3)
		watch := newLocker(t, env)
		warm(t, l)
		lose := func() { proxy.LoseReply(once("lost-key")) }

		lose()
		require.NoError(t, reserve(t, l, "lost-key", time.Minute))
		require.Positive(t, reservedFor(t, watch, "lost-key"))
		lose()
		lease := parked(t, l, "lost-key")
		require.NoError(t, lease.Extend(ctx, time.Minute))
		lose()
		_, err := l.TryAcquire(ctx, "lost-key", reservations.Reserved(time.Minute))
		require.ErrorIs(t, err, core.ErrConflict)
		require.NoError(t, lease.Release(ctx))
		lose()
		require.NoError(t, unreserve(t, l, lease))
		require.Zero(t, reservedFor(t, watch, "lost-key"))
	})
}

func TestReservation_ParkedWorkHasToFit(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		ctx := t.Context()
		l, worker := newLocker(t, env), newLocker(t, env)
		warm(t, worker)
		listening(t, worker)
		var readers []*core.Lease
		for range 2 {
			lease, err := l.TryAcquire(ctx, "k", core.Shared())
			require.NoError(t, err)
			readers = append(readers, lease)
		}
		freed := make(chan string, 1)
		try := func(opts ...core.AcquireOption) (*core.Lease, error) {
			return worker.TryAcquire(ctx, "k", append(opts, core.NotifyRelease(freed), reservations.Reserved(time.Minute))...)
		}
		_, err := try()
		require.ErrorIs(t, err, core.ErrConflict)
		_, err = l.TryAcquire(ctx, "k", core.Shared())
		require.ErrorIs(t, err, core.ErrConflict)
		third, err := try(core.Shared())
		require.NoError(t, err, "it fits")
		require.NoError(t, readers[0].Release(ctx))
		require.NoError(t, third.Release(ctx))
		_, err = try()
		require.ErrorIs(t, err, core.ErrConflict)
		require.Empty(t, freed)
		require.NoError(t, readers[1].Release(ctx))
		require.Equal(t, "k", <-freed)
		alone, err := try()
		require.NoError(t, err)
		require.NoError(t, alone.Release(ctx))
	})
}

func TestReservation_ARefusedCallHearsWhenAReservationIsEnded(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		ctx := t.Context()
		l, worker := newLocker(t, env), newLocker(t, env)
		warm(t, l)
		listening(t, l)
		require.NoError(t, reserve(t, worker, "k", time.Minute))
		freed := make(chan string, 1)
		for range 2 {
			_, err := l.TryAcquire(ctx, "k", core.NotifyRelease(freed))
			require.ErrorIs(t, err, core.ErrConflict)
		}
		time.Sleep(50 * time.Millisecond)
		require.Empty(t, freed, "it is not free for the call")
		lease := parked(t, worker, "k")
		require.NoError(t, lease.Release(ctx))
		require.Equal(t, "k", <-freed)
		_, err := l.TryAcquire(ctx, "k", core.NotifyRelease(freed))
		require.ErrorIs(t, err, core.ErrConflict)
		require.NoError(t, unreserve(t, worker, lease))
		require.Equal(t, "k", <-freed)
	})
}

func TestReservation_Options(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		ctx := t.Context()
		l := newLocker(t, env)
		opt := reservations.Reserved(time.Minute)
		_, err := l.Acquire(ctx, "k", opt)
		require.ErrorIs(t, err, core.ErrInvalidOption)
		_, err = l.TryAcquireAll(ctx, []string{"k"}, opt)
		require.ErrorIs(t, err, core.ErrInvalidOption)
		require.ErrorIs(t, l.Guard(core.RejectConflicts, opt).Err(), core.ErrInvalidOption)
		require.ErrorIs(t, reserve(t, l, "k", 0), core.ErrInvalidOption)
		require.ErrorIs(t, reserve(t, l, "", time.Minute), core.ErrInvalidKey)
		require.NoError(t, l.Close())
		require.ErrorIs(t, reserve(t, l, "k", time.Minute), core.ErrClosed)
	})
}

// hooked returns a locker with a hook.
func hooked(t *testing.T, env *redistest.Env, hook redis.Hook) *core.Locker {
	t.Helper()
	rdb := env.Client(t)
	rdb.AddHook(hook)
	return lockerOn(t, rdb, env.Prefix, core.WithRenewalClient(rdb))
}

// Fences stand still for a while after a grant; the stamps of reservations do not.
func TestReservation_AReservationThatIsMadeAnewHasAStampOfItsOwn(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		locker, err := core.New(env.Client(t), core.WithPrefix(env.Prefix))
		require.NoError(t, err)
		defer func() { _ = locker.Close() }()
		lease := testbed.Take(t, locker, "k")
		require.NoError(t, reserve(t, locker, "k", time.Minute))
		first, err := reservations.Stamp(t.Context(), locker, "k")
		require.NoError(t, err)
		require.NoError(t, reserve(t, locker, "k", time.Minute))
		require.NoError(t, lease.Release(t.Context()))
		_ = reservations.Unreserve(t.Context(), locker, "k", first)
		now, err := locker.Inspect(t.Context(), "k")
		require.NoError(t, err)
		require.Positive(t, now.Reserved, "the second reservation stays")
	})
}
