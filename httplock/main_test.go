package httplock_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/internal/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// secret is a part of every key, and of no response.
const secret = "s3cret-42"

const ticketID = "0123456789abcdef0123456789abcdef"

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

// hold takes the key of path /orders/{secret} away, and returns how to give it back.
func (b *bench) hold(t *testing.T) (release func()) {
	t.Helper()
	return b.holdKey(t, "order:"+secret)
}

func (b *bench) holdKey(t *testing.T, key string) (release func()) {
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

// loseLeases takes every record of the test out of Redis.
func (b *bench) loseLeases(t *testing.T) {
	t.Helper()
	names := redistest.Keys(t, b.rdb, b.prefix+":lock")
	assert.NotEmpty(t, names)
	assert.NoError(t, b.rdb.Del(context.Background(), names...).Err())
}

// orderKey is a key function for routes with {id}.
func orderKey(r *http.Request) (string, error) {
	id := r.PathValue("id")
	if id == "" {
		return "", httplock.BadKey(errors.New("no id"))
	}
	return "order:" + id, nil
}

// guarded serves handler at /orders/{id}, for all methods, behind PerKey.
func guarded(guard *core.Guard, handler http.HandlerFunc, opts ...httplock.Option) *http.ServeMux {
	mux := http.NewServeMux()
	mux.Handle("/orders/{id}", httplock.PerKey(guard, orderKey, opts...)(handler))
	return mux
}

const ordersPath = "/orders/" + secret

func ok(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") }

// mustNotRun is a handler behind a guard that refuses.
func mustNotRun(t *testing.T) http.HandlerFunc {
	t.Helper()
	return func(http.ResponseWriter, *http.Request) { t.Error("the handler ran") }
}

// call sends one request to a handler, without a network.
func call(h http.Handler, method, target string, body string) *http.Response {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(method, target, strings.NewReader(body)))
	return w.Result()
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

func bodyOf(t *testing.T, resp *http.Response) string {
	t.Helper()
	content, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	return string(content)
}

// requireProblem checks a whole problem document.
func requireProblem(t *testing.T, resp *http.Response, status int, kind string, retry bool) {
	t.Helper()
	content := bodyOf(t, resp)
	require.Equal(t, status, resp.StatusCode, content)
	require.Equal(t, "application/problem+json", resp.Header.Get("Content-Type"))
	require.Equal(t, "no-store", resp.Header.Get("Cache-Control"))
	requireNoSecret(t, resp, content)

	var doc map[string]any
	require.NoError(t, json.Unmarshal([]byte(content), &doc))
	require.Equal(t, "https://github.com/perkey-go/perkey/blob/main/docs/problems.md#"+kind, doc["type"])
	require.EqualValues(t, status, doc["status"])
	require.NotEmpty(t, doc["title"])
	require.NotEmpty(t, doc["detail"])
	if !retry {
		require.NotContains(t, resp.Header, "Retry-After")
		require.NotContains(t, doc, "retry_after_ms")
		return
	}
	after, err := strconv.Atoi(resp.Header.Get("Retry-After"))
	require.NoError(t, err)
	require.GreaterOrEqual(t, after, 1)
	require.LessOrEqual(t, after, 30)
	ms, isNumber := doc["retry_after_ms"].(float64)
	require.True(t, isNumber)
	require.Positive(t, ms)
	require.LessOrEqual(t, ms, float64(after)*1000)
}

func requireNoSecret(t *testing.T, resp *http.Response, content string) {
	t.Helper()
	require.NotContains(t, content, secret)
	for name, values := range resp.Header {
		require.NotContains(t, strings.Join(values, " "), secret, name)
	}
}

// parking is a policy that keeps what it defers.
type parking struct {
	mu       sync.Mutex
	payloads [][]byte
}

func (p *parking) OnConflict(_ context.Context, c core.Conflict) (core.Decision, error) {
	if c.Call.Encode == nil {
		return core.Reject(), nil
	}
	payload, err := c.Call.Encode()
	if err != nil {
		return core.Reject(), err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.payloads = append(p.payloads, payload)
	return core.Deferred(core.Ticket{ID: ticketID, Queue: "ship", ExpiresAt: time.UnixMilli(1800000000123)}), nil
}

func (p *parking) parked() [][]byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.payloads
}

// failing is a policy that answers every conflict with an error.
type failing struct{ err error }

func (p failing) OnConflict(context.Context, core.Conflict) (core.Decision, error) {
	return core.Reject(), p.err
}

// patient is a policy that waits for the release and nothing else.
type patient struct{}

func (patient) OnConflict(context.Context, core.Conflict) (core.Decision, error) {
	return core.RetryAfter(time.Hour), nil
}
