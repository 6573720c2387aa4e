//go:build soak

package core_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
)

// reservationMutants are scripts that break what reservations are for.
var reservationMutants = []scriptMutant{
	{name: "a fresh call takes a reserved key", script: "acquire", old: "queue == '' and reserved == 0 and fits", new: "queue == '' and fits"},
	{name: "those who wait are served with a reserved key", old: "  if reserved > 0 then\n    return false\n  end\n"},
	{name: "the next in the queue gets a reserved key at once", script: "release", old: " and not its[5]", new: ""},
	{name: "parked work waits its turn", script: "acquire", old: "  served = fits(limit(token))\n", new: "  served = serve(token) or queue == '' and fits(limit(token))\n"},
	{name: "nobody is told while others wait", script: "release", old: " or held == 0 and holders > 0 and reserved > 0 then", new: " then"},
	{name: "unreserve ends what it likes", script: "unreserve", old: "if stamp > tonumber(ARGV[2]) then", new: "if false then"},
	{name: "unreserve ends nothing", script: "unreserve", old: "  reserved = 0\n  sweep()", new: "  sweep()"},
	{name: "unreserve wakes nobody", script: "unreserve", old: "  serve('')\n  save()\nend\nreturn", new: "  save()\nend\nreturn"},
	{name: "a worker does not make the reservation its own", script: "acquire", old: "    stamp = its\n"},
	{name: "a reservation is not made anew", script: "reserve", old: "stamp = math.max(stamp + 1, next_fence())"},
	{name: "a reservation is shortened", old: "reserved = math.max(reserved, now + ms)", new: "reserved = now + ms"},
	{name: "a release ends no reservation", script: "release", old: "if unreserves and stamp <= used then\n  reserved = 0", new: "if false then"},
	{name: "a release ends what it likes", script: "release", old: "if unreserves and stamp <= used then", new: "if unreserves then"},
	{name: "the last release ends what it likes", script: "release", old: "(unreserves and tonumber(string.match(its[5], ' (%d+)$')) <= used)", new: "unreserves"},
	{name: "a release does not say that a reservation stays", script: "release", old: "(unreserves and reserved > 0 and 2 or 0)", new: "0"},
	{name: "who parks is not told of the release", script: "reserve", old: "watch_for(held_still and ARGV[4] or '')"},
	{name: "another holder is taken for that of the refusal", script: "reserve", old: " and fence == tonumber(ARGV[5] or 0)"},
	{name: "a reserved record goes with its holder", old: "      needed_until = math.max(needed_until, reserved)\n"},
}

// reservationTrouble plays a reserved key's life, and says what is wrong with it: "" if
// nothing is. It is long since it is one story.
func reservationTrouble(t *testing.T, env *redistest.Env, hook redis.Hook) string {
	t.Helper()
	ctx, key := t.Context(), "k"
	l, waiting := hooked(t, env, hook), hooked(t, env, hook)
	waiting.NeverPoll()
	warm(t, l)
	warm(t, waiting)
	listening(t, l, waiting)
	soon := func(ok func() bool) bool {
		for end := time.Now().Add(2 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
			if ok() {
				return true
			}
		}
		return false
	}

	require.NoError(t, reserve(t, l, key, time.Minute))
	require.NoError(t, reserve(t, l, key, time.Second))
	time.Sleep(150 * time.Millisecond) // longer than a record lasts that nothing keeps
	if reservedFor(t, l, key) < 30*time.Second {
		return "it was shortened"
	}
	if _, err := l.TryAcquire(ctx, key); err == nil {
		return "a fresh call got the key"
	}
	first, err := l.TryAcquire(ctx, key, reservations.Reserved(time.Minute))
	if err != nil {
		return "parked work did not get the key"
	}
	fresh := make(chan *core.Lease, 1)
	var call sync.WaitGroup
	call.Go(func() {
		lease, _ := waiting.Acquire(ctx, key)
		fresh <- lease
	})
	defer call.Wait()
	defer waiting.Close()
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
	_ = unreserve(t, l, first)
	if reservedFor(t, l, key) == 0 {
		return "an earlier worker ended the reservation"
	}
	require.NoError(t, reserve(t, l, key, time.Minute))
	require.NoError(t, second.Release(ctx))
	_ = unreserve(t, l, second)
	if reservedFor(t, l, key) == 0 {
		return "a newer reservation was ended"
	}
	third, err := l.TryAcquire(ctx, key, reservations.Reserved(time.Minute))
	require.NoError(t, err)
	require.NoError(t, reserve(t, l, key, time.Minute))
	if stays, err := reservations.Release(ctx, third); err != nil || !stays || reservedFor(t, l, key) == 0 {
		return "a release ended a newer reservation, or did not say that it stays"
	}
	fourth, err := l.TryAcquire(ctx, key, reservations.Reserved(time.Minute))
	require.NoError(t, err)
	if stays, err := reservations.Release(ctx, fourth); err != nil || stays || reservedFor(t, l, key) > 0 {
		return "a release did not end the reservation"
	}
	if !soon(func() bool { return len(fresh) > 0 }) {
		return "who waits was not woken"
	}
	require.NoError(t, (<-fresh).Release(ctx))
	return unreserveTrouble(t, l, waiting) + parkingTrouble(t, l, waiting)
}

// unreserveTrouble ends a reservation without a release, and another one with a release when nobody waits.
func unreserveTrouble(t *testing.T, l, waiting *core.Locker) string {
	t.Helper()
	first, err := l.TryAcquire(t.Context(), "alone")
	require.NoError(t, err)
	require.NoError(t, reserve(t, l, "alone", time.Minute))
	stays, err := reservations.Release(t.Context(), first)
	if err != nil || !stays || reservedFor(t, l, "alone") == 0 {
		return "the last release ended a newer reservation"
	}
	second, err := l.TryAcquire(t.Context(), "alone", reservations.Reserved(time.Minute))
	require.NoError(t, err)
	require.NoError(t, second.Release(t.Context()))
	waits := make(chan *core.Lease, 1)
	go func() { lease, _ := waiting.Acquire(t.Context(), "alone"); waits <- lease }()
	redistest.Eventually(t, func() bool { info, err := l.Inspect(t.Context(), "alone"); return err == nil && info.Waiting == 1 }, "it waits")
	if unreserve(t, l, second) != nil || reservedFor(t, l, "alone") > 0 {
		return "the reservation was not ended"
	}
	select {
	case lease := <-waits:
		require.NoError(t, lease.Release(t.Context()))
		return ""
	case <-time.After(2 * time.Second):
		return "unreserve did not wake who waits"
	}
}

// parkingTrouble parks a call while its key is held, and another one whose key has another holder by the time that it is reserved.
func parkingTrouble(t *testing.T, l, other *core.Locker) string {
	t.Helper()
	told := make(chan struct{}, 10)
	park := func(stored func()) {
		guard := l.Guard(policyFunc(func(context.Context, core.Conflict) (core.Decision, error) {
			stored()
			return reservations.Reserving(core.Deferred(core.Ticket{ID: "id"}), time.Minute, &parkedWork{func() bool { told <- struct{}{}; return true }}, false), nil
		}))
		require.ErrorIs(t, guard.Do(t.Context(), core.Call{Key: "parked"}, mustNotRun), core.ErrDeferred)
	}
	isTold := func() bool {
		select {
		case <-told:
			return true
		case <-time.After(2 * time.Second):
			return false
		}
	}
	held := testbed.Take(t, other, "parked")
	park(func() {})
	require.NoError(t, held.Release(t.Context()))
	if !isTold() {
		return "who parked was not told of the release"
	}
	held, err := other.TryAcquire(t.Context(), "parked", reservations.Reserved(time.Minute))
	require.NoError(t, err)
	park(func() {
		_, err = reservations.Release(t.Context(), held)
		require.NoError(t, err)
		held = testbed.Take(t, other, "parked")
	})
	if !isTold() {
		return "who parked was not told that the key had been free"
	}
	require.NoError(t, held.Release(t.Context()))
	return ""
}

func TestReservation_MutantsAreCaught(t *testing.T) {
	t.Parallel()
	t.Run("none", func(t *testing.T) {
		redistest.Each(t, func(t *testing.T, env *redistest.Env) {
			require.Empty(t, reservationTrouble(t, env, hooks{}))
		})
	})
	for _, m := range reservationMutants {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			hook, used := m.hook(t)
			trouble := reservationTrouble(t, redistest.Real(t), hook)
			require.Positive(t, used.Load(), "the mutant ran")
			require.NotEmpty(t, trouble)
			t.Log(trouble)
		})
	}
}
