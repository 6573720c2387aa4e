package conformance

import (
	"io"
	"net"
	"net/http"
	"strconv"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/internal/test/testbed"
)

// streamsNotStored: nobody knows how much of a stream the client has seen. It is not
// kept, but neither does it run again.
func streamsNotStored(t *fixture) {
	b := t.setUp()
	for name, flush := range map[string]func(http.ResponseWriter) error{
		"ResponseController": func(w http.ResponseWriter) error { return http.NewResponseController(w).Flush() },
		"Flusher": func(w http.ResponseWriter) error {
			if flusher, able := w.(http.Flusher); assert.True(t, able) {
				flusher.Flush()
			}
			return nil
		},
	} {
		handler, runs := counted(func(w http.ResponseWriter, _ *http.Request) error {
			w.Header().Set("Content-Type", "text/event-stream")
			_, err := io.WriteString(w, "data: 1\n\n")
			assert.NoError(t, err)
			assert.NoError(t, flush(w))
			_, err = io.WriteString(w, "data: 2\n\n")
			return err
		})
		s := t.serve(orders(handler, t.remembering(b, nil)))
		key := `"` + name + `"`
		require.Equal(t, "data: 1\n\ndata: 2\n\n", t.keyed(s, key, "{}").Body)
		testbed.RequireProblem(t, t.keyed(s, key, "{}"), http.StatusConflict, "response-not-kept", false)
		require.EqualValues(t, 1, runs.Load(), "%s: the handler's runs", name)
	}
}

// hijackedNotStored: nobody knows what was said. It runs again.
func hijackedNotStored(t *fixture) {
	b := t.setUp()
	for name, hijack := range map[string]func(http.ResponseWriter) (net.Conn, error){
		"ResponseController": func(w http.ResponseWriter) (net.Conn, error) {
			conn, _, err := http.NewResponseController(w).Hijack()
			return conn, err
		},
		"Hijacker": func(w http.ResponseWriter) (net.Conn, error) {
			hijacker, able := w.(http.Hijacker)
			if !able {
				return nil, http.ErrNotSupported
			}
			conn, _, err := hijacker.Hijack()
			return conn, err
		},
	} {
		handler, runs := counted(func(w http.ResponseWriter, _ *http.Request) error {
			conn, err := hijack(w)
			if !assert.NoError(t, err) {
				return nil
			}
			return sayHijacked(conn)
		})
		s := t.serve(orders(handler, t.remembering(b, nil)))
		for range 2 {
			resp := t.keyed(s, `"`+name+`"`, "{}")
			require.Equal(t, "hijacked", resp.Body)
			t.requireRanAgain(resp)
			b.RequireFree(t) // the response is there before the handler has returned
		}
		require.EqualValues(t, 2, runs.Load(), "%s: the handler's runs", name)
	}
}

// innerNotStored: that a guard further in refused says nothing of the work.
func innerNotStored(t *fixture) {
	b := t.setUp()
	handler, runs := counted(ok)
	// It does not ask for the same request again, which would not be kept whoever said so.
	refuse := func(w http.ResponseWriter, _ *http.Request, _ *httplock.Problem) {
		w.Header().Del("Retry-After")
		w.WriteHeader(http.StatusConflict)
		_, _ = io.WriteString(w, "held")
	}
	inner := Lock{
		b.Locker.Guard(core.RejectConflicts), func(*http.Request) (string, error) { return "inner", nil },
		[]httplock.Option{httplock.WithConflictHandler(refuse)},
	}
	s := t.serve(orders(handler, t.remembering(b, nil), inner))
	release := b.HoldKey(t, "inner")
	refused := t.keyed(s, "k", "{}")
	require.Equal(t, http.StatusConflict, refused.Status)
	require.Equal(t, "held", refused.Body)
	release()
	first := t.keyed(s, "k", "{}")
	t.requireRanAgain(first)
	t.requireOK(first)
	requireStored(t, first, t.keyed(s, "k", "{}"))
	require.EqualValues(t, 1, runs.Load())
}

// parkedOnce: a request that is parked is not parked again, and has its replay's response when that was made.
func parkedOnce(t *fixture) {
	handler, runs := counted(func(w http.ResponseWriter, _ *http.Request) error {
		w.Header().Set("Content-Type", "text/plain")
		w.WriteHeader(http.StatusCreated)
		_, err := io.WriteString(w, "made\n")
		return err
	})
	d := t.openParking(handler, func(b *testbed.Fixture, q *delayqueue.Queue) (Lock, []Step) {
		return t.remembering(b, delayqueue.Policy(q)), nil
	}, delayqueue.WithReservationWindow(0))
	release := d.Hold(t)
	location := testbed.RequireParked(t, t.keyed(d.site, "k", "{}"))
	require.Equal(t, location, testbed.RequireParked(t, t.keyed(d.site, "k", "{}")), "the ticket that there is")
	require.NotEqual(t, location, testbed.RequireParked(t, t.keyed(d.site, "other", "{}")))
	testbed.RequireProblem(t, t.keyed(d.site, "k", "{2}"), http.StatusUnprocessableEntity, "idempotency-key-reused", false)
	t.work(d)
	release()
	t.ended(d, location, delayqueue.StateDone)
	t.eventually(func() bool { return runs.Load() == 2 }, "both are replayed")
	second := t.keyed(d.site, "k", "{}")
	require.Equal(t, "true", second.Header.Get("Idempotent-Replayed"), "%d %s", second.Status, second.Body)
	result := t.send(d.site, http.MethodGet, location+"/result", "")
	for _, a := range []testbed.Answer{second, result} {
		require.Equal(t, http.StatusCreated, a.Status)
		require.Equal(t, "text/plain", a.Header.Get("Content-Type"))
		require.Equal(t, "made\n", a.Body)
	}
	require.EqualValues(t, 2, runs.Load(), "the handler's runs")
}

// writerRestored: what has the response kept is gone when the guard is.
func writerRestored(t *fixture) {
	b := t.setUp()
	panics := false
	type writers struct{ before, after []http.ResponseWriter }
	seen := make(chan writers, 1)
	s := t.serve(orders(func(w http.ResponseWriter, r *http.Request) error {
		if panics {
			panic("boom")
		}
		return ok(w, r)
	}, Recovery{}, Middleware(func(c Context) error {
		before := unwrapped(c.Writer())
		defer func() { seen <- writers{before, unwrapped(c.Writer())} }()
		return c.Next()
	}), t.remembering(b, nil)))
	for _, panics = range []bool{false, true} {
		t.keyed(s, `"`+strconv.FormatBool(panics)+`"`, "{}")
		saw := await(t, seen, "the middleware in front")
		require.Len(t, saw.after, len(saw.before), "the writer that was there before is not there after")
		for i := range saw.before {
			require.Same(t, saw.before[i], saw.after[i], "the writer that was there before is not there after")
		}
	}
}

// unwrapped is a writer, what it writes to, and so on.
func unwrapped(w http.ResponseWriter) (all []http.ResponseWriter) {
	for {
		all = append(all, w)
		outer, able := w.(interface{ Unwrap() http.ResponseWriter })
		if !able {
			return all
		}
		w = outer.Unwrap()
	}
}
