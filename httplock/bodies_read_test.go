package httplock_test

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"testing/iotest"

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
