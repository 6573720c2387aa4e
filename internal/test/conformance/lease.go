package conformance

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/internal/test/testbed"
)

func runsUnderItsLease(t *fixture) {
	b := t.setUp()
	var during context.Context
	s := t.serve(orders(func(w http.ResponseWriter, r *http.Request) error {
		during = r.Context()
		if lease, held := core.LeaseFrom(during); assert.True(t, held, "no lease in the request's ctx") {
			assert.Equal(t, testbed.OrderKey, lease.Key())
			assert.Positive(t, lease.Fence())
		}
		b.AssertHeld(t)
		assert.NoError(t, during.Err())
		return ok(w, r)
	}, lock(b, nil)))
	t.requireOK(t.post(s, ""))
	b.RequireFree(t)
	require.ErrorIs(t, during.Err(), context.Canceled, "the lease is over")
}

func oneAtATime(t *fixture) {
	const others = 20
	b := t.setUp()
	var inside atomic.Int64
	entered, gate := make(chan struct{}, others+1), make(chan struct{})
	s := t.serve(orders(func(w http.ResponseWriter, r *http.Request) error {
		if inside.Add(1) != 1 {
			t.Error("two handlers inside")
			return nil
		}
		entered <- struct{}{}
		t.pause(gate)
		inside.Add(-1)
		return ok(w, r)
	}, lock(b, nil)))
	first := t.sending(t.Context(), s, "x")
	await(t, entered, "the handler runs")
	answers := t.atOnce(s, others, t.posts(s, "x"))
	for range others {
		testbed.RequireProblem(t, await(t, answers, "refused"), http.StatusConflict, "conflict", true)
	}
	close(gate)
	require.NoError(t, await(t, first, "the response"))
	b.RequireFree(t)
}

// spy is what a middleware in front of a guard sees.
type spy struct {
	before, after *http.Request
	ctxErr        error // of after
	recovered     any
	err           error
}

// spying reports each request to ch. Panics pass through it.
func spying(ch chan<- spy) Middleware {
	return func(c Context) (err error) {
		seen := spy{before: c.Request()}
		defer func() {
			seen.recovered = recover()
			seen.after, seen.err = c.Request(), err
			seen.ctxErr = seen.after.Context().Err()
			ch <- seen
			if seen.recovered != nil {
				panic(seen.recovered)
			}
		}()
		return c.Next()
	}
}

func (s spy) requireRestored(t *fixture) {
	t.Helper()
	require.Same(t, s.before, s.after, "the request that was there before is not there after")
	require.NoError(t, s.ctxErr)
}

func requestRestored(t *fixture) {
	b := t.setUp()
	seen := make(chan spy, 1)
	panics := false
	s := t.serve(orders(func(w http.ResponseWriter, r *http.Request) error {
		if panics {
			panic("boom")
		}
		return ok(w, r)
	}, Recovery{}, spying(seen), lock(b, nil)))
	t.requireOK(t.post(s, ""))
	await(t, seen, "the middleware in front").requireRestored(t)

	panics = true
	t.post(s, "")
	await(t, seen, "the middleware in front").requireRestored(t)

	b.Hold(t)
	require.Equal(t, http.StatusConflict, t.post(s, "").Status)
	await(t, seen, "the middleware in front").requireRestored(t)
}

// loseLease loses the lease of the handler that calls it.
func (t *fixture) loseLease(b *testbed.Fixture, r *http.Request) {
	b.LoseLeases(t)
	t.pause(r.Context().Done())
	assert.ErrorIs(t, context.Cause(r.Context()), core.ErrLeaseLost)
}

// shortLease makes a lost lease be noticed soon.
func shortLease() core.Option { return core.WithTTL(time.Second) }

// lostLease: the client learns that nobody knows, and the log that the lease was lost, once.
func lostLease(t *fixture) {
	b, said := t.setUp(), &testbed.Log{}
	locker := testbed.NewLocker(t, b.Redis, core.WithPrefix(b.Prefix), shortLease(), core.WithLogger(said.Logger()))
	guard := Lock{locker.Guard(core.RejectConflicts), orderKey, []httplock.Option{httplock.WithLogger(said.Logger())}}
	s := t.serve(orders(func(w http.ResponseWriter, r *http.Request) error {
		w.Header().Set("Content-Type", "text/plain")
		w.Header().Set("Content-Length", "12345")
		w.Header().Set("Etag", `"1"`)
		t.loseLease(b, r)
		return nil
	}, guard))
	resp, err := testbed.Send(s.client, t.request(s, http.MethodPost, testbed.OrderPath, ""))
	require.NoError(t, err, "the handler began no response, which Exchange.Written tells")
	testbed.RequireProblem(t, resp, http.StatusInternalServerError, "outcome-unknown", false)
	var lost []string
	logged := func() bool { // by the goroutine that renews leases
		lost = slices.DeleteFunc(slices.Collect(strings.Lines(said.String())), func(line string) bool { return !strings.Contains(line, "lost") })
		return len(lost) > 0
	}
	t.eventually(logged, "the loss is logged")
	require.Len(t, lost, 1)
	require.Contains(t, lost[0], `msg="perkey: lease lost"`)
	require.NotContains(t, resp.Header, "Etag", "the handler's headers are of a response that is not sent")
}

func lostLeaseBegun(t *fixture) {
	b := t.setUp(shortLease())
	for name, test := range map[string]struct {
		before, after bool // the handler writes
		flush         bool
		status        int
		body          string
	}{
		"written":       {before: true, status: http.StatusCreated, body: "ok"},
		"written later": {after: true, status: http.StatusCreated, body: "ok"},
		"flushed":       {flush: true, status: http.StatusOK},
	} {
		s := t.serve(orders(func(w http.ResponseWriter, r *http.Request) error {
			write := func(now bool) error {
				if !now {
					return nil
				}
				w.WriteHeader(http.StatusCreated)
				return ok(w, r)
			}
			if test.flush {
				assert.NoError(t, http.NewResponseController(w).Flush())
			}
			assert.NoError(t, write(test.before))
			t.loseLease(b, r)
			return write(test.after)
		}, lock(b, nil)))
		resp := t.post(s, "")
		require.Equal(t, test.status, resp.Status, name)
		require.Equal(t, test.body, resp.Body, "%s: the response is the handler's", name)
	}

	// A response over a connection that was taken over is one too.
	s := t.serve(orders(func(w http.ResponseWriter, r *http.Request) error {
		conn, _, err := http.NewResponseController(w).Hijack()
		if !assert.NoError(t, err) {
			return nil
		}
		t.loseLease(b, r)
		return sayHijacked(conn)
	}, lock(b, nil)))
	require.Equal(t, "hijacked", t.post(s, "").Body)
}

func innerConflict(t *fixture) {
	b := t.setUp()
	parking := &testbed.Parking{}
	between := 0
	inner := Lock{b.Locker.Guard(core.RejectConflicts), func(*http.Request) (string, error) { return "inner", nil }, nil}
	s := t.serve(orders(ok, lock(b, parking), Middleware(func(c Context) error {
		err := c.Next()
		between++
		return err
	}), inner))
	t.requireOK(t.post(s, ""))
	release := b.HoldKey(t, "inner")
	testbed.RequireProblem(t, t.post(s, ""), http.StatusConflict, "conflict", true)
	require.Equal(t, 2, between, "what is between the guards goes on")
	require.Empty(t, parking.Parked(), "the outer guard took the conflict for its own")
	b.RequireFree(t)

	// A handler that meets a conflict itself answers as it likes.
	s = t.serve(orders(func(w http.ResponseWriter, r *http.Request) error {
		err := inner.Guard.Do(r.Context(), core.Call{Key: "inner"}, func(context.Context) error { return nil })
		assert.ErrorIs(t, err, core.ErrConflict)
		w.WriteHeader(http.StatusTeapot)
		return nil
	}, lock(b, parking)))
	require.Equal(t, http.StatusTeapot, t.post(s, "").Status)
	require.Empty(t, parking.Parked(), "the outer guard took the handler's conflict for its own")
	release()
}

func reentry(t *fixture) {
	b, proxy := t.breakable()
	away := Middleware(func(c Context) error {
		proxy.Refuse(true)
		defer proxy.Refuse(false)
		return c.Next()
	})
	var outer int64
	note := Middleware(func(c Context) error {
		outer = t.fence(c.Request())
		return c.Next()
	})
	s := t.serve(orders(func(w http.ResponseWriter, r *http.Request) error {
		assert.Equal(t, outer, t.fence(r), "one grant")
		return ok(w, r)
	}, lock(b, nil), note, away, lock(b, nil)))
	t.requireOK(t.post(s, ""))
	b.RequireFree(t)
}

// fence is that of the lease that a request works under.
func (t *fixture) fence(r *http.Request) int64 {
	lease, held := core.LeaseFrom(r.Context())
	if !assert.True(t, held, "no lease in the request's ctx") {
		return 0
	}
	return lease.Fence()
}
