//go:build soak

package core_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
	"github.com/perkey-go/perkey/retry"
)

// crowdKey is a key that many want.
const crowdKey = "k"

// ownServer is a redis-server that nobody else uses.
func ownServer(t *testing.T) (*redistest.Env, *redis.Client) {
	t.Helper()
	env := &redistest.Env{Addr: redistest.Start(t).Addr, Prefix: "p", Real: true}
	return env, env.Client(t)
}

var callsIn = regexp.MustCompile(`cmdstat_(\w+)(?:\|\w+)?:calls=(\d+)`)

// commandsSince returns how many scripts, and how many commands from clients and
// scripts together, Redis ran since the last time it was asked.
func commandsSince(t *testing.T, admin *redis.Client) (scripts, all int) {
	t.Helper()
	for _, m := range callsIn.FindAllStringSubmatch(admin.Info(t.Context(), "commandstats").Val(), -1) {
		n, err := strconv.Atoi(m[2])
		require.NoError(t, err)
		switch m[1] {
		case "info", "config":
			continue
		case "eval", "evalsha":
			scripts += n
		}
		all += n
	}
	require.NoError(t, admin.ConfigResetStat(t.Context()).Err())
	return scripts, all
}

// eachOf calls f for each of n, some at a time.
func eachOf(n int, f func(i int)) {
	var wg sync.WaitGroup
	var next atomic.Int64
	for range 32 {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				f(i)
			}
		})
	}
	wg.Wait()
}

// These tests count goroutines, memory and processor time of the whole process, so none of them is parallel.

// scaleLeasesVar is how many leases one process holds, if not so many that it takes
// a few seconds. The time that they are held for grows along.
const scaleLeasesVar = "PERKEY_SCALE_LEASES"

// raced reports whether the race detector is on: then a call takes ten times as long.
func raced() bool {
	info, ok := debug.ReadBuildInfo()
	return ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
}

// memory is what the process keeps, stacks included, after the garbage is gone.
func memory() int {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC() // what a pool had is kept for one more
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc + m.StackInuse)
}

// work is what the process has done so far: its processor time, and what it allocated.
type work struct {
	cpu     time.Duration
	mallocs int
}

func workSoFar(t *testing.T) work {
	t.Helper()
	var u syscall.Rusage
	require.NoError(t, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return work{cpu: time.Duration(u.Utime.Nano() + u.Stime.Nano()), mallocs: int(m.Mallocs)}
}

// crowd is calls of one process that wait for one key.
type crowd struct {
	locker *core.Locker
	holder *core.Lease
	leave  []context.CancelFunc // by the order of arrival
	done   chan error           // of those that left, and those that were served

	served []int // guarded by the key
}

// gather has n calls join a wait queue, one after another, which nobody leaves.
func gather(t *testing.T, env *redistest.Env, n int, policy core.ConflictPolicy) *crowd {
	t.Helper()
	c := &crowd{locker: newLocker(t, env), done: make(chan error, n)}
	c.holder = testbed.Take(t, c.locker, crowdKey)
	guard := c.locker.Guard(policy)
	joined := make(chan struct{})
	call := core.Call{Key: crowdKey, BeforeWait: func() error { joined <- struct{}{}; return nil }}
	for i := range n {
		ctx, leave := context.WithCancel(t.Context())
		c.leave = append(c.leave, leave)
		go func() {
			c.done <- guard.Do(ctx, call, func(context.Context) error {
				c.served = append(c.served, i)
				return nil
			})
		}()
		<-joined
	}
	listening(t, c.locker)
	return c
}

// ended waits until n calls have returned, and counts those that left.
func (c *crowd) ended(t *testing.T, n int) (left int) {
	t.Helper()
	for range n {
		if err := <-c.done; errors.Is(err, context.Canceled) {
			left++
		} else {
			require.NoError(t, err)
		}
	}
	return left
}

func TestScale_ManyCallsAreServedInOrder(t *testing.T) {
	calls, most := 10_000, 16<<10 // bytes of a call that waits
	if raced() {
		calls, most = 2_500, 24<<10 // its stack is larger
	}
	for name, policy := range map[string]core.ConflictPolicy{
		"until woken": untilWoken,
		"retrying":    retry.Policy{Initial: 200 * time.Millisecond, Max: time.Second, MaxWait: time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			env, admin := ownServer(t)
			goroutines, before := runtime.NumGoroutine(), memory()
			commandsSince(t, admin)
			c := gather(t, env, calls, policy)
			bytes := (memory() - before) / calls
			extra := runtime.NumGoroutine() - goroutines - calls
			joining, _ := commandsSince(t, admin)

			start := time.Now()
			require.NoError(t, c.holder.Release(t.Context()))
			require.Zero(t, c.ended(t, calls))
			took := time.Since(start)
			scripts, all := commandsSince(t, admin)
			require.Len(t, c.served, calls)
			require.IsIncreasing(t, c.served, "in order of arrival")
			t.Logf("%d calls wait with %d scripts, %d bytes each, %d goroutines beside their own; they are served in %s, with %d scripts (%d commands)",
				calls, joining, bytes, extra, took.Round(time.Millisecond), scripts, all)
			require.Less(t, extra, 50)
			require.Less(t, bytes, most)
			require.Less(t, joining, calls/100, "only the first call asks")
			require.Less(t, scripts, calls/10, "the key is handed over within the process")
		})
	}
}

func TestScale_ACallThatLeavesCostsTheSameInEveryCrowd(t *testing.T) {
	leaving := func(calls int) (each work) {
		each.cpu = time.Hour
		for range 3 { // others may have had the processor's caches
			env, admin := ownServer(t)
			c := gather(t, env, calls, untilWoken)
			commandsSince(t, admin)
			before := workSoFar(t)
			for i := calls - 1; i > 0; i -= 2 { // a search from either end would take long
				c.leave[i]()
			}
			require.Equal(t, calls/2, c.ended(t, calls/2))
			after := workSoFar(t)
			scripts, _ := commandsSince(t, admin)
			require.Less(t, scripts, 50, "only the first call has something in Redis")
			each.cpu = min(each.cpu, (after.cpu-before.cpu)/time.Duration(calls/2))
			each.mallocs = (after.mallocs - before.mallocs) / (calls / 2)

			require.NoError(t, c.holder.Release(t.Context()))
			require.Zero(t, c.ended(t, calls/2))
			require.Len(t, c.served, calls/2)
			require.IsIncreasing(t, c.served)
			require.NoError(t, c.locker.Close())
		}
		return each
	}
	few, many := leaving(1000), leaving(10_000)
	t.Logf("to leave costs %s of processor time and %d allocations among 1,000, %s and %d among 10,000",
		few.cpu, few.mallocs, many.cpu, many.mallocs)
	require.LessOrEqual(t, many.mallocs, few.mallocs+2)
	require.Less(t, many.cpu, 3*few.cpu, "the queue is not searched")
}

// TestScale_ManyLeasesAreRenewedAndNoneIsLost is long since it is one story.
func TestScale_ManyLeasesAreRenewedAndNoneIsLost(t *testing.T) {
	leases := 20_000
	if raced() {
		leases = 3_000
	}
	if text := os.Getenv(scaleLeasesVar); text != "" {
		var err error
		leases, err = strconv.Atoi(text)
		require.NoError(t, err, scaleLeasesVar)
	}
	// As many renewals a second, however many leases beyond 50,000.
	ttl := max(2*time.Second*time.Duration(leases)/20_000, 10*time.Second)
	env, admin := ownServer(t)
	var seen lossCounter
	l := newLocker(t, env, core.WithTTL(ttl), core.WithObserver(&seen))
	warm(t, l)
	listening(t, l)
	goroutines, before, stored := runtime.NumGoroutine(), memory(), usedMemory(t, admin)

	held := make([]*core.Lease, leases)
	eachOf(leases, func(i int) {
		var err error
		held[i], err = l.TryAcquire(t.Context(), strconv.Itoa(i))
		assert.NoError(t, err)
	})
	require.False(t, t.Failed())
	commandsSince(t, admin)
	seen.batches.Store(0)
	seen.renewed.Store(0)
	most, asked := 0, workSoFar(t)
	start := time.Now()
	for seen.renewed.Load() < int64(2*leases) { // each is renewed past its first lease
		most = max(most, runtime.NumGoroutine())
		time.Sleep(20 * time.Millisecond)
	}
	spent := workSoFar(t).cpu - asked.cpu
	took := time.Since(start)
	scripts, _ := commandsSince(t, admin)
	batches, renewed := seen.batches.Load(), seen.renewed.Load()
	bytes, stored := (memory()-before)/leases, (usedMemory(t, admin)-stored)/leases
	require.Zero(t, seen.lost.Load())
	require.EqualValues(t, leases, admin.DBSize(t.Context()).Val())
	for _, lease := range held {
		require.NoError(t, lease.Context().Err())
	}
	t.Logf("%d leases of %s held for %s: %d bytes each here and %d in Redis, at most %d goroutines more than with none; "+
		"%d renewals in %d batches and %d scripts, %d batches failed, with %.0f%% of one processor",
		leases, ttl, took.Round(time.Millisecond), bytes, stored, most-goroutines,
		renewed, batches, scripts, seen.failed.Load(), 100*spent.Seconds()/took.Seconds())
	require.Less(t, most-goroutines, 150, "goroutines do not grow with the leases")
	require.Less(t, bytes, 4<<10)
	require.Less(t, int64(scripts), renewed/10)

	eachOf(leases, func(i int) { assert.NoError(t, held[i].Release(t.Context())) })
	require.Zero(t, admin.DBSize(t.Context()).Val())
}

var usedIn = regexp.MustCompile(`used_memory:(\d+)`)

func usedMemory(t *testing.T, admin *redis.Client) int {
	t.Helper()
	m := usedIn.FindStringSubmatch(admin.Info(t.Context(), "memory").Val())
	require.NotNil(t, m)
	n, err := strconv.Atoi(m[1])
	require.NoError(t, err)
	return n
}

// turns are those of many Lockers that have a key one after the other.
type turns struct {
	alone
	taken []int // by whom; guarded by the key
}

func (s *turns) take(ctx context.Context, i int) error {
	s.taken = append(s.taken, i)
	return s.work(ctx)
}

// longestWait is the greatest number of turns from one to the next of the same Locker.
func (s *turns) longestWait(lockers int) (most int) {
	last := make([]int, lockers)
	for turn, i := range s.taken {
		if turn >= lockers {
			most = max(most, turn-last[i])
		}
		last[i] = turn
	}
	return most
}

func TestScale_AThousandLockersTakeTurns(t *testing.T) {
	const clients, rounds = 4, 2
	lockers := 1000
	if raced() {
		lockers = 300
	}
	env, admin := ownServer(t)
	holder := newLocker(t, env)
	lease := testbed.Take(t, holder, crowdKey)

	var wg sync.WaitGroup
	turns := &turns{alone: alone{t: t}}
	shared := make([]*redis.Client, clients)
	for i := range shared {
		shared[i] = redistest.Client(t, &redis.Options{Addr: env.Addr, PoolSize: 100})
	}
	all := make([]*core.Locker, lockers)
	joined := make(chan struct{}, lockers*rounds)
	start := time.Now()
	for i := range all {
		all[i] = lockerOn(t, shared[i%clients], env.Prefix)
		guard := all[i].Guard(untilWoken)
		wg.Go(func() {
			for range rounds {
				call := core.Call{Key: crowdKey, BeforeWait: func() error { joined <- struct{}{}; return nil }}
				assert.NoError(t, guard.Do(t.Context(), call, func(ctx context.Context) error { return turns.take(ctx, i) }))
			}
		})
		<-joined
	}
	listening(t, all...)
	joining := time.Since(start)
	queued(t, env, crowdKey, lockers)
	waiting, _ := commandsSince(t, admin)

	start = time.Now()
	require.NoError(t, lease.Release(t.Context()))
	wg.Wait()
	took := time.Since(start)
	scripts, _ := commandsSince(t, admin)
	n, most := len(turns.taken), turns.longestWait(lockers)
	require.Equal(t, lockers*rounds, n)
	require.IsIncreasing(t, turns.taken[:lockers], "in order of arrival")
	t.Logf("%d lockers join in %s with %.1f scripts each; %d turns in %s: %.0f hand-overs a second, %.2f scripts each; "+
		"at most %d turns from one to the next of the same locker",
		lockers, joining.Round(time.Millisecond), float64(waiting)/float64(lockers), n, took.Round(time.Millisecond),
		float64(n)/took.Seconds(), float64(scripts)/float64(n), most)
	require.Less(t, scripts, 4*n, "no release costs a script for each who waits")
	require.Less(t, most, lockers+lockers/10, "nobody is overtaken by much")

	for _, l := range all {
		wg.Go(func() { assert.NoError(t, l.Close()) })
	}
	wg.Wait()
	require.Empty(t, redistest.Keys(t, admin, fmt.Sprintf("%s:", env.Prefix)))
}

func TestReaders_EnterInOneRoundTrip(t *testing.T) {
	const readers, oneWay = 300, time.Millisecond
	env := redistest.Real(t)
	proxy := redistest.NewProxy(t, env.Addr)
	proxy.Delay(func() time.Duration { return oneWay })
	rdb := redistest.Client(t, &redis.Options{Addr: proxy.Addr})
	require.NoError(t, rdb.ScriptLoad(t.Context(), core.Scripts["admit"]).Err())
	sends := countSends(rdb)
	a := lockerOn(t, rdb, env.Prefix, core.WithRenewalClient(env.Client(t)))
	a.NeverPoll()
	writing := acquired(t, newLocker(t, env), "k")
	calls := acquiringMany(t, env, a, readers, core.Shared())
	sent := time.Now()
	require.NoError(t, rdb.Ping(t.Context()).Err())
	trip := time.Since(sent)
	sends.Store(0)
	release(t, writing)
	released := time.Now()
	entered, leases := make([]time.Duration, readers), make([]*core.Lease, readers)
	for i, c := range calls {
		g := outcome(t, c)
		require.NoError(t, g.err)
		entered[i], leases[i] = g.at.Sub(released), g.l
	}
	slices.Sort(entered)
	t.Logf("%d readers at a round trip of %s: the first enters %s after the release, the last %s; %d sends",
		readers, trip, entered[0], entered[readers-1], sends.Load())
	require.LessOrEqual(t, sends.Load(), int64(3))
	release(t, leases...)
}
