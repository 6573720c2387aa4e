package core_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"regexp"
	"runtime"
	"runtime/debug"
	"runtime/pprof"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/retry"
)

// outages are the ways in which Redis is out of reach.
var outages = map[string]func(*redistest.Proxy){
	"refusing":   func(p *redistest.Proxy) { p.Refuse(true) },
	"swallowing": func(p *redistest.Proxy) { p.Blackhole(redistest.Requests) },
}

func heal(p *redistest.Proxy) {
	p.Refuse(false)
	p.Blackhole(0)
	p.Cut()
}

func nothing(context.Context) error { return nil }

// clientTimeout bounds what a question to a Redis that swallows everything takes.
const clientTimeout = 500 * time.Millisecond

func impatient(o *redis.Options) {
	o.MaxRetries, o.DialerRetries = -1, 1
	o.ReadTimeout, o.WriteTimeout, o.DialTimeout = clientTimeout, clientTimeout, clientTimeout
}

// impatientLocker is a Locker behind a proxy.
func impatientLocker(t *testing.T, env *redistest.Env, opts ...core.Option) (*core.Locker, *redistest.Proxy) {
	t.Helper()
	proxy := redistest.NewProxy(t, env.Addr)
	opt := &redis.Options{Addr: proxy.Addr}
	impatient(opt)
	return lockerOn(t, redistest.Client(t, opt), env.Prefix, opts...), proxy
}

// informedCalls makes n calls for a held key, and returns when all of them wait and know of the holder. Until then they try
// again: to a client as impatient as these tests have a busy machine is an outage.
func informedCalls(t *testing.T, l *core.Locker, n int, call func() error) <-chan error {
	t.Helper()
	results := make(chan error, n)
	var informed atomic.Bool
	for range n {
		go func() {
			err := call()
			for errors.Is(err, core.ErrUnavailable) && !informed.Load() {
				err = call()
			}
			results <- err
		}()
	}
	redistest.Eventually(t, func() bool { return l.InformedCalls() == n }, "all calls wait, and know of the holder")
	informed.Store(true)
	return results
}

// Unless their policy ends before the outage does.
func TestOutage_CallsThatKnowOfTheHolderWaitItOut(t *testing.T) {
	t.Parallel()
	for name, fail := range outages {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env := redistest.Embedded(t)
			l, proxy := impatientLocker(t, env)
			holder := acquired(t, newLocker(t, env), "k")
			const n = 20
			patient := informedCalls(t, l, n, func() error { return l.Do(t.Context(), "k", nothing) })
			guard := l.Guard(retry.Policy{MaxWait: 10 * clientTimeout, Initial: 10 * time.Millisecond})
			fail(proxy)
			var hasty sync.WaitGroup
			for range n {
				hasty.Go(func() {
					err := guard.Do(t.Context(), core.Call{Key: "k"}, nothing)
					assert.ErrorIs(t, err, core.ErrUnavailable)
					assert.NotErrorIs(t, err, core.ErrConflict)
				})
			}
			hasty.Wait()
			require.Empty(t, patient, "a call left that knew of the holder")
			heal(proxy)
			release(t, holder)
			for range n {
				require.NoError(t, <-patient)
			}
		})
	}
}

// TestOutage_CostsNoMoreThanTheCallersThatExist sends calls for keys of their own, for longer
// than a Redis that swallows everything keeps each of them, and looks at what is left of
// those that have gone. It is long since it is one story.
func TestOutage_CostsNoMoreThanTheCallersThatExist(t *testing.T) {
	const perSecond, length, timeout = 1000, 4 * time.Second, 500 * time.Millisecond
	defer debug.SetGCPercent(debug.SetGCPercent(100)) // whatever GOGC is: the heap is bounded below
	env := redistest.Real(t)
	proxy := redistest.NewProxy(t, env.Addr)
	// With go-redis's own time-outs and retries.
	l, err := core.New(redistest.Client(t, &redis.Options{Addr: proxy.Addr}), core.WithPrefix(env.Prefix))
	require.NoError(t, err)
	warm(t, l)
	listening(t, l)
	direct := env.Client(t)

	var succeeded, most atomic.Int64
	var all sync.WaitGroup
	call := func(i int) {
		ctx, cancel := context.WithTimeout(context.Background(), timeout)
		defer cancel()
		lease, err := l.TryAcquire(ctx, fmt.Sprintf("k%d", i))
		if err != nil {
			assert.NotErrorIs(t, err, core.ErrConflict)
			return
		}
		succeeded.Add(1)
		assert.NoError(t, lease.Release(context.Background()))
	}
	fire := func(from int, length time.Duration) int {
		tick := time.NewTicker(time.Second / perSecond * 20)
		defer tick.Stop()
		for end := time.Now().Add(length); time.Now().Before(end); from += 20 {
			<-tick.C
			for i := range 20 {
				key := from + i
				all.Go(func() { call(key) })
			}
		}
		return from
	}

	proxy.Blackhole(redistest.Requests | redistest.Replies)
	done := make(chan struct{})
	var memory runtime.MemStats
	var heap uint64
	all.Go(func() {
		for tick := time.Tick(100 * time.Millisecond); ; {
			select {
			case <-tick:
				most.Store(max(most.Load(), engineGoroutines()))
				runtime.ReadMemStats(&memory)
				heap = max(heap, memory.HeapAlloc)
			case <-done:
				return
			}
		}
	})
	n := fire(0, length)
	require.Zero(t, succeeded.Load())
	granted, scripts := commands(t, direct, "set"), commands(t, direct, "evalsha")
	heal(proxy)
	back := time.Now()
	redistest.Eventually(t, func() bool { n = fire(n, 20*time.Millisecond); return succeeded.Load() > 0 }, "Redis is back")
	t.Logf("%d calls; %d goroutines more than callers at most; the first success after %s", n, most.Load(), time.Since(back))
	assert.Less(t, most.Load(), int64(200))
	close(done)
	all.Wait()
	requireNothingLeft(t, direct, env.Prefix)
	granted, scripts = commands(t, direct, "set")-granted, commands(t, direct, "evalsha")-scripts
	t.Logf("%d calls succeeded: %d grants, %d scripts; %d MiB of heap at most", succeeded.Load(), granted, scripts, heap>>20)
	assert.LessOrEqual(t, granted, succeeded.Load()+200, "calls that have left are granted no key, but for those that leave at the moment")
	assert.LessOrEqual(t, scripts, 3*succeeded.Load()+200, "calls that have left are neither asked for nor cancelled one by one")
	assert.Less(t, heap, uint64(100<<20))

	proxy.Blackhole(redistest.Requests | redistest.Replies)
	fire(n, time.Second)
	_ = l.Close()
	all.Wait()
}

// engineGoroutines is how many goroutines there are of the engine and of go-redis, but for
// those that callers of this package's tests run in.
func engineGoroutines() (n int64) {
	var profile bytes.Buffer
	_ = pprof.Lookup("goroutine").WriteTo(&profile, 1)
	_, stacks, _ := strings.Cut(profile.String(), "\n") // after the total
	for stack := range strings.SplitSeq(stacks, "\n\n") {
		if strings.Contains(stack, "core_test.") || !strings.Contains(stack, "perkey/core") && !strings.Contains(stack, "go-redis") {
			continue
		}
		var same int64
		_, _ = fmt.Sscanf(stack, "%d @", &same)
		n += same
	}
	return n
}

// commands is how often Redis ran a command. A record begins with a SET: a release, and a cancel, do not send one.
func commands(t *testing.T, rdb *redis.Client, name string) int64 {
	t.Helper()
	info, err := rdb.Info(t.Context(), "commandstats").Result()
	require.NoError(t, err)
	calls := regexp.MustCompile(`cmdstat_` + name + `:calls=(\d+)`).FindStringSubmatch(info)
	require.NotNil(t, calls, info)
	n, err := strconv.ParseInt(calls[1], 10, 64)
	require.NoError(t, err)
	return n
}

// With a client that waits for ever, too, no call does: neither one that nothing can end, nor those
// that wait for its question.
func TestOutage_ACallThatCannotEndHoldsNobodyUp(t *testing.T) {
	t.Parallel()
	env := redistest.Embedded(t)
	proxy := redistest.NewProxy(t, env.Addr)
	l, err := core.New(redistest.Client(t, &redis.Options{Addr: proxy.Addr, ReadTimeout: -1}), core.WithPrefix(env.Prefix))
	require.NoError(t, err)
	warm(t, l)
	fails := func(ctx context.Context, acquire func(context.Context, string, ...core.AcquireOption) (*core.Lease, error)) <-chan error {
		result := make(chan error, 1)
		go func() { result <- errOf(acquire(ctx, "k")) }()
		return result
	}
	proxy.Blackhole(redistest.Requests)
	results := []<-chan error{fails(context.Background(), l.Acquire)}
	time.Sleep(20 * time.Millisecond)
	for range 20 {
		results = append(results, fails(t.Context(), l.Acquire))
	}
	for _, result := range results {
		require.ErrorIs(t, <-result, core.ErrUnavailable)
	}
	heal(proxy)
	warm(t, l)
	proxy.Blackhole(redistest.Requests)
	closed := fails(context.Background(), l.TryAcquire)
	time.Sleep(50 * time.Millisecond)
	_ = l.Close()
	require.ErrorIs(t, <-closed, core.ErrClosed)
}

// A call that leaves in an outage gives up its place in the key's FIFO as soon as that is over, also
// if it lasts longer than a grant would: the place costs those behind it a second.
func TestOutage_ACallThatLeavesInItLeavesNoPlace(t *testing.T) {
	t.Parallel()
	env := redistest.Embedded(t)
	l, proxy := impatientLocker(t, env, core.WithFirstLease(500*time.Millisecond))
	held := acquired(t, newLocker(t, env), "k")
	const calls = 20
	ctx, cancel := context.WithCancel(t.Context())
	results := informedCalls(t, l, calls, func() error { return errOf(l.Acquire(ctx, "k")) })
	queued(t, env, "k", 1)
	proxy.Blackhole(redistest.Requests)
	cancel()
	for range calls {
		require.Error(t, <-results)
	}
	time.Sleep(time.Second)
	heal(proxy)
	queued(t, env, "k", 0)
	require.NoError(t, held.Release(t.Context()))
}
