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
	"github.com/perkey-go/perkey/internal/embedded"
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
	return setupOn(t, env.Client(t), env.Prefix, opts...)
}

// setupFragile is setup on an embedded Redis that the test may break. The client
// fails at once, and leaves no goroutine that dials a dead server: go-redis starts
// one after as many failures as its pool is large.
func setupFragile(t *testing.T) (*bench, *embedded.Server) {
	t.Helper()
	server, err := embedded.Start()
	require.NoError(t, err)
	t.Cleanup(server.Close)
	rdb := redistest.Client(t, &redis.Options{Addr: server.Addr(), PoolSize: 1000, MaxRetries: -1, DialerRetries: 1})
	return setupOn(t, rdb, "t"), server
}

func setupOn(t *testing.T, rdb *redis.Client, prefix string, opts ...core.Option) *bench {
	t.Helper()
	b := &bench{
		rdb: rdb, prefix: prefix,
		conflict: make(chan core.Conflicted, 10000), renewed: make(chan core.Renewed, 10000),
	}
	b.locker = newLocker(t, b.rdb, append([]core.Option{core.WithPrefix(prefix), core.WithObserver(watcher{b: b})}, opts...)...)
	b.rival = newLocker(t, b.rdb, core.WithPrefix(prefix))
	return b
}

func newLocker(t *testing.T, rdb redis.UniversalClient, opts ...core.Option) *core.Locker {
	t.Helper()
	l, err := core.New(rdb, opts...)
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// hold takes the key of path /orders/{secret} away, until the end of the test or of release.
func (b *bench) hold(t *testing.T) (release func()) {
	t.Helper()
	return b.holdKey(t, "order:"+secret)
}

func (b *bench) holdKey(t *testing.T, key string) (release func()) {
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
func call(t *testing.T, h http.Handler, method, target, body string) answer {
	t.Helper()
	return do(h, request(t, method, target, body))
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

// requireProblem checks a whole problem document.
func requireProblem(t *testing.T, resp answer, status int, kind string, retry bool) {
	t.Helper()
	content := resp.body
	require.Equal(t, status, resp.status, content)
	require.Equal(t, "application/problem+json", resp.header.Get("Content-Type"))
	require.Equal(t, "no-store", resp.header.Get("Cache-Control"))
	requireNoSecret(t, resp, content)

	var doc map[string]any
	require.NoError(t, json.Unmarshal([]byte(content), &doc))
	require.Equal(t, "https://github.com/perkey-go/perkey/blob/main/docs/problems.md#"+kind, doc["type"])
	require.EqualValues(t, status, doc["status"])
	require.NotEmpty(t, doc["title"])
	require.NotEmpty(t, doc["detail"])
	if !retry {
		require.NotContains(t, resp.header, "Retry-After")
		require.NotContains(t, doc, "retry_after_ms")
		return
	}
	after, err := strconv.Atoi(resp.header.Get("Retry-After"))
	require.NoError(t, err)
	require.GreaterOrEqual(t, after, 1)
	require.LessOrEqual(t, after, 30)
	ms, isNumber := doc["retry_after_ms"].(float64)
	require.True(t, isNumber)
	require.Positive(t, ms)
	require.LessOrEqual(t, ms, float64(after)*1000)
}

func requireNoSecret(t *testing.T, resp answer, content string) {
	t.Helper()
	require.NotContains(t, content, secret)
	for name, values := range resp.header {
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
