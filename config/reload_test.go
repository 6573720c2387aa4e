package config_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/config"
	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
)

// versions of one file: what happens to a held key differs, and how long it may.
func versions() (files []string) {
	const file = `
defaults: {ttl: %s}
queues: {later: {max_age: 1h, max_depth: %d}}
guards:
  g: {key: "k:{param.id}", anonymous: true, on_conflict: %s}
routes:
  POST /orders/:id: g
`
	for i, policy := range []string{
		"reject", "{policy: retry, max_wait: 50ms, initial: 1ms}", "{policy: delay, queue: later, max_age: 20m}",
		"[{policy: retry, max_wait: 5ms}, {policy: delay, queue: later}]",
	} {
		files = append(files, fmt.Sprintf(file, []string{"10s", "20s", "30s", "15s"}[i], 100_000+i, policy))
	}
	return files
}

// TestReload_UnderTrafficDropsNothing is long since it is one story.
func TestReload_UnderTrafficDropsNothing(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		const reloads, clients, keys = 40, 8, 2
		files := versions()
		rt := build(t, env, files[0])

		var running [keys]atomic.Int32
		var ran, overlaps atomic.Int64
		mux := http.NewServeMux()
		mux.HandleFunc("POST /orders/{id}", func(w http.ResponseWriter, r *http.Request) {
			var id int
			_, _ = fmt.Sscan(r.PathValue("id"), &id)
			if running[id].Add(1) > 1 {
				overlaps.Add(1)
			}
			lease, ok := core.LeaseFrom(r.Context())
			if !ok || lease.Key() != "k:"+r.PathValue("id") {
				overlaps.Add(1) // without its key
			}
			_, _ = io.Copy(w, r.Body)
			time.Sleep(time.Millisecond) // so that others meet it
			running[id].Add(-1)
			ran.Add(1)
		})
		handler := httplock.FromConfig(rt)(mux)
		server := httptest.NewServer(handler)
		defer server.Close()
		worker, err := rt.Worker("later", httplock.Replay(handler), delayqueue.WithConcurrency(2))
		require.NoError(t, err)
		require.NoError(t, worker.Start())

		var traffic sync.WaitGroup
		var answers [600]atomic.Int64
		stop := make(chan struct{})
		for c := range clients {
			traffic.Go(func() {
				for i := c; ; i++ {
					select {
					case <-stop:
						return
					default:
					}
					time.Sleep(time.Millisecond) // other tests run too
					resp, err := server.Client().Post(fmt.Sprintf("%s/orders/%d", server.URL, i%keys), "text/plain", strings.NewReader("body"))
					if !assert.NoError(t, err) {
						return
					}
					_, _ = io.Copy(io.Discard, resp.Body)
					_ = resp.Body.Close()
					answers[resp.StatusCode].Add(1)
				}
			})
		}
		for i := 1; i <= reloads; i++ {
			before := ran.Load()
			require.NoError(t, rt.Reload(load(t, env, files[i%len(files)])))
			if i%10 == 0 { // a bad one in between changes nothing
				in := rt.File()
				require.Error(t, rt.Reload(load(t, env, strings.Replace(files[0], "later:", "latest:", 1)[:strings.Index(files[0], "guards:")])))
				require.Same(t, in, rt.File())
			}
			redistest.Eventually(t, func() bool { return ran.Load() > before }, "traffic between two reloads")
		}
		close(stop)
		traffic.Wait()

		ok, parked, refused := answers[http.StatusOK].Load(), answers[http.StatusAccepted].Load(), answers[http.StatusConflict].Load()
		t.Logf("200: %d, 202: %d, 409: %d", ok, parked, refused)
		for status := range answers {
			if n := answers[status].Load(); status != 200 && status != 202 && status != 409 {
				assert.Zero(t, n, "status %d", status)
			}
		}
		assert.Positive(t, ok)
		assert.Positive(t, parked)
		assert.Positive(t, refused)
		// The queue delivers at least once; with nobody killed that is once.
		redistest.Eventually(t, func() bool { return ran.Load() >= ok+parked }, "all that was parked has run")
		assert.Equal(t, ok+parked, ran.Load())
		assert.Zero(t, overlaps.Load(), "one at a time per key")
		stats, err := rt.Queue("later").Stats(t.Context())
		require.NoError(t, err)
		assert.Zero(t, stats.Dead)
	})
}

func TestReload_ARequestEndsUnderTheGuardThatItBeganWith(t *testing.T) {
	t.Parallel()
	env := redistest.Embedded(t)
	rt := build(t, env, "routes:\n  POST /x: {key: old, fixed_key: true, on_conflict: {policy: retry, max_wait: 1m}}\n")
	s := serve(rt, "/x")
	end := s.begin(t, request("POST", "/x"))
	answer := make(chan *httptest.ResponseRecorder, 1)
	go func() { answer <- s.do(request("POST", "/x")) }()
	redistest.Eventually(t, func() bool { return waiting(t, rt, "old") }, "one that waits")

	require.NoError(t, rt.Reload(load(t, env, "routes:\n  POST /x: {key: new, fixed_key: true, on_conflict: reject}\n")))
	requireHeld(t, rt, "old")
	endNew := s.begin(t, request("POST", "/x"))
	requireHeld(t, rt, "new")
	assert.Equal(t, http.StatusConflict, s.do(request("POST", "/x")).Code, "the new policy")
	s.goOn <- struct{}{}
	endNew()
	end()
	assert.Equal(t, http.StatusOK, (<-answer).Code, "waited as the old policy says")
}

const untilRun = "put it back until they have run, or were cancelled or purged"

const fixed = `
queues:
  later: {retention: 1h, encryption: {current: k, keys: {k: {env: SHIP_KEY}}}}
  empty: {}
defaults: {on_conflict: {policy: delay, queue: later}}
guards: {g: {key: "k:{param.id}", anonymous: true}}
routes:
  POST /a/{id}: g
  POST /b: {key: b, fixed_key: true, anonymous: true}
  POST /c: {key: c, fixed_key: true, principal: users}
  POST /d: {key: d, fixed_key: true, on_conflict: reject}
`

// TestReload_RefusesWhatNeedsARestart is long since most of it is a table.
func TestReload_RefusesWhatNeedsARestart(t *testing.T) {
	t.Parallel()
	env := redistest.Embedded(t)
	rt := build(t, env, fixed, principals()...)
	in := rt.File()
	start := redisOf(env)
	for queue, job := range map[string]delayqueue.Job{
		"later": {Name: "POST /b"}, "empty": {Name: "elsewhere"},
	} {
		job.Key, job.Payload = "k", []byte("x")
		_, err := rt.Queue(queue).Enqueue(t.Context(), job)
		require.NoError(t, err)
	}
	_, err := rt.Queue("later").Enqueue(t.Context(), delayqueue.Job{Key: "k", Name: "POST /c", Principal: "u1", Payload: []byte("x")})
	require.NoError(t, err)
	const restart = "changed since the start; a reload cannot change it: put it back, or restart"
	dropped := func(route string) string {
		return fmt.Sprintf("8:1: routes.%q: the new file has no guard for this route, so that what has one key would run at once; "+
			"put it back or, if this is meant, add it to the file's list: unguard: [%[1]q]", route)
	}
	for _, c := range []struct {
		name, old, new string
		problems       []string
	}{
		{"prefix", "prefix: " + env.Prefix, "prefix: other", []string{"2:9: prefix: " + restart}},
		{"no prefix", "prefix: " + env.Prefix + "\n", "", []string{"1:1: prefix: " + restart}},
		{"service", "prefix: " + env.Prefix + "\n", "prefix: " + env.Prefix + "\nservice: shop\n", []string{"3:10: service: " + restart}},
		{"ops", "prefix: " + env.Prefix + "\n", "prefix: " + env.Prefix + "\nops: {}\n", []string{"3:1: ops: " + restart}},
		{"address", env.Addr, "127.0.0.1:1", []string{"1:9: redis.addresses: " + restart}},
		{"password", "redis: {", "redis: {password: '${REDIS_PASSWORD}', tls: {}, ", []string{
			"1:19: redis.password: " + restart, "1:40: redis.tls: " + restart,
		}},
		{"retention", "retention: 1h", "retention: 2h", []string{"4:22: queues.later.retention: " + restart}},
		{"worker", "empty: {}", "empty: {worker: {concurrency: 2}}", []string{"5:33: queues.empty.worker.concurrency: " + restart}},
		{"key of a queue", "k: {env: SHIP_KEY}", "k: {file: x}", []string{"4:51: queues.later.encryption.keys: " + restart}},
		{"no encryption", ", encryption: {current: k, keys: {k: {env: SHIP_KEY}}}", "", []string{"4:3: queues.later.encryption: " + restart}},
		{"removed queue", "  empty: {}\n", "", []string{"3:1: queues.empty: the queue was removed, and holds messages or dead letters; put it back until it is empty"}},
		{"new queue", "  empty: {}\n", "  empty: {}\n  more: {}\n", []string{
			"6:3: queues.more: the queue is new, and may have no worker; restart with a worker for it",
		}},
		{"removed route", "  POST /b: {key: b, fixed_key: true, anonymous: true}\n", "", []string{
			dropped("POST /b"),
			`8:1: routes."POST /b": the route was removed, and requests of it are parked in the queue "later", which would find no guard; with another policy for the route, ` + untilRun,
		}},
		{"removed principal", "principal: users", "on_conflict: reject", []string{
			`11:3: routes."POST /c": the route's principal was "users", and requests are parked on behalf of one in the queue "later"; ` + untilRun,
		}},
		{"another principal", "principal: users", "principal: merchants", []string{
			`11:3: routes."POST /c": the route's principal was "users", and requests are parked on behalf of one in the queue "later"; ` + untilRun,
		}},
		{"key of a header", "{key: b, fixed_key: true, anon", "{key: 'b:{header.x-shop}:{header.Content-Type}', allow_headers: [X-Shop], anon", []string{
			`10:3: routes."POST /b": the key reads the header X-Shop now, which requests that are parked in the queue "later" may not have; ` +
				strings.Replace(untilRun, "it", "the old key", 1),
		}},
		{"two routes", "  POST /b: {key: b, fixed_key: true, anonymous: true}\n  POST /c: {key: c, fixed_key: true, principal: users}\n", "", []string{
			dropped("POST /b"),
			dropped("POST /c"),
			`8:1: routes."POST /b": the route was removed, and requests of it are parked in the queue "later", which would find no guard; with another policy for the route, ` + untilRun,
			`8:1: routes."POST /c": the route was removed, and requests of it are parked in the queue "later", which would find no guard; with another policy for the route, ` + untilRun,
		}},
		{"unknown name", "principal: users", "principal: user", []string{
			`11:49: routes."POST /c".principal: no option of Build has the name "user"; expected config.WithPrincipal("user", …); did you mean "users"?`,
		}},
	} {
		file := strings.Replace(start+fixed[1:], c.old, c.new, 1)
		require.NotEqual(t, start+fixed[1:], file, c.name)
		f, err := config.ParseIn("new.yaml", []byte(file), environment)
		require.NoError(t, err, c.name)
		got := placed(t, rt.Reload(f))
		for i := range got {
			got[i] = strings.TrimPrefix(got[i], "new.yaml:")
		}
		assert.Equal(t, c.problems, got, c.name)
		assert.Same(t, in, rt.File(), c.name)
	}
	assert.ErrorIs(t, rt.Reload(nil), core.ErrInvalidOption)
}

func TestReload_TakesWhatItCan(t *testing.T) {
	t.Parallel()
	env := redistest.Embedded(t)
	rt := build(t, env, fixed, principals()...)
	file := "unguard: [POST /d]" + fixed
	for _, c := range [][2]string{
		{"retention: 1h", "retention: 1h, max_age: 1m, max_depth: 5, max_depth_per_key: 1, max_payload: 1MiB, max_bytes: 9MiB, max_bytes_per_key: 2MiB, max_bytes_per_principal: 2MiB"},
		{"  POST /d: {key: d, fixed_key: true, on_conflict: reject}\n", "  POST /e: {key: e, fixed_key: true, on_conflict: reject}\n"}, // it has parked nothing
		{"key: b", "key: bb, on_conflict: reject"},
		{"/a/{id}", "/a/:id"}, // the same route
		{"g: {", "h: {ttl: 7s}\n  g: {"},
		{"empty: {}", "empty: {max_age: 1m}"},
	} {
		require.Contains(t, file, c[0])
		file = strings.Replace(file, c[0], c[1], 1)
	}
	require.NoError(t, rt.Reload(load(t, env, strings.Replace(file, "guards: {h: {ttl: 7s}\n  g: {", "guards: {h: {ttl: 7s}, g: {", 1))))
	_, ok := rt.Route("POST", "/d")
	assert.False(t, ok)
	_, ok = rt.Route("POST", "/e")
	assert.True(t, ok)
	assert.NotNil(t, rt.Guard("h"))
	_, err := rt.Queue("later").Enqueue(t.Context(), delayqueue.Job{Key: "k", Name: "n", Payload: []byte("x")})
	require.NoError(t, err)
	_, err = rt.Queue("later").Enqueue(t.Context(), delayqueue.Job{Key: "k", Name: "n", Payload: []byte("x")})
	assert.ErrorIs(t, err, delayqueue.ErrKeyFull)
}

// watched is a file of a Runtime that looks at it.
type watched struct {
	*config.Runtime

	t    *testing.T
	path string
	head string
	logs testbed.Log
}

func newWatched(t *testing.T, file string, opts ...config.Option) *watched {
	t.Helper()
	env := redistest.Embedded(t)
	w := &watched{t: t, path: filepath.Join(t.TempDir(), "perkey.yaml"), head: redisOf(env)}
	w.write(file)
	f, err := config.Load(w.path)
	require.NoError(t, err)
	w.Runtime, err = config.Build(f, append(opts, config.WithLogger(w.logs.Logger()))...)
	require.NoError(t, err)
	t.Cleanup(func() { _ = w.Close() })
	return w
}

func (w *watched) write(rest string) {
	w.t.Helper()
	require.NoError(w.t, os.WriteFile(w.path, []byte(w.head+rest), 0o600))
}

func TestWatch_TakesAFileThatIsTheSameTwice(t *testing.T) {
	t.Parallel()
	w := newWatched(t, "guards: {first: {}}\n")
	look := w.Watcher(w.path)
	ctx := t.Context()
	look(ctx)
	look(ctx)
	assert.Empty(t, w.logs.String(), "the file in force is not loaded again")

	w.write("guards: {half: {}}\n")
	look(ctx)
	assert.False(t, w.HasGuard("half"), "it may not be whole")
	w.write("guards: {half: {}, whole: {}}\n")
	look(ctx)
	assert.False(t, w.HasGuard("half"), "it was not")
	look(ctx)
	assert.True(t, w.HasGuard("whole"))
	assert.Equal(t, 1, strings.Count(w.logs.String(), "config: reloaded"))

	for _, bad := range []string{"guards: {half: {tll: 5s}}\n", "redis: {}\n", "guards: ["} {
		w.write(bad)
		for range 4 {
			look(ctx)
		}
		assert.True(t, w.HasGuard("whole"), "the old one stays in force")
	}
	assert.Equal(t, 3, strings.Count(w.logs.String(), "level=ERROR"), "each is told once")
	assert.Contains(t, w.logs.String(), `perkey.yaml:3:17: guards.half.tll: unknown field; did you mean \"ttl\"?`)

	require.NoError(t, os.Remove(w.path))
	for range 4 {
		look(ctx)
	}
	assert.Equal(t, 4, strings.Count(w.logs.String(), "level=ERROR"), "so is that it is gone")
	assert.True(t, w.HasGuard("whole"))

	w.write("guards: {again: {}}\n")
	look(ctx)
	look(ctx)
	assert.True(t, w.HasGuard("again"))
}

func TestWatch_SeesAFileInThePlaceOfAnother(t *testing.T) {
	t.Parallel()
	w := newWatched(t, "guards: {first: {}}\n")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.Watch(ctx, w.path, time.Millisecond)
	}()
	// As Kubernetes does: the name is a link, and the link is replaced.
	next := filepath.Join(t.TempDir(), "next.yaml")
	require.NoError(t, os.WriteFile(next, []byte(w.head+"guards: {second: {}}\n"), 0o600))
	link := filepath.Join(filepath.Dir(w.path), "link")
	require.NoError(t, os.Symlink(next, link))
	require.NoError(t, os.Rename(link, w.path))
	redistest.Eventually(t, func() bool { return w.HasGuard("second") }, "the new file in force")
	cancel()
	<-done
}

func TestWatch_EndsWithTheRuntime(t *testing.T) {
	t.Parallel()
	w := newWatched(t, "guards: {first: {}}\n")
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.Watch(context.Background(), w.path, 0)
	}()
	require.NoError(t, w.Close())
	<-done
}
