//go:build soak

package core_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

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
	{name: "a release ends no reservation", script: "release", old: "if unreserves and stamp <= used then\n  reserved = 0", new: "if false then"},
	{name: "a release ends what it likes", script: "release", old: "if unreserves and stamp <= used then", new: "if unreserves then"},
	{name: "the last release ends what it likes", script: "release", old: "(unreserves and tonumber(string.match(its[5], ' (%d+)$')) <= used)", new: "unreserves"},
	{name: "a release does not say that a reservation stays", script: "release", old: "(unreserves and reserved > 0 and 2 or 0)", new: "0"},
	{name: "who parks is not told of the release", script: "reserve", old: "watch_for(held_still and ARGV[4] or '')"},
	{name: "another holder is taken for that of the refusal", script: "reserve", old: " and fence == tonumber(ARGV[5] or 0)"},
	{name: "a reserved record goes with its holder", old: "      needed_until = math.max(needed_until, reserved)\n"},
}

func TestReservation_MutantsAreCaught(t *testing.T) {
	t.Parallel()
	for _, m := range reservationMutants {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			hook, used := m.hook(t)
			trouble := reservationTrouble(t, redistest.Real(t), hook, 2*time.Second)
			require.Positive(t, used.Load(), "the mutant ran")
			require.NotEmpty(t, trouble)
			t.Log(trouble)
		})
	}
}
