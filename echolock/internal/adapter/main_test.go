package adapter_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/internal/redistest"
)

func TestMain(m *testing.M) {
	redistest.Main(m)
}

// secret is a part of every key, and of no response.
const secret = "s3cret-42"

const orderPath = base + "/orders/" + secret

var orderKey = httplock.Param("order:", "id")

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

// hold takes a key away, until the end of the test or of release.
func (b *bench) hold(t *testing.T, key string) (release func()) {
	t.Helper()
	lease, err := b.rival.TryAcquire(t.Context(), key)
	require.NoError(t, err)
	release = func() { _ = lease.Release(context.Background()) } // may be called twice
	t.Cleanup(release)
	return release
}

// requireFree checks that the order is held by nobody.
func (b *bench) requireFree(t *testing.T) {
	t.Helper()
	// A call that has just left may still be in Redis's queue for an instant.
	ctx, cancel := context.WithTimeout(context.Background(), 500*time.Millisecond)
	defer cancel()
	lease, err := b.rival.Acquire(ctx, "order:"+secret)
	require.NoError(t, err)
	require.NoError(t, lease.Release(context.Background()))
}

func ok(x exchange) error { return x.String(http.StatusOK, "ok") }

func mustNotRun(t *testing.T) func(exchange) error {
	t.Helper()
	return func(exchange) error {
		t.Error("the handler ran")
		return nil
	}
}

// each runs a test under both versions.
func each(t *testing.T, test func(t *testing.T, v version)) {
	t.Helper()
	for _, v := range versions {
		t.Run(v.name, func(t *testing.T) { test(t, v) })
	}
}

// onBoth runs a test under both versions, on the embedded Redis and on a real one.
func onBoth(t *testing.T, test func(t *testing.T, v version, env *redistest.Env)) {
	t.Helper()
	each(t, func(t *testing.T, v version) {
		redistest.Each(t, func(t *testing.T, env *redistest.Env) { test(t, v, env) })
	})
}

// answer is a whole response.
type answer struct {
	status int
	header http.Header
	body   string
}

func request(t *testing.T, method, target, body string) *http.Request {
	t.Helper()
	return httptest.NewRequestWithContext(t.Context(), method, target, strings.NewReader(body))
}

// do sends a request to a handler, without a network.
func do(h http.Handler, r *http.Request) answer {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return answer{w.Code, w.Result().Header, w.Body.String()}
}

// call sends one request to a handler, without a network.
func call(t *testing.T, h http.Handler, method, target string) answer {
	t.Helper()
	return do(h, request(t, method, target, ""))
}

// serve starts a server, and returns a client that goes with it.
func serve(t *testing.T, h http.Handler) (url string, client *http.Client) {
	t.Helper()
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	client = srv.Client()
	t.Cleanup(client.CloseIdleConnections)
	return srv.URL, client
}

// send sends a request to a server.
func send(client *http.Client, r *http.Request) (answer, error) {
	resp, err := client.Do(r)
	if err != nil {
		return answer{}, err
	}
	content, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, resp.Header, string(content)}, errors.Join(err, resp.Body.Close())
}

// toServer makes a request for send.
func toServer(ctx context.Context, t *testing.T, url, body string) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(body))
	require.NoError(t, err)
	return r
}

// requireProblem checks a problem document; httplock's tests check more.
func requireProblem(t *testing.T, resp answer, status int, kind string) {
	t.Helper()
	content := resp.body
	require.Equal(t, status, resp.status, content)
	require.Equal(t, "application/problem+json", resp.header.Get("Content-Type"))
	require.Equal(t, "no-store", resp.header.Get("Cache-Control"))
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
	require.Equal(t, resp.header.Get("Retry-After") != "", doc.RetryAfter > 0)
	if status == http.StatusConflict {
		require.NotEmpty(t, resp.header.Get("Retry-After"))
	}
}
