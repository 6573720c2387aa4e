package httplock_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
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
		b := testbed.New(t, redistest.Embedded(t), core.WithTTL(300*time.Millisecond))
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
	}
}

// A lease that ends while its holder is told that nobody has run is not worked under: somebody else may have since.
func TestIdempotency_ALeaseLostBeforeTheHandlerRunsNothing(t *testing.T) {
	b := testbed.New(t, redistest.Embedded(t), core.WithTTL(300*time.Millisecond))
	lose := &losesOnBegin{lose: func() { b.LoseLeases(t) }}
	store, err := idempotency.New(b.Redis, idempotency.WithPrefix(b.Prefix), idempotency.WithObserver(lose))
	require.NoError(t, err)
	h := guarded(b.Locker.Guard(core.RejectConflicts), mustNotRun(t), httplock.WithIdempotency(store))
	testbed.RequireProblem(t, testbed.Do(h, withKey(t, testbed.OrderPath, "k", "{}")), http.StatusServiceUnavailable, "unavailable", true)
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
