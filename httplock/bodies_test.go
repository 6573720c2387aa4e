package httplock_test

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
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

// readsAll is a function of a service that reads a body to its end, and puts it back or not.
func readsAll(t *testing.T, putBack bool) func(r *http.Request) (string, error) {
	t.Helper()
	return func(r *http.Request) (string, error) {
		content, err := io.ReadAll(r.Body)
		assert.NoError(t, err)
		if putBack {
			r.Body = io.NopCloser(bytes.NewReader(content))
		}
		return "ann", nil
	}
}

// sized answers when it has read a body of this size.
func sized(t *testing.T, size int) http.HandlerFunc {
	t.Helper()
	return func(_ http.ResponseWriter, r *http.Request) {
		content, err := io.ReadAll(r.Body)
		assert.NoError(t, err)
		assert.Equal(t, size, len(content)) //nolint:testifylint // Len prints it
	}
}

// A handler sees all of a body or the request is refused, whichever function has read it, and whether or not what that found is needed.
func TestBody_ReadByAFunctionIsNeverCut(t *testing.T) {
	b := testbed.New(t, redistest.Embedded(t))
	content := strings.Repeat("x", 2<<20)
	for _, putBack := range []bool{true, false} {
		handler, status := sized(t, len(content)), http.StatusOK
		if !putBack {
			handler, status = mustNotRun(t), http.StatusRequestEntityTooLarge
		}
		read := readsAll(t, putBack)
		for name, opt := range map[string]httplock.Option{
			"WithPrincipal": httplock.WithPrincipal(read),
			"WithSkip": httplock.WithSkip(func(r *http.Request) bool {
				_, err := read(r)
				return err == nil
			}),
		} {
			h := guarded(b.Locker.Guard(core.RejectConflicts), handler, opt)
			require.Equal(t, status, testbed.Call(t, h, http.MethodPost, testbed.OrderPath, content).Status, "%s: %t", name, putBack)
		}
	}
}

// A function may cap what it reads.
func TestBody_ReadByAFunctionThatCapsIt(t *testing.T) {
	b := testbed.New(t, redistest.Embedded(t))
	parking := &testbed.Parking{}
	h := guarded(b.Locker.Guard(parking), sized(t, 5), httplock.WithReauthorize(func(*http.Request, string) error { return nil }),
		httplock.WithPrincipal(func(r *http.Request) (string, error) {
			r.Body = http.MaxBytesReader(nil, r.Body, 10)
			return readsAll(t, false)(r)
		}))
	require.Equal(t, http.StatusOK, testbed.Call(t, h, http.MethodPost, testbed.OrderPath, "hello").Status)
	b.Hold(t)
	require.Equal(t, http.StatusAccepted, testbed.Call(t, h, http.MethodPost, testbed.OrderPath, "hello").Status)
	_, content, err := httplock.Decode(t.Context(), parking.Parked()[0])
	require.NoError(t, err)
	require.Equal(t, "hello", string(content))
}

// Errors with a status, as those of echo v5 and v4.
type (
	methodError struct{ error }
	fieldError  struct {
		error
		Code int
	}
)

func (methodError) StatusCode() int { return http.StatusRequestEntityTooLarge }

// What a framework's cap cuts off is too long, and not broken off.
func TestBody_CappedByAFramework(t *testing.T) {
	b := testbed.New(t, redistest.Embedded(t))
	b.Hold(t)
	h := guarded(b.Locker.Guard(&testbed.Parking{}), mustNotRun(t), httplock.WithAnonymous())
	broken := errors.New("broken")
	for _, test := range []struct {
		err    error
		status int
	}{
		{&http.MaxBytesError{Limit: 2}, http.StatusRequestEntityTooLarge},
		{methodError{broken}, http.StatusRequestEntityTooLarge},
		{&fieldError{broken, http.StatusRequestEntityTooLarge}, http.StatusRequestEntityTooLarge},
		{&fieldError{broken, http.StatusTeapot}, http.StatusBadRequest},
		{syscall.ECONNRESET, http.StatusBadRequest},
	} {
		r := testbed.Request(t, http.MethodPost, testbed.OrderPath, "")
		r.Body, r.ContentLength = io.NopCloser(iotest.ErrReader(test.err)), -1
		require.Equal(t, test.status, testbed.Do(h, r).Status, test.err)
	}
}

// What is in memory as a whole may be read again, however much that is.
func TestBody_InMemoryMayBeReadToItsEnd(t *testing.T) {
	b := testbed.New(t, redistest.Embedded(t))
	content := strings.Repeat("x", 100<<10)
	inner := httplock.PerKey(b.Locker.Guard(core.RejectConflicts), func(*http.Request) (string, error) { return "inner", nil },
		httplock.WithMaxBody(64<<10), httplock.WithSkip(func(r *http.Request) bool {
			_, _ = readsAll(t, false)(r)
			return false
		}))(sized(t, len(content)))
	outer := guarded(b.Locker.Guard(testbed.Patient{}), inner.ServeHTTP)
	require.Equal(t, http.StatusOK, testbed.Call(t, outer, http.MethodPost, testbed.OrderPath, content).Status)
}

// A function that keeps to itself that there was no memory for the body has not made a key of it.
// Not parallel: it looks at what the bodies of the whole process take up.
func TestBody_WithoutMemoryMakesNoKey(t *testing.T) {
	b := testbed.New(t, redistest.Embedded(t))
	for _, putBack := range []bool{true, false} {
		mux := http.NewServeMux()
		mux.Handle("/orders/{id}", httplock.PerKey(b.Locker.Guard(core.RejectConflicts), func(r *http.Request) (string, error) {
			free := httplock.TakeWaitingBytes(httplock.DefaultMaxWaitingBytes)
			defer free() // another request has its key
			key := "order:" + r.FormValue("order")
			if putBack {
				r.Body = io.NopCloser(strings.NewReader(""))
			}
			return key, nil
		})(mustNotRun(t)))
		r := testbed.Request(t, http.MethodPost, testbed.OrderPath, "order=42")
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		testbed.RequireProblem(t, testbed.Do(mux, r), http.StatusServiceUnavailable, "waiting-full", true)
		require.Zero(t, httplock.WaitingBytes())
	}
}

// multipartOf is a multipart request without a length.
func multipartOf(t *testing.T, method string) *http.Request {
	t.Helper()
	contentType, content := form(t, [2]string{"order", "42"}, [2]string{"@file", "x"})
	r := testbed.Request(t, method, testbed.OrderPath, content)
	r.Header.Set("Content-Type", contentType)
	r.ContentLength = -1
	return r
}

// ParseForm does not touch a multipart form.
func TestBody_ParseFormLeavesMultipart(t *testing.T) {
	b := testbed.New(t, redistest.Embedded(t))
	fields := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		assert.NoError(t, r.ParseMultipartForm(1<<20)) // FormValue calls it if nobody has called ParseForm
		_, _ = io.WriteString(w, r.PostFormValue("order"))
	})
	parses := func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			assert.NoError(t, r.ParseForm())
			h.ServeHTTP(w, r)
		})
	}
	parking := &testbed.Parking{}
	byForm := httplock.PerKey(b.Locker.Guard(parking), httplock.Form("order:", "order"), httplock.WithAnonymous())
	resp := testbed.Do(parses(byForm(fields)), multipartOf(t, http.MethodPost))
	require.Equal(t, [2]any{http.StatusOK, "42"}, [2]any{resp.Status, resp.Body})

	r := multipartOf(t, http.MethodPost)
	r.Header.Set("Idempotency-Key", "k")
	resp = testbed.Do(parses(idempotent(t, b, nil, fields)), r)
	require.Equal(t, [2]any{http.StatusOK, "42"}, [2]any{resp.Status, resp.Body})

	defer b.HoldKey(t, "order:42")()
	require.Equal(t, http.StatusAccepted, testbed.Do(parses(byForm(mustNotRun(t))), multipartOf(t, http.MethodPost)).Status)
	require.Len(t, parking.Parked(), 1)
}

// One whose parsing failed in front looks the same, and is not whole.
func TestBody_MultipartThatCouldNotBeParsedIsNotWhole(t *testing.T) {
	b := testbed.New(t, redistest.Embedded(t))
	defer b.Hold(t)()
	parking := &testbed.Parking{}
	h := guarded(b.Locker.Guard(parking), mustNotRun(t), httplock.WithAnonymous())
	contentType, content := form(t, [2]string{"note", strings.Repeat("x", 100<<10)}, [2]string{"order", "42"})
	_, boundary, _ := strings.Cut(contentType, "boundary=")
	r := testbed.Request(t, http.MethodPost, testbed.OrderPath, "--"+boundary+"\r\nno header\r\n"+content)
	r.Header.Set("Content-Type", contentType)
	r.ContentLength = -1
	require.Error(t, r.ParseMultipartForm(1<<20))
	require.Equal(t, http.StatusConflict, testbed.Do(h, r).Status)
	require.Empty(t, parking.Parked())
}

// A multipart form is parsed whatever the method, by a replay too.
func TestBody_MultipartOfAnyMethodIsParked(t *testing.T) {
	b := testbed.New(t, redistest.Embedded(t))
	defer b.HoldKey(t, "order:42")()
	mux := http.NewServeMux()
	mux.Handle("/orders/{id}", httplock.PerKey(b.Locker.Guard(&testbed.Parking{}), func(r *http.Request) (string, error) {
		return "order:" + r.FormValue("order"), nil
	}, httplock.WithAnonymous())(mustNotRun(t)))
	require.Equal(t, http.StatusAccepted, testbed.Do(mux, multipartOf(t, http.MethodDelete)).Status)
}

// A guard that refuses a replay because of what WithSkip's function read has seen it.
func TestReplay_RefusedForItsBodyWasNotAnsweredInFront(t *testing.T) {
	b := testbed.New(t, redistest.Embedded(t))
	h := guarded(b.Locker.Guard(core.RejectConflicts), mustNotRun(t), httplock.WithMaxBody(1<<10), httplock.WithReadAhead(1<<10),
		httplock.WithSkip(func(r *http.Request) bool {
			_, _ = readsAll(t, false)(r)
			return false
		}))
	err := httplock.Replay(h)(t.Context(), message(t, testbed.Request(t, http.MethodPost, testbed.OrderPath, strings.Repeat("x", 100<<10))))
	require.ErrorContains(t, err, "the body is too large")
	require.NotContains(t, err.Error(), "in front of its guard")
	require.True(t, isHandedBack(err))
}

// An access log around a mux sees the route, as it does without a guard.
func TestServe_MiddlewareInFrontSeesTheRoute(t *testing.T) {
	m, err := httplock.New(testbed.New(t, redistest.Embedded(t)).Locker.Guard(core.RejectConflicts))
	require.NoError(t, err)
	mux := http.NewServeMux()
	mux.HandleFunc("POST /orders/{id}", func(w http.ResponseWriter, r *http.Request) { ok(w, r) })
	for name, h := range map[string]http.Handler{
		"no guard":          mux,
		"FromConfig":        httplock.FromConfig(fixedRoutes{"/orders/{id}": {Middleware: m, Key: orderKey}})(mux),
		"Timeout":           httplock.Timeout(time.Hour)(mux),
		"Timeout and guard": httplock.Timeout(time.Hour)(httplock.FromConfig(fixedRoutes{"/orders/{id}": {Middleware: m, Key: orderKey}})(mux)),
	} {
		r := testbed.Request(t, http.MethodPost, testbed.OrderPath, "")
		require.Equal(t, http.StatusOK, testbed.Do(h, r).Status, name)
		require.Equal(t, [2]string{"POST /orders/{id}", "s3cret-42"}, [2]string{r.Pattern, r.PathValue("id")}, name)
	}
}

// A function that answers problems may log what was sent.
func TestProblem_HandlersReadTheWholeBody(t *testing.T) {
	b := testbed.New(t, redistest.Embedded(t))
	b.Hold(t)
	h := guarded(b.Locker.Guard(&testbed.Parking{}), mustNotRun(t), httplock.WithAnonymous(), httplock.WithMaxBody(3),
		httplock.WithErrorHandler(func(w http.ResponseWriter, r *http.Request, p *httplock.Problem) {
			content, err := io.ReadAll(r.Body)
			assert.NoError(t, err)
			assert.Equal(t, "hello", string(content))
			w.WriteHeader(p.Status)
		}))
	require.Equal(t, http.StatusRequestEntityTooLarge, testbed.Do(h, testbed.Request(t, http.MethodPost, testbed.OrderPath, "hello")).Status)
}

// What decompresses in front may leave the header: what is stored has the coding that it is said to have, or is not stored.
func TestCapture_DecompressedBodiesHaveNoCoding(t *testing.T) {
	for name, test := range map[string]struct {
		coding, body string
		parked       bool
		kept         string
	}{
		"gzip, decompressed": {"gzip", "{}", true, ""},
		"gzip, as it is":     {"gzip", "\x1f\x8b...", true, "gzip"},
		"no magic":           {"br", "{}", false, ""},
		"two codings":        {"gzip; br", "{}", true, "gzip; br"},
		"no coding":          {"", "{}", true, ""},
	} {
		b, p := testbed.New(t, redistest.Embedded(t)), &testbed.Parking{}
		b.Hold(t)
		h := guarded(b.Locker.Guard(p), mustNotRun(t), httplock.WithAnonymous())
		r := testbed.Request(t, http.MethodPost, testbed.OrderPath, test.body)
		if test.kept == "" {
			r.ContentLength = 100 // that of what was sent
		}
		if test.coding != "" {
			r.Header["Content-Encoding"] = strings.Split(test.coding, "; ")
		}
		if status := testbed.Do(h, r).Status; !test.parked {
			require.Equal(t, http.StatusConflict, status, name)
			continue
		}
		require.Len(t, p.Parked(), 1, name)
		got, content, err := httplock.Decode(t.Context(), p.Parked()[0])
		require.NoError(t, err)
		require.Equal(t, [2]string{test.kept, test.body}, [2]string{strings.Join(got.Header["Content-Encoding"], "; "), string(content)}, name)
	}
}

// ParseForm reads a form whose Content-Type has parameters that are none.
func TestCapture_FormsMayHaveBadParameters(t *testing.T) {
	b, p := testbed.New(t, redistest.Embedded(t)), &testbed.Parking{}
	front := func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			r.FormValue("_method")
			h.ServeHTTP(w, r)
		})
	}
	send := func(h http.Handler, amount string) testbed.Answer {
		return testbed.Do(front(h), described(t, "k", "application/x-www-form-urlencoded; charset", "amount="+amount))
	}
	h := idempotent(t, b, p, ok)
	first := send(h, "5")
	require.Equal(t, http.StatusOK, first.Status)
	requireReplayed(t, first, send(h, "5"))
	testbed.RequireProblem(t, send(h, "7"), http.StatusUnprocessableEntity, "idempotency-key-reused", false)
	b.Hold(t)
	require.Equal(t, http.StatusAccepted, send(guarded(b.Locker.Guard(p), mustNotRun(t), httplock.WithAnonymous()), "5").Status)
	_, content, err := httplock.Decode(t.Context(), p.Parked()[0])
	require.NoError(t, err)
	require.Equal(t, "amount=5", string(content))
}

// counted is a body as metrics and traces wrap it, and peeked one whose beginning was looked at.
type (
	counted struct {
		io.ReadCloser
		mu   sync.Mutex
		read int64
	}
	peeked struct {
		*bufio.Reader
		io.Closer
	}
	inflated[R interface {
		comparable
		io.Reader
	}] struct { // from the first read to the end
		io.ReadCloser
		zip R
	}
)

func (c *counted) Read(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n, err := c.ReadCloser.Read(p)
	c.read += int64(n)
	return n, err
}

func (i *inflated[R]) Read(p []byte) (n int, err error) {
	if i.zip == *new(R) {
		zip, err := gzip.NewReader(i.ReadCloser)
		if err != nil {
			return 0, err
		}
		i.zip = any(zip).(R)
	}
	if n, err = i.zip.Read(p); errors.Is(err, io.EOF) {
		i.zip = *new(R)
	}
	return n, err
}

// Whatever middleware in front does with a body, it is parked as the handler would have seen it, or it is not parked.
func TestCapture_OfWhatMiddlewareLeaves(t *testing.T) {
	var packed bytes.Buffer
	zip := gzip.NewWriter(&packed)
	_, err := io.WriteString(zip, "[1, 2]")
	require.NoError(t, err)
	require.NoError(t, zip.Close())
	b := testbed.New(t, redistest.Embedded(t))
	b.Hold(t)
	count := func(r *http.Request) { r.Body = &counted{ReadCloser: r.Body} }
	var h atomic.Pointer[http.HandlerFunc]
	var servers [2]*httptest.Server
	for i := range servers {
		servers[i] = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { (*h.Load())(w, r) }))
		servers[i].EnableHTTP2 = i > 0
		servers[i].StartTLS()
		t.Cleanup(servers[i].Close)
	}
	unmeasured := func(r *http.Request) { r.ContentLength = -1 }
	first := func(r *http.Request) { _, _ = io.ReadFull(r.Body, make([]byte, 1)) }
	for name, test := range map[string]struct {
		sent   string
		front  []func(r *http.Request)
		parked string // empty: it is not, unless nothing was sent, or read
	}{
		"nothing":               {"[1, 2]", nil, "[1, 2]"},
		"counted":               {"[1, 2]", []func(*http.Request){count}, "[1, 2]"},
		"counted, nothing sent": {"", []func(*http.Request){count}, ""},
		"counted, begun":        {"[1, 2]", []func(*http.Request){count, first}, ""},
		"begun, counted":        {"[1, 2]", []func(*http.Request){first, count}, ""},
		"begun in a tee": {"[1, 2]", []func(*http.Request){func(r *http.Request) {
			r.Body = struct {
				io.Reader
				io.Closer
			}{io.TeeReader(r.Body, io.Discard), r.Body}
		}, first}, ""},
		"peeked": {"[1, 2]", []func(*http.Request){func(r *http.Request) {
			p := peeked{bufio.NewReader(r.Body), r.Body}
			_, _ = p.Peek(1)
			r.Body = p
		}}, "[1, 2]"},
		"put back": {"[1, 2]", []func(*http.Request){func(r *http.Request) {
			content, _ := io.ReadAll(r.Body)
			r.Body = io.NopCloser(bytes.NewReader(content))
		}}, "[1, 2]"},
		"put back in front of the rest": {"[1, 2]", []func(*http.Request){func(r *http.Request) {
			begin := make([]byte, 1)
			_, _ = io.ReadFull(r.Body, begin)
			r.Body = io.NopCloser(io.MultiReader(bytes.NewReader(begin), r.Body))
		}}, "[1, 2]"},
		"dumped": {"[1, 2]", []func(*http.Request){func(r *http.Request) { _, _ = httputil.DumpRequest(r, true) }}, "[1, 2]"},
		"thrown away": {"[1, 2]", []func(*http.Request){func(r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			r.Body = http.NoBody
		}}, ""},
		"inflated late":            {packed.String(), []func(*http.Request){func(r *http.Request) { r.Body = &inflated[*gzip.Reader]{ReadCloser: r.Body} }}, "[1, 2]"},
		"inflated by something":    {packed.String(), []func(*http.Request){func(r *http.Request) { r.Body = &inflated[io.Reader]{ReadCloser: r.Body} }}, "[1, 2]"},
		"unmeasured":               {"[1, 2]", []func(*http.Request){unmeasured, count}, "[1, 2]"},
		"unmeasured, nothing sent": {"", []func(*http.Request){unmeasured, count}, ""},
		"drained, nothing sent":    {"", []func(*http.Request){func(r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) }}, ""},
		"of another form of net/http": {"[1, 2]", []func(*http.Request){func(r *http.Request) {
			if field := reflect.ValueOf(r.Body).Elem().FieldByName("src"); field.IsValid() {
				src := reflect.NewAt(field.Type(), field.Addr().UnsafePointer()).Interface().(*io.Reader)
				*src = &struct{ io.Reader }{*src}
			}
		}}, "[1, 2]"},
	} {
		for i := range 8 {
			srv, announced, guardedFront := servers[i&1], i&2 > 0, i&4 > 0
			what := fmt.Sprintf("%s, HTTP/2: %t, with a length: %t, between two guards: %t", name, srv.EnableHTTP2, announced, guardedFront)
			p := &testbed.Parking{}
			inner := guarded(b.Locker.Guard(p), mustNotRun(t), httplock.WithAnonymous())
			serve := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				for _, front := range test.front {
					front(r)
				}
				inner.ServeHTTP(w, r)
			})
			if guardedFront {
				key := func(*http.Request) (string, error) { return "outer", nil }
				serve = httplock.PerKey(b.Locker.Guard(core.RejectConflicts), key)(serve).ServeHTTP
			}
			h.Store(&serve)
			r := testbed.ToServer(t.Context(), t, srv.URL+testbed.OrderPath, test.sent)
			if !announced {
				r.Body, r.ContentLength = io.NopCloser(strings.NewReader(test.sent)), -1
			}
			r.Header.Set("Content-Encoding", map[bool]string{true: "gzip"}[strings.HasPrefix(name, "inflated")])
			resp, err := testbed.Send(srv.Client(), r)
			require.NoError(t, err)
			if test.parked == "" && (test.sent != "" || name == "drained, nothing sent" && !announced && !guardedFront) {
				require.Equal(t, http.StatusConflict, resp.Status, what)
				continue
			}
			require.Equal(t, http.StatusAccepted, resp.Status, what)
			got, content, err := httplock.Decode(t.Context(), p.Parked()[0])
			require.NoError(t, err)
			require.Equal(t, test.parked, string(content), what)
			require.Empty(t, got.Header.Get("Content-Encoding"), what)
		}
	}
}
