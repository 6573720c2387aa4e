//go:build soak

package core_test

import (
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/test/redistest"
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
	require.NoError(t, third.Release(ctx))
	require.NoError(t, unreserve(t, l, third))
	if reservedFor(t, l, key) > 0 {
		return "the reservation was not ended"
	}
	if !soon(func() bool { return len(fresh) > 0 }) {
		return "who waits was not woken"
	}
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
