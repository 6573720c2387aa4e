package echolock_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/labstack/echo/v5"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/echolock/v5"
	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
)

// What both packages share is tested in internal/adapter.

func newLocker(t *testing.T) *core.Locker {
	t.Helper()
	env := redistest.Embedded(t)
	return testbed.NewLocker(t, env.Client(t), core.WithPrefix(env.Prefix))
}

func TestToMiddleware_ReportsMistakes(t *testing.T) {
	guard := newLocker(t).Guard(core.RejectConflicts)
	key := echolock.Param("order:", "id")
	for name, config := range map[string]echolock.Config{
		"nothing":   {},
		"no guard":  {Key: key},
		"bad guard": {Guard: newLocker(t).Guard(core.RejectConflicts, core.LeaseTTL(-1)), Key: key},
		"no key":    {Guard: guard},
		"nil func":  {Guard: guard, Key: echolock.Func(nil)},
		"option":    {Guard: guard, Key: key, Options: []httplock.Option{httplock.WithAllowedHeaders("Cookie")}},
	} {
		mw, err := config.ToMiddleware()
		require.ErrorIs(t, err, core.ErrInvalidOption, name)
		require.Nil(t, mw)
	}
	mw, err := echolock.New(guard, key)
	require.NoError(t, err)
	require.NotNil(t, mw)
	_, err = echolock.New(guard, nil)
	require.ErrorIs(t, err, core.ErrInvalidOption)
	require.Panics(t, func() { echolock.FromConfig(nil) })
	require.Panics(t, func() { echolock.PerKeyWithConfig(echolock.Config{Guard: guard}) })
}

func TestPerKey_ConstructorsOfKeys(t *testing.T) {
	e := echo.New()
	guard := newLocker(t).Guard(core.RejectConflicts)
	for path, key := range map[string]echolock.KeyFunc{
		"/param/:id":  echolock.Param("k:", "id"),
		"/query/:id":  echolock.Query("k:", "id"),
		"/header/:id": echolock.Header("k:", "X-Id"),
		"/json/:id":   echolock.JSONField("k:", "id"),
		"/int/:id":    echolock.ParamInt("k:", "id"),
		"/uuid/:id":   echolock.ParamUUID("k:", "id"),
		"/no/:id":     func(*http.Request) (string, error) { return "", echolock.NoKey },
		"/func/:id": echolock.Func(func(c *echo.Context) (string, error) {
			return "k:" + c.Param("id") + c.QueryParam("id"), nil
		}),
	} {
		e.POST(path, func(c *echo.Context) error {
			if lease, held := echolock.Lease(c); held {
				return c.String(http.StatusOK, lease.Key())
			}
			return c.String(http.StatusOK, "no key")
		}, echolock.PerKey(guard, key))
	}
	for path, want := range map[string]string{
		"/param/1": "k:1", "/query/1": "k:2", "/header/1": "k:3", "/json/1": "k:4", "/func/1": "k:12", "/int/+042": "k:42",
		"/uuid/F81D4FAE7DEC11D0A76500A0C91E6BF6": "k:f81d4fae-7dec-11d0-a765-00a0c91e6bf6", "/no/1": "no key",
	} {
		r := httptest.NewRequest(http.MethodPost, path+"?id=2", strings.NewReader(`{"id":4}`))
		r.Header.Set("X-Id", "3")
		w := httptest.NewRecorder()
		e.ServeHTTP(w, r)
		require.Equal(t, want, w.Body.String())
	}
}

// However a client writes a path, and echo is told to read it, a value has one key.
func TestPathParams_AreDecodedOnce(t *testing.T) {
	guard := newLocker(t).Guard(core.RejectConflicts)
	for name, router := range map[string]echo.RouterConfig{
		"default":             {},
		"unescaped":           {UnescapePathParamValues: true},
		"matched as it reads": {UseEscapedPathForMatching: true},
	} {
		e := echo.NewWithConfig(echo.Config{Router: echo.NewRouter(router)})
		for _, pattern := range []string{"/o/:id", "/t/:tenant/o/:id", "/rest/*id"} {
			e.POST(pattern, func(c *echo.Context) error {
				lease, _ := echolock.Lease(c)
				return c.String(http.StatusOK, lease.Key())
			}, echolock.PerKey(guard, echolock.Param("", "id")))
		}
		for path, want := range map[string]string{
			"/o/%34%32": "42", "/o/a%20b": "a b", "/o/%34%32%2525": "42%25", "/o/%34%32%25": "42%",
			"/t/%34%32/o/%2534%2532": "%34%32", "/t/%2534%2532/o/%34%32": "42", "/rest/a/%34%2525": "a/4%25",
		} {
			w := httptest.NewRecorder()
			e.ServeHTTP(w, httptest.NewRequest(http.MethodPost, path, nil))
			require.Equal(t, want, w.Body.String(), "%s: %s", name, path)
		}
	}
}

// A group with middleware has echo answer what it does not match at the same path.
func TestPerKey_CatchAllRouteOfAGroupIsGuarded(t *testing.T) {
	closed := echolock.PerKey(newLocker(t).Guard(core.RejectConflicts), func(*http.Request) (string, error) { return "", errors.New("no key") })
	e := echo.New()
	g := e.Group("/api", closed)
	g.POST("/*", func(*echo.Context) error {
		t.Error("the handler ran")
		return nil
	})
	for range 2 {
		for path, want := range map[string]int{"/api/x": http.StatusInternalServerError, "/api": http.StatusNotFound} {
			w := httptest.NewRecorder()
			e.ServeHTTP(w, httptest.NewRequest(http.MethodPost, path, nil))
			require.Equal(t, want, w.Code, path)
		}
	}
	w := httptest.NewRecorder()
	e.ServeHTTP(w, httptest.NewRequest(http.MethodPut, "/api/x", nil))
	require.Equal(t, http.StatusNotFound, w.Code)
}
