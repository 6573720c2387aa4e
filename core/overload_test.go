//go:build soak

package core_test

import (
	"context"
	"fmt"
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
	"github.com/perkey-go/perkey/internal/test/mutant"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
	"github.com/perkey-go/perkey/internal/test/throttle"
)

// unclaimed counts the grants that no call took.
type unclaimed struct {
	core.NopObserver
	n atomic.Int64
}

func (u *unclaimed) OnUnclaimed(context.Context, core.Unclaimed) { u.n.Add(1) }

// More callers than Redis can serve wait no longer than they can. Redis must work for those that are still there, and be as fast as
// ever when there are fewer.
func TestOverload_RedisWorksForCallersThatAreStillThere(t *testing.T) {
	const ms = time.Millisecond
	for _, tt := range []struct {
		pairs            int
		timeout, release time.Duration
		long             int // seconds of each load
	}{{100, 400 * ms, time.Second, 5}, {100, 2 * time.Second, time.Second, 5}, {1000, 400 * ms, 200 * ms, 2}} {
		t.Run(fmt.Sprint(tt.pairs, " pairs a second, for ", tt.timeout), func(t *testing.T) {
			t.Parallel()
			redistest.InVirtualTime(t, func(t *testing.T, env *redistest.Env) { overload(t, env, tt.pairs, tt.long, tt.timeout, tt.release) })
		})
	}
}

// overload plays loads on a Redis that can serve so many pairs of an acquire and a release in a second.
func overload(t *testing.T, env *redistest.Env, pairs, long int, timeout, atMost time.Duration) {
	slow := &throttle.Server{}
	opt := *env.Client(t).Options()
	opt.Dialer = slow.Dialer(opt.Dialer)
	lost := &unclaimed{}
	l, err := core.New(redistest.Client(t, &opt), core.WithPrefix(env.Prefix), core.WithObserver(lost))
	require.NoError(t, err)
	defer func() { require.NoError(t, l.Close()) }()
	warm(t, l)
	takes := time.Second / time.Duration(2*pairs)
	slow.Takes(takes)
	ctx, cancel := context.WithTimeout(t.Context(), takes/2)
	_, err = l.Acquire(ctx, "alone")
	cancel()
	require.ErrorIs(t, err, context.DeadlineExceeded)
	redistest.Eventually(t, func() bool { return lost.n.Load() == 1 }, "that nobody took its grant is told")
	keys := 0
	load := func(factor float64) (done int64, release time.Duration) {
		var granted, longest atomic.Int64
		var calls sync.WaitGroup
		n := int(factor * float64(pairs*long))
		for range n {
			keys++
			key := strconv.Itoa(keys)
			calls.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), timeout)
				defer cancel()
				lease, err := l.Acquire(ctx, key)
				if err != nil {
					assert.ErrorIs(t, err, context.DeadlineExceeded)
					return
				}
				granted.Add(1)
				began := time.Now()
				assert.NoError(t, lease.Release(context.Background()))
				longest.Store(max(longest.Load(), int64(time.Since(began))))
			})
			time.Sleep(time.Second * time.Duration(long) / time.Duration(n))
		}
		calls.Wait()
		return granted.Load(), time.Duration(longest.Load())
	}
	for _, factor := range []float64{0.5, 1, 2, 4} {
		before := lost.n.Load()
		done, release := load(factor)
		wasted := lost.n.Load() - before
		t.Logf("%g × what Redis can serve: %d calls were granted their keys, %d grants nobody took, a release took %s at most", factor, done, wasted, release)
		assert.GreaterOrEqual(t, float64(done), 0.8*min(factor, 1)*float64(pairs*long))
		assert.LessOrEqual(t, float64(wasted), 0.3*float64(done+wasted))
		assert.Less(t, release, atMost, "releases do not wait behind acquires")
	}
	time.Sleep(2 * time.Second)
	done, _ := load(0.5)
	assert.EqualValues(t, pairs*long/2, done, "it is as fast as ever")
	requireExpires(t, env.Client(t), env.Prefix)
}

func TestOverload_MutantsAreCaught(t *testing.T) {
	const command, overload = "internal/store/command.go", "internal/store/overload.go"
	mutant.Catch(t, []mutant.Mutant{
		{Name: "a batch is the whole queue", File: overload, Old: "share := float64", New: "if %s {\n\t\treturn len(queue)\n\t}\n\tshare := float64"},
		{Name: "batches are as large on a slow server", File: overload, Old: "int64(promptly)", New: "int64(promptly)*map[bool]int64{false: 1, true: 1000}[%s]"},
		{Name: "replies that come slowly are taken for none", File: overload, Old: "promptly + 2*time", New: "promptly + map[bool]time.Duration{false: 2}[%s]*time"},
		{Name: "what is too late is sent", File: overload, Old: "return !c.until.IsZero()", New: "return !%s && !c.until.IsZero()"},
		{Name: "releases wait for their turn", File: command, Old: "return c.script != acquireScript", New: "return !%s && c.script != acquireScript"},
		{Name: "nobody is told", File: "waiters.go", Old: "if unclaimed {", New: "if unclaimed && !%s {"},
	}, "^TestOverload_RedisWorks")
}

// A call that got its key by a message has it, whatever its older request is answered.
func TestUnclaimed_NotWhatAMessageGave(t *testing.T) {
	env := redistest.Real(t)
	rdb, sent, late := env.Client(t), make(chan struct{}), make(chan struct{})
	var asks atomic.Int32
	rdb.AddHook(hooks{script: func(cmd redis.Cmder, next func() error) error {
		if isScript(cmd, "acquire") && strings.HasSuffix(cmd.Args()[3].(string), ":k") && asks.Add(1) == 2 {
			<-sent
			defer close(late)
		}
		return next()
	}})
	lost := &unclaimed{}
	l := lockerOn(t, rdb, env.Prefix, core.WithObserver(lost))
	warm(t, l)
	listening(t, l)
	first := testbed.Take(t, newLocker(t, env), "k")
	got := acquiring(t, l, "k")
	queued(t, env, "k", 1)
	redistest.Eventually(t, func() bool { l.LookAgain(); return asks.Load() == 2 }, "it asks again")
	require.NoError(t, first.Release(t.Context()))
	lease := granted(t, got)
	close(sent)
	<-late
	require.NoError(t, lease.Release(t.Context()))
	require.NoError(t, l.Shutdown(t.Context()))
	require.Zero(t, lost.n.Load())
}

func TestUnclaimed_OfAQuorumIsToldOnce(t *testing.T) {
	onFakeNodes(t, 3, func(t *testing.T, nodes []*fakeNode) {
		var clients []redis.UniversalClient
		for _, n := range nodes {
			clients = append(clients, n.distant(t, 50*time.Millisecond))
		}
		lost := &unclaimed{}
		l, err := core.NewQuorum(clients, core.WithObserver(lost))
		require.NoError(t, err)
		defer func() { require.NoError(t, l.Close()) }()
		warmAll(t, l, nodes)
		for i := range 10 {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
			_, err = l.Acquire(ctx, strconv.Itoa(i))
			cancel()
			require.ErrorIs(t, err, context.DeadlineExceeded)
		}
		time.Sleep(time.Second)
		require.Positive(t, lost.n.Load())
		require.LessOrEqual(t, lost.n.Load(), int64(10)) // what is not sent yet when its call leaves is not granted
	})
}
