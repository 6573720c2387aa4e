package config_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/config"
	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

func TestMain(m *testing.M) {
	if os.Getenv(processVar) != "" {
		runProcess()
		return
	}
	redistest.Main(m)
}

// redisOf is how a file begins that is for a Redis of the test's own.
func redisOf(env *redistest.Env) string {
	return "redis: {addresses: ['" + env.Addr + "']}\nprefix: " + env.Prefix + "\n"
}

// load parses a file for a Redis of the test's own.
func load(t testing.TB, env *redistest.Env, file string) *config.File {
	t.Helper()
	f, err := config.ParseIn("perkey.yaml", []byte(redisOf(env)+file), environment)
	require.NoError(t, err)
	return f
}

// build makes a Runtime that is closed with the test.
func build(t testing.TB, env *redistest.Env, file string, opts ...config.Option) *config.Runtime {
	t.Helper()
	rt, err := config.Build(load(t, env, file), append([]config.Option{config.WithLogger(slog.New(slog.DiscardHandler))}, opts...)...)
	require.NoError(t, err)
	t.Cleanup(func() { _ = rt.Close() })
	return rt
}

// as is WithPrincipal of a function that knows one principal, which may always go on.
func as(name, principal string) config.Option {
	return config.WithPrincipal(name, func(*http.Request) (string, error) { return principal, nil }, func(*http.Request, string) error { return nil })
}

// placed are an error's problems, with their places.
func placed(t *testing.T, err error) (problems []string) {
	t.Helper()
	var e *config.Error
	require.ErrorAs(t, err, &e)
	for _, p := range e.Problems {
		problems = append(problems, p.String())
	}
	return problems
}

// service is an HTTP server with one route, whose handler says when it runs and waits until it may go on.
type service struct {
	http.Handler
	running chan *http.Request
	goOn    chan struct{}
}

// serve serves a pattern of ServeMux, guarded as the file says.
func serve(rt *config.Runtime, pattern string) *service {
	s := &service{running: make(chan *http.Request, 100), goOn: make(chan struct{}, 100)}
	mux := http.NewServeMux()
	mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
		s.running <- r
		<-s.goOn
		if r.Context().Err() != nil {
			w.WriteHeader(http.StatusTeapot)
		}
		_, _ = io.WriteString(w, "done")
	})
	s.Handler = httplock.FromConfig(rt)(mux)
	return s
}

func request(method, target string, headers ...string) *http.Request {
	r := httptest.NewRequest(method, target, strings.NewReader("body"))
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		r.Header.Set(name, value)
	}
	return r
}

// do sends a request, and returns what it was answered with.
func (s *service) do(r *http.Request) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	return w
}

// begin sends a request whose handler runs when begin returns, and goes on at end.
func (s *service) begin(t testing.TB, r *http.Request) (end func() *httptest.ResponseRecorder) {
	t.Helper()
	answer := make(chan *httptest.ResponseRecorder, 1)
	go func() { answer <- s.do(r) }()
	select {
	case <-s.running:
	case w := <-answer:
		require.Fail(t, "the handler did not run", "%d %s", w.Code, w.Body)
	}
	return func() *httptest.ResponseRecorder {
		s.goOn <- struct{}{}
		return <-answer
	}
}

// hold takes a key away from the guards.
func hold(t testing.TB, rt *config.Runtime, key string) (release func()) {
	t.Helper()
	var lease *core.Lease
	redistest.Eventually(t, func() bool { // a request that ended may still be about to release it
		var err error
		lease, err = rt.Locker().TryAcquire(t.Context(), key)
		if !errors.Is(err, core.ErrConflict) {
			require.NoError(t, err)
		}
		return err == nil
	}, "the key is free")
	return func() { assert.NoError(t, lease.Release(context.Background())) }
}

// requireHeld checks that somebody holds a key.
func requireHeld(t testing.TB, rt *config.Runtime, key string) {
	t.Helper()
	_, err := rt.Locker().TryAcquire(t.Context(), key)
	require.ErrorIs(t, err, core.ErrConflict, "%q should be held", key)
}
