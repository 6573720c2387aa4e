package console_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"html"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/gin-gonic/gin"
	"github.com/labstack/echo/v4"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
	"github.com/perkey-go/perkey/ops"
	"github.com/perkey-go/perkey/ops/console"
)

// everyone may do everything.
func everyone(*http.Request, ops.Action) (string, error) { return "ada", nil }

func newLocker(t testing.TB, rdb redis.UniversalClient, prefix string) *core.Locker {
	t.Helper()
	return testbed.NewLocker(t, rdb, core.WithPrefix(prefix))
}

// newReportingLocker is a Locker of a process with a beacon.
func newReportingLocker(t testing.TB, rdb redis.UniversalClient, prefix string) *core.Locker {
	t.Helper()
	recorder := ops.NewRecorder()
	locker := testbed.NewLocker(t, rdb, core.WithPrefix(prefix), core.WithObserver(recorder.Locks(core.NopObserver{})))
	beacon, err := ops.StartBeacon(rdb, recorder, locker, ops.WithInterval(time.Second))
	require.NoError(t, err)
	t.Cleanup(func() { _ = beacon.Close() })
	return locker
}

func newConsole(t testing.TB, env *redistest.Env, change func(*console.Options)) (*httptest.Server, *core.Locker) {
	t.Helper()
	rdb := env.Client(t)
	o := console.Options{Locker: newLocker(t, rdb, env.Prefix), Redis: rdb, Log: slog.New(slog.DiscardHandler)}
	if change != nil {
		change(&o)
	}
	handler, err := console.New(o)
	require.NoError(t, err)
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	return server, o.Locker
}

func get(t testing.TB, url string) (int, string, http.Header) {
	t.Helper()
	resp, err := http.Get(url)
	require.NoError(t, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp.StatusCode, string(body), resp.Header
}

// stream asks for a page that is brought up to date.
func stream(ctx context.Context, t testing.TB, url string) *http.Response {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	require.NoError(t, err)
	req.Header.Set("Accept", "text/event-stream")
	resp, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	t.Cleanup(func() { resp.Body.Close() })
	return resp
}

func post(t testing.TB, to string, header http.Header, values ...string) (int, string) {
	t.Helper()
	form := url.Values{}
	for i := 0; i < len(values); i += 2 {
		form.Set(values[i], values[i+1])
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, to, strings.NewReader(form.Encode()))
	require.NoError(t, err)
	req.Header = http.Header{"Content-Type": {"application/x-www-form-urlencoded"}}
	maps.Copy(req.Header, header)
	resp, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp.StatusCode, string(body)
}

var pages = []string{"", "keys", "key?key=k", "queues", "dead", "processes", "idempotency", "audit"}

func TestNew_RefusesMistakes(t *testing.T) {
	env := redistest.Embedded(t)
	rdb := env.Client(t)
	locker := newLocker(t, rdb, env.Prefix)
	var none *redis.Client
	for name, o := range map[string]console.Options{
		"nothing": {}, "no locker": {Redis: rdb}, "no redis": {Locker: locker}, "a nil client": {Locker: locker, Redis: none},
		"a nil queue": {Locker: locker, Redis: rdb, Queues: []*delayqueue.Queue{nil}}, "changes by anybody": {Locker: locker, Redis: rdb, Changes: true},
	} {
		_, err := console.New(o)
		require.ErrorIs(t, err, core.ErrInvalidOption, name)
	}
}

func TestConsole_HeadersOfEachPage(t *testing.T) {
	server, _ := newConsole(t, redistest.Embedded(t), nil)
	for _, page := range append(pages, "nothing", "queue?queue=none") {
		_, body, header := get(t, server.URL+"/"+page)
		assert.Contains(t, header.Get("Content-Security-Policy"), "default-src 'none'", page)
		assert.NotContains(t, header.Get("Content-Security-Policy"), "unsafe", page)
		assert.Equal(t, "no-store", header.Get("Cache-Control"), page)
		assert.Equal(t, "nosniff", header.Get("X-Content-Type-Options"), page)
		assert.Equal(t, "no-referrer", header.Get("Referrer-Policy"), page)
		assert.Contains(t, body, `name="key"`, "%s has the box of exact keys", page)
		assert.NotContains(t, body, "style=", page)
		assert.NotContains(t, body, "http://", page)
	}
}

func TestConsole_CanBeMountedAnywhere(t *testing.T) {
	env := redistest.Embedded(t)
	rdb := env.Client(t)
	handler, err := console.New(console.Options{Locker: newLocker(t, rdb, env.Prefix), Redis: rdb})
	require.NoError(t, err)
	mux := http.NewServeMux()
	mux.Handle("/ops/", handler)
	mux.Handle("/deep/in/here/", http.StripPrefix("/deep/in/here", handler))
	mux.Handle("/bare", http.StripPrefix("/bare", handler))
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	for _, at := range []string{"/ops/", "/deep/in/here/", "/ops", "/deep/in/here"} {
		code, body, _ := get(t, server.URL+at)
		assert.Equal(t, 200, code, at)
		assert.Contains(t, body, "<h1>Overview</h1>", at)
		code, body, _ = get(t, server.URL+strings.TrimSuffix(at, "/")+"/keys")
		assert.Equal(t, 200, code, at)
		assert.Contains(t, body, "<h1>Keys</h1>", at)
		for _, asset := range []string{"console.css", "console.js", "icon.svg"} {
			code, _, _ = get(t, server.URL+strings.TrimSuffix(at, "/")+"/"+asset)
			assert.Equal(t, 200, code, at)
		}
	}
	gin.SetMode(gin.ReleaseMode)
	r, e := gin.New(), echo.New()
	r.Any("/ops/*path", gin.WrapH(handler))
	e.Any("/ops/*", echo.WrapHandler(handler))
	for name, router := range map[string]http.Handler{"gin": r, "echo": e} {
		for path, want := range map[string]string{"/ops/": "<h1>Overview</h1>", "/ops/keys": "<h1>Keys</h1>"} {
			w := httptest.NewRecorder()
			router.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
			assert.Equal(t, 200, w.Code, name)
			assert.Contains(t, w.Body.String(), want, name)
		}
	}
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, &http.Request{Method: http.MethodGet, URL: &url.URL{}, RequestURI: "//evil.example/bare?q=1", Header: http.Header{}})
	assert.Equal(t, "./bare/", w.Header().Get("Location"), "never another host")
}

func TestConsole_ShowsNoSecrets(t *testing.T) {
	env := redistest.Real(t)
	rdb := env.Client(t)
	may := map[ops.Action]bool{console.View: true}
	server, locker := newConsole(t, env, func(o *console.Options) {
		o.Authorize = func(_ *http.Request, do ops.Action) (string, error) {
			if !may[do] {
				return "", errors.New("no")
			}
			return "eve", nil
		}
	})
	q := testbed.NewQueue(t, rdb, "q", delayqueue.WithPrefix(env.Prefix))
	testbed.Enqueue(t, q, delayqueue.Job{ID: "m", Key: "k", Payload: []byte("secret-payload")})
	lease := testbed.Take(t, locker, "k2")
	token := lease.Token()
	record, err := rdb.Get(t.Context(), env.Prefix+":lock{}:k2").Result()
	require.NoError(t, err)
	info, err := locker.Inspect(t.Context(), "k2")
	require.NoError(t, err)
	secrets := strings.FieldsFunc(strings.ReplaceAll(record, info.Holders[0].Locker, ""), func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) })
	secrets = slices.DeleteFunc(secrets, func(s string) bool { return len(s) < 10 || s == fmt.Sprint(lease.Fence()) })
	require.NotEmpty(t, secrets, record)
	for _, page := range append(pages, "key?key=k2", "queue?queue=q", "message?queue=q&id=m", "message?queue=q&id=m&payload=1", "keys?prefix=") {
		_, body, _ := get(t, server.URL+"/"+page)
		assert.NotContains(t, body, "secret-payload", page)
		assert.NotContains(t, body, token, page)
		for _, secret := range secrets {
			assert.NotContains(t, body, secret, page)
		}
	}
	code, _, _ := get(t, server.URL+"/message?queue=q&id=m&payload=1")
	assert.Equal(t, http.StatusForbidden, code)
	may[console.Payloads] = true
	_, body, _ := get(t, server.URL+"/message?queue=q&id=m&payload=1")
	assert.Contains(t, body, "secret-payload")
}

// What these show was known, or was never seen.
var pagesOfOldFacts = slices.Concat(pages, []string{
	"key?key=never+seen", "idempotency?route=a&idempotency-key=b", "message?queue=known&id=m&payload=1",
	"queue?queue=q", "change?do=purge&queue=known", "change?do=purge&queue=q",
})

// Each page comes within 2 s, also if nothing replies.
func TestConsole_PagesComeSoonWhenRedisIsAway(t *testing.T) {
	redistest.InVirtualTime(t, func(t *testing.T, env *redistest.Env) {
		rdb := env.Client(t)
		known := testbed.NewQueue(t, rdb, "known", delayqueue.WithPrefix(env.Prefix))
		testbed.Enqueue(t, known, delayqueue.Job{ID: "m"})
		away := testbed.NewQueue(t, redistest.Silent(t), "away", delayqueue.WithPrefix(env.Prefix+"-other"))
		handler, err := console.New(console.Options{
			Locker: newLocker(t, rdb, env.Prefix), Redis: rdb, Queues: []*delayqueue.Queue{away}, Changes: true, Authorize: everyone, Log: slog.New(slog.DiscardHandler),
		})
		require.NoError(t, err)
		soon := func(page, isAway string) {
			time.Sleep(2100 * time.Millisecond) // what is known is old
			began := time.Now()
			testbed.Call(t, handler, http.MethodGet, "/"+page, "")
			assert.Less(t, time.Since(began), 2*time.Second, "%s is away: %s", isAway, page)
		}
		for _, page := range pages {
			soon(page, "the Redis of a queue")
		}
		env.FallSilent()
		for _, page := range pagesOfOldFacts {
			soon(page, "all")
		}
	})
}

func TestConsole_ShowsWhatItKnewWhenRedisIsAway(t *testing.T) {
	env := redistest.Real(t)
	proxy := redistest.NewProxy(t, env.Addr)
	rdb := redistest.Client(t, &redis.Options{Addr: proxy.Addr})
	server, _ := newConsole(t, env, func(o *console.Options) {
		o.Locker, o.Redis, o.Changes, o.Authorize = newLocker(t, rdb, env.Prefix), rdb, true, everyone
	})
	holder := newLocker(t, env.Client(t), env.Prefix)
	testbed.Take(t, holder, "k", core.Named("work of k", ""))
	q := testbed.NewQueue(t, env.Client(t), "known", delayqueue.WithPrefix(env.Prefix))
	testbed.Enqueue(t, q, delayqueue.Job{ID: "m"})
	_, body, _ := get(t, server.URL+"/key?key=k")
	require.Contains(t, body, "work of k")
	require.NotContains(t, body, "Not up to date")
	proxy.Blackhole(redistest.Requests)
	time.Sleep(2100 * time.Millisecond) // what is known is old
	for _, page := range pagesOfOldFacts {
		code, body, _ := get(t, server.URL+"/"+page)
		if strings.HasPrefix(page, "queue?") || strings.HasPrefix(page, "change?") { // nothing is known of it
			assert.Equal(t, http.StatusServiceUnavailable, code, page)
			continue
		}
		assert.Equal(t, 200, code, page)
		assert.Contains(t, body, "Not up to date", page)
		if page == "key?key=k" {
			assert.Contains(t, body, "work of k")
			assert.Contains(t, body, "as of")
		}
	}
	proxy.Blackhole(0)
	proxy.Refuse(true)
	proxy.Cut()
	time.Sleep(2100 * time.Millisecond)
	_, body, _ = get(t, server.URL+"/key?key=k")
	assert.Contains(t, body, "Not up to date", "nobody listens")
	assert.Contains(t, body, "work of k")
	proxy.Refuse(false)
	redistest.Eventually(t, func() bool {
		_, body, _ := get(t, server.URL+"/key?key=k")
		return !strings.Contains(body, "Not up to date")
	}, "it comes back")
}

func TestConsole_StreamsEndWithTheirServer(t *testing.T) {
	env := redistest.Embedded(t)
	server, _ := newConsole(t, env, nil)
	resp := stream(t.Context(), t, server.URL+"/keys")
	assert.Equal(t, "text/event-stream", resp.Header.Get("Content-Type"))
	line, err := bufio.NewReader(resp.Body).ReadString('\n')
	require.NoError(t, err)
	assert.True(t, strings.HasPrefix(line, "data: "))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	require.NoError(t, server.Config.Shutdown(ctx))
}

func TestServe_NeedsAuthorizationBeyondThisMachine(t *testing.T) {
	env := redistest.Embedded(t)
	rdb := env.Client(t)
	o := console.Options{Locker: newLocker(t, rdb, env.Prefix), Redis: rdb}
	for _, addr := range []string{":0", "0.0.0.0:0", "[::]:0"} {
		require.ErrorIs(t, console.Serve(t.Context(), addr, o, nil), core.ErrInvalidOption, addr)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ready, served := make(chan net.Addr, 1), make(chan error, 1)
	go func() { served <- console.Serve(ctx, "127.0.0.1:0", o, func(a net.Addr) { ready <- a }) }()
	addr := <-ready
	code, _, _ := get(t, "http://"+addr.String()+"/keys")
	assert.Equal(t, 200, code)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+addr.String()+"/keys", nil)
	require.NoError(t, err)
	req.Host = "rebound.example"
	resp, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	resp.Body.Close()
	assert.Equal(t, http.StatusMisdirectedRequest, resp.StatusCode)
	http.DefaultClient.CloseIdleConnections()
	cancel()
	require.NoError(t, <-served)
	o.Authorize = everyone
	ctx, cancel = context.WithCancel(t.Context())
	go func() { served <- console.Serve(ctx, "0.0.0.0:0", o, func(a net.Addr) { ready <- a }) }()
	<-ready
	cancel()
	require.NoError(t, <-served)
}

func TestAssets_AreSmall(t *testing.T) {
	server, _ := newConsole(t, redistest.Embedded(t), nil)
	_, script, _ := get(t, server.URL+"/console.js")
	assert.LessOrEqual(t, strings.Count(script, "\n"), 200)
	_, style, _ := get(t, server.URL+"/console.css")
	assert.Less(t, len(style)+len(script), 24<<10)
	assert.NotContains(t, style+script, "http")
	assert.False(t, bytes.Contains([]byte(script), []byte("eval")))
}

// The Overview shows what [ops.Facts.Findings] says, with its evidence, its keys as links, and its section of the runbook; and no more.
func TestConsole_OverviewShowsTheFindings(t *testing.T) {
	server := redistest.Start(t, "--appendonly", "yes")
	env := &redistest.Env{Addr: server.Addr, Prefix: "found", Real: true}
	rdb := env.Client(t)
	locker := newReportingLocker(t, rdb, env.Prefix)
	pages, _ := newConsole(t, env, nil)
	overview := func() string {
		_, body, _ := get(t, pages.URL+"/")
		return body
	}
	redistest.Eventually(t, func() bool { return strings.Count(overview(), `<span class="word">Good</span>`) == 4 }, "all is well")
	q := testbed.NewQueue(t, rdb, "ship", delayqueue.WithPrefix(env.Prefix))
	require.NoError(t, q.Pause(t.Context(), time.Hour))
	require.NoError(t, rdb.ConfigSet(t.Context(), "maxmemory-policy", "allkeys-lru").Err())
	testbed.Take(t, locker, "order:<1>")
	require.NoError(t, rdb.Del(t.Context(), env.Prefix+":lock{}:order:<1>").Err())
	testbed.Enqueue(t, q, delayqueue.Job{Key: "hung"})
	var found []ops.Finding
	redistest.Eventually(t, func() bool {
		tell(t, rdb, env.Prefix, "h", 0, `,"leases":[{"key":"hung","fence":1,"held":61000000,"ttl":15000000,"remaining":14000000}]`)
		var err error
		found, err = ops.Examine(t.Context(), rdb, ops.ExamineOptions{Prefix: env.Prefix})
		return err == nil && len(found) == 4
	}, "a lost lease, a paused queue, a Redis that may evict, a hold that is long with a message behind it")
	redistest.Eventually(t, func() bool {
		body := overview()
		return strings.Contains(body, "lease was lost") && strings.Contains(body, "is paused.") && strings.Contains(body, "messages queued after them: 1")
	}, "the page has them")
	body := overview()
	for _, f := range found {
		assert.Contains(t, body, html.EscapeString(f.Text))
		assert.Contains(t, body, "blob/main/"+f.Runbook)
		for _, e := range f.Evidence {
			if e.Figure == "longest hold" { // it grows
				assert.Contains(t, body, e.Figure)
				continue
			}
			if e.Figure == ops.EvidenceKeys {
				for _, key := range f.Keys {
					assert.Contains(t, body, `href="key?key=`+url.QueryEscape(key)+`"`)
				}
				continue
			}
			assert.Equal(t, e.Is != e.Want, strings.Contains(body, html.EscapeString(e.String())), "%s: what is as it should be is left out", e)
		}
	}
	assert.Equal(t, 1, strings.Count(body, `<span class="word">Good</span>`), "the processes are all alike")
}

// die makes dead letters of all that is queued.
func die(t testing.TB, q *delayqueue.Queue, locker *core.Locker, cause string) {
	t.Helper()
	worker := testbed.Work(t, q, locker, func(context.Context, delayqueue.Message) error { return delayqueue.SkipRetry(errors.New(cause)) },
		delayqueue.WithLogger(slog.New(slog.DiscardHandler)))
	redistest.Eventually(t, func() bool {
		s, err := q.Stats(t.Context())
		return err == nil && s.Queued+s.Running == 0
	}, "all are dead")
	require.NoError(t, worker.Stop(t.Context()))
}

// tell writes the entry of a process on a host that told so long ago.
func tell(t testing.TB, rdb *redis.Client, prefix, host string, age time.Duration, more string) {
	t.Helper()
	now, err := rdb.Time(t.Context()).Result()
	require.NoError(t, err)
	id, fleet := host+"/1/x", prefix+":ops:{fleet}:process"
	require.NoError(t, rdb.Set(t.Context(), fleet+":"+id, fmt.Sprintf(`{"id":%q,"host":%q,"pid":1,"ttl":60000%s}`, id, host, more), time.Minute).Err())
	require.NoError(t, rdb.ZAdd(t.Context(), fleet+"es", redis.Z{Score: float64(now.Add(time.Minute - age).UnixMilli()), Member: id}).Err())
}

func TestConsole_MarksProcessesThatAreSilent(t *testing.T) {
	env := redistest.Embedded(t)
	rdb := env.Client(t)
	for host, age := range map[string]time.Duration{"told": time.Second, "hangs": 30 * time.Second} {
		tell(t, rdb, env.Prefix, host, age, "")
	}
	server, _ := newConsole(t, env, nil)
	_, body, _ := get(t, server.URL+"/processes")
	for row := range strings.SplitSeq(body, "<tr>") {
		assert.Equal(t, strings.Contains(row, "hangs"), strings.Contains(row, ">silent<"), row)
	}
	for id, silent := range map[string]bool{"told/1/x": false, "hangs/1/x": true} {
		_, body, _ := get(t, server.URL+"/process?id="+id)
		assert.Equal(t, silent, strings.Contains(body, ">silent<"), id)
	}
}

// Who told in time before Redis went away is not silent: nobody can tell since.
func TestConsole_CallsNobodySilentForAnOutage(t *testing.T) {
	env := redistest.Real(t)
	proxy := redistest.NewProxy(t, env.Addr)
	rdb := redistest.Client(t, &redis.Options{Addr: proxy.Addr})
	server, _ := newConsole(t, env, func(o *console.Options) { o.Locker, o.Redis = newLocker(t, rdb, env.Prefix), rdb })
	beacon, err := ops.StartBeacon(env.Client(t), ops.NewRecorder(), newLocker(t, env.Client(t), env.Prefix), ops.WithService("teller"), ops.WithInterval(time.Second))
	require.NoError(t, err)
	t.Cleanup(func() { _ = beacon.Close() })
	redistest.Eventually(t, func() bool {
		_, body, _ := get(t, server.URL+"/processes")
		return strings.Contains(body, "teller")
	}, "it is seen")
	proxy.Blackhole(redistest.Requests)
	time.Sleep(2100 * time.Millisecond) // it should have told again
	_, body, _ := get(t, server.URL+"/processes")
	assert.Contains(t, body, "Not up to date")
	assert.Contains(t, body, "teller")
	assert.NotContains(t, body, ">silent<")
}

// A queue on a Redis that is away does not keep a page from showing the others.
func TestConsole_AQueueOnARedisThatIsAway(t *testing.T) {
	env := redistest.Real(t)
	rdb := env.Client(t)
	proxy := redistest.NewProxy(t, env.Addr)
	proxy.Blackhole(redistest.Requests)
	away := testbed.NewQueue(t, redistest.Client(t, &redis.Options{Addr: proxy.Addr}), "away", delayqueue.WithPrefix(env.Prefix+"-other"))
	here := testbed.NewQueue(t, rdb, "here", delayqueue.WithPrefix(env.Prefix))
	testbed.Enqueue(t, here, delayqueue.Job{Key: "k"})
	server, _ := newConsole(t, env, func(o *console.Options) { o.Queues = []*delayqueue.Queue{away} })
	_, body, _ := get(t, server.URL+"/")
	assert.Contains(t, body, "Queue away cannot be read.")
	assert.NotContains(t, body, "Queue here cannot be read.")
	_, body, _ = get(t, server.URL+"/queues")
	assert.Equal(t, 1, strings.Count(body, "<dt>Queued</dt><dd>1</dd>"), "the first page shows it")
}

func TestMain(m *testing.M) { redistest.Main(m) }
