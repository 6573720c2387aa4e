package ginlock_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/gin-gonic/gin"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/ginlock"
	"github.com/perkey-go/perkey/internal/redistest"
)

func TestMain(m *testing.M) {
	gin.SetMode(gin.TestMode)
	gin.DefaultErrorWriter = io.Discard // stacks of panics that are meant
	redistest.Main(m)
}

// secret is a part of every key, and of no response.
const secret = "s3cret-42"

const orderPath = "/orders/" + secret

var orderKey = ginlock.Param("order:", "id")

// bench is what most tests stand on: a Redis, the locker under test, which tells
// what it sees, and a rival that takes keys away from it.
type bench struct {
	rdb      *redis.Client
	prefix   string
	locker   *core.Locker
	rival    *core.Locker
	conflict chan core.Conflicted
	renewed  chan core.Renewed
}

type watcher struct {
	core.NopObserver
	b *bench
}

func (w watcher) OnConflict(_ context.Context, e core.Conflicted) { w.b.conflict <- e }
func (w watcher) OnRenewed(_ context.Context, e core.Renewed)     { w.b.renewed <- e }

func setup(t *testing.T, env *redistest.Env, opts ...core.Option) *bench {
	t.Helper()
	b := &bench{
		rdb: env.Client(t), prefix: env.Prefix,
		conflict: make(chan core.Conflicted, 10000), renewed: make(chan core.Renewed, 10000),
	}
	b.locker = newLocker(t, b.rdb, append([]core.Option{core.WithPrefix(env.Prefix), core.WithObserver(watcher{b: b})}, opts...)...)
	b.rival = newLocker(t, b.rdb, core.WithPrefix(env.Prefix))
	return b
}

func newLocker(t *testing.T, rdb redis.UniversalClient, opts ...core.Option) *core.Locker {
	t.Helper()
	l, err := core.New(rdb, opts...)
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// hold takes a key away, and returns how to give it back.
func (b *bench) hold(t *testing.T, key string) (release func()) {
	t.Helper()
	lease, err := b.rival.TryAcquire(t.Context(), key)
	require.NoError(t, err)
	return func() { assert.NoError(t, lease.Release(context.Background())) }
}

// requireFree checks that a key is held by nobody.
func (b *bench) requireFree(t *testing.T, key string) {
	t.Helper()
	lease, err := b.rival.TryAcquire(context.Background(), key)
	require.NoError(t, err)
	require.NoError(t, lease.Release(context.Background()))
}

// guarded serves handlers at POST and GET /orders/:id, behind PerKey.
func guarded(guard *core.Guard, handlers ...gin.HandlerFunc) *gin.Engine {
	r := gin.New()
	chain := append([]gin.HandlerFunc{ginlock.PerKey(guard, orderKey)}, handlers...)
	r.POST("/orders/:id", chain...)
	r.GET("/orders/:id", chain...)
	return r
}

func ok(c *gin.Context) { c.String(http.StatusOK, "ok") }

func mustNotRun(t *testing.T) gin.HandlerFunc {
	t.Helper()
	return func(*gin.Context) { t.Error("the handler ran") }
}

// call sends one request to a handler, without a network.
func call(h http.Handler, method, target, body string) *http.Response {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(method, target, strings.NewReader(body)))
	return w.Result()
}

// serve starts a server, and returns a client that goes with it.
func serve(t *testing.T, h http.Handler) (url string, client *http.Client) {
	t.Helper()
	srv := httptest.NewServer(h)
	srv.Config.ErrorLog = nil
	t.Cleanup(srv.Close)
	client = srv.Client()
	t.Cleanup(client.CloseIdleConnections)
	return srv.URL, client
}

func bodyOf(t *testing.T, resp *http.Response) string {
	t.Helper()
	content, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	return string(content)
}

// requireProblem checks a problem document; httplock's tests check more.
func requireProblem(t *testing.T, resp *http.Response, status int, kind string) {
	t.Helper()
	content := bodyOf(t, resp)
	require.Equal(t, status, resp.StatusCode, content)
	require.Equal(t, "application/problem+json", resp.Header.Get("Content-Type"))
	require.Equal(t, "no-store", resp.Header.Get("Cache-Control"))
	require.NotContains(t, content, secret)
	var doc struct {
		Type, Title, Detail string
		Status              int
		RetryAfter          int `json:"retry_after_ms"`
	}
	require.NoError(t, json.Unmarshal([]byte(content), &doc))
	require.Equal(t, "https://github.com/perkey-go/perkey/blob/main/docs/problems.md#"+kind, doc.Type)
	require.Equal(t, status, doc.Status)
	require.NotEmpty(t, doc.Title)
	require.NotEmpty(t, doc.Detail)
	require.Equal(t, resp.Header.Get("Retry-After") != "", doc.RetryAfter > 0)
	if status == http.StatusConflict {
		require.NotEmpty(t, resp.Header.Get("Retry-After"))
	}
}
