package conformance

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"mime/multipart"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/test/testbed"
)

// streaming posts to a handler that writes a line, flushes it and waits for more
// before it writes the next one. It returns when the first line is there.
func (t *fixture) streaming(b *testbed.Fixture, flush func(http.ResponseWriter) error) (more func(), rest func() string) {
	t.Helper()
	on := make(chan struct{})
	s := t.serve(orders(func(w http.ResponseWriter, r *http.Request) error {
		w.Header().Set("Content-Type", "text/event-stream")
		_, err := io.WriteString(w, "data: 1\n\n")
		assert.NoError(t, err)
		if !assert.NoError(t, flush(w)) {
			return nil
		}
		t.pause(on)
		assert.NoError(t, r.Context().Err())
		_, err = io.WriteString(w, "data: 2\n\n")
		return err
	}, lock(b, nil)))
	type begun struct {
		resp *http.Response
		err  error
	}
	started := make(chan begun, 1)
	r := t.request(s, http.MethodPost, testbed.OrderPath, "")
	go func() {
		resp, err := s.client.Do(r) //nolint:bodyclose // by who gets it
		started <- begun{resp, err}
	}()
	stream := await(t, started, "the first event is flushed")
	require.NoError(t, stream.err)
	t.Cleanup(func() { _ = stream.resp.Body.Close() })
	require.Equal(t, "text/event-stream", stream.resp.Header.Get("Content-Type"))
	events := bufio.NewReader(stream.resp.Body)
	first, err := events.ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "data: 1\n", first)
	return func() { close(on) }, func() string {
		rest, err := io.ReadAll(events)
		require.NoError(t, err)
		return string(rest)
	}
}

func flushes(t *fixture) {
	b := t.setUp()
	for _, flush := range []func(http.ResponseWriter) error{
		func(w http.ResponseWriter) error { return http.NewResponseController(w).Flush() },
		func(w http.ResponseWriter) error {
			flusher, able := w.(http.Flusher)
			if !able {
				return fmt.Errorf("the writer is no http.Flusher: %w", http.ErrNotSupported)
			}
			flusher.Flush()
			return nil
		},
	} {
		more, rest := t.streaming(b, flush)
		b.AssertHeld(t)
		more()
		require.Contains(t, rest(), "data: 2")
		b.RequireFree(t)
	}
}

func streamsEvents(t *fixture) {
	b := t.setUp(core.WithTTL(900 * time.Millisecond))
	more, rest := t.streaming(b, func(w http.ResponseWriter) error { return http.NewResponseController(w).Flush() })
	for range 5 { // well over one lease
		await(t, b.Renewals, "the lease is renewed")
	}
	b.AssertHeld(t)
	more()
	require.Contains(t, rest(), "data: 2")
	b.RequireFree(t)
}

func sayHijacked(conn net.Conn) error {
	defer func() { _ = conn.Close() }()
	_, err := io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 8\r\nConnection: close\r\n\r\nhijacked")
	return err
}

func hijacks(t *fixture) {
	b := t.setUp()
	for _, hijack := range []func(http.ResponseWriter) (net.Conn, *bufio.ReadWriter, error){
		func(w http.ResponseWriter) (net.Conn, *bufio.ReadWriter, error) {
			return http.NewResponseController(w).Hijack()
		},
		func(w http.ResponseWriter) (net.Conn, *bufio.ReadWriter, error) {
			hijacker, able := w.(http.Hijacker)
			if !able {
				return nil, nil, http.ErrNotSupported
			}
			return hijacker.Hijack()
		},
	} {
		s := t.serve(orders(func(w http.ResponseWriter, _ *http.Request) error {
			conn, _, err := hijack(w)
			if !assert.NoError(t, err) {
				return nil
			}
			b.AssertHeld(t)
			return sayHijacked(conn)
		}, lock(b, nil)))
		require.Equal(t, "hijacked", t.post(s, "").Body)
		b.RequireFree(t)
	}
}

func responseController(t *fixture) {
	b := t.setUp()
	s := t.serve(orders(func(w http.ResponseWriter, r *http.Request) error {
		c := http.NewResponseController(w)
		assert.NoError(t, c.SetReadDeadline(time.Now().Add(time.Minute)))
		assert.NoError(t, c.SetWriteDeadline(time.Now().Add(time.Minute)))
		assert.NoError(t, c.EnableFullDuplex())
		assert.Equal(t, "body", readTwice(t, r))
		w.WriteHeader(http.StatusOK) // echo does not know that Flush begins a response
		assert.NoError(t, c.Flush())
		_, err := io.Copy(w, io.LimitReader(strings.NewReader("controlled"), 100))
		return err
	}, lock(b, nil)))
	require.Equal(t, "controlled", t.post(s, "body").Body)
	b.RequireFree(t)
}

// countedListener is a listener that counts what its connections write.
type countedListener struct {
	net.Listener
	wrote *atomic.Int64
}

func (l countedListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	return countedConn{conn, l.wrote}, err
}

type countedConn struct {
	net.Conn
	wrote *atomic.Int64
}

func (c countedConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.wrote.Add(int64(n))
	return n, err
}

// releaseObserver calls a function when a key was released.
type releaseObserver struct {
	core.NopObserver
	released func()
}

func (o releaseObserver) OnReleased(context.Context, core.Released) { o.released() }

// lastBytes: a client that sends its next request at once does not meet its own key.
func lastBytes(t *fixture) {
	wrote, atRelease, content := &atomic.Int64{}, make(chan int64, 1), text(64<<10)
	b := t.setUp(core.WithObserver(releaseObserver{released: func() { atRelease <- wrote.Load() }}))
	srv := httptest.NewUnstartedServer(t.adapter.New(orders(func(w http.ResponseWriter, _ *http.Request) error {
		w.Header().Set("Content-Length", strconv.Itoa(len(content)))
		_, err := io.WriteString(w, content)
		return err
	}, lock(b, nil))))
	srv.Listener = countedListener{srv.Listener, wrote}
	srv.Start()
	t.Cleanup(srv.Close)
	t.eventually(func() bool { // a machine that stands still for 100 ms sends the rest
		wrote.Store(0)
		resp, err := testbed.Send(srv.Client(), testbed.ToServer(t.Context(), t, srv.URL+testbed.OrderPath, ""))
		require.NoError(t, err)
		require.Equal(t, content, resp.Body)
		return await(t, atRelease, "the release") < wrote.Load()
	}, "a response ends after the release of its key")
}

// uploads: net/http removes the files of a form that it finds in its own request,
// which is not the one that the handler has.
func uploads(t *fixture) {
	b := t.setUp()
	var name string
	s := t.serve(orders(func(w http.ResponseWriter, r *http.Request) error {
		if !assert.NoError(t, r.ParseMultipartForm(1)) {
			return nil
		}
		file, err := r.MultipartForm.File["file"][0].Open()
		if !assert.NoError(t, err) {
			return nil
		}
		defer func() { _ = file.Close() }()
		if onDisk, isFile := file.(*os.File); assert.True(t, isFile, "the file is on disk") {
			name = onDisk.Name()
		}
		return ok(w, r)
	}, lock(b, nil)))
	var body bytes.Buffer
	form := multipart.NewWriter(&body)
	part, err := form.CreateFormFile("file", "a.bin")
	require.NoError(t, err)
	_, _ = part.Write(make([]byte, 64<<10))
	require.NoError(t, form.Close())
	t.requireOK(t.do(s, t.typed(s, testbed.OrderPath, form.FormDataContentType(), body.String())))
	require.NotEmpty(t, name)
	t.eventually(func() bool {
		_, err := os.Stat(name)
		return os.IsNotExist(err)
	}, "the server removes the file")
}
