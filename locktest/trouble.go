package locktest

import "time"

// FastForward sets the clock of an embedded Redis forward by d. Leases, reservations and
// everything else with a time there end that much earlier; the clocks of this process do
// not move. A lease that was granted just now has core.DefaultFirstLease at most,
// whatever its TTL, until its first renewal. It fails the test on a Redis of On.
func (r *Redis) FastForward(t TB, d time.Duration) {
	t.Helper()
	if d < 0 {
		t.Fatalf("locktest: FastForward(%s): time does not go back", d)
	}
	r.simulated(t, "FastForward").forward(d)
}

// Down makes an embedded Redis unreachable, until up is called or the test ends: each
// connection is cut at its next command. What Redis holds stays, and expires meanwhile.
// up may be called twice. It fails the test on a Redis of On.
//
// How soon calls fail then depends on the client's timeouts and retries: with those of Client, and
// with go-redis's defaults, after a second or two.
func (r *Redis) Down(t TB) (up func()) {
	t.Helper()
	sim := r.simulated(t, "Down")
	sim.down.Store(true)
	up = func() { sim.down.Store(false) }
	t.Cleanup(up)
	return up
}

func (r *Redis) simulated(t TB, what string) *simulation {
	t.Helper()
	if r.sim == nil {
		t.Fatalf("locktest: %s needs the embedded Redis that New starts", what)
	}
	return r.sim
}
