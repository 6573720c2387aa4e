package httplock_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
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

// timed serves a handler behind Timeout.
func timed(t *testing.T, http2 bool, d time.Duration, h http.HandlerFunc) *httptest.Server {
	t.Helper()
	srv := httptest.NewUnstartedServer(httplock.Timeout(d)(h))
	if srv.EnableHTTP2 = http2; http2 {
		srv.StartTLS()
	} else {
		srv.Start()
	}
	t.Cleanup(srv.Close)
	return srv
}

func fetch(t *testing.T, srv *httptest.Server) (*http.Response, string) {
	t.Helper()
	resp, err := srv.Client().Get(srv.URL)
	require.NoError(t, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp, string(body)
}

func TestTimeout_AnswersWhileTheHandlerRuns(t *testing.T) {
	for _, http2 := range []bool{false, true} {
		release := make(chan struct{})
		srv := timed(t, http2, 50*time.Millisecond, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X-Handlers", "1")
			w.WriteHeader(http.StatusEarlyHints)
			<-release
		})
		resp, body := fetch(t, srv) // the whole of it
		require.Equal(t, http.StatusServiceUnavailable, resp.StatusCode)
		require.Equal(t, "application/problem+json", resp.Header.Get("Content-Type"))
		require.Equal(t, "no-store", resp.Header.Get("Cache-Control"))
		require.Empty(t, resp.Header.Get("Retry-After"))
		require.Empty(t, resp.Header.Get("X-Handlers"))
		require.True(t, json.Valid([]byte(body)))
		close(release)
	}
}

func TestTimeout_AResponseInTimeIsTheHandlers(t *testing.T) {
	for _, http2 := range []bool{false, true} {
		srv := timed(t, http2, time.Minute, func(w http.ResponseWriter, r *http.Request) {
			_, bounded := r.Context().Deadline()
			assert.True(t, bounded)
			w.Header().Set("Trailer", "X-Sum")
			w.Header().Set("X-Handlers", "1")
			w.WriteHeader(http.StatusEarlyHints)
			w.WriteHeader(http.StatusCreated)
			_, _ = io.WriteString(w, "made")
			assert.NoError(t, http.NewResponseController(w).Flush())
			w.Header().Set("X-Sum", "42")
			w.Header().Set("X-Late", "no")
		})
		resp, body := fetch(t, srv)
		require.Equal(t, http.StatusCreated, resp.StatusCode)
		require.Equal(t, "made", body)
		require.Equal(t, "1", resp.Header.Get("X-Handlers"))
		require.Empty(t, resp.Header.Get("X-Late"))
		require.Equal(t, "42", resp.Trailer.Get("X-Sum"))
	}
	nothing := timed(t, false, time.Minute, func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("X-Handlers", "1") })
	resp, _ := fetch(t, nothing)
	require.Equal(t, http.StatusOK, resp.StatusCode)
	require.Equal(t, "1", resp.Header.Get("X-Handlers"))
}

func TestTimeout_Panics(t *testing.T) {
	err, is := panicOf(func() { httplock.Timeout(0) }).(error)
	require.True(t, is)
	require.ErrorIs(t, err, core.ErrInvalidOption)

	now := httplock.Timeout(time.Minute)(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("now") }))
	require.PanicsWithValue(t, "now", func() { now.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil)) })

	log, release, ended := testbed.CaptureLog(t), make(chan struct{}), make(chan struct{})
	late := httplock.Timeout(time.Millisecond)(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		defer close(ended)
		<-release
		panic("too late")
	}))
	w := httptest.NewRecorder()
	late.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
	require.Equal(t, http.StatusServiceUnavailable, w.Code)
	close(release)
	<-ended
	redistest.Eventually(t, func() bool { return strings.Contains(log.String(), "too late") }, "the panic is logged")
}

func TestTimeout_AClientThatLeaves(t *testing.T) {
	inside, cause := make(chan struct{}), make(chan error, 1)
	srv := timed(t, false, time.Minute, func(_ http.ResponseWriter, r *http.Request) {
		close(inside)
		<-r.Context().Done()
		cause <- r.Context().Err()
	})
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-inside
		cancel()
	}()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, srv.URL, http.NoBody)
	require.NoError(t, err)
	_, err = srv.Client().Do(r)
	require.Error(t, err)
	require.ErrorIs(t, <-cause, context.Canceled)
}

// Whoever comes first, the response is a whole one.
func TestTimeout_OneResponseWhoeverIsFirst(t *testing.T) {
	const d = 5 * time.Millisecond
	srv := timed(t, false, d, func(w http.ResponseWriter, _ *http.Request) {
		time.Sleep(d - 500*time.Microsecond)
		for range 20 {
			w.Header().Set("X-Handlers", "1")
			_, _ = io.WriteString(w, "0123456789")
		}
	})
	var calls sync.WaitGroup
	for range 8 {
		calls.Go(func() {
			for range 8 {
				resp, body := fetch(t, srv)
				if resp.StatusCode == http.StatusOK {
					assert.Equal(t, strings.Repeat("0123456789", 20), body)
				} else {
					assert.Equal(t, http.StatusServiceUnavailable, resp.StatusCode)
					assert.True(t, json.Valid([]byte(body)), body)
				}
			}
		})
	}
	calls.Wait()
}

// Its worker has the key until a replay returns, so a replay does not return before its handler.
func TestTimeout_AReplayKeepsItsKey(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		d := openParking(t, env)
		var runs atomic.Int64
		entered, release := make(chan context.Context, 10), make(chan struct{})
		ann := func(*http.Request) (string, error) { return "ann", nil }
		mayStill := func(*http.Request, string) error { return nil }
		d.handle(func(w http.ResponseWriter, r *http.Request) {
			if runs.Add(1) == 1 {
				<-r.Context().Done() // and is silent
				return
			}
			entered <- r.Context()
			<-release // deaf to its ctx
			w.WriteHeader(http.StatusCreated)
		}, sentBy(ann, mayStill))
		free := d.Hold(t)
		location := requireParked(t, testbed.Call(t, d.mux, http.MethodPost, testbed.OrderPath, ""))
		free()
		d.replica(t, httplock.Timeout(20*time.Millisecond)(d.mux))
		redistest.Eventually(t, func() bool { return len(entered) > 0 }, "the silent attempt is made again")
		<-(<-entered).Done()
		time.Sleep(50 * time.Millisecond) // for a replay that would return
		d.AssertHeld(t)
		close(release)
		require.Equal(t, 2, d.await(t, location, delayqueue.StateDone).Attempts, "the silent attempt has failed")
		require.Equal(t, http.StatusCreated, d.result(t, location).Status)
		require.EqualValues(t, 2, runs.Load())
	})
}
