package core_test

import (
	"context"
	"fmt"
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
	"github.com/perkey-go/perkey/internal/test/testbed"
)

// Things that overtake one another on their way to Redis and back.

func isScript(cmd redis.Cmder, name string) bool {
	hash := redis.NewScript(core.Scripts[name]).Hash()
	s, _ := cmd.Args()[1].(string)
	return s == hash || s == core.Scripts[name]
}

func TestShutdown_WaitsForReleasesUnderWay(t *testing.T) {
	t.Parallel()
	env := redistest.Real(t)
	gate, out := make(chan struct{}), make(chan struct{}, 9)
	l := hooked(t, env, hooks{script: func(cmd redis.Cmder, next func() error) error {
		if isScript(cmd, "release") {
			out <- struct{}{}
			<-gate
		}
		return next()
	}})
	lease := testbed.Take(t, l, "k")
	released, down := make(chan error), make(chan error, 1)
	go func() { released <- lease.Release(context.Background()) }()
	<-out
	go func() { down <- l.Shutdown(context.Background()) }()
	require.Never(t, func() bool { return len(down) > 0 }, 50*time.Millisecond, 5*time.Millisecond, "the key is still taken")
	close(gate)
	require.NoError(t, <-released)
	require.NoError(t, <-down)
	require.Empty(t, redistest.Keys(t, env.Client(t), env.Prefix))
}

func TestRace_ALostReplyToAReleaseThatServedItsOwnQueue(t *testing.T) {
	t.Parallel()
	env := redistest.Real(t)
	var lose atomic.Bool
	l := hooked(t, env, hooks{script: func(cmd redis.Cmder, next func() error) error {
		err := next()
		if isScript(cmd, "release") && lose.CompareAndSwap(true, false) {
			return refuse(cmd, context.DeadlineExceeded)
		}
		return err
	}})
	warm(t, l)
	listening(t, l)
	lease := acquired(t, l, "k")
	next := acquiring(t, l, "k")
	time.Sleep(200 * time.Millisecond) // over the budget for passing on
	lose.Store(true)
	require.NoError(t, lease.Release(t.Context()))
	second := granted(t, next)
	require.Empty(t, env.Client(t).HGet(t.Context(), core.RecordName(env.Prefix, "k"), "queue").Val(), "a stale token")
	require.NoError(t, second.Release(t.Context()))
	require.NoError(t, errOf(newLocker(t, env).TryAcquire(t.Context(), "k")), "a stale token wasted a claim")
}

// A client's hook sends some commands twice, as one that tries again does: the second reply to a release is that there is
// nothing to release.
func TestRace_AReleaseThatFindsItselfDoneIsNoLoss(t *testing.T) {
	t.Parallel()
	env := redistest.Real(t)
	var sent atomic.Int64
	perhapsTwice := func(next func() error) error {
		if sent.Add(1)%2 == 0 {
			_ = next()
		}
		return next()
	}
	l := hooked(t, env, hooks{script: func(_ redis.Cmder, next func() error) error { return perhapsTwice(next) }, pipeline: perhapsTwice})
	var callers sync.WaitGroup
	for i := range 72 {
		callers.Go(func() {
			for range 5 {
				assert.NoError(t, l.Do(t.Context(), fmt.Sprint(i%60), nothing))
			}
		})
	}
	callers.Wait()
}

// Without such a hook a release that finds nothing is a loss, also when its script is sent again since Redis did not know it.
func TestRace_AReleaseWhoseScriptIsNotKnownFindsALoss(t *testing.T) {
	t.Parallel()
	rdb := redistest.Client(t, &redis.Options{Addr: redistest.Start(t).Addr})
	l := lockerOn(t, rdb, "p")
	for range 3 {
		var callers sync.WaitGroup
		held, lost := make(chan *core.Lease, 12), make(chan error, 12)
		for i := range 12 {
			callers.Go(func() {
				lease, err := l.TryAcquire(t.Context(), fmt.Sprint(i))
				assert.NoError(t, err)
				held <- lease
			})
		}
		callers.Wait()
		require.NoError(t, rdb.FlushAll(t.Context()).Err())
		require.NoError(t, rdb.ScriptFlush(t.Context()).Err())
		for range 12 { // some alone, some in pipelines
			callers.Go(func() { lost <- (<-held).Release(t.Context()) })
		}
		for range 12 {
			require.ErrorIs(t, <-lost, core.ErrLeaseLost)
		}
		callers.Wait()
	}
}

func TestRace_ARequestThatArrivesAfterItsGrantWasReleased(t *testing.T) {
	t.Parallel()
	env := redistest.Real(t)
	gate, late := make(chan struct{}), make(chan struct{})
	var asks atomic.Int32
	l := hooked(t, env, hooks{script: func(cmd redis.Cmder, next func() error) error {
		if isScript(cmd, "acquire") && strings.Contains(cmd.Args()[3].(string), ":k") && asks.Add(1) == 2 {
			<-gate // on its way
			c := redis.NewCmd(context.Background(), cmd.Args()...)
			err := env.Client(t).Process(context.Background(), c)
			cmd.(*redis.Cmd).SetVal(c.Val())
			cmd.SetErr(c.Err())
			close(late)
			return err
		}
		return next()
	}})
	other, third := newLocker(t, env), newLocker(t, env)
	warm(t, l)
	warm(t, third)
	listening(t, l, third)
	first := acquired(t, other, "k")
	next := acquiring(t, l, "k")
	queued(t, env, "k", 1)
	redistest.Eventually(t, func() bool { l.LookAgain(); return asks.Load() == 2 }, "asks again") // once it has its first answer
	require.NoError(t, first.Release(t.Context()))
	mine := granted(t, next) // by message
	require.NoError(t, mine.Release(t.Context()))
	holder := acquired(t, third, "k")
	time.Sleep(2 * time.Millisecond) // refusals tell the server's clock in ms, and only a later one than the grant is told apart
	close(gate)
	<-late
	time.Sleep(200 * time.Millisecond)
	queue := env.Client(t).HGet(t.Context(), core.RecordName(env.Prefix, "k"), "queue").Val()
	require.NoError(t, holder.Release(t.Context()))
	_ = acquired(t, other, "k")
	require.Empty(t, queue, "a token of nobody's is in the queue")
}

func TestRace_ALateRenewalDoesNotLengthenAMinHold(t *testing.T) {
	t.Parallel()
	env := redistest.Real(t)
	renewals := env.Client(t)
	gate, held := make(chan struct{}), make(chan struct{})
	var once sync.Once
	renewals.AddHook(hooks{pipeline: func(next func() error) error {
		once.Do(func() { close(held); <-gate })
		return next()
	}})
	l := lockerOn(t, env.Client(t), env.Prefix, core.WithRenewalClient(renewals), core.WithTTL(30*time.Second))
	lease := acquired(t, l, "k", core.MinHold(1500*time.Millisecond))
	<-held
	require.NoError(t, lease.Release(t.Context()))
	close(gate)
	time.Sleep(200 * time.Millisecond)
	info, err := l.Inspect(t.Context(), "k")
	require.NoError(t, err)
	for _, h := range info.Holders {
		require.LessOrEqual(t, h.Remaining, 2*time.Second, "the key stays taken past MinHold")
	}
}

// Commands that Redis has taken and never answers keep Close for two seconds.
func TestClose_OfASilentRedisTakesTwoSeconds(t *testing.T) {
	t.Parallel()
	redistest.InVirtualTime(t, func(t *testing.T, env *redistest.Env) {
		l := newLocker(t, env)
		held := testbed.Take(t, l, "held")
		listening(t, l)
		env.FallSilent()
		calls := make(chan error, 20)
		for i := range cap(calls) {
			go func() { calls <- errOf(l.Acquire(context.Background(), fmt.Sprint(i))) }()
		}
		time.Sleep(100 * time.Millisecond)
		start := time.Now()
		_ = l.Close()
		require.LessOrEqual(t, time.Since(start), 2*time.Second)
		require.ErrorIs(t, context.Cause(held.Context()), core.ErrClosed)
		for range cap(calls) {
			require.ErrorIs(t, <-calls, core.ErrClosed)
		}
	})
}
