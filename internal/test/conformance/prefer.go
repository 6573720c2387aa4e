package conformance

import (
	"net/http"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/internal/test/testbed"
	"github.com/perkey-go/perkey/retry"
)

// waitsLong waits for a time that no check takes.
func waitsLong(then core.ConflictPolicy) core.ConflictPolicy {
	return retry.Policy{MaxWait: time.Hour, Then: then}
}

// preferring posts to the order, and says what the client prefers.
func (t *fixture) preferring(s *site, preferences ...string) testbed.Answer {
	t.Helper()
	r := t.request(s, http.MethodPost, testbed.OrderPath, "x")
	r.Header["Prefer"] = preferences
	return t.do(s, r)
}

func requirePreferred(t *fixture, resp testbed.Answer, applied ...string) {
	t.Helper()
	require.Equal(t, []string{"Prefer"}, resp.Header["Vary"], "the response depends on Prefer")
	require.ElementsMatch(t, applied, resp.Header["Preference-Applied"])
}

// prefersWait: a client may wait for less than the policy lets it.
func prefersWait(t *fixture) {
	b := t.setUp()
	s := t.serve(orders(ok, lock(b, waitsLong(nil), httplock.WithPrefer())))
	release := b.Hold(t)
	resp := t.preferring(s, "wait=0")
	testbed.RequireProblem(t, resp, http.StatusConflict, "conflict", true)
	requirePreferred(t, resp, "wait=0")
	start := time.Now()
	resp = t.preferring(s, "return=minimal, wait=1")
	testbed.RequireProblem(t, resp, http.StatusConflict, "conflict", true)
	requirePreferred(t, resp, "wait=1")
	require.GreaterOrEqual(t, time.Since(start), time.Second, "it waits")

	t.onConflict(b, release)
	resp = t.preferring(s, "wait=3000", "respond-async") // of which nothing here can park
	t.requireOK(resp)
	requirePreferred(t, resp) // it ran before that time was over
	resp = t.preferring(s, "wait=3000")
	t.requireOK(resp)
	requirePreferred(t, resp)
	resp = t.post(s, "x")
	t.requireOK(resp)
	requirePreferred(t, resp)

	// What the policy does anyway is no preference's doing.
	b.Hold(t)
	for name, policy := range map[string]core.ConflictPolicy{
		"waits for less": retry.Policy{MaxWait: 10 * time.Millisecond}, "asks twice": retry.Policy{MaxAttempts: 2, Initial: time.Millisecond}, "rejects": nil,
	} {
		resp := t.preferring(t.serve(orders(t.mustNotRun, lock(b, policy, httplock.WithPrefer()))), "wait=1, respond-async")
		require.Equal(t, http.StatusConflict, resp.Status, name)
		requirePreferred(t, resp)
	}
}

// prefersAsync: a client may be parked at once, where it would be parked after waiting.
func prefersAsync(t *fixture) {
	d := t.openParking(ok, func(b *testbed.Fixture, q *delayqueue.Queue) (Lock, []Step) {
		return lock(b, waitsLong(delayqueue.Policy(q)), httplock.WithAnonymous(), httplock.WithPrefer()), nil
	}, delayqueue.WithReservationWindow(0))
	release := d.Hold(t)
	var locations []string
	for _, test := range []struct{ prefers, applied []string }{
		{[]string{"respond-async"}, []string{"respond-async"}},
		{[]string{"wait=0"}, []string{"wait=0"}},
		{[]string{"wait=00", "Respond-Async"}, []string{"wait=0", "respond-async"}},
	} {
		resp := t.preferring(d.site, test.prefers...)
		locations = append(locations, testbed.RequireParked(t, resp))
		requirePreferred(t, resp, test.applied...)
	}
	t.onConflict(d.Fixture, release)
	resp := t.post(d.site, "x")
	t.requireOK(resp)
	requirePreferred(t, resp)
	for name, l := range map[string]Lock{
		"parks anyway":                  lock(d.Fixture, delayqueue.Policy(d.queue), httplock.WithAnonymous(), httplock.WithPrefer()),
		"waits for no longer than that": lock(d.Fixture, retry.Policy{MaxWait: 20 * time.Millisecond, Then: delayqueue.Policy(d.queue)}, httplock.WithAnonymous(), httplock.WithPrefer()),
	} {
		s := t.serve(orders(t.mustNotRun, l))
		release := d.Hold(t)
		resp := t.preferring(s, "respond-async, wait=1")
		require.Equal(t, http.StatusAccepted, resp.Status, name)
		requirePreferred(t, resp)
		release()
	}
	t.work(d)
	for _, location := range locations {
		t.ended(d, location, delayqueue.StateDone)
	}
}

// preferIsTheHandlers, where nobody said that the guard honors it.
func preferIsTheHandlers(t *fixture) {
	d := t.openParking(func(w http.ResponseWriter, r *http.Request) error {
		assert.Equal(t, []string{"respond-async, wait=0"}, r.Header["Prefer"])
		return ok(w, r)
	}, func(b *testbed.Fixture, q *delayqueue.Queue) (Lock, []Step) {
		return lock(b, waitsLong(delayqueue.Policy(q)), httplock.WithAnonymous()), nil
	})
	t.onConflict(d.Fixture, d.Hold(t))
	resp := t.preferring(d.site, "respond-async, wait=0")
	t.requireOK(resp)
	require.NotContains(t, resp.Header, "Vary")
	require.NotContains(t, resp.Header, "Preference-Applied")

	b := t.setUp()
	b.Hold(t)
	resp = t.preferring(t.serve(orders(t.mustNotRun, lock(b, &testbed.Parking{}))), "respond-async")
	require.Equal(t, http.StatusAccepted, resp.Status)
	require.NotContains(t, resp.Header, "Preference-Applied", "it is parked, but not because it was asked for")
}
