package conformance

import (
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/internal/test/testbed"
)

// replica starts a worker of another release of the service, with a locker of its own.
func (t *fixture) replica(d *parkingSite, app App, opts ...httplock.ReplayOption) {
	t.Helper()
	locker := testbed.NewLocker(t, d.Redis, core.WithPrefix(d.Prefix))
	testbed.Work(t, d.queue, locker, httplock.Replay(t.adapter.New(app), opts...),
		delayqueue.WithRetryBackoff(time.Millisecond, time.Millisecond), delayqueue.WithLogger(t.said.Logger()))
}

// parkMany parks requests of an order each, and returns their tickets' ids.
func (t *fixture) parkMany(d *parkingSite, n int) (ids []string) {
	t.Helper()
	for i := range n {
		release := d.HoldKey(t, fmt.Sprint("order:", i))
		resp := t.send(d.site, http.MethodPost, fmt.Sprint("/orders/", i), "")
		ids = append(ids, strings.TrimPrefix(testbed.RequireParked(t, resp), "/tickets/"))
		release()
	}
	return ids
}

// lostGuard: the release that runs the requests has no guard at their route.
func lostGuard(t *fixture) {
	mayStill := httplock.WithReauthorize(func(*http.Request, string) error { return nil })
	d := t.openParking(t.mustNotRun, func(b *testbed.Fixture, q *delayqueue.Queue) (Lock, []Step) {
		return lock(b, delayqueue.Policy(q), sentBy("bob"), mayStill), nil
	})
	const requests = 8
	ids := t.parkMany(d, requests)
	var asked, ran atomic.Int64
	t.replica(d, orders(func(w http.ResponseWriter, r *http.Request) error {
		_, held := core.LeaseFrom(r.Context())
		assert.True(t, held, "it runs under the key")
		ran.Add(1)
		return ok(w, r)
	}), httplock.WithReplayReauthorize(func(r *http.Request, principal string) error {
		assert.Equal(t, "bob", principal)
		asked.Add(1)
		if r.URL.Path == "/orders/0" {
			return httplock.ErrForbidden
		}
		return nil
	}))
	for i, id := range ids {
		require.Equal(t, 1, t.ended(d, id, delayqueue.StateDone).Attempts)
		status := http.StatusOK
		if i == 0 {
			status = http.StatusForbidden
		}
		require.Equal(t, status, t.send(d.site, http.MethodGet, "/tickets/"+id+"/result", "").Status)
	}
	require.EqualValues(t, requests, asked.Load())
	require.EqualValues(t, requests-1, ran.Load(), "each once, but for the one that is forbidden")
}

// panickedReplays: what recovery in front of the guard answers for a handler that panicked is no result.
func panickedReplays(t *fixture) {
	d := t.openParking(t.mustNotRun, parks, delayqueue.WithMaxAttempts(2))
	const requests = 8
	ids := t.parkMany(d, requests)
	var tries [requests]atomic.Int64
	t.replica(d, orders(func(w http.ResponseWriter, r *http.Request) error {
		var i int
		_, err := fmt.Sscanf(r.URL.Path, "/orders/%d", &i)
		assert.NoError(t, err)
		if n := tries[i].Add(1); n == 1 || i == 0 {
			panic(panicValues[i%len(panicValues)])
		}
		return ok(w, r)
	}, Recovery{}, lock(d.Fixture, nil)))
	s := t.ended(d, ids[0], delayqueue.StateDead)
	require.Equal(t, 2, s.Attempts)
	require.Contains(t, s.Cause, "panic: boom")
	require.Contains(t, s.Cause, "replays.go", "where the handler was")
	for _, id := range ids[1:] {
		require.Equal(t, 2, t.ended(d, id, delayqueue.StateDone).Attempts)
		require.Equal(t, http.StatusOK, t.send(d.site, http.MethodGet, "/tickets/"+id+"/result", "").Status)
	}
}

// lacksRoute: an older release, whose router lacks the route, leaves the requests to a newer one.
func lacksRoute(t *fixture) {
	var ran atomic.Int64
	d := t.openParking(func(w http.ResponseWriter, _ *http.Request) error {
		ran.Add(1)
		w.WriteHeader(http.StatusNotFound) // the order is, not the route
		return nil
	}, parks)
	const requests = 4
	ids := t.parkMany(d, requests)
	older := App{Routes: []Route{{Method: http.MethodPost, Pattern: "/payments/{id}", Handler: t.mustNotRun}}}
	t.replica(d, older)
	t.eventually(func() bool {
		stats, err := d.queue.Stats(t.Context())
		require.NoError(t, err)
		require.Zero(t, stats.Dead)
		return stats.Running == 0 && stats.Queued == requests
	}, "the older one hands them back")
	t.work(d)
	for _, id := range ids {
		require.Equal(t, 1, t.ended(d, id, delayqueue.StateDone).Attempts)
		require.Equal(t, http.StatusNotFound, t.send(d.site, http.MethodGet, "/tickets/"+id+"/result", "").Status)
	}
	require.EqualValues(t, requests, ran.Load())
}
