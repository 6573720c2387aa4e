package config_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/config"
	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
)

// Files that park, and that park no more.
const (
	parking = `
queues: {later: {}, other: {}}
defaults: {on_conflict: {policy: delay, queue: later}}
routes:
  POST /a/:id: {key: "a:{param.id}", anonymous: true}
  POST /b: {key: b, fixed_key: true, principal: users}
`
	rejecting = `
queues: {later: {}, other: {}}
routes:
  POST /a/:id: {key: "a:{param.id}"}
  POST /b: {key: b, fixed_key: true, principal: users}
`
)

func principals() []config.Option { return []config.Option{as("users", "u1"), as("merchants", "u1")} }

// problems are those of a reload, without lines: the places of two files may differ.
func problems(t *testing.T, err error) string {
	t.Helper()
	if err == nil {
		return ""
	}
	var e *config.Error
	require.ErrorAs(t, err, &e)
	var lines []string
	for _, p := range e.Problems {
		lines = append(lines, p.Path+": "+p.Message)
	}
	return strings.Join(lines, "\n")
}

// Replicas take the same files, whatever they did since their start, and whoever has parked.
// It is long since it is one story.
func TestReload_ReplicasAgree(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		replicas := map[string]*config.Runtime{}
		for name, history := range map[string][]string{
			"has parked":    {parking},
			"never parked":  {rejecting},
			"parks no more": {parking, rejecting},
			"to and fro":    {rejecting, parking, rejecting, parking, rejecting},
		} {
			rt := build(t, env, history[0], principals()...)
			for _, file := range history[1:] {
				require.NoError(t, rt.Reload(load(t, env, file)))
			}
			replicas[name] = rt
		}
		parker := replicas["has parked"]
		server := serve(parker, "/a/{id}")
		release := hold(t, parker, "a:7")
		require.Equal(t, http.StatusAccepted, server.do(request("POST", "/a/7")).Code)
		asUser := serve(parker, "/b")
		releaseB := hold(t, parker, "b")
		require.Equal(t, http.StatusAccepted, asUser.do(request("POST", "/b")).Code)

		for _, c := range []struct{ old, new, problem string }{
			{"  POST /a/:id: {key: \"a:{param.id}\"}\n", "", `routes."POST /a/:id": the route was removed, and requests of it are parked in the queue "later"`},
			{"a:{param.id}", "a:{header.X-Shop}", "the key reads the header X-Shop now"},
			{"principal: users", "principal: merchants", `routes."POST /b": the route's principal was "users"`},
			{", principal: users", "", `routes."POST /b": the route's principal was "users"`},
			{"later: {}, ", "", "queues.later: the queue was removed, and holds messages"},
			{", other: {}", "", ""},
			{"other: {}", "other: {max_age: 1m}", ""},
			{"/a/:id", "/a/{id}", ""},
		} {
			file := strings.Replace(rejecting, c.old, c.new, 1)
			require.NotEqual(t, rejecting, file)
			var first string
			for name, rt := range replicas {
				was := rt.File()
				told := problems(t, rt.Reload(load(t, env, file)))
				if first == "" {
					first = told
				}
				assert.Equal(t, first, told, "%s: %q", name, c.new)
				if c.problem == "" {
					assert.Empty(t, told, name)
					require.NoError(t, rt.Reload(load(t, env, rejecting)), name)
				} else {
					assert.Contains(t, told, c.problem, name)
					assert.Same(t, was, rt.File(), name)
				}
			}
		}

		// Nothing is parked any more: all take it all.
		release()
		releaseB()
		worker, err := parker.Worker("later", func(context.Context, delayqueue.Message) error { return nil })
		require.NoError(t, err)
		require.NoError(t, worker.Start())
		redistest.Eventually(t, func() bool {
			stats, err := parker.Queue("later").Stats(t.Context())
			return err == nil && stats.Queued+stats.Running == 0
		}, "what was parked has run")
		for name, rt := range replicas {
			require.NoError(t, rt.Reload(load(t, env, "routes: {'POST /b': {key: 'b:{header.X-Shop}', principal: merchants}}\nunguard: [POST /a/:id]")), name)
			assert.Nil(t, rt.Queue("later"), name)
			require.NoError(t, rt.Reload(load(t, env, rejecting)), "%s: it was there at the start", name)
		}
	})
}

// parkAs parks a job as if it were a request of the route, and returns its id.
func parkAs(t *testing.T, rt *config.Runtime, route string) string {
	t.Helper()
	stored, err := rt.Queue("later").Enqueue(t.Context(), delayqueue.Job{Key: "k", Name: route, Payload: []byte("x")})
	require.NoError(t, err)
	return stored.ID
}

// Names have the form of each framework. What a request was not parked with does not matter, nor what its key read before.
func TestReload_LooksAtTheRoutesOfWhatIsParked(t *testing.T) {
	t.Parallel()
	env := redistest.Embedded(t)
	rt := build(t, env, rejecting, principals()...)
	without := strings.Replace(rejecting, "  POST /a/:id: {key: \"a:{param.id}\"}\n", "", 1) + "unguard: [POST /a/:id]\n"
	for name, taken := range map[string]bool{
		"POST /a/:id": false, "POST /a/{id}": false, "POST shop.example/a/{id}": false, "POST /a/{name}": true, "PUT /a/:id": true, "job": true, "": true,
	} {
		id := parkAs(t, rt, name)
		err := rt.Reload(load(t, env, without))
		assert.Equal(t, taken, err == nil, "%q: %v", name, err)
		require.NoError(t, rt.Queue("later").Cancel(t.Context(), id))
		require.NoError(t, rt.Reload(load(t, env, rejecting)))
	}

	id := parkAs(t, rt, "POST /b")
	require.NoError(t, rt.Reload(load(t, env, strings.Replace(rejecting, "principal: users", "principal: merchants", 1))), "it is on nobody's behalf")
	require.NoError(t, rt.Reload(load(t, env, rejecting)))
	require.NoError(t, rt.Queue("later").Cancel(t.Context(), id))
	reads := strings.Replace(rejecting, "a:{param.id}", "a:{header.X-Shop}", 1)
	require.NoError(t, rt.Reload(load(t, env, reads)))
	id = parkAs(t, rt, "POST /a/:id")
	require.NoError(t, rt.Reload(load(t, env, strings.Replace(reads, "key: b", "key: bb", 1))))
	require.NoError(t, rt.Reload(load(t, env, rejecting)))
	require.NoError(t, rt.Queue("later").Cancel(t.Context(), id))
}

// What is running, or a dead letter, can be parked again.
func TestReload_LooksAtAllThatIsParked(t *testing.T) {
	t.Parallel()
	env := redistest.Real(t)
	rt := build(t, env, rejecting, principals()...)
	without := strings.Replace(rejecting, "  POST /a/:id: {key: \"a:{param.id}\"}\n", "", 1) + "unguard: [POST /a/:id]\n"
	taken := func() bool {
		t.Helper()
		err := rt.Reload(load(t, env, without))
		if err != nil {
			assert.ErrorContains(t, err, `routes."POST /a/:id": the route was removed`)
			return false
		}
		require.NoError(t, rt.Reload(load(t, env, rejecting)))
		return true
	}
	for range 600 {
		parkAs(t, rt, "POST /other")
	}
	parkAs(t, rt, "POST /a/:id")
	assert.False(t, taken(), "one after many others")
	_, err := rt.Queue("later").CancelAll(t.Context(), delayqueue.Filter{})
	require.NoError(t, err)

	running, goOn := make(chan struct{}), make(chan struct{})
	worker, err := rt.Worker("later", func(context.Context, delayqueue.Message) error {
		running <- struct{}{}
		<-goOn
		return delayqueue.SkipRetry(errors.New("it fails"))
	})
	require.NoError(t, err)
	id := parkAs(t, rt, "POST /a/:id")
	require.NoError(t, worker.Start())
	<-running
	assert.False(t, taken(), "it runs")
	close(goOn)
	redistest.Eventually(t, func() bool {
		status, err := rt.Queue("later").Status(t.Context(), id)
		return err == nil && status.State == delayqueue.StateDead
	}, "a dead letter")
	assert.False(t, taken(), "a dead letter can be redriven")
	assert.ErrorContains(t, rt.Reload(load(t, env, "queues: {other: {}}")), "queues.later: the queue was removed")
	require.NoError(t, rt.Queue("later").Purge(t.Context(), id))
	assert.True(t, taken())
}

// The old file stays in force while it cannot be said what is parked. What needs no answer is not held up.
func TestReload_WhileRedisIsAway(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	dir := t.TempDir()
	head := fmt.Sprintf("redis: {addresses: ['%s'], max_retries: 0}\n", server.Addr)
	path := filepath.Join(dir, "perkey.yaml")
	put := func(file string) *config.File {
		t.Helper()
		require.NoError(t, os.WriteFile(path, []byte(head+file), 0o600))
		f, err := config.Load(path)
		require.NoError(t, err)
		return f
	}
	var logs testbed.Log
	rt, err := config.Build(put(rejecting), append(principals(), config.WithLogger(logs.Logger()))...)
	require.NoError(t, err)
	defer rt.Close()
	server.Kill()

	in := rt.File()
	without := strings.Replace(rejecting, "  POST /b: {key: b, fixed_key: true, principal: users}\n", "", 1) + "unguard: [POST /b]\n"
	err = rt.Reload(put(without))
	require.ErrorIs(t, err, core.ErrUnavailable)
	assert.NotErrorIs(t, err, core.ErrInvalidOption)
	assert.ErrorContains(t, err, `config: reload: the file removes what parked requests may need, and the queue "later" cannot be read: `)
	assert.Same(t, in, rt.File())
	_, ok := rt.Route("POST", "/b")
	assert.True(t, ok)
	f := put(strings.Replace(without, "later: {}", "later: {retention: 1h}", 1))
	assert.ErrorIs(t, rt.Reload(f), core.ErrInvalidOption, "what is wrong whatever Redis has to say comes first")
	require.NoError(t, rt.Reload(put(strings.Replace(rejecting, "key: b", "key: bb", 1))))

	// Watch tries again.
	look := rt.Watcher(path)
	put(without)
	for range 4 {
		look(t.Context())
	}
	assert.Equal(t, 1, strings.Count(logs.String(), "config: not reloaded"), "told once")
	server.Restart(t)
	redistest.Eventually(t, func() bool {
		look(t.Context())
		_, ok := rt.Route("POST", "/b")
		return !ok
	}, "the file is taken when Redis is back")
}

// slow is a client's hook: Redis answers a script when its ctx ends.
type slow struct {
	redis.Hook
	asked chan struct{}
}

func (s slow) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if redistest.IsScript(cmd) {
			s.asked <- struct{}{}
			<-ctx.Done()
		}
		return next(ctx, cmd)
	}
}

func TestReload_EndsWithTheRuntime(t *testing.T) {
	t.Parallel()
	redistest.InVirtualTime(t, func(t *testing.T, env *redistest.Env) {
		rdb := env.Client(t)
		file := func(text string) *config.File {
			t.Helper()
			f, err := config.ParseIn("perkey.yaml", []byte(text), nil)
			require.NoError(t, err)
			return f
		}
		rt, err := config.Build(file("queues: {later: {}}"), config.WithClient(rdb))
		require.NoError(t, err)
		asked := make(chan struct{}, 100)
		rdb.AddHook(slow{redistest.BeforeEach(func(redis.Cmder) {}), asked})
		began, reloaded := time.Now(), make(chan error, 1)
		go func() { reloaded <- rt.Reload(file("guards: {}")) }()
		<-asked
		assert.NoError(t, rt.Close())
		require.ErrorIs(t, <-reloaded, core.ErrClosed)
		assert.Less(t, time.Since(began), time.Second, "no time-out of a command")
	})
}

// A Watch that ends while it asks Redis has refused nothing.
func TestWatch_EndsWithoutAnAlarm(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(rt *config.Runtime, cancel func()){
		"its ctx": func(_ *config.Runtime, cancel func()) { cancel() },
		"Close":   func(rt *config.Runtime, _ func()) { assert.NoError(t, rt.Close()) },
	} {
		o, rdb := &reloads{}, redistest.Embedded(t).Client(t)
		w := newWatched(t, "queues: {later: {}}\n", config.WithObserver(o), config.WithClient(rdb))
		asked := make(chan struct{}, 100)
		rdb.AddHook(slow{redistest.BeforeEach(func(redis.Cmder) {}), asked})
		w.write("guards: {}\n")
		ctx, cancel := context.WithCancel(t.Context())
		look := w.Watcher(w.path)
		look(ctx)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			look(ctx)
		}()
		<-asked
		end(w.Runtime, cancel)
		<-ended
		cancel()
		assert.Empty(t, o.told, name)
		assert.NotContains(t, w.logs.String(), "not reloaded", name)
	}
}

func TestWatch_TakesAFileWhenWhatWasParkedHasRun(t *testing.T) {
	t.Parallel()
	const queue, route = "queues: {later: {}}\n", "routes: {'POST /a': {key: a, fixed_key: true, anonymous: true, on_conflict: {policy: delay, queue: later}}}\n"
	w := newWatched(t, queue+route)
	look := w.Watcher(w.path)
	release := hold(t, w.Runtime, "a")
	require.Equal(t, http.StatusAccepted, serve(w.Runtime, "/a").do(request("POST", "/a")).Code)
	w.write(queue + "unguard: [POST /a]\n")
	for range 4 {
		look(t.Context())
	}
	_, has := w.Route("POST", "/a")
	assert.True(t, has)
	assert.Equal(t, 1, strings.Count(w.logs.String(), `requests of it are parked in the queue \"later\"`), "told once")
	release()
	require.NoError(t, w.Queue("later").Cancel(t.Context(), queued(t, w.Runtime, "later")[0].ID))
	for range 2 { // the pause after the second try
		look(t.Context())
		_, has = w.Route("POST", "/a")
		assert.True(t, has)
	}
	look(t.Context())
	_, has = w.Route("POST", "/a")
	assert.False(t, has)
	assert.Contains(t, w.logs.String(), "config: reloaded")
}

// A message keeps so much of its route as its name has room for.
func TestReload_LooksForRoutesWithLongPatterns(t *testing.T) {
	t.Parallel()
	env := redistest.Embedded(t)
	path := "/" + strings.Repeat("segment/", 40)
	without := "queues: {later: {}}\nroutes:\n  POST /x: {key: x, fixed_key: true}\n"
	rt := build(t, env, without+"  POST "+path+"{id}: {key: \"a:{param.id}\", anonymous: true, on_conflict: {policy: delay, queue: later}}\n")
	server := serve(rt, path+"{id}")
	hold(t, rt, "a:7")
	require.Equal(t, http.StatusAccepted, server.do(request("POST", path+"7")).Code)
	require.ErrorContains(t, rt.Reload(load(t, env, without)), "the route was removed, and requests of it are parked")
}
