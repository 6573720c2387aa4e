package httplock_test

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"mime/multipart"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/internal/redistest"
	"github.com/perkey-go/perkey/retry"
)

func TestWriterIsAsAbleAsTheServers(t *testing.T) {
	b := setup(t, redistest.Embedded(t))
	// What was flushed reaches the client before the key is free.
	guard := core.NewGuard(b.locker, retry.Policy{MaxWait: time.Minute})
	mux := http.NewServeMux()
	handle := func(path string, handler http.HandlerFunc) {
		mux.Handle(path, guardedAt(guard, handler))
	}
	handle("/controller", func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		c := http.NewResponseController(w)
		assert.NoError(t, c.SetWriteDeadline(time.Now().Add(time.Minute)))
		assert.NoError(t, c.SetReadDeadline(time.Now().Add(time.Minute)))
		assert.NoError(t, c.EnableFullDuplex())
		assert.NoError(t, c.Flush())
		_, isPusher := w.(http.Pusher)
		assert.True(t, isPusher)
		assert.ErrorIs(t, w.(http.Pusher).Push("/x", nil), http.ErrNotSupported)
		_, err := io.Copy(w, io.LimitReader(strings.NewReader("controlled"), 100))
		assert.NoError(t, err)
	})
	handle("/hijack", func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := w.(http.Hijacker).Hijack()
		if assert.NoError(t, err) {
			_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 8\r\nConnection: close\r\n\r\nhijacked")
			_ = conn.Close()
		}
	})
	url, client := serve(t, mux)
	for path, want := range map[string]string{"/controller": "controlled", "/hijack": "hijacked"} {
		resp, err := send(client, toServer(t.Context(), t, url+path, "x"))
		require.NoError(t, err)
		require.Equal(t, want, resp.body)
	}
}

func guardedAt(guard *core.Guard, handler http.HandlerFunc) http.Handler {
	mux := guarded(guard, handler)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.URL.Path = ordersPath
		mux.ServeHTTP(w, r)
	})
}

func TestStreamKeepsItsKeyPastItsLease(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		b := setup(t, env, core.WithTTL(900*time.Millisecond))
		more := make(chan struct{})
		url, client := serve(t, guarded(core.NewGuard(b.locker, nil), func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, "data: 1\n\n")
			w.(http.Flusher).Flush()
			<-more
			assert.NoError(t, r.Context().Err())
			_, _ = io.WriteString(w, "data: 2\n\n")
		}))
		resp, err := client.Do(toServer(t.Context(), t, url+ordersPath, ""))
		require.NoError(t, err)
		events := bufio.NewReader(resp.Body)
		first, err := events.ReadString('\n')
		require.NoError(t, err)
		require.Equal(t, "data: 1\n", first)

		for range 5 { // well over one lease
			<-b.renewed
		}
		_, err = b.rival.TryAcquire(t.Context(), "order:"+secret)
		require.ErrorIs(t, err, core.ErrConflict)
		close(more)
		rest, err := io.ReadAll(events)
		require.NoError(t, err)
		require.Contains(t, string(rest), "data: 2")
		require.NoError(t, resp.Body.Close())
		b.requireFree(t)
	})
}

func TestLostLeaseAfterHijackWritesNothing(t *testing.T) {
	t.Parallel()
	b := setup(t, redistest.Embedded(t), core.WithTTL(time.Second))
	inner := guarded(core.NewGuard(b.locker, nil), func(w http.ResponseWriter, r *http.Request) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if !assert.NoError(t, err) {
			return
		}
		b.loseLeases(t)
		<-r.Context().Done()
		assert.ErrorIs(t, context.Cause(r.Context()), core.ErrLeaseLost)
		_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 4\r\nConnection: close\r\n\r\nmine")
		_ = conn.Close()
	})
	over := make(chan bool, 1)
	url, client := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		watched := &watchedWriter{ResponseWriter: w}
		inner.ServeHTTP(watched, r)
		over <- watched.wrote
	}))
	resp, err := send(client, toServer(t.Context(), t, url+ordersPath, ""))
	require.NoError(t, err)
	require.Equal(t, "mine", resp.body)
	require.False(t, <-over)
}

type watchedWriter struct {
	http.ResponseWriter
	wrote bool
}

func (w *watchedWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *watchedWriter) WriteHeader(status int) {
	w.wrote = true
	w.ResponseWriter.WriteHeader(status)
}

func TestMultipartFilesAreRemovedByTheServer(t *testing.T) {
	b := setup(t, redistest.Embedded(t))
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	url, client := serve(t, guarded(core.NewGuard(b.locker, nil), func(_ http.ResponseWriter, r *http.Request) {
		assert.NoError(t, r.ParseMultipartForm(1))
		files, _ := filepath.Glob(filepath.Join(dir, "multipart-*"))
		assert.Len(t, files, 1)
	}))
	var body bytes.Buffer
	form := multipart.NewWriter(&body)
	part, err := form.CreateFormFile("file", "a.bin")
	require.NoError(t, err)
	_, _ = part.Write(make([]byte, 20<<20))
	require.NoError(t, form.Close())
	r := toServer(t.Context(), t, url+ordersPath, body.String())
	r.Header.Set("Content-Type", form.FormDataContentType())
	resp, err := send(client, r)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, resp.status)
	redistest.Eventually(t, func() bool {
		files, err := os.ReadDir(dir)
		return err == nil && len(files) == 0
	}, "the server removes the file")
}

func TestCallerSeesTheRouteName(t *testing.T) {
	b := setup(t, redistest.Embedded(t))
	b.hold(t)
	h := guarded(core.NewGuard(b.locker, nil), mustNotRun(t))
	call(t, h, http.MethodPost, ordersPath, "")
	require.Equal(t, "POST /orders/{id}", (<-b.conflict).Name)

	mux := http.NewServeMux()
	mux.Handle("PUT /carts/{id}", httplock.PerKey(core.NewGuard(b.locker, nil), orderKey)(mustNotRun(t)))
	call(t, mux, http.MethodPut, "/carts/"+secret, "")
	require.Equal(t, "PUT /carts/{id}", (<-b.conflict).Name)
}
