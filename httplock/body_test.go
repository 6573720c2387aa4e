package httplock_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
)

const bodyTime = 150 * time.Millisecond

// pacedReader takes a while for each byte.
type pacedReader struct{ io.Reader }

func (r pacedReader) Read(p []byte) (int, error) {
	time.Sleep(10 * time.Millisecond)
	return r.Reader.Read(p[:min(1, len(p))])
}

// Where there is no connection, the clock bounds a body that trickles.
func TestBody_WithoutAConnection(t *testing.T) {
	t.Parallel()
	b := testbed.New(t, redistest.Embedded(t))
	for name, policy := range map[string]core.ConflictPolicy{"reject": nil, "wait": testbed.Patient{}, "park": &testbed.Parking{}} {
		h := guarded(b.Locker.Guard(policy), mustNotRun(t), httplock.WithBodyTimeout(bodyTime))
		r := testbed.Request(t, http.MethodPost, testbed.OrderPath, "")
		r.Body = io.NopCloser(pacedReader{strings.NewReader(strings.Repeat("x", 1000))})
		resp := testbed.Do(h, r)
		testbed.RequireProblem(t, resp, http.StatusRequestTimeout, "body-timeout", false)
		require.Equal(t, "close", resp.Header.Get("Connection"), name)
	}
	key := httplock.JSONField("order:", "id")
	h := httplock.PerKey(b.Locker.Guard(core.RejectConflicts), key, httplock.WithBodyTimeout(bodyTime))(mustNotRun(t))
	r := testbed.Request(t, http.MethodPost, "/", "")
	r.Body = io.NopCloser(pacedReader{strings.NewReader(strings.Repeat("x", 1000))})
	testbed.RequireProblem(t, testbed.Do(h, r), http.StatusRequestTimeout, "body-timeout", false)
}

// A slow handler is not a slow client: what it does between reads does not count.
func TestBody_TheHandlersOwnTimeDoesNotCount(t *testing.T) {
	t.Parallel()
	const size, parts, limit = 300_000, 3, 2 * time.Second // a busy machine reads a part in less
	for name, readTimeout := range map[string]time.Duration{"direct": 0, "in memory in front": 2 * limit} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := testbed.New(t, redistest.Embedded(t))
			h := http.Handler(guarded(b.Locker.Guard(core.RejectConflicts), func(_ http.ResponseWriter, r *http.Request) {
				var got bytes.Buffer
				for range parts {
					_, err := io.CopyN(&got, r.Body, size/parts)
					assert.NoError(t, err)
					time.Sleep(limit)
					assert.NoError(t, r.Context().Err())
				}
				_, err := io.Copy(&got, r.Body)
				assert.NoError(t, err)
				assert.Equal(t, size, got.Len())
			}, httplock.WithBodyTimeout(limit)))
			if readTimeout > 0 {
				inner := h
				h = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					content, err := io.ReadAll(r.Body)
					assert.NoError(t, err)
					r.Body = io.NopCloser(bytes.NewReader(content))
					inner.ServeHTTP(w, r)
				})
			}
			srv := httptest.NewUnstartedServer(h)
			srv.Config.ReadTimeout = readTimeout
			srv.Start()
			defer srv.Close()
			resp, err := testbed.Send(srv.Client(), testbed.ToServer(t.Context(), t, srv.URL+testbed.OrderPath, strings.Repeat("x", size)))
			require.NoError(t, err)
			require.Equal(t, http.StatusOK, resp.Status)
		})
	}
}

// raw speaks HTTP/1.1 by hand.
func raw(t *testing.T, h http.Handler, readTimeout time.Duration) (net.Conn, *bufio.Reader) {
	t.Helper()
	srv := httptest.NewUnstartedServer(h)
	srv.Config.ReadTimeout = readTimeout
	srv.Start()
	t.Cleanup(srv.Close)
	conn, err := net.Dial("tcp", srv.Listener.Addr().String())
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	require.NoError(t, conn.SetDeadline(time.Now().Add(10*time.Second)))
	return conn, bufio.NewReader(conn)
}

func send(t *testing.T, conn net.Conn, text string) {
	t.Helper()
	_, err := io.WriteString(conn, text)
	require.NoError(t, err)
}

func answer(t *testing.T, answers *bufio.Reader) (resp *http.Response, body string) {
	t.Helper()
	resp, err := http.ReadResponse(answers, nil)
	require.NoError(t, err)
	got, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	return resp, string(got)
}

func headOf(length int, more string) string {
	return fmt.Sprintf("POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n%s\r\n", testbed.OrderPath, length, more)
}

// A read deadline of the service's own, or its ReadTimeout, counts if it is the earlier one: before the key, and
// with a ReadTimeout under it.
func TestBody_AnEarlierReadDeadlineCounts(t *testing.T) {
	t.Parallel()
	b := testbed.New(t, redistest.Embedded(t))
	expire := func(w http.ResponseWriter) {
		assert.NoError(t, http.NewResponseController(w).SetReadDeadline(time.Now()))
	}
	h := guarded(b.Locker.Guard(core.RejectConflicts), func(w http.ResponseWriter, r *http.Request) {
		expire(w)
		_, err := io.ReadAll(r.Body)
		assert.ErrorIs(t, err, os.ErrDeadlineExceeded)
	}, httplock.WithReadAhead(10))
	front := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		expire(w)
		h.ServeHTTP(w, r)
	})
	for _, test := range []struct {
		h           http.Handler
		readTimeout time.Duration
		sent        int
		status      int
	}{
		{h, bodyTime, 1, http.StatusRequestTimeout},
		{front, 0, 5, http.StatusRequestTimeout},
		{front, time.Hour, 5, http.StatusRequestTimeout},
		{h, time.Hour, 50, http.StatusOK},
	} {
		conn, answers := raw(t, test.h, test.readTimeout)
		send(t, conn, headOf(100, "")+strings.Repeat("x", test.sent))
		resp, _ := answer(t, answers)
		require.Equal(t, test.status, resp.StatusCode)
		require.True(t, resp.Close)
		_, err := answers.ReadByte()
		require.ErrorIs(t, err, io.EOF, "the connection is closed")
	}
}

// What a handler sees of a body is as it was sent, trailers too.
func TestBody_TrailersAndLengthStay(t *testing.T) {
	t.Parallel()
	b := testbed.New(t, redistest.Embedded(t))
	for _, size := range []int{0, 10, 200_000} {
		body := strings.Repeat("x", size)
		url, client := testbed.Serve(t, guarded(b.Locker.Guard(core.RejectConflicts), func(_ http.ResponseWriter, r *http.Request) {
			assert.EqualValues(t, -1, r.ContentLength)
			assert.Contains(t, r.Trailer, "X-Sum")
			got, err := io.ReadAll(r.Body)
			assert.NoError(t, err)
			assert.Equal(t, body, string(got))
			assert.Equal(t, "42", r.Trailer.Get("X-Sum"))
		}))
		r := testbed.ToServer(t.Context(), t, url+testbed.OrderPath, body)
		r.Body, r.ContentLength = io.NopCloser(iotest.HalfReader(strings.NewReader(body))), -1
		r.Trailer = http.Header{"X-Sum": {"42"}}
		resp, err := testbed.Send(client, r)
		require.NoError(t, err)
		require.Equal(t, http.StatusOK, resp.Status)
	}
}

// A guard further in leaves the limit to the outermost one.
func TestBody_NestedGuards(t *testing.T) {
	t.Parallel()
	b := testbed.New(t, redistest.Embedded(t))
	var late atomic.Int64
	inner := httplock.PerKey(b.Locker.Guard(core.RejectConflicts), func(*http.Request) (string, error) { return "inner", nil },
		httplock.WithReadAhead(50), httplock.WithBodyTimeout(time.Hour))(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := io.ReadAll(r.Body); assert.ErrorIs(t, err, os.ErrDeadlineExceeded) {
			late.Add(1)
		}
		w.WriteHeader(http.StatusUnprocessableEntity)
	}))
	conn, answers := raw(t, guarded(b.Locker.Guard(core.RejectConflicts), inner.ServeHTTP, httplock.WithReadAhead(10), httplock.WithBodyTimeout(bodyTime)), 0)
	send(t, conn, headOf(1000, "")+strings.Repeat("x", 100))
	resp, _ := answer(t, answers)
	require.Equal(t, http.StatusUnprocessableEntity, resp.StatusCode)
	require.EqualValues(t, 1, late.Load())
}

func TestBody_StreamsAreNotParked(t *testing.T) {
	t.Parallel()
	b := testbed.New(t, redistest.Embedded(t))
	b.Hold(t)
	parking := &testbed.Parking{}
	h := guarded(b.Locker.Guard(parking), mustNotRun(t), httplock.WithStreamBody())
	testbed.RequireProblem(t, testbed.Call(t, h, http.MethodPost, testbed.OrderPath, "x"), http.StatusConflict, "conflict", true)
	require.Empty(t, parking.Parked())
	r := testbed.Request(t, http.MethodPost, testbed.OrderPath, "")
	r.Body = http.NoBody
	require.Equal(t, http.StatusAccepted, testbed.Do(h, r).Status, "there is nothing to stream")
}

// A body that middleware in front caps is refused where it would wait, and else is the handler's to refuse.
func TestBody_CappedInFront(t *testing.T) {
	t.Parallel()
	b := testbed.New(t, redistest.Embedded(t))
	for _, policy := range []core.ConflictPolicy{nil, testbed.Patient{}} {
		h := guarded(b.Locker.Guard(policy), func(w http.ResponseWriter, r *http.Request) {
			got, err := io.ReadAll(r.Body)
			assert.Equal(t, "xy", string(got))
			var capped *http.MaxBytesError
			assert.ErrorAs(t, err, &capped)
			w.WriteHeader(http.StatusRequestEntityTooLarge)
		})
		r := testbed.Request(t, http.MethodPost, testbed.OrderPath, "xyz")
		r.Body = http.MaxBytesReader(httptest.NewRecorder(), r.Body, 2)
		resp := testbed.Do(h, r)
		require.Equal(t, http.StatusRequestEntityTooLarge, resp.Status)
		require.Empty(t, resp.Body, "the handler answered")
	}
}

// A request without a body pays nothing for the limit on others.
func TestBody_NoneCostsNothing(t *testing.T) {
	b := testbed.New(t, redistest.Embedded(t))
	m, err := httplock.New(b.Locker.Guard(core.RejectConflicts))
	require.NoError(t, err)
	r := testbed.Request(t, http.MethodPost, "/", "")
	r.Body = http.NoBody
	require.LessOrEqual(t, httplock.BodyAllocs(m, r), 1.0, "the request's state, of which the body's is a part")
}

// Before it writes a response net/http reads on, under the key, if the handler did not, also of a body that is capped.
func TestBody_ThatTheHandlerDoesNotReadKeepsNoKey(t *testing.T) {
	t.Parallel()
	b := testbed.New(t, redistest.Embedded(t))
	wrote := make(chan struct{})
	guarded := guarded(b.Locker.Guard(core.RejectConflicts), func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write(make([]byte, 8<<10))
		close(wrote)
	}, httplock.WithBodyTimeout(bodyTime), httplock.WithReadAhead(1000))
	conn, _ := raw(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Body = http.MaxBytesReader(w, r.Body, 1<<20)
		guarded.ServeHTTP(w, r)
	}), 0)
	send(t, conn, headOf(100_000, "")+strings.Repeat("x", 5000))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for err := error(nil); err == nil; _, err = io.WriteString(conn, "x") {
			time.Sleep(20 * time.Millisecond)
		}
	}()
	select {
	case <-wrote:
	case <-time.After(time.Minute): // the client takes half an hour for its body
		require.Fail(t, "the handler still writes")
	}
	_ = conn.Close()
	<-ended
}

// A client's mistakes about its body never get its key: what it announces, how it frames it, and a method that has none.
func TestBody_ThatLies(t *testing.T) {
	t.Parallel()
	b := testbed.New(t, redistest.Embedded(t))
	var runs atomic.Int64
	for name, test := range map[string]struct {
		send   string
		leaves bool // the client says no more
		status int  // of the first response
	}{
		"less than announced":           {headOf(1000, "") + "abc", true, http.StatusBadRequest},
		"more than announced":           {headOf(2, "") + "abGET / HTTP/1.1\r\n\r\n", false, http.StatusOK}, // the rest is another request, a bad one
		"a chunk that is none":          {"POST " + testbed.OrderPath + " HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", false, http.StatusBadRequest},
		"a chunk that ends early":       {"POST " + testbed.OrderPath + " HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabc", true, http.StatusBadRequest},
		"chunks":                        {"POST " + testbed.OrderPath + " HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n", false, http.StatusOK},
		"GET with a body":               {"GET " + testbed.OrderPath + " HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nab", false, http.StatusOK},
		"GET with a body that is late":  {"GET " + testbed.OrderPath + " HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nab", false, http.StatusRequestTimeout},
		"Expect that nobody knows":      {headOf(2, "Expect: 200-maybe\r\n") + "ab", false, http.StatusExpectationFailed},
		"Expect and a body all at once": {headOf(2, "Expect: 100-Continue\r\n") + "ab", false, http.StatusOK},
	} {
		for policyName, policy := range map[string]core.ConflictPolicy{"reject": nil, "wait": testbed.Patient{}, "park": &testbed.Parking{}} {
			runs.Store(0)
			conn, answers := raw(t, guarded(b.Locker.Guard(policy), func(_ http.ResponseWriter, r *http.Request) {
				runs.Add(1)
				got, err := io.ReadAll(r.Body)
				assert.NoError(t, err)
				assert.Equal(t, "ab", string(got))
			}, httplock.WithLockedSafeMethods(), httplock.WithBodyTimeout(bodyTime)), 0)
			send(t, conn, test.send)
			if test.leaves {
				require.NoError(t, conn.(*net.TCPConn).CloseWrite())
			}
			resp, _ := answer(t, answers)
			for resp.StatusCode == http.StatusContinue {
				resp, _ = answer(t, answers)
			}
			if resp.StatusCode == 499 && test.leaves { // net/http may have noticed
				resp.StatusCode = test.status
			}
			require.Equal(t, test.status, resp.StatusCode, "%s, %s", name, policyName)
			want := int64(0)
			if test.status == http.StatusOK {
				want = 1
			}
			require.Equal(t, want, runs.Load(), "%s, %s", name, policyName)
			b.RequireFree(t)
			_ = conn.Close()
		}
	}
}

// After Expect: 100-continue a refusal closes the connection, since nobody knows whether the body follows; any other keeps it.
func TestBody_ConnectionAfterARefusal(t *testing.T) {
	t.Parallel()
	b := testbed.New(t, redistest.Embedded(t))
	release := b.Hold(t)
	h := guarded(b.Locker.Guard(core.RejectConflicts), ok, httplock.WithBodyTimeout(bodyTime))
	for name, test := range map[string]struct {
		send   string
		closes bool
	}{
		"Expect":             {headOf(2, "Expect: 100-continue\r\n"), true},
		"Expect, and a body": {headOf(2, "Expect: 100-continue\r\n") + "ab", true},
		"body":               {headOf(2, "") + "ab", false},
		"no body":            {headOf(0, ""), false},
	} {
		conn, answers := raw(t, h, 0)
		send(t, conn, test.send)
		resp, _ := answer(t, answers)
		require.Equal(t, http.StatusConflict, resp.StatusCode, name)
		require.Equal(t, test.closes, resp.Close, name)
		if test.closes {
			_, err := answers.ReadByte()
			require.Error(t, err, name)
			continue
		}
		send(t, conn, test.send)
		resp, _ = answer(t, answers)
		require.Equal(t, http.StatusConflict, resp.StatusCode, name)
	}
	release()
}

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
