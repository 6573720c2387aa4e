package httplock_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
)

// get asks for a ticket, with a preference.
func get(ctx context.Context, h http.Handler, path, prefer string) *httptest.ResponseRecorder {
	r := httptest.NewRequestWithContext(ctx, http.MethodGet, path, nil)
	if prefer != "" {
		r.Header.Set("Prefer", prefer)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func TestTicket_WaitsAsItsClientPrefers(t *testing.T) {
	for _, test := range []struct {
		prefer  string
		applied string
		ends    time.Duration // 0: never
		took    time.Duration
		status  int
	}{
		{prefer: "", took: 0, status: http.StatusOK},
		{prefer: "respond-async", took: 0, status: http.StatusOK},
		{prefer: "wait=junk", took: 0, status: http.StatusOK},
		{prefer: "wait=0", applied: "wait=0", took: 0, status: http.StatusOK},
		{prefer: "wait=5", applied: "wait=5", took: 5 * time.Second, status: http.StatusOK},
		{prefer: "wait=5", applied: "wait=5", ends: 2 * time.Second, took: 2 * time.Second, status: http.StatusSeeOther},
		{prefer: "wait=86400", applied: "wait=30", took: 30 * time.Second, status: http.StatusOK},
	} {
		t.Run(fmt.Sprint(test.prefer, " ", test.ends), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q := &fakeQueue{state: delayqueue.StateRunning, then: make(chan delayqueue.State, 1)}
				if test.ends > 0 {
					time.AfterFunc(test.ends, func() { q.then <- delayqueue.StateDone })
				}
				began := time.Now()
				w := get(t.Context(), httplock.TicketsOver(q, anyone), ticketPath, test.prefer)
				require.Equal(t, test.took, time.Since(began))
				require.Equal(t, test.status, w.Code)
				require.Equal(t, test.applied, w.Header().Get("Preference-Applied"))
				require.Equal(t, "Prefer", w.Header().Get("Vary"))
			})
		})
	}
}

func TestTicket_ThatHasEndedOrIsNotTheClientsIsNotWaitedFor(t *testing.T) {
	for _, state := range []delayqueue.State{"", delayqueue.StateDone, delayqueue.StateDead} {
		q := &fakeQueue{state: state}
		get(t.Context(), httplock.TicketsOver(q, anyone), ticketPath, "wait=30")
		require.Zero(t, q.waits, state)
	}
	q := &fakeQueue{state: delayqueue.StateRunning}
	w := get(t.Context(), httplock.TicketsOver(q, func(*http.Request, delayqueue.Status) bool { return false }), ticketPath, "wait=30")
	require.Equal(t, http.StatusNotFound, w.Code)
	require.Zero(t, q.waits)
}

// A client that has left is not waited for.
func TestTicket_WhoseClientLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		get(ctx, httplock.TicketsOver(&fakeQueue{state: delayqueue.StateQueued}, anyone), ticketPath, "wait=30")
		require.Equal(t, time.Second, time.Since(began))
	})
}

// The answer comes with the end, over HTTP and Redis.
func TestTicket_IsAnsweredWhenTheReplayEnds(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		d := openDepot(t, env)
		release := d.Hold(t)
		ended := make(chan time.Time, 1)
		d.handle(func(w http.ResponseWriter, _ *http.Request) {
			time.Sleep(800 * time.Millisecond)
			w.WriteHeader(http.StatusTeapot)
			ended <- time.Now()
		})
		location := requireParked(t, testbed.Call(t, d.mux, http.MethodPost, testbed.OrderPath, ""))
		answered := make(chan *httptest.ResponseRecorder, 1)
		go func() { answered <- get(t.Context(), d.mux, location, "wait=30") }()
		d.work(t)
		release()
		w := <-answered
		require.Less(t, time.Since(<-ended), 5*time.Second)
		require.Equal(t, http.StatusSeeOther, w.Code)
		require.Equal(t, "wait=30", w.Header().Get("Preference-Applied"))
	})
}
