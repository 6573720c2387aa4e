package core_test

import (
	"errors"
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
	return errOf(reservations.Reserve(t.Context(), l, key, span))
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
	return testbed.Take(t, l, key, reservations.Reserved(time.Minute))
}

// passedBy runs parked work under key, and ends its reservation: only then is who waits served.
func passedBy(t *testing.T, worker *core.Locker, key string, fresh <-chan *core.Lease) {
	t.Helper()
	first := parked(t, worker, key)
	require.NoError(t, first.Release(t.Context()))
	require.Empty(t, fresh, key)
	require.NoError(t, unreserve(t, worker, first))
	release(t, <-fresh)
}

func TestReservation_AGrantIsNotHandedOverWhileItsKeyIsReserved(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		ctx := t.Context()
		l, worker := newLocker(t, env), newLocker(t, env)
		warm(t, l)
		listening(t, l)
		ways := map[string]func(key string){
			"by a message": func(key string) {
				refused(t, worker, key, reservations.Reserved(time.Minute))
				redistest.Eventually(t, func() bool { return l.HeardReserved(key) }, "word of it")
			},
			"by itself":              func(key string) { require.NoError(t, reserve(t, l, key, time.Minute)) },
			"by a worker of its own": func(key string) { refused(t, l, key, reservations.Reserved(time.Minute)) },
			"as it is taken":         nil,
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
			passedBy(t, worker, key, fresh)
		}
	})
}

// The reply to a grant is late, as after a lost packet. Meanwhile a call is deferred, and another one comes.
func TestReservation_AGrantThatIsHeardOfLateIsNotHandedOver(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
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
		call := make(chan got, 1)
		go func() {
			lease, err := l.TryAcquire(t.Context(), "k")
			call <- got{l: lease, err: err}
		}()
		<-made
		require.NoError(t, reserve(t, l, "k", time.Minute))
		time.Sleep(150 * time.Millisecond)
		fresh := waitFor(t, l, "k")
		close(arrives)
		release(t, granted(t, call))
		passedBy(t, l, "k", fresh)
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
		refused(t, l, "tried")
		lease := acquired(t, l, "waited for")
		require.GreaterOrEqual(t, time.Since(begun), long-5*time.Millisecond)
		require.Less(t, time.Since(begun), long+2*time.Second, "it asks each second")
		require.NoError(t, lease.Release(ctx))
		redistest.Eventually(t, func() bool { return len(redistest.Keys(t, rdb, env.Prefix)) == 0 }, "nothing is left")
		_ = testbed.Take(t, l, "tried")
	})
}

func TestReservation_ParkedWorkHasToFit(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		ctx := t.Context()
		l, worker := newLocker(t, env), newLocker(t, env)
		warm(t, worker)
		listening(t, worker)
		readers := []*core.Lease{testbed.Take(t, l, "k", core.Shared()), testbed.Take(t, l, "k", core.Shared())}
		freed := make(chan string, 1)
		try := func(opts ...core.AcquireOption) (*core.Lease, error) {
			return worker.TryAcquire(ctx, "k", append(opts, core.NotifyRelease(freed), reservations.Reserved(time.Minute))...)
		}
		require.ErrorIs(t, errOf(try()), core.ErrConflict)
		refused(t, l, "k", core.Shared())
		third, err := try(core.Shared())
		require.NoError(t, err, "it fits")
		release(t, readers[0], third)
		require.ErrorIs(t, errOf(try()), core.ErrConflict)
		require.Empty(t, freed)
		require.NoError(t, readers[1].Release(ctx))
		require.Equal(t, "k", <-freed)
		alone, err := try()
		require.NoError(t, err)
		require.NoError(t, alone.Release(ctx))
	})
}

func TestReservation_Options(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		ctx := t.Context()
		l := newLocker(t, env)
		opt := reservations.Reserved(time.Minute)
		_, err := l.Acquire(ctx, "k", opt)
		require.ErrorIs(t, err, core.ErrInvalidOption)
		require.ErrorIs(t, errOf(l.TryAcquireAll(ctx, []string{"k"}, opt)), core.ErrInvalidOption)
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

func TestReservation_TheLifeOfAReservedKey(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		require.Empty(t, reservationTrouble(t, env, hooks{}, time.Minute))
	})
}

// reservationTrouble plays a reserved key's life, and says what is wrong with it: "" if
// nothing is. It is long since it is one story.
func reservationTrouble(t *testing.T, env *redistest.Env, hook redis.Hook, within time.Duration) string {
	t.Helper()
	ctx, key := t.Context(), "k"
	l, waiting := hooked(t, env, hook), hooked(t, env, hook)
	waiting.NeverPoll()
	warm(t, l)
	warm(t, waiting)
	listening(t, l, waiting)
	soon := func(ok func() bool) bool {
		for end := time.Now().Add(within); time.Now().Before(end) && !ok(); time.Sleep(time.Millisecond) {
			continue
		}
		return ok()
	}
	require.NoError(t, reserve(t, l, key, time.Minute))
	require.NoError(t, reserve(t, l, key, time.Second))
	time.Sleep(150 * time.Millisecond) // longer than a record lasts that nothing keeps
	if reservedFor(t, l, key) < 30*time.Second {
		return "it was shortened"
	}
	if len(listAll(t, l, 10)) != 1 {
		return "it is not in use"
	}
	for _, opts := range [][]core.AcquireOption{nil, {core.Shared()}, {core.Counted(3)}} {
		if _, err := l.TryAcquire(ctx, key, opts...); err == nil {
			return "a fresh call got the key"
		}
		if _, err := l.TryAcquireAll(ctx, []string{"j", key}, opts...); err == nil {
			return "a set got the key"
		}
	}
	first, err := l.TryAcquire(ctx, key, reservations.Reserved(time.Minute))
	if err != nil {
		return "parked work did not get the key"
	}
	require.NoError(t, first.Extend(ctx, time.Minute))
	require.NoError(t, first.Downgrade(ctx))
	if _, err := l.TryAcquire(ctx, key, core.Shared()); err == nil {
		return "a fresh reader got the key"
	}
	fresh := acquiring(t, waiting, key)
	inLine := func() bool {
		info, err := l.Inspect(ctx, key)
		return err == nil && info.Waiting == 1
	}
	redistest.Eventually(t, inLine, "it waits")
	freed := make(chan string, 1)
	if _, err = l.TryAcquire(ctx, key, reservations.Reserved(time.Minute), core.NotifyRelease(freed)); err == nil {
		return "two have the key"
	}
	require.NoError(t, first.Release(ctx))
	if !soon(func() bool { return len(freed) > 0 }) {
		return "the worker was not told"
	}
	time.Sleep(20 * time.Millisecond)
	info, err := l.Inspect(ctx, key)
	require.NoError(t, err)
	if info.Held > 0 || info.Waiting != 1 || info.Reserved == 0 {
		return "the key is not reserved any more"
	}
	second, err := l.TryAcquire(ctx, key, reservations.Reserved(time.Minute))
	if err != nil {
		return "parked work did not get the key before who waits"
	}
	if !errors.Is(unreserve(t, l, first), reservation.ErrRenewed) || reservedFor(t, l, key) == 0 {
		return "an earlier worker ended the reservation"
	}
	require.NoError(t, reserve(t, l, key, time.Minute))
	require.NoError(t, second.Release(ctx))
	if !errors.Is(unreserve(t, l, second), reservation.ErrRenewed) || reservedFor(t, l, key) == 0 {
		return "a newer reservation was ended"
	}
	third := testbed.Take(t, l, key, reservations.Reserved(time.Minute))
	require.NoError(t, reserve(t, l, key, time.Minute))
	if stays, err := reservations.Release(ctx, third); err != nil || !stays || reservedFor(t, l, key) == 0 {
		return "a release ended a newer reservation, or did not say that it stays"
	}
	fourth := testbed.Take(t, l, key, reservations.Reserved(time.Minute))
	if stays, err := reservations.Release(ctx, fourth); err != nil || stays || reservedFor(t, l, key) > 0 {
		return "a release did not end the reservation"
	}
	if !soon(func() bool { return len(fresh) > 0 }) {
		return "who waits was not woken"
	}
	require.NoError(t, granted(t, fresh).Release(ctx))

	require.NoError(t, reserve(t, l, key, time.Minute))
	fifth := parked(t, l, key)
	if !force(t, l, key, fifth.Fence()) || reservedFor(t, l, key) == 0 {
		return "to be forced ended the reservation"
	}
	if unreserve(t, l, fifth) != nil || reservedFor(t, l, key) > 0 {
		return "a lost lease did not end its reservation"
	}
	return unreserveTrouble(t, l, waiting, soon) + parkingTrouble(t, l, waiting, soon)
}

// unreserveTrouble ends a reservation without a release, and another one with a release when nobody waits.
func unreserveTrouble(t *testing.T, l, waiting *core.Locker, soon func(func() bool) bool) string {
	t.Helper()
	first := testbed.Take(t, l, "alone")
	require.NoError(t, reserve(t, l, "alone", time.Minute))
	stays, err := reservations.Release(t.Context(), first)
	if err != nil || !stays || reservedFor(t, l, "alone") == 0 {
		return "the last release ended a newer reservation"
	}
	second := testbed.Take(t, l, "alone", reservations.Reserved(time.Minute))
	require.NoError(t, second.Release(t.Context()))
	waits := acquiring(t, waiting, "alone")
	redistest.Eventually(t, func() bool { info, err := l.Inspect(t.Context(), "alone"); return err == nil && info.Waiting == 1 }, "it waits")
	if unreserve(t, l, second) != nil || reservedFor(t, l, "alone") > 0 {
		return "the reservation was not ended"
	}
	if !soon(func() bool { return len(waits) > 0 }) {
		return "unreserve did not wake who waits"
	}
	require.NoError(t, granted(t, waits).Release(t.Context()))
	return ""
}

// parkingTrouble parks a call while its key is held, and another one whose key has another holder by the time that it is reserved.
func parkingTrouble(t *testing.T, l, other *core.Locker, soon func(func() bool) bool) string {
	t.Helper()
	told := make(chan struct{}, 10)
	park := func(stored func()) {
		guard := l.Guard(deferring(&parkedWork{func() bool { told <- struct{}{}; return true }}, stored))
		require.ErrorIs(t, guard.Do(t.Context(), core.Call{Key: "parked"}, mustNotRun), core.ErrDeferred)
	}
	isTold := func() bool { return soon(func() bool { return len(told) > 0 }) }
	held := testbed.Take(t, other, "parked")
	park(func() {})
	require.NoError(t, held.Release(t.Context()))
	if !isTold() {
		return "who parked was not told of the release"
	}
	<-told
	held = testbed.Take(t, other, "parked", reservations.Reserved(time.Minute))
	park(func() {
		require.NoError(t, errOf(reservations.Release(t.Context(), held)))
		held = testbed.Take(t, other, "parked")
	})
	if !isTold() {
		return "who parked was not told that the key had been free"
	}
	require.NoError(t, held.Release(t.Context()))
	return ""
}
