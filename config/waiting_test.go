package config_test

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/config"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

func TestWaiting_IsBoundedAsTheFileSays(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		rt := build(t, env, `
defaults: {max_waiters_per_principal: 1, on_conflict: {policy: retry, max_wait: 1m}}
guards:
  own: {key: all, fixed_key: true, principal: users}
  keys: {key: all, fixed_key: true, principal: users, idempotency: {}}
routes: {POST /own: own, POST /keys: keys}
`, config.WithPrincipal("users", func(r *http.Request) (string, error) {
			user := r.Header.Get("Authorization")
			if user == "eve" {
				return "", errors.New("who?")
			}
			return user, nil
		}, func(*http.Request, string) error { return nil }))
		for _, path := range []string{"/own", "/keys"} {
			release := hold(t, rt, "all")
			s := serve(rt, path)
			waited := make(chan int, 1)
			go func() { waited <- s.do(request("POST", path, "Authorization: ann")).Code }()
			redistest.Eventually(t, func() bool {
				info, err := rt.Locker().Inspect(t.Context(), "all")
				return assert.NoError(t, err) && info.Waiting == 1
			}, "it waits")
			again := s.do(request("POST", path, "Authorization: ann"))
			assert.Equal(t, http.StatusTooManyRequests, again.Code, path)
			assert.Contains(t, again.Body.String(), "principal-waiting-full")
			assert.Equal(t, http.StatusInternalServerError, s.do(request("POST", path, "Authorization: eve")).Code, path)
			release()
			<-s.running
			s.goOn <- struct{}{}
			assert.Equal(t, http.StatusOK, <-waited)
		}
	})
}

// It is not parallel: the bound is the process's.
func TestWaiting_BytesAreBoundedAsTheFileSays(t *testing.T) {
	rt := build(t, redistest.Embedded(t), `
defaults: {max_waiting_bytes: 64MiB, on_conflict: {policy: retry, max_wait: 1m}}
routes: {POST /x: {key: all, fixed_key: true, max_body: 1536KiB, max_waiting_bytes: 2MiB}, POST /y: {key: other, fixed_key: true}}
`)
	release := hold(t, rt, "all")
	post := func(s *service, path string) int {
		r := request("POST", path)
		r.Body, r.ContentLength = io.NopCloser(strings.NewReader(strings.Repeat("x", 1<<20))), 1<<20
		return s.do(r).Code
	}
	x, y := serve(rt, "/x"), serve(rt, "/y")
	waited := make(chan int, 1)
	go func() { waited <- post(x, "/x") }()
	redistest.Eventually(t, func() bool {
		info, err := rt.Locker().Inspect(t.Context(), "all")
		return assert.NoError(t, err) && info.Waiting == 1
	}, "it waits")
	assert.Equal(t, http.StatusServiceUnavailable, post(x, "/x"))
	y.goOn <- struct{}{}
	assert.Equal(t, http.StatusOK, post(y, "/y"), "by the defaults there is room")
	release()
	x.goOn <- struct{}{}
	assert.Equal(t, http.StatusOK, <-waited)
}

func TestWaiting_WaitersNeedAPrincipal(t *testing.T) {
	t.Parallel()
	_ = build(t, redistest.Embedded(t), "defaults: {max_waiters_per_principal: 3}\nguards: {tasks: {key: k, fixed_key: true}}\nasynq: {t: tasks}\n")
	f := load(t, redistest.Embedded(t), "defaults: {max_waiters_per_principal: 3}\nguards:\n  a: {key: k, fixed_key: true, principal: user, max_waiters_per_principal: 2}\n")
	_, err := config.Build(f, config.WithPrincipal("users", func(*http.Request) (string, error) { return "", nil },
		func(*http.Request, string) error { return nil }))
	require.Error(t, err)
	assert.Contains(t, err.Error(), `guards.a.principal: no option of Build has the name "user"`)
}
