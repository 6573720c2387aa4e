package httplock_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/idempotency"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
	"github.com/perkey-go/perkey/retry"
)

// A holder that lost its lease does not say what came of the request: the one that ran it after does.
func TestIdempotency_CrashLeavesTheRequestRunnable(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		b := testbed.New(t, env)
		var runs atomic.Int64
		started, finish := make(chan struct{}, 1), make(chan struct{})
		h := idempotent(t, b, nil, func(w http.ResponseWriter, _ *http.Request) {
			n := runs.Add(1)
			if n == 1 { // deaf to its ctx
				started <- struct{}{}
				<-finish
			}
			_, _ = fmt.Fprintf(w, "run %d", n)
		})
		stale := make(chan testbed.Answer)
		go func() { stale <- testbed.Do(h, withKey(t, testbed.OrderPath, "k", "{}")) }()
		<-started
		b.LoseLeases(t) // as when the first process stood still past its lease
		second := testbed.Do(h, withKey(t, testbed.OrderPath, "k", "{}"))
		require.Equal(t, "run 2", second.Body)
		close(finish)
		require.Equal(t, "run 1", (<-stale).Body, "its client has its response")
		requireReplayed(t, second, testbed.Do(h, withKey(t, testbed.OrderPath, "k", "{}")))
		require.EqualValues(t, 2, runs.Load())
	})
}

// The first holder may even end before anybody else begins, and not know of its loss, or have a client that has left.
func TestIdempotency_ALostLeaseKeepsNothing(t *testing.T) {
	for _, leaves := range []bool{false, true} {
		redistest.InVirtualTime(t, func(t *testing.T, env *redistest.Env) {
			b := testbed.New(t, env)
			ctx, leave := context.WithCancel(t.Context())
			t.Cleanup(leave)
			var runs atomic.Int64
			h := idempotent(t, b, nil, func(w http.ResponseWriter, r *http.Request) {
				if runs.Load() == 0 {
					if leaves {
						leave()
						<-r.Context().Done()
					}
					b.LoseLeases(t)
					<-r.Context().Done()
					assert.Equal(t, !leaves, errors.Is(context.Cause(r.Context()), core.ErrLeaseLost))
				}
				count(&runs, http.StatusOK)(w, r)
			})
			require.Equal(t, "run 1", testbed.Do(h, withKey(t, testbed.OrderPath, "k", "{}").WithContext(ctx)).Body)
			second := testbed.Do(h, withKey(t, testbed.OrderPath, "k", "{}"))
			require.Equal(t, "run 2", second.Body, "what came of the first is not sure")
			requireReplayed(t, second, testbed.Do(h, withKey(t, testbed.OrderPath, "k", "{}")))
		})
	}
}

// A lease that ends while its holder is told that nobody has run is not worked under: somebody else may have since.
func TestIdempotency_ALeaseLostBeforeTheHandlerRunsNothing(t *testing.T) {
	redistest.InVirtualTime(t, func(t *testing.T, env *redistest.Env) {
		b := testbed.New(t, env)
		lose := &losesOnBegin{lose: func() { b.LoseLeases(t) }}
		store, err := idempotency.New(b.Redis, idempotency.WithPrefix(b.Prefix), idempotency.WithObserver(lose))
		require.NoError(t, err)
		h := guarded(b.Locker.Guard(core.RejectConflicts), mustNotRun(t), httplock.WithIdempotency(store))
		testbed.RequireProblem(t, testbed.Do(h, withKey(t, testbed.OrderPath, "k", "{}")), http.StatusServiceUnavailable, "unavailable", true)
	})
}

type losesOnBegin struct {
	idempotency.NopObserver
	lose func()
}

func (o *losesOnBegin) OnEvent(ctx context.Context, e idempotency.Event) {
	if e.Kind == idempotency.EventBegun {
		o.lose()
		<-ctx.Done()
	}
}

func TestIdempotency_RedisDownMeansNotStartedOrNotStored(t *testing.T) {
	b, server := testbed.NewFragile(t)
	log := &testbed.Log{}
	var runs atomic.Int64
	h := guarded(b.Locker.Guard(core.RejectConflicts), func(w http.ResponseWriter, r *http.Request) {
		if r.URL.RawQuery == "break" {
			server.SetError("READONLY You can't write against a read only replica.")
		}
		count(&runs, http.StatusOK)(w, r)
	}, remembering(newIdempotency(t, b)), httplock.WithLogger(log.Logger()))
	first := testbed.Do(h, withKey(t, testbed.OrderPath+"?break", "k", "{}"))
	require.Equal(t, http.StatusOK, first.Status, "the client has its response")
	require.Equal(t, "run 1", first.Body)
	require.Contains(t, log.String(), "a response was not kept")
	require.NotContains(t, log.String(), `"k"`)

	testbed.RequireProblem(t, testbed.Do(h, withKey(t, testbed.OrderPath, "k", "{}")), http.StatusServiceUnavailable, "unavailable", true)
	require.EqualValues(t, 1, runs.Load())
	mend := func() {
		server.SetError("")
		for _, name := range redistest.Keys(t, b.Redis, b.Prefix+":lock") {
			require.NoError(t, b.Redis.Del(t.Context(), name).Err())
		}
	}
	mend()
	require.Equal(t, "run 2", testbed.Do(h, withKey(t, testbed.OrderPath+"?break", "k", "{}")).Body, "at least once")

	// The lock is to be had, and the store is not: nothing runs.
	mend()
	gone := redistest.Client(t, &redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1, DialerRetries: 1})
	store, err := idempotency.New(gone, idempotency.WithPrefix(b.Prefix))
	require.NoError(t, err)
	h = guarded(b.Locker.Guard(core.RejectConflicts), mustNotRun(t), httplock.WithIdempotency(store), httplock.WithLogger(log.Logger()))
	testbed.RequireProblem(t, testbed.Do(h, withKey(t, testbed.OrderPath, "k2", "{}")), http.StatusServiceUnavailable, "unavailable", true)
	b.RequireFree(t)
}

// A Redis that comes back empty remembers no response. One that goes away while a handler
// runs, and comes back empty before it returns, is told what came of it.
func TestIdempotency_RedisRestartedEmpty(t *testing.T) {
	server := redistest.Start(t)
	b := testbed.On(t, redistest.Client(t, &redis.Options{Addr: server.Addr}), "t")
	restart := func() {
		server.Kill()
		server.Restart(t)
		redistest.Eventually(t, func() bool { return b.Redis.Ping(t.Context()).Err() == nil }, "the client is connected")
	}
	var runs atomic.Int64
	h := idempotent(t, b, nil, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.RawQuery == "restart" {
			restart()
		}
		count(&runs, http.StatusOK)(w, r)
	})
	first := testbed.Do(h, withKey(t, testbed.OrderPath, "k", "{}"))
	requireReplayed(t, first, testbed.Do(h, withKey(t, testbed.OrderPath, "k", "{}")))
	restart()
	require.Equal(t, "run 2", testbed.Do(h, withKey(t, testbed.OrderPath, "k", "{}")).Body, "at least once")

	during := testbed.Do(h, withKey(t, testbed.OrderPath+"?restart", "k2", "{}"))
	require.Equal(t, "run 3", during.Body)
	requireReplayed(t, during, testbed.Do(h, withKey(t, testbed.OrderPath+"?restart", "k2", "{}")))
}

func TestIdempotency_JunkRecordRunsNothing(t *testing.T) {
	b := testbed.New(t, redistest.Embedded(t))
	h := idempotent(t, b, nil, ok)
	require.Equal(t, http.StatusOK, testbed.Do(h, withKey(t, testbed.OrderPath, "k", "{}")).Status)
	records := redistest.Keys(t, b.Redis, b.Prefix+":idem{}:")
	require.Len(t, records, 1)
	for _, junk := range []string{"junk", `{"v":2,"status":200}` + "\n", `{"v":1,"status":1000}` + "\n", `{"v":1,"status":200,"header":{"Set-Cookie":["a=b"]}}` + "\n"} {
		require.NoError(t, b.Redis.HSet(t.Context(), records[0], "outcome", junk).Err())
		h := idempotent(t, b, nil, mustNotRun(t))
		testbed.RequireProblem(t, testbed.Do(h, withKey(t, testbed.OrderPath, "k", "{}")), http.StatusInternalServerError, "internal", false)
	}
	require.NoError(t, b.Redis.Del(t.Context(), records[0]).Err())
	require.NoError(t, b.Redis.Set(t.Context(), records[0], "junk", 0).Err())
	testbed.RequireProblem(t, testbed.Do(idempotent(t, b, nil, mustNotRun(t)), withKey(t, testbed.OrderPath, "k", "{}")), http.StatusServiceUnavailable, "unavailable", true)
}

// roundTrips counts those in which there are scripts: not what connections say, and the subscription's check.
type roundTrips struct {
	atomic.Int64
	fails atomic.Int64           // of the next pipelines, how many Redis refuses
	after func(last redis.Cmder) // called after each pipeline, with its last command; may be nil
}

type readOnlyError struct{}

func (readOnlyError) Error() string { return "READONLY You can't write against a read only replica." }
func (readOnlyError) RedisError()   {}

func isScript(cmd redis.Cmder) bool { return strings.HasPrefix(cmd.Name(), "eval") }

func (n *roundTrips) DialHook(next redis.DialHook) redis.DialHook { return next }

func (n *roundTrips) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if isScript(cmd) {
			n.Add(1)
		}
		return next(ctx, cmd)
	}
}

func (n *roundTrips) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if !slices.ContainsFunc(cmds, isScript) {
			return next(ctx, cmds)
		}
		if n.Add(1); n.fails.Add(-1) >= 0 {
			for _, cmd := range cmds {
				cmd.SetErr(readOnlyError{})
			}
			return readOnlyError{}
		}
		err := next(ctx, cmds)
		if n.after != nil {
			n.after(cmds[len(cmds)-1])
		}
		return err
	}
}

// What is recorded of a request goes to Redis along with its lock's commands, if both are on one server.
func TestIdempotency_CostsNoRoundTrip(t *testing.T) {
	for name, own := range map[string]bool{"along": false, "by itself": true} {
		t.Run(name, func(t *testing.T) {
			env := redistest.Embedded(t)
			b, more := testbed.New(t, env), 0
			var trips roundTrips
			b.Redis.AddHook(&trips)
			store := newIdempotency(t, b)
			if own {
				more = 1
				client := env.Client(t)
				client.AddHook(&trips)
				var err error
				store, err = idempotency.New(client, idempotency.WithPrefix(b.Prefix))
				require.NoError(t, err)
			}
			h := guarded(b.Locker.Guard(core.RejectConflicts), ok, remembering(store))
			for range 2 { // the scripts are loaded
				testbed.Do(h, withKey(t, testbed.OrderPath, "warm", "{}"))
			}
			cost := func(r *http.Request) int {
				trips.Store(0)
				require.Equal(t, http.StatusOK, testbed.Do(h, r).Status)
				return int(trips.Load())
			}
			require.Equal(t, 2, cost(testbed.Request(t, http.MethodPost, testbed.OrderPath, "{}")))
			require.Equal(t, 2+2*more, cost(withKey(t, testbed.OrderPath, "k", "{}")), "the first time")
			require.Equal(t, 2+more, cost(withKey(t, testbed.OrderPath, "k", "{}")), "the second time")
		})
	}
}

// The outcome is stored before the key is free, also by a Redis that has forgotten its scripts, and by a release in the background, after
// four that were refused: nobody runs the request again in between.
func TestIdempotency_TheOutcomeIsStoredBeforeTheKeyIsFree(t *testing.T) {
	for name, fault := range map[string]func(rdb *redis.Client, trips *roundTrips){
		"no scripts":           func(rdb *redis.Client, _ *roundTrips) { rdb.ScriptFlush(context.Background()) },
		"releases that failed": func(_ *redis.Client, trips *roundTrips) { trips.fails.Store(4) },
	} {
		t.Run(name, func(t *testing.T) {
			env := redistest.Embedded(t)
			b, other, trips, runs, freed := testbed.New(t, env), env.Client(t), &roundTrips{}, 0, make(chan struct{}, 100)
			trips.after = func(last redis.Cmder) {
				if record, ok := last.Args()[3].(*string); ok && last.Name() == "eval" {
					assert.NotContains(t, *record, ":idem", "the outcome is stored after the release")
				}
				if runs < 2 || len(redistest.Keys(t, other, b.Prefix+":lock")) > 0 {
					return
				}
				outcomes := 0
				for _, record := range redistest.Keys(t, other, b.Prefix+":idem") {
					outcomes += int(other.HLen(context.Background(), record).Val()) / 3
				}
				assert.Equal(t, runs, outcomes)
				freed <- struct{}{}
			}
			h := idempotent(t, b, nil, func(w http.ResponseWriter, r *http.Request) {
				if ok(w, r); runs > 0 { // the scripts are loaded
					fault(other, trips)
				}
				runs++
			})
			b.Redis.AddHook(trips)
			for _, key := range []string{"warm", "k"} {
				require.Equal(t, http.StatusOK, testbed.Do(h, withKey(t, testbed.OrderPath, key, "{}")).Status)
			}
			<-freed
		})
	}
}

// A handler may release its key itself, at any time.
func TestIdempotency_AHandlerThatReleasesItsKey(t *testing.T) {
	b := testbed.New(t, redistest.Embedded(t))
	h := idempotent(t, b, retry.Policy{MaxWait: time.Minute}, func(w http.ResponseWriter, r *http.Request) {
		lease, _ := core.LeaseFrom(r.Context())
		go func() { _ = lease.Release(context.Background()) }()
		ok(w, r)
	})
	for i := range 10 {
		require.Equal(t, "ok", testbed.Do(h, withKey(t, testbed.OrderPath, fmt.Sprint(i), "{}")).Body)
	}
}

// A request whose grant comes to nothing does not bind its Idempotency-Key.
func TestIdempotency_AGrantWithoutReplicasBeginsNothing(t *testing.T) {
	b := testbed.New(t, redistest.Real(t))
	h := idempotent(t, b, nil, ok)
	testbed.Do(h, withKey(t, testbed.OrderPath, "warm", "{}"))
	replicated := guarded(b.Locker.Guard(core.RejectConflicts, core.WaitReplicas(1, 50*time.Millisecond)), mustNotRun(t), remembering(newIdempotency(t, b)))
	testbed.RequireProblem(t, testbed.Do(replicated, withKey(t, testbed.OrderPath, "k", "{}")), http.StatusServiceUnavailable, "unavailable", true)
	require.Equal(t, "ok", testbed.Do(h, withKey(t, testbed.OrderPath, "k", "{mended}")).Body)
}

// Requests that wait for one key get it from one another, without Redis, if what is recorded of them is stored already.
func TestIdempotency_KeysAreHandedOver(t *testing.T) {
	redistest.InVirtualTime(t, func(t *testing.T, env *redistest.Env) { // a key is handed over for 50 ms at most
		b, trips := testbed.New(t, env), &roundTrips{}
		store, err := idempotency.New(env.Client(t), idempotency.WithPrefix(b.Prefix))
		require.NoError(t, err)
		h := guarded(b.Locker.Guard(retry.Policy{MaxWait: time.Minute}), ok, remembering(store))
		b.Redis.AddHook(trips)
		var all sync.WaitGroup
		for i := range 40 {
			all.Go(func() { assert.Equal(t, "ok", testbed.Do(h, withKey(t, testbed.OrderPath, fmt.Sprint(i), "{}")).Body) })
		}
		all.Wait()
		require.Less(t, trips.Load(), int64(20))
	})
}
