package config_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/config"
	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

const orders = `
guards:
  reject: {key: "order:{param.id}", on_conflict: reject}
  wait: {key: "order:{param.id}", honor_prefer: true, on_conflict: {policy: retry, max_wait: 1m}}
  park: {key: "order:{param.id}", anonymous: true, on_conflict: [{policy: retry, max_wait: 10ms}, {policy: delay, queue: later, max_age: 10m}, reject]}
queues:
  later: {max_age: 1h}
routes:
  POST /reject/:id: reject
  PUT /wait/{id}: wait
  POST /park/{id}: park
`

func TestRoute_AnswersAHeldKeyAsItSays(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		rt := build(t, env, orders)

		s := serve(rt, "/reject/{id}")
		end := s.begin(t, request("POST", "/reject/7"))
		requireHeld(t, rt, "order:7")
		impatient := serve(rt, "PUT /wait/{id}").do(request("PUT", "/wait/7", "Prefer: wait=0"))
		assert.Equal(t, http.StatusConflict, impatient.Code, "the client may choose not to wait")
		assert.Equal(t, "wait=0", impatient.Header().Get("Preference-Applied"))
		assert.Equal(t, http.StatusConflict, s.do(request("POST", "/reject/7")).Code)
		_, ok := rt.Route("PATCH", "/reject/{id}")
		assert.False(t, ok, "a method that the file does not have")
		assert.Equal(t, http.StatusOK, end().Code)

		s = serve(rt, "PUT /wait/{id}")
		release := hold(t, rt, "order:8")
		answered := make(chan int, 1)
		go func() { answered <- s.do(request("PUT", "/wait/8")).Code }()
		redistest.Eventually(t, func() bool { return waiting(t, rt, "order:8") }, "a request that waits")
		s.goOn <- struct{}{}
		release()
		assert.Equal(t, http.StatusOK, <-answered)

		s = serve(rt, "POST /park/{id}")
		release = hold(t, rt, "order:9")
		began := time.Now()
		assert.Equal(t, http.StatusAccepted, s.do(request("POST", "/park/9")).Code)
		parked := queued(t, rt, "later")
		require.Len(t, parked, 1)
		assert.WithinDuration(t, began.Add(10*time.Minute), parked[0].ExpiresAt, time.Minute, "the policy's age, not the queue's")
		release()

		s.goOn <- struct{}{}
		w, err := rt.Worker("later", httplock.Replay(s))
		require.NoError(t, err)
		require.NoError(t, w.Start())
		<-s.running
		status, err := rt.Queue("later").Wait(t.Context(), parked[0].ID)
		require.NoError(t, err)
		assert.Equal(t, delayqueue.StateDone, status.State)
		assert.NoError(t, rt.Shutdown(t.Context()), "it stops the worker")
		assert.ErrorIs(t, w.Start(), delayqueue.ErrStopped)
	})
}

func queued(t testing.TB, rt *config.Runtime, queue string) []delayqueue.Entry {
	t.Helper()
	entries, _, err := rt.Queue(queue).List(t.Context(), delayqueue.StateQueued, "", 100)
	require.NoError(t, err)
	return entries
}

func waiting(t testing.TB, rt *config.Runtime, key string) bool {
	t.Helper()
	state, err := rt.Locker().Inspect(t.Context(), key)
	require.NoError(t, err)
	return state.Waiting > 0
}

func TestGuard_HasTheLockOptionsOfTheFile(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		rt := build(t, env, `
defaults: {ttl: 1h}
guards:
  long: {}
  short: {ttl: 20m}
  fixed: {fixed_lease: 10m}
  bounded: {max_hold: 200ms}
  rare: {min_hold: 1m}
  three: {at_once: 3}
`, config.WithLocker(core.WithFirstLease(1500*time.Millisecond)))
		for name, ttl := range map[string]time.Duration{"long": time.Hour, "short": 20 * time.Minute, "fixed": 10 * time.Minute} {
			require.NoError(t, rt.Guard(name).Do(t.Context(), core.Call{Key: name}, func(ctx context.Context) error {
				// The first lease is short, until it is renewed.
				redistest.Eventually(t, func() bool {
					info, err := rt.Locker().Inspect(ctx, name)
					require.NoError(t, err)
					left := info.Holders[0].Remaining
					return left > ttl*9/10 && left <= ttl
				}, name+" has its TTL")
				return nil
			}))
		}
		err := rt.Guard("bounded").Do(t.Context(), core.Call{Key: "bounded"}, func(ctx context.Context) error {
			<-ctx.Done()
			return nil
		})
		assert.ErrorIs(t, err, core.ErrLeaseLost)
		require.NoError(t, rt.Guard("rare").Do(t.Context(), core.Call{Key: "rare"}, func(context.Context) error { return nil }))
		requireHeld(t, rt, "rare")
		three := rt.Guard("three")
		nested := func(in func() error) error {
			return three.Do(context.Background(), core.Call{Key: "three"}, func(context.Context) error { return in() })
		}
		nothing := func() error { return nil }
		assert.NoError(t, nested(func() error { return nested(func() error { return nested(nothing) }) }))
		assert.ErrorIs(t, nested(func() error { return nested(func() error { return nested(func() error { return nested(nothing) }) }) }), core.ErrConflict)
	})
}

func TestGuard_HasTheRequestOptionsOfTheFile(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		rt := build(t, env, `
defaults: {safe_methods: lock}
guards:
  ours: {key: "{header.X-Shop}:{ctx.user}"}
  shared: {key: all, fixed_key: true, safe_methods: share}
  open: {key: all, fixed_key: true, safe_methods: pass}
  skipped: {key: all, fixed_key: true, skip: insiders}
  late: {key: late, fixed_key: true, body_timeout: 900ms}
  early: {key: late, fixed_key: true, body_timeout: 900ms, read_ahead: 1B}
  streamed: {key: late, fixed_key: true, body_timeout: 900ms, stream_body: true}
routes:
  GET /ours: ours
  GET /shared: shared
  GET /open: open
  POST /skipped: skipped
  POST /late: late
  POST /early: early
  POST /streamed: streamed
`, config.WithValue("user", func(ctx context.Context) (string, bool) { return "u1", true }),
			config.WithSkip("insiders", func(r *http.Request) bool { return r.Header.Get("X-Insider") != "" }))
		s := serve(rt, "/ours")
		end := s.begin(t, request("GET", "/ours", "X-Shop: s1"))
		requireHeld(t, rt, "s1:u1")
		end()

		release := hold(t, rt, "all")
		s = serve(rt, "/shared")
		assert.Equal(t, http.StatusConflict, s.do(request("GET", "/shared")).Code)
		assert.Equal(t, http.StatusConflict, s.do(request("HEAD", "/shared")).Code, "HEAD has GET's route")
		open := serve(rt, "/open")
		open.begin(t, request("GET", "/open"))()
		skipped := serve(rt, "/skipped")
		assert.Equal(t, http.StatusConflict, skipped.do(request("POST", "/skipped")).Code)
		skipped.begin(t, request("POST", "/skipped", "X-Insider: yes"))()
		release()
		end1, end2 := s.begin(t, request("GET", "/shared")), s.begin(t, request("GET", "/shared"))
		end1()
		end2()

		for path, status := range map[string]int{"/late": http.StatusRequestTimeout, "/early": http.StatusOK, "/streamed": http.StatusOK} {
			r := request("POST", path)
			r.Body = io.NopCloser(iotest.OneByteReader(&slowReader{r.Body, false}))
			s := serve(rt, path)
			s.goOn <- struct{}{}
			assert.Equal(t, status, s.do(r).Code, path)
		}
	})
}

func TestGuard_HasTheParkingOptionsOfTheFile(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		rt := build(t, env, `
defaults: {max_body: 3B, status_path: /tickets/, allow_headers: [X-Shop], credential_headers: [X-Pass]}
queues: {q: {}}
guards:
  parked: {key: "park:{header.X-Shop}", anonymous: true, on_conflict: {policy: delay, queue: q}, max_body: 4B}
  large: {key: "park:{header.X-Shop}", anonymous: true, on_conflict: {policy: delay, queue: q}}
  credentials: {key: "park:{header.X-Shop}", principal: nobody, on_conflict: {policy: delay, queue: q}, credential_headers: [X-Own]}
routes:
  POST /parked: parked
  POST /large: large
  POST /credentials: credentials
`, as("nobody", ""))
		releasePark := hold(t, rt, "park:s1")
		s := serve(rt, "/parked")
		parked := s.do(request("POST", "/parked", "X-Shop: s1", "Authorization: x"))
		assert.Equal(t, http.StatusAccepted, parked.Code)
		assert.True(t, strings.HasPrefix(parked.Header().Get("Location"), "/tickets/"))
		assert.Equal(t, http.StatusRequestEntityTooLarge, serve(rt, "/large").do(request("POST", "/large", "X-Shop: s1")).Code)

		for _, header := range []string{"X-Own: x", "X-Pass: x", "X-Api-Key: x"} {
			assert.Equal(t, http.StatusConflict, serve(rt, "/credentials").do(request("POST", "/credentials", "X-Shop: s1", header)).Code, header)
		}

		// The header that makes the key was stored, as the defaults say.
		releasePark()
		w, err := rt.Worker("q", httplock.Replay(s))
		require.NoError(t, err)
		require.NoError(t, w.Start())
		r := <-s.running
		assert.Equal(t, "s1", r.Header.Get("X-Shop"))
		s.goOn <- struct{}{}
	})
}

// slowReader begins at once, and takes its time for the rest.
type slowReader struct {
	io.Reader
	begun bool
}

func (r *slowReader) Read(p []byte) (int, error) {
	if r.begun {
		time.Sleep(time.Second)
	}
	r.begun = true
	return r.Reader.Read(p)
}

func TestPrincipals_AreThoseOfTheirNames(t *testing.T) {
	t.Parallel()
	env := redistest.Embedded(t)
	rt := build(t, env, `
defaults: {principal: users, on_conflict: {policy: delay, queue: q}}
queues: {q: {}}
routes:
  POST /a: {key: a, fixed_key: true}
  POST /b: {key: b, fixed_key: true, principal: merchants}
  POST /c: {key: c, fixed_key: true, anonymous: true}
`, as("users", "users-1"), as("merchants", "merchants-1"))
	for path, principal := range map[string]string{"/a": "users-1", "/b": "merchants-1", "/c": ""} {
		release := hold(t, rt, path[1:])
		w := serve(rt, path).do(request("POST", path, "Authorization: x"))
		require.Equal(t, http.StatusAccepted, w.Code)
		parked := queued(t, rt, "q")
		require.Len(t, parked, 1)
		assert.Equal(t, principal, parked[0].Principal, path)
		require.NoError(t, rt.Queue("q").Cancel(t.Context(), parked[0].ID))
		release()
	}
}

func TestBuild_NamesThatNobodyGaveAreProblems(t *testing.T) {
	t.Parallel()
	f := load(t, redistest.Embedded(t), `
defaults: {principal: users}
guards:
  a: {key: "{ctx.user}|{ctx.tenant}|{{ctx.none}}", skip: insider}
  waiters: {key: k, fixed_key: true, principal: user, max_waiters_per_principal: 2}
  responses: {key: k, fixed_key: true, principal: user, idempotency: {}}
routes:
  POST /x: {key: "k:{ctx.usr}", principal: merchants}
`)
	never := func(context.Context) (string, bool) { return "", false }
	_, err := config.Build(f, config.WithValue("tenant", never), config.WithSkip("insiders", func(*http.Request) bool { return false }))
	assert.Equal(t, []string{
		`perkey.yaml:4:23: defaults.principal: no option of Build has the name "users"; expected config.WithPrincipal("users", …)`,
		`perkey.yaml:6:12: guards.a.key: no option of Build has the name "user"; expected config.WithValue("user", …)`,
		`perkey.yaml:6:58: guards.a.skip: no option of Build has the name "insider"; expected config.WithSkip("insider", …); did you mean "insiders"?`,
		`perkey.yaml:7:49: guards.waiters.principal: no option of Build has the name "user"; expected config.WithPrincipal("user", …)`,
		`perkey.yaml:8:51: guards.responses.principal: no option of Build has the name "user"; expected config.WithPrincipal("user", …)`,
		`perkey.yaml:10:18: routes."POST /x".key: no option of Build has the name "usr"; expected config.WithValue("usr", …)`,
		`perkey.yaml:10:44: routes."POST /x".principal: no option of Build has the name "merchants"; expected config.WithPrincipal("merchants", …)`,
	}, placed(t, err))
}

func TestBuild_WrongOptionsAreInvalidOptions(t *testing.T) {
	t.Parallel()
	f := load(t, redistest.Embedded(t), "")
	value := func(context.Context) (string, bool) { return "", false }
	skip := func(*http.Request) bool { return false }
	mayStill := func(*http.Request, string) error { return nil }
	for _, opts := range [][]config.Option{
		{nil},
		{config.WithClient(nil)},
		{config.WithLogger(nil)},
		{config.WithSkip("a", nil)},
		{config.WithValue("a", nil)},
		{config.WithSkip("", skip)},
		{config.WithSkip("a", skip), config.WithSkip("a", skip)},
		{config.WithValue("{", value)},
		{config.WithPrincipal("a", nil, mayStill)},
		{config.WithLocker(nil)},
		{config.WithLocker(core.WithMaxWaiters(0, 0))},
	} {
		_, err := config.Build(f, opts...)
		assert.ErrorIs(t, err, core.ErrInvalidOption)
	}
	_, err := config.Build(nil)
	assert.ErrorIs(t, err, core.ErrInvalidOption)
}

func TestBuild_WithoutARedisFails(t *testing.T) {
	t.Parallel()
	f, err := config.ParseIn("f.yaml", []byte("redis: {pool_size: 3}\n"), nil)
	require.NoError(t, err)
	_, err = config.Build(f)
	assert.EqualError(t, err, "config: f.yaml:1:1: redis: no Redis is given; set redis.url or redis.addresses, or use config.WithClient")

	env := redistest.Embedded(t)
	rdb := env.Client(t)
	rt, err := config.Build(f, config.WithClient(rdb))
	require.NoError(t, err)
	assert.Same(t, rdb, rt.Redis())
	require.NoError(t, rt.Shutdown(t.Context()))
	assert.NoError(t, rdb.Ping(t.Context()).Err(), "a client that was given stays open")
}

func TestShutdown_WaitsClosesAndMayBeCalledTwice(t *testing.T) {
	t.Parallel()
	env := redistest.Embedded(t)
	rt := build(t, env, orders)
	s := serve(rt, "/reject/{id}")
	end := s.begin(t, request("POST", "/reject/1"))
	done := make(chan error, 1)
	go func() { done <- rt.Shutdown(t.Context()) }()
	redistest.Eventually(t, func() bool {
		err := rt.Guard("reject").Do(t.Context(), core.Call{Key: "order:2"}, func(context.Context) error { return nil })
		return errors.Is(err, core.ErrClosed)
	}, "new requests are refused")
	select {
	case err := <-done:
		require.Fail(t, "Shutdown did not wait", "%v", err)
	default:
	}
	assert.Equal(t, http.StatusOK, end().Code, "and the old one ends in peace")
	require.NoError(t, <-done)
	assert.NoError(t, rt.Shutdown(t.Context()))
	assert.NoError(t, rt.Close())
	assert.Error(t, rt.Redis().Ping(t.Context()).Err(), "its own client is closed")
	_, err := rt.Worker("later", func(context.Context, delayqueue.Message) error { return nil })
	assert.ErrorIs(t, err, core.ErrClosed)
	assert.ErrorIs(t, rt.Reload(load(t, env, orders)), core.ErrClosed)
}

func TestReload_BesideLookups(t *testing.T) {
	t.Parallel()
	env := redistest.Embedded(t)
	const guarded = "guards: {g: {key: g, fixed_key: true}}\nroutes: {POST /g: g}\n"
	with, without := load(t, env, guarded+"queues: {later: {}}"), load(t, env, guarded)
	rt := build(t, env, guarded+"queues: {later: {}}")
	var all sync.WaitGroup
	for i := range 4 {
		all.Go(func() {
			for range 10 {
				assert.NoError(t, rt.Reload(without))
				assert.NoError(t, rt.Reload(with))
				_, ok := rt.Route("POST", "/g")
				assert.True(t, ok)
				assert.NoError(t, rt.Guard("g").Do(t.Context(), core.Call{Key: fmt.Sprint(i)}, func(context.Context) error { return nil }))
				_, err := rt.Worker("later", nil)
				assert.ErrorIs(t, err, core.ErrInvalidOption)
				assert.NotContains(t, err.Error(), "the queue is nil", "while others take it away")
			}
		})
	}
	all.Wait()
}

func TestShutdown_LetsWorkersEnd(t *testing.T) {
	t.Parallel()
	rt := build(t, redistest.Embedded(t), orders)
	running, goOn := make(chan struct{}), make(chan struct{})
	ended := make(chan error, 1)
	w, err := rt.Worker("later", func(ctx context.Context, _ delayqueue.Message) error {
		close(running)
		<-goOn
		ended <- ctx.Err()
		return nil
	})
	require.NoError(t, err)
	require.NoError(t, w.Start())
	_, err = rt.Queue("later").Enqueue(t.Context(), delayqueue.Job{Key: "k", Name: "n", Payload: []byte("x")})
	require.NoError(t, err)
	<-running
	done := make(chan error, 1)
	go func() { done <- rt.Shutdown(t.Context()) }()
	// It has begun when no new worker is taken.
	redistest.Eventually(t, func() bool {
		_, err := rt.Worker("later", func(context.Context, delayqueue.Message) error { return nil })
		return errors.Is(err, core.ErrClosed)
	}, "a Runtime that is shut down")
	requireHeld(t, rt, "k") // and the Locker is still open
	close(goOn)
	assert.NoError(t, <-ended, "the work was not told to end")
	assert.NoError(t, <-done)
}

func TestRuntime_UnknownNames(t *testing.T) {
	t.Parallel()
	rt := build(t, redistest.Embedded(t), orders)
	assert.ErrorIs(t, rt.Guard("none").Err(), core.ErrInvalidOption)
	assert.Nil(t, rt.Queue("none"))
	_, ok := rt.Route("POST", "/none")
	assert.False(t, ok)
	_, err := rt.Worker("none", func(context.Context, delayqueue.Message) error { return nil })
	assert.ErrorIs(t, err, core.ErrInvalidOption)
	_, err = rt.Worker("later", nil)
	assert.ErrorIs(t, err, core.ErrInvalidOption)
}

func TestWaiting_IsBoundedAsTheFileSays(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		rt := build(t, env, `
defaults: {max_waiters_per_principal: 1, on_conflict: {policy: retry, max_wait: 1m}}
guards:
  own: {key: all, fixed_key: true, principal: users}
  keys: {key: all, fixed_key: true, principal: users, idempotency: {}}
  tasks: {key: k, fixed_key: true} # which come from nobody
routes: {POST /own: own, POST /keys: keys}
asynq: {t: tasks}
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
			redistest.Eventually(t, func() bool { return waiting(t, rt, "all") }, "it waits")
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
	redistest.Eventually(t, func() bool { return waiting(t, rt, "all") }, "it waits")
	assert.Equal(t, http.StatusServiceUnavailable, post(x, "/x"))
	y.goOn <- struct{}{}
	assert.Equal(t, http.StatusOK, post(y, "/y"), "by the defaults there is room")
	release()
	x.goOn <- struct{}{}
	assert.Equal(t, http.StatusOK, <-waited)
}
