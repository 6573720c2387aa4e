package httplock_test

import (
	"context"
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
	"github.com/perkey-go/perkey/internal/redistest"
	"github.com/perkey-go/perkey/retry"
)

// A holder that lost its lease does not say what came of the request: the one that ran
// it after does.
func TestACrashLeavesTheRequestRunnable(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		b := setup(t, env)
		var runs atomic.Int64
		started, finish := make(chan struct{}, 1), make(chan struct{})
		h := b.idempotent(t, nil, func(w http.ResponseWriter, _ *http.Request) {
			n := runs.Add(1)
			if n == 1 { // deaf to its ctx
				started <- struct{}{}
				<-finish
			}
			_, _ = fmt.Fprintf(w, "run %d", n)
		})
		stale := make(chan answer)
		go func() { stale <- do(h, once(t, ordersPath, "k", "{}")) }()
		<-started
		b.loseLeases(t) // as when the first process stood still past its lease
		second := do(h, once(t, ordersPath, "k", "{}"))
		require.Equal(t, "run 2", second.body)
		close(finish)
		require.Equal(t, "run 1", (<-stale).body, "its client has its response")
		requireReplayed(t, second, do(h, once(t, ordersPath, "k", "{}")))
		require.EqualValues(t, 2, runs.Load())
	})
}

// A client that has left does not hide that the lease was lost.
func TestALostLeaseKeepsNothingThoughTheClientHadLeft(t *testing.T) {
	b := setup(t, redistest.Embedded(t))
	ctx, leave := context.WithCancel(t.Context())
	var runs atomic.Int64
	h := b.idempotent(t, nil, func(w http.ResponseWriter, r *http.Request) {
		if runs.Load() == 0 {
			leave()
			<-r.Context().Done()
			b.loseLeases(t)
		}
		count(&runs, http.StatusOK)(w, r)
	})
	do(h, once(t, ordersPath, "k", "{}").WithContext(ctx))
	require.Equal(t, "run 2", do(h, once(t, ordersPath, "k", "{}")).body)
}

// The first holder may even end before anybody else begins, and not know of its loss.
func TestALostLeaseKeepsNothing(t *testing.T) {
	b := setup(t, redistest.Embedded(t), core.WithTTL(300*time.Millisecond))
	var runs atomic.Int64
	h := b.idempotent(t, nil, func(w http.ResponseWriter, r *http.Request) {
		if runs.Load() == 0 {
			b.loseLeases(t)
			<-r.Context().Done()
			assert.ErrorIs(t, context.Cause(r.Context()), core.ErrLeaseLost)
		}
		count(&runs, http.StatusOK)(w, r)
	})
	require.Equal(t, "run 1", do(h, once(t, ordersPath, "k", "{}")).body)
	second := do(h, once(t, ordersPath, "k", "{}"))
	require.Equal(t, "run 2", second.body, "what came of the first is not sure")
	requireReplayed(t, second, do(h, once(t, ordersPath, "k", "{}")))
}

func TestAProcessThatDiesLeavesTheRequestRunnable(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		// The process that begins has a Locker that is cut off before it can finish or release.
		b := setup(t, env)
		cut := env.Client(t)
		dying := newLocker(t, cut, core.WithPrefix(b.prefix), core.WithTTL(300*time.Millisecond))
		store, err := idempotency.New(cut, idempotency.WithPrefix(b.prefix))
		require.NoError(t, err)
		var runs atomic.Int64
		died := make(chan struct{})
		h := guarded(core.NewGuard(dying, nil), func(w http.ResponseWriter, _ *http.Request) {
			assert.NoError(t, cut.Close())
			runs.Add(1)
			ok(w, nil)
		}, httplock.WithIdempotency(store), httplock.WithLogger((&logged{}).logger()))
		go func() { defer close(died); do(h, once(t, ordersPath, "k", "{}")) }()
		<-died
		alive := b.idempotent(t, retry.Policy{MaxWait: time.Minute}, count(&runs, http.StatusOK))
		second := do(alive, once(t, ordersPath, "k", "{}"))
		require.Equal(t, "run 2", second.body)
		requireReplayed(t, second, do(alive, once(t, ordersPath, "k", "{}")))
	})
}

func TestRedisDownMeansNotStartedOrNotKept(t *testing.T) {
	b, server := setupFragile(t)
	log := &logged{}
	var runs atomic.Int64
	h := guarded(core.NewGuard(b.locker, nil), func(w http.ResponseWriter, r *http.Request) {
		if r.URL.RawQuery == "break" {
			server.SetError("READONLY You can't write against a read only replica.")
		}
		count(&runs, http.StatusOK)(w, r)
	}, httplock.WithIdempotency(b.newIdempotency(t)), httplock.WithLogger(log.logger()))
	first := do(h, once(t, ordersPath+"?break", "k", "{}"))
	require.Equal(t, http.StatusOK, first.status, "the client has its response")
	require.Equal(t, "run 1", first.body)
	require.Contains(t, log.String(), "a response was not kept")
	require.NotContains(t, log.String(), `"k"`)

	requireProblem(t, do(h, once(t, ordersPath, "k", "{}")), http.StatusServiceUnavailable, "unavailable", true)
	require.EqualValues(t, 1, runs.Load())
	mend := func() {
		server.SetError("")
		for _, name := range redistest.Keys(t, b.rdb, b.prefix+":lock") {
			require.NoError(t, b.rdb.Del(t.Context(), name).Err())
		}
	}
	mend()
	require.Equal(t, "run 2", do(h, once(t, ordersPath+"?break", "k", "{}")).body, "at least once")

	// The lock is to be had, and the store is not: nothing runs.
	mend()
	gone := redistest.Client(t, &redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1, DialerRetries: 1})
	store, err := idempotency.New(gone)
	require.NoError(t, err)
	h = guarded(core.NewGuard(b.locker, nil), mustNotRun(t), httplock.WithIdempotency(store), httplock.WithLogger(log.logger()))
	requireProblem(t, do(h, once(t, ordersPath, "k2", "{}")), http.StatusServiceUnavailable, "unavailable", true)
	b.requireFree(t)
}

// A Redis that comes back empty remembers no response. One that goes away while a handler
// runs, and comes back empty before it returns, is told what came of it.
func TestRedisRestartedEmpty(t *testing.T) {
	server := redistest.Start(t)
	b := setupOn(t, redistest.Client(t, &redis.Options{Addr: server.Addr}), "t")
	restart := func() {
		server.Kill()
		server.Restart(t)
		redistest.Eventually(t, func() bool { return b.rdb.Ping(t.Context()).Err() == nil }, "the client is connected")
	}
	var runs atomic.Int64
	h := b.idempotent(t, nil, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.RawQuery == "restart" {
			restart()
		}
		count(&runs, http.StatusOK)(w, r)
	})
	first := do(h, once(t, ordersPath, "k", "{}"))
	requireReplayed(t, first, do(h, once(t, ordersPath, "k", "{}")))
	restart()
	require.Equal(t, "run 2", do(h, once(t, ordersPath, "k", "{}")).body, "at least once")

	during := do(h, once(t, ordersPath+"?restart", "k2", "{}"))
	require.Equal(t, "run 3", during.body)
	requireReplayed(t, during, do(h, once(t, ordersPath+"?restart", "k2", "{}")))
}

func TestARecordThatIsJunkRunsNothing(t *testing.T) {
	b := setup(t, redistest.Embedded(t))
	h := b.idempotent(t, nil, ok)
	require.Equal(t, http.StatusOK, do(h, once(t, ordersPath, "k", "{}")).status)
	records := redistest.Keys(t, b.rdb, b.prefix+":idem{}:")
	require.Len(t, records, 1)
	for _, junk := range []string{"junk", `{"v":2,"status":200}` + "\n", `{"v":1,"status":700}` + "\n", `{"v":1,"status":200,"header":{"Set-Cookie":["a=b"]}}` + "\n"} {
		require.NoError(t, b.rdb.HSet(t.Context(), records[0], "outcome", junk).Err())
		h := b.idempotent(t, nil, mustNotRun(t))
		requireProblem(t, do(h, once(t, ordersPath, "k", "{}")), http.StatusInternalServerError, "internal", false)
	}
	require.NoError(t, b.rdb.Del(t.Context(), records[0]).Err())
	require.NoError(t, b.rdb.Set(t.Context(), records[0], "junk", 0).Err())
	requireProblem(t, do(b.idempotent(t, nil, mustNotRun(t)), once(t, ordersPath, "k", "{}")), http.StatusServiceUnavailable, "unavailable", true)
}
