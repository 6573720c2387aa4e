package conformance

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/internal/test/testbed"
	"github.com/perkey-go/perkey/retry"
)

// parkingSite is a site that parks, and whose tickets can be seen.
type parkingSite struct {
	*testbed.Fixture
	*site
	queue *delayqueue.Queue
}

// openParking serves h at the order, behind a guard that parks, and whatever is between the two.
func (t *fixture) openParking(h Handler, configure func(b *testbed.Fixture, q *delayqueue.Queue) (l Lock, behind []Step), opts ...delayqueue.Option) *parkingSite {
	t.Helper()
	return t.openParkingBehind(nil, h, configure, opts...)
}

// openParkingBehind is openParking with steps in front of the guard.
func (t *fixture) openParkingBehind(front []Step, h Handler, configure func(b *testbed.Fixture, q *delayqueue.Queue) (l Lock, behind []Step), opts ...delayqueue.Option) *parkingSite {
	t.Helper()
	d := &parkingSite{Fixture: t.setUp()}
	d.queue = testbed.NewQueue(t, d.Redis, "ship", append([]delayqueue.Option{delayqueue.WithPrefix(d.Prefix)}, opts...)...)
	l, behind := configure(d.Fixture, d.queue)
	l.Options = append(l.Options, httplock.WithStatusPath("/tickets/"))
	tickets := func(w http.ResponseWriter, r *http.Request) error {
		httplock.TicketHandler(d.queue, func(*http.Request, delayqueue.Status) bool { return true }).ServeHTTP(w, r)
		return nil
	}
	app := orders(h, slices.Concat(front, []Step{l}, behind)...)
	app.Routes = append(app.Routes,
		Route{Method: http.MethodGet, Pattern: "/tickets/{ticket}", Handler: tickets},
		Route{Method: http.MethodGet, Pattern: "/tickets/{ticket}/result", Handler: tickets})
	d.site = t.serve(app)
	return d
}

// parks is how most of them are configured.
func parks(b *testbed.Fixture, q *delayqueue.Queue) (Lock, []Step) {
	return lock(b, delayqueue.Policy(q), httplock.WithAnonymous()), nil
}

// work starts a worker that replays through the engine, until the test ends, or until it is stopped: the queue is the same for all of a test.
func (t *fixture) work(d *parkingSite, opts ...httplock.ReplayOption) (stop func()) {
	t.Helper()
	w := testbed.Work(t, d.queue, d.Locker, httplock.Replay(d.engine, opts...),
		delayqueue.WithRetryBackoff(time.Millisecond, time.Millisecond), delayqueue.WithLogger(t.said.Logger()))
	return func() { assert.NoError(t, w.Stop(context.Background())) }
}

// park posts what must be parked, and returns where its ticket is.
func (t *fixture) park(d *parkingSite, query, body string) (location string) {
	t.Helper()
	resp := t.send(d.site, http.MethodPost, testbed.OrderPath+query, body)
	return testbed.RequireParked(t, resp)
}

// ended waits for a state of the ticket.
func (t *fixture) ended(d *parkingSite, location string, state delayqueue.State) delayqueue.Status {
	t.Helper()
	var s delayqueue.Status
	t.eventually(func() bool {
		var err error
		s, err = d.queue.Status(t.Context(), strings.TrimPrefix(location, "/tickets/"))
		require.NoError(t, err)
		return s.State == state
	}, "the ticket becomes "+string(state))
	return s
}

func parksAndReplays(t *fixture) {
	var ran atomic.Int64
	d := t.openParking(func(w http.ResponseWriter, r *http.Request) error {
		ran.Add(1)
		parked, replayed := httplock.Replayed(r.Context())
		assert.True(t, replayed)
		assert.NotEmpty(t, parked.ID)
		lease, held := core.LeaseFrom(r.Context())
		if assert.True(t, held, "no lease in the replay's ctx") {
			assert.Equal(t, testbed.OrderKey, lease.Key())
		}
		assert.Equal(t, testbed.OrderPath+"?x=1&x=2", r.RequestURI)
		assert.Equal(t, []string{"1", "2"}, r.URL.Query()["x"])
		assert.Empty(t, r.Host)
		assert.Equal(t, text(100_000), readTwice(t, r))
		w.Header().Set("Content-Type", "text/plain")
		w.Header().Set("Set-Cookie", "session="+testbed.Secret)
		w.WriteHeader(http.StatusUnprocessableEntity)
		_, err := io.WriteString(w, "done\n")
		assert.NoError(t, err)
		assert.NoError(t, http.NewResponseController(w).Flush(), "a stream that nobody listens to")
		_, err = io.WriteString(w, "and done\n")
		return err
	}, parks)
	release := d.Hold(t)
	location := t.park(d, "?x=1&x=2", text(100_000))
	require.Equal(t, http.StatusOK, t.send(d.site, http.MethodGet, location, "").Status)
	t.work(d)
	require.Zero(t, ran.Load(), "the key is held")
	release()
	require.Equal(t, 1, t.ended(d, location, delayqueue.StateDone).Attempts)

	ticket := t.send(d.site, http.MethodGet, location, "")
	require.Equal(t, http.StatusSeeOther, ticket.Status, ticket.Body)
	result := t.send(d.site, http.MethodGet, location+"/result", "")
	require.Equal(t, http.StatusUnprocessableEntity, result.Status)
	require.Equal(t, "done\nand done\n", result.Body)
	require.Equal(t, "text/plain", result.Header.Get("Content-Type"))
	require.NotContains(t, result.Header, "Set-Cookie")
	require.EqualValues(t, 1, ran.Load())
	d.RequireFree(t)
}

func parkedRunOnce(t *fixture) {
	const requests = 12
	var inside atomic.Int64
	var mu sync.Mutex
	ran := map[string]int{}
	d := t.openParking(func(w http.ResponseWriter, r *http.Request) error {
		assert.EqualValues(t, 1, inside.Add(1), "handlers inside")
		body := readTwice(t, r)
		time.Sleep(2 * time.Millisecond) // room for others to come in
		inside.Add(-1)
		mu.Lock()
		defer mu.Unlock()
		ran[body]++
		return ok(w, r)
	}, func(b *testbed.Fixture, q *delayqueue.Queue) (Lock, []Step) {
		return lock(b, retry.Policy{MaxWait: 5 * time.Millisecond, Then: delayqueue.Policy(q)}, httplock.WithAnonymous()), nil
	})
	release := d.Hold(t)
	t.park(d, "", "first")
	t.work(d)
	answers := t.atOnce(d.site, requests, func(i int) *http.Request {
		if i == requests/2 {
			release()
		}
		return t.request(d.site, http.MethodPost, testbed.OrderPath, fmt.Sprint(i))
	})
	for range requests {
		require.Contains(t, []int{http.StatusOK, http.StatusAccepted}, await(t, answers, "the response").Status)
	}
	t.eventually(func() bool {
		stats, err := d.queue.Stats(t.Context())
		return err == nil && stats.Queued+stats.Running+stats.Dead == 0
	}, "the queue is empty")
	mu.Lock()
	defer mu.Unlock()
	require.Len(t, ran, requests+1)
	for body, times := range ran {
		require.Equal(t, 1, times, body)
	}
}

func overTheCap(t *fixture) {
	b := t.setUp()
	b.Hold(t)
	parking := &testbed.Parking{}
	s := t.serve(orders(t.mustNotRun, lock(b, parking, httplock.WithMaxBody(1000))))
	for _, size := range []int{1000, 1001} {
		for _, chunked := range []bool{false, true} {
			before := len(parking.Parked())
			r := t.request(s, http.MethodPost, testbed.OrderPath, text(size))
			if chunked {
				r.ContentLength = -1
			}
			resp := t.do(s, r)
			if size == 1000 {
				require.Equal(t, http.StatusAccepted, resp.Status)
				require.Len(t, parking.Parked(), before+1)
				continue
			}
			testbed.RequireProblem(t, resp, http.StatusRequestEntityTooLarge, "body-too-large", false)
			require.Len(t, parking.Parked(), before, "nothing is stored")
		}
	}
}

func failedReplays(t *fixture) {
	inner, tries := make(chan *testbed.Fixture, 1), atomic.Int64{}
	d := t.openParking(func(w http.ResponseWriter, r *http.Request) error {
		switch r.URL.RawQuery {
		case "panic":
			panic("boom")
		case "502":
			w.WriteHeader(http.StatusBadGateway)
			return nil
		case "500":
			if tries.Add(1) < 4 {
				w.WriteHeader(http.StatusInternalServerError)
				return nil
			}
		}
		return ok(w, r)
	}, func(b *testbed.Fixture, q *delayqueue.Queue) (Lock, []Step) {
		inner <- b
		key := func(r *http.Request) (string, error) { return "inner:" + r.URL.RawQuery, nil }
		return lock(b, delayqueue.Policy(q), httplock.WithAnonymous(), httplock.WithRetryStatuses(http.StatusInternalServerError)), []Step{Lock{b.Locker.Guard(delayqueue.Policy(q)), key, []httplock.Option{httplock.WithAnonymous()}}}
	}, delayqueue.WithMaxAttempts(2))
	b := <-inner
	release := d.Hold(t)
	panicked := t.park(d, "?panic", "")
	failed := t.park(d, "?502", "")
	retried := t.park(d, "?500", "")
	conflicting := t.park(d, "?held", "")
	releaseInner := b.HoldKey(t, "inner:held")
	t.work(d)
	release()
	s := t.ended(d, panicked, delayqueue.StateDead)
	require.Equal(t, 2, s.Attempts)
	require.Contains(t, s.Cause, "boom")
	require.Equal(t, 1, t.ended(d, failed, delayqueue.StateDone).Attempts)
	require.Equal(t, http.StatusBadGateway, t.send(d.site, http.MethodGet, failed+"/result", "").Status)
	require.Equal(t, 1, t.ended(d, retried, delayqueue.StateDone).Attempts)
	t.eventually(func() bool {
		s, err := d.queue.Status(t.Context(), strings.TrimPrefix(conflicting, "/tickets/"))
		return err == nil && s.Conflicts > 0
	}, "the inner conflict is counted")
	stats, err := d.queue.Stats(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 1, stats.Queued+stats.Running, "it is not parked again")
	releaseInner()
	require.Equal(t, 1, t.ended(d, conflicting, delayqueue.StateDone).Attempts, "a conflict is no attempt")
}

func forbiddenReplay(t *fixture) {
	reached := make(chan string, 10)
	d := t.openParking(t.mustNotRun, func(b *testbed.Fixture, q *delayqueue.Queue) (Lock, []Step) {
		return lock(b, delayqueue.Policy(q), sentBy("bob"), httplock.WithReauthorize(func(_ *http.Request, principal string) error {
			reached <- principal
			return httplock.ErrForbidden
		})), nil
	})
	release := d.Hold(t)
	location := t.park(d, "", "")
	t.work(d, httplock.WithReplayReauthorize(func(*http.Request, string) error { return nil })) // the guard is asked as well
	release()
	t.ended(d, location, delayqueue.StateDone)
	require.Equal(t, "bob", <-reached)
	testbed.RequireProblem(t, t.send(d.site, http.MethodGet, location+"/result", ""), http.StatusForbidden, "forbidden", false)
}
