package httplock_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
)

// These tests are not parallel: they look at what the bodies of the whole process take up.

// Whatever becomes of a request, the bytes of its body are given back: at the latest when its key is granted.
func TestWaitingBytes_AreGivenBack(t *testing.T) {
	b := testbed.New(t, redistest.Embedded(t))
	big := strings.Repeat("x", 300_000)
	store := newIdempotency(t, b)
	for name, test := range map[string]struct {
		policy core.ConflictPolicy
		held   bool
		key    httplock.KeyFunc
		opts   []httplock.Option
		body   io.Reader
		status int
	}{
		"runs":          {status: 200},
		"rejected":      {held: true, status: 409},
		"parked":        {held: true, policy: &testbed.Parking{}, status: 202},
		"policy fails":  {held: true, policy: testbed.Failing{Err: errors.New("no")}, status: 500},
		"too long":      {held: true, policy: &testbed.Parking{}, opts: []httplock.Option{httplock.WithMaxBody(1000)}, status: 413},
		"unreadable":    {policy: testbed.Patient{}, body: io.MultiReader(strings.NewReader(big), failingReader{}), status: 400},
		"late":          {policy: testbed.Patient{}, body: pacedReader{strings.NewReader(big)}, opts: []httplock.Option{httplock.WithBodyTimeout(30 * time.Millisecond)}, status: 408},
		"key of a body": {key: httplock.JSONField("order:", "id"), body: strings.NewReader(`{"id": 42, "x": "` + big + `"}`), status: 200},
		"no key":        {key: httplock.JSONField("order:", "id"), body: strings.NewReader(big), status: 400},
		"idempotent":    {opts: []httplock.Option{remembering(store, httplock.RequireIdempotencyKey())}, status: 200},
		"panics":        {opts: []httplock.Option{}, status: 0},
	} {
		t.Run(name, func(t *testing.T) {
			if test.held {
				defer b.Hold(t)()
			}
			if test.body == nil {
				test.body = strings.NewReader(big)
			}
			if test.key == nil {
				test.key = orderKey
			}
			mux := http.NewServeMux()
			mux.Handle("/orders/{id}", httplock.PerKey(b.Locker.Guard(test.policy), test.key, test.opts...)(
				http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
					assert.Zero(t, httplock.WaitingBytes(), "the request does not wait any more")
					if test.status == 0 {
						panic(http.ErrAbortHandler)
					}
					got, err := io.ReadAll(r.Body)
					assert.NoError(t, err)
					assert.Greater(t, len(got), 290_000)
				})))
			r := testbed.Request(t, http.MethodPost, testbed.OrderPath, "")
			r.Header.Set("Idempotency-Key", "k1")
			r.Body, r.ContentLength = io.NopCloser(test.body), -1
			if test.status == 0 {
				require.Panics(t, func() { testbed.Do(mux, r) })
			} else {
				require.Equal(t, test.status, testbed.Do(mux, r).Status)
			}
			require.Zero(t, httplock.WaitingBytes())
		})
	}
}

type failingReader struct{}

func (failingReader) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

// What a client announces takes up nothing: only what it sends does.
func TestWaitingBytes_FollowWhatCame(t *testing.T) {
	b := testbed.New(t, redistest.Embedded(t))
	const clients = 20
	h := guarded(b.Locker.Guard(testbed.Patient{}), mustNotRun(t), httplock.WithBodyTimeout(5*time.Second))
	for name, test := range map[string]struct{ announced, sent, most int }{
		"nothing":   {1 << 20, 0, 4 << 10},
		"a little":  {1 << 20, 5 << 10, 64 << 10},
		"unknown":   {-1, 5 << 10, 16 << 10},
		"short":     {100, 50, 101},
		"over half": {1 << 20, 600 << 10, 1<<20 + 1},
	} {
		t.Run(name, func(t *testing.T) {
			var requests sync.WaitGroup
			stop := make(chan struct{})
			for range clients {
				r := testbed.Request(t, http.MethodPost, testbed.OrderPath, "")
				r.Body = io.NopCloser(io.MultiReader(strings.NewReader(strings.Repeat("x", test.sent)), stalled(stop)))
				r.ContentLength = int64(test.announced)
				requests.Go(func() { testbed.Do(h, r) })
			}
			most := int64(0)
			want := int64(clients * min(test.most, max(test.sent, 1)))
			assert.Eventually(t, func() bool {
				most = max(most, httplock.WaitingBytes())
				return most >= want
			}, 2*time.Minute, time.Millisecond)
			close(stop)
			requests.Wait()
			require.LessOrEqual(t, most, int64(clients*test.most))
			require.Zero(t, httplock.WaitingBytes())
		})
	}
}

// stalled ends when it is told to.
type stalled chan struct{}

func (s stalled) Read([]byte) (int, error) {
	<-s
	return 0, io.ErrUnexpectedEOF
}

// A replay does not wait: its body is read although those that wait take up all there is.
func TestWaitingBytes_DoNotBoundReplays(t *testing.T) {
	b := testbed.New(t, redistest.Embedded(t))
	bodies := []string{}
	h := idempotent(t, b, core.RejectConflicts, func(_ http.ResponseWriter, r *http.Request) {
		got, err := io.ReadAll(r.Body)
		assert.NoError(t, err)
		bodies = append(bodies, string(got))
	})
	defer httplock.TakeWaitingBytes(httplock.DefaultMaxWaitingBytes)()
	testbed.RequireProblem(t, testbed.Do(h, withKey(t, testbed.OrderPath, "k1", `{"from": "outside"}`)), http.StatusServiceUnavailable, "waiting-full", true)
	require.NoError(t, httplock.Replay(h)(t.Context(), message(t, withKey(t, testbed.OrderPath, "k1", `{"from": "the queue"}`))))
	require.Equal(t, []string{`{"from": "the queue"}`}, bodies)
}

// Nested guards, and key functions that read the body, share one buffer.
func TestBody_IsInMemoryOnce(t *testing.T) {
	b := testbed.New(t, redistest.Embedded(t))
	content := `{"id": 42, "x": "` + strings.Repeat("x", 100_000) + `"}`
	var buffers []*byte
	next := http.Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		got, err := io.ReadAll(r.Body)
		assert.NoError(t, err)
		assert.Equal(t, content, string(got))
	}))
	for i := range 3 {
		key := httplock.Join(httplock.JSONField(fmt.Sprint(i, ":"), "id"), httplock.JSONField("", "id"))
		inner := next
		next = httplock.PerKey(b.Locker.Guard(testbed.Patient{}), key)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			buffers = append(buffers, &httplock.Buffer(r)[0])
			inner.ServeHTTP(w, r)
		}))
	}
	require.Equal(t, http.StatusOK, testbed.Call(t, next, http.MethodPost, "/", content).Status)
	require.Len(t, buffers, 3)
	require.Same(t, buffers[0], buffers[1])
	require.Same(t, buffers[0], buffers[2])
	require.Zero(t, httplock.WaitingBytes())
}

// A principal that cannot be told is refused, before anything else.
func TestWaiters_WithoutAPrincipal(t *testing.T) {
	t.Parallel()
	b := testbed.New(t, redistest.Embedded(t))
	for err, status := range map[error]int{httplock.ErrForbidden: http.StatusForbidden, errors.New("down"): http.StatusInternalServerError} {
		h := guarded(b.Locker.Guard(core.RejectConflicts), mustNotRun(t), httplock.WithMaxWaitersPerPrincipal(1),
			httplock.WithPrincipal(func(*http.Request) (string, error) { return "", err }))
		require.Equal(t, status, testbed.Call(t, h, http.MethodPost, testbed.OrderPath, "x").Status)
	}
}

// What a key function reads of a body that streams is bounded as any other's: in time and in all. The rest is the handler's.
func TestWaitingBytes_OfAKeyFunctionUnderStreamBody(t *testing.T) {
	b := testbed.New(t, redistest.Embedded(t))
	const bound, sent = 30 * time.Millisecond, `{"id": 42}`
	serve := func(key httplock.KeyFunc, timeout time.Duration, h http.HandlerFunc) http.Handler {
		mux := http.NewServeMux()
		mux.Handle("/orders/{id}", httplock.PerKey(b.Locker.Guard(nil), key, httplock.WithStreamBody(),
			httplock.WithBodyTimeout(timeout), httplock.WithMaxWaitingBytes(2<<20))(h))
		return mux
	}
	post := func(h http.Handler, body io.Reader) int {
		r := testbed.Request(t, http.MethodPost, testbed.OrderPath, "")
		r.Body, r.ContentLength = io.NopCloser(body), -1
		return testbed.Do(h, r).Status
	}
	read := func(_ http.ResponseWriter, r *http.Request) {
		got, err := io.ReadAll(r.Body)
		assert.NoError(t, err)
		assert.Equal(t, sent, string(got))
	}
	slow := func() io.Reader { return pacedReader{strings.NewReader(sent)} }

	require.Equal(t, http.StatusRequestTimeout, post(serve(httplock.JSONField("order:", "id"), bound, mustNotRun(t)), slow()))
	require.Equal(t, http.StatusOK, post(serve(httplock.JSONField("order:", "id"), time.Minute, read), strings.NewReader(sent)))
	require.Equal(t, http.StatusOK, post(serve(orderKey, bound, read), slow()))
	peek := func(r *http.Request) (string, error) {
		first := make([]byte, 1)
		_, err := io.ReadFull(r.Body, first)
		r.Body = io.NopCloser(io.MultiReader(bytes.NewReader(first), r.Body))
		return "order:" + string(first), err
	}
	require.Equal(t, http.StatusOK, post(serve(peek, bound, read), slow()))
	require.Zero(t, httplock.WaitingBytes())

	stop, statuses := make(chan struct{}), make(chan int, 20)
	h := serve(httplock.JSONField("order:", "id"), time.Minute, mustNotRun(t))
	for range cap(statuses) {
		go func() {
			statuses <- post(h, io.MultiReader(strings.NewReader(`{"x": "`+strings.Repeat("x", 300_000)), stalled(stop)))
		}()
	}
	for range 10 { // the bound has room for ten at most
		require.Equal(t, http.StatusServiceUnavailable, <-statuses)
	}
	require.LessOrEqual(t, httplock.WaitingBytes(), int64(2<<20))
	close(stop)
	for range cap(statuses) - 10 {
		<-statuses
	}
	require.Zero(t, httplock.WaitingBytes())
}
