package httplock_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
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
		ended   bool          // before it was asked for
		ends    time.Duration // 0: never
		took    time.Duration
		status  int
	}{
		{prefer: "", took: 0, status: http.StatusOK},
		{prefer: "respond-async", took: 0, status: http.StatusOK},
		{prefer: "wait=junk", took: 0, status: http.StatusOK},
		{prefer: "wait=0", took: 0, status: http.StatusOK},
		{prefer: "wait=5", ended: true, took: 0, status: http.StatusSeeOther},
		{prefer: "wait=5", applied: "wait=5", took: 5 * time.Second, status: http.StatusOK},
		{prefer: "wait=5", applied: "wait=5", ends: 2 * time.Second, took: 2 * time.Second, status: http.StatusSeeOther},
		{prefer: "wait=86400", applied: "wait=30", took: 30 * time.Second, status: http.StatusOK},
	} {
		t.Run(fmt.Sprint(test.prefer, " ", test.ends, test.ended), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q := &fakeQueue{state: delayqueue.StateRunning, then: make(chan delayqueue.State, 1)}
				if test.ended {
					q.state = delayqueue.StateDone
				}
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

// A server that shuts down keeps nobody waiting, over HTTP/1.1 and HTTP/2; another one that has the same handler
// does. The worker has all of the time that is left. It is long since it is one story.
func TestTicket_WaitsEndWhenTheServerShutsDown(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		d := openParking(t, env)
		release := d.Hold(t)
		defer release()
		d.handle(mustNotRun(t))
		location := requireParked(t, testbed.Call(t, d.mux, http.MethodPost, testbed.OrderPath, ""))
		waiting := make(chan struct{}, 1000)
		h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			waiting <- struct{}{}
			d.mux.ServeHTTP(w, r)
		})
		type answer struct {
			testbed.Answer
			err error
		}
		const clients = 30
		wait := func(srv *httptest.Server) <-chan answer {
			answers := make(chan answer, clients)
			first, err := testbed.Send(srv.Client(), testbed.ToServer(t.Context(), t, srv.URL+"/tickets/", ""))
			require.NoError(t, err)
			require.Equal(t, http.StatusMethodNotAllowed, first.Status)
			<-waiting
			for range clients {
				r := testbed.ToServer(t.Context(), t, srv.URL+location, "")
				r.Method = http.MethodGet
				r.Header.Set("Prefer", "wait=30")
				go func() {
					resp, err := testbed.Send(srv.Client(), r)
					answers <- answer{resp, err}
				}()
			}
			for range clients {
				<-waiting
			}
			return answers
		}
		stays := httptest.NewServer(h)
		defer stays.Close()
		others := wait(stays)
		for _, http2 := range []bool{false, true} {
			srv := httptest.NewUnstartedServer(h)
			srv.EnableHTTP2 = http2
			srv.StartTLS()
			answers := wait(srv)
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second) // net/http gives a new connection 5 s
			require.NoError(t, srv.Config.Shutdown(ctx))
			cancel()
			for range clients {
				got := <-answers
				require.NoError(t, got.err)
				require.Equal(t, http.StatusOK, got.Status)
				require.Contains(t, got.Body, `"queued"`)
			}
			srv.Close()
		}
		require.Empty(t, others)
		require.NoError(t, d.queue.Cancel(t.Context(), strings.TrimPrefix(location, "/tickets/")))
		for range clients {
			require.Contains(t, (<-others).Body, `"cancelled"`)
		}
	})
}

// The answer comes with the end, over HTTP and Redis.
func TestTicket_IsAnsweredWhenTheReplayEnds(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		d := openParking(t, env)
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
		require.Less(t, time.Since(<-ended), 25*time.Second, "not with the end of its wait")
		require.Equal(t, http.StatusSeeOther, w.Code)
		require.Equal(t, "wait=30", w.Header().Get("Preference-Applied"))
	})
}
