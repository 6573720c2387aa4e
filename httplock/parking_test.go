package httplock_test

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
)

// parkingSite has a queue, a guard that parks on it, and a mux that replays go through.
type parkingSite struct {
	*testbed.Fixture
	queue *delayqueue.Queue
	guard *core.Guard
	mux   *http.ServeMux
	log   *testbed.Log // of guards and workers
}

func openParking(t *testing.T, env *redistest.Env, opts ...delayqueue.Option) *parkingSite {
	t.Helper()
	d := &parkingSite{Fixture: testbed.New(t, env), mux: http.NewServeMux(), log: &testbed.Log{}}
	d.queue = testbed.NewQueue(t, d.Redis, "ship", append([]delayqueue.Option{delayqueue.WithPrefix(env.Prefix)}, opts...)...)
	d.guard = d.Locker.Guard(delayqueue.Policy(d.queue))
	d.mux.Handle("/tickets/", httplock.TicketHandler(d.queue, anyone))
	return d
}

// handle serves handler at /orders/{id}, and parks its requests.
func (d *parkingSite) handle(handler http.HandlerFunc, opts ...httplock.Option) {
	d.mux.Handle("/orders/{id}", d.perKey(opts...)(handler))
}

func (d *parkingSite) perKey(opts ...httplock.Option) func(http.Handler) http.Handler {
	opts = append([]httplock.Option{httplock.WithStatusPath("/tickets/"), httplock.WithLogger(d.log.Logger())}, opts...)
	return httplock.PerKey(d.guard, orderKey, said(d.guard, opts)...)
}

// work starts a worker that is stopped with the test, or before.
func (d *parkingSite) work(t *testing.T, opts ...httplock.ReplayOption) (stop func()) {
	t.Helper()
	w := testbed.Work(t, d.queue, d.Locker, httplock.Replay(d.mux, opts...),
		delayqueue.WithRetryBackoff(time.Millisecond, time.Millisecond), delayqueue.WithLogger(d.log.Logger()))
	return func() { assert.NoError(t, w.Stop(context.Background())) }
}

// requireParked returns where the ticket is.
func requireParked(t *testing.T, resp testbed.Answer) (location string) {
	t.Helper()
	require.Equal(t, http.StatusAccepted, resp.Status, resp.Body)
	return resp.Header.Get("Location")
}

func (d *parkingSite) status(t *testing.T, location string) delayqueue.Status {
	t.Helper()
	s, err := d.queue.Status(t.Context(), strings.TrimPrefix(location, "/tickets/"))
	require.NoError(t, err)
	return s
}

func (d *parkingSite) await(t *testing.T, location string, state delayqueue.State) delayqueue.Status {
	t.Helper()
	redistest.Eventually(t, func() bool { return d.status(t, location).State == state }, "the ticket becomes "+string(state))
	return d.status(t, location)
}

// result waits for the result of a parked request.
func (d *parkingSite) result(t *testing.T, location string) testbed.Answer {
	t.Helper()
	d.await(t, location, delayqueue.StateDone)
	resp := testbed.Call(t, d.mux, http.MethodGet, location, "")
	require.Equal(t, http.StatusSeeOther, resp.Status)
	var ticket struct{ State string }
	require.NoError(t, json.Unmarshal([]byte(resp.Body), &ticket))
	require.Equal(t, "done", ticket.State)
	return testbed.Call(t, d.mux, http.MethodGet, location+"/result", "")
}

func (d *parkingSite) requireNothingParked(t *testing.T) {
	t.Helper()
	stats, err := d.queue.Stats(t.Context())
	require.NoError(t, err)
	require.Zero(t, stats.Queued+stats.Running+stats.Dead)
}
