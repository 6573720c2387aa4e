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
	rdb := redis.NewClient(&redis.Options{Addr: env.Addr})
	gate := make(chan struct{})
	out := make(chan struct{}, 9)
	rdb.AddHook(hooks{script: func(cmd redis.Cmder, next func() error) error {
		if isScript(cmd, "release") {
			out <- struct{}{}
			<-gate
		}
		return next()
	}})
	l, err := core.New(rdb, core.WithPrefix(env.Prefix))
	require.NoError(t, err)
	lease, err := l.TryAcquire(context.Background(), "k")
	require.NoError(t, err)
	rel := make(chan error)
	go func() { rel <- lease.Release(context.Background()) }()
	<-out
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	err = l.Shutdown(ctx)
	_ = rdb.Close()
	close(gate)
	t.Logf("release: %v", <-rel)
	if n := len(redistest.Keys(t, env.Client(t), env.Prefix)); n > 0 && err == nil {
		t.Errorf("Shutdown returned nil, and the key is still taken")
	}
}

func TestRace_ATokenStaysGoodWhenReplicasDoNotAnswer(t *testing.T) {
	t.Parallel()
	env := redistest.Real(t)
	l := newLocker(t, env)
	ctx := t.Context()
	lease, err := l.TryAcquire(ctx, "k")
	require.NoError(t, err)
	token, err := lease.Detach(ctx)
	require.NoError(t, err)
	_, err = l.Resume(ctx, token, core.WaitReplicas(1, 20*time.Millisecond))
	require.ErrorIs(t, err, core.ErrUnavailable)
	_, err = l.Resume(ctx, token)
	if err != nil {
		t.Errorf("token should be good for another try: %v", err)
	}
}

func TestRace_ALostReplyToAReleaseThatServedItsOwnQueue(t *testing.T) {
	t.Parallel()
	env := redistest.Real(t)
	rdb := env.Client(t)
	var lose atomic.Bool
	rdb.AddHook(hooks{script: func(cmd redis.Cmder, next func() error) error {
		err := next()
		if isScript(cmd, "release") && lose.CompareAndSwap(true, false) {
			return refuse(cmd, context.DeadlineExceeded)
		}
		return err
	}})
	l := lockerOn(t, rdb, env.Prefix)
	warm(t, l)
	redistest.Eventually(t, l.Listening, "up")
	lease, err := l.Acquire(t.Context(), "k")
	require.NoError(t, err)
	next := acquiring(t, l, "k")
	time.Sleep(200 * time.Millisecond) // over the budget for passing on
	lose.Store(true)
	require.NoError(t, lease.Release(t.Context()))
	second := granted(t, next)
	rec, _ := env.Client(t).HGetAll(context.Background(), core.RecordName(env.Prefix, "k")).Result()
	t.Log(rec)
	require.Empty(t, rec["queue"], "a stale token")
	require.NoError(t, second.Release(t.Context()))
	_, err = newLocker(t, env).TryAcquire(t.Context(), "k")
	require.NoError(t, err, "a stale token wasted a claim")
}

// A client's hook sends some commands twice, as one that tries again does: the second reply to a release is that there is
// nothing to release.
func TestRace_AReleaseThatFindsItselfDoneIsNoLoss(t *testing.T) {
	t.Parallel()
	env := redistest.Real(t)
	rdb := env.Client(t)
	var sent atomic.Int64
	perhapsTwice := func(next func() error) error {
		if sent.Add(1)%2 == 0 {
			_ = next()
		}
		return next()
	}
	rdb.AddHook(hooks{script: func(_ redis.Cmder, next func() error) error { return perhapsTwice(next) }, pipeline: perhapsTwice})
	l := lockerOn(t, rdb, env.Prefix)
	var callers sync.WaitGroup
	for i := range 72 {
		callers.Go(func() {
			for range 5 {
				assert.NoError(t, l.Do(t.Context(), fmt.Sprint(i%60), func(context.Context) error { return nil }))
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
	rdb := env.Client(t)
	gate := make(chan struct{})
	var asks atomic.Int32
	late := make(chan struct{})
	rdb.AddHook(hooks{script: func(cmd redis.Cmder, next func() error) error {
		if isScript(cmd, "acquire") && strings.Contains(cmd.Args()[3].(string), ":k") && asks.Add(1) == 2 {
			<-gate // on its way
			c := redis.NewCmd(context.Background(), cmd.Args()...)
			side := redis.NewClient(&redis.Options{Addr: env.Addr})
			err := side.Process(context.Background(), c)
			_ = side.Close()
			cmd.(*redis.Cmd).SetVal(c.Val())
			cmd.SetErr(c.Err())
			close(late)
			return err
		}
		return next()
	}})
	l := lockerOn(t, rdb, env.Prefix)
	warm(t, l)
	redistest.Eventually(t, l.Listening, "up")
	other, third := newLocker(t, env), newLocker(t, env)
	warm(t, third)
	redistest.Eventually(t, third.Listening, "up")
	first, err := other.Acquire(t.Context(), "k")
	require.NoError(t, err)
	next := acquiring(t, l, "k")
	queued(t, env, "k", 1)
	redistest.Eventually(t, func() bool { l.LookAgain(); return asks.Load() == 2 }, "asks again") // once it has its first answer
	require.NoError(t, first.Release(t.Context()))
	mine := granted(t, next) // by message
	require.NoError(t, mine.Release(t.Context()))
	holder, err := third.Acquire(t.Context(), "k")
	require.NoError(t, err)
	time.Sleep(2 * time.Millisecond) // refusals tell the server's clock in ms, and only a later one than the grant is told apart
	close(gate)
	<-late
	time.Sleep(200 * time.Millisecond)
	rec, _ := env.Client(t).HGetAll(context.Background(), core.RecordName(env.Prefix, "k")).Result()
	t.Log(rec)
	require.NoError(t, holder.Release(t.Context()))
	_, err = other.Acquire(t.Context(), "k")
	require.NoError(t, err)
	if rec["queue"] != "" {
		t.Error("a token of nobody's is in the queue")
	}
}

func TestRace_ALateRenewalDoesNotLengthenAMinHold(t *testing.T) {
	t.Parallel()
	env := redistest.Real(t)
	rdb := env.Client(t)
	renewals := env.Client(t)
	gate := make(chan struct{})
	held := make(chan struct{})
	var once sync.Once
	renewals.AddHook(hooks{pipeline: func(next func() error) error {
		once.Do(func() { close(held); <-gate })
		return next()
	}})
	l := lockerOn(t, rdb, env.Prefix, core.WithRenewalClient(renewals), core.WithTTL(30*time.Second))
	lease, err := l.Acquire(t.Context(), "k", core.MinHold(1500*time.Millisecond))
	require.NoError(t, err)
	<-held
	require.NoError(t, lease.Release(t.Context()))
	close(gate)
	time.Sleep(200 * time.Millisecond)
	info, err := l.Inspect(t.Context(), "k")
	require.NoError(t, err)
	for _, h := range info.Holders {
		t.Logf("left: %s", h.Remaining)
		if h.Remaining > 2*time.Second {
			t.Error("the key stays taken past MinHold")
		}
	}
}

func TestRace_ACallThatIsHandedAGrantWhileRedisGrantsIt(t *testing.T) {
	t.Parallel()
	env := redistest.Real(t)
	rdb := env.Client(t)
	side := env.Client(t)
	var act atomic.Pointer[func()]
	rdb.AddHook(hooks{script: func(cmd redis.Cmder, next func() error) error {
		if isScript(cmd, "acquire") {
			if f := act.Swap(nil); f != nil {
				err := next()
				(*f)()
				return err
			}
		}
		return next()
	}})
	l := lockerOn(t, rdb, env.Prefix)
	l.NeverPoll()
	warm(t, l)
	redistest.Eventually(t, l.Listening, "up")
	lease, err := l.TryAcquire(t.Context(), "k")
	require.NoError(t, err)
	side.Del(t.Context(), core.RecordName(env.Prefix, "k")) // Redis lost it
	other := make(chan error, 1)
	f := func() {
		go func() {
			third, err := l.Acquire(context.Background(), "k")
			if err == nil {
				err = third.Release(context.Background())
			}
			other <- err
		}()
		time.Sleep(5 * time.Millisecond)
		_ = lease.Release(context.Background()) // handed over
	}
	act.Store(&f)
	second, err := l.Acquire(context.Background(), "k")
	require.NoError(t, err)
	require.NoError(t, second.Release(context.Background()))
	t.Log("third:", <-other) // it does not sleep for good
}

type slowLost struct{ core.NopObserver }

func (slowLost) OnLost(context.Context, core.Lost) { time.Sleep(40 * time.Millisecond) }

func TestClose_EndsWithRequestsUnderWay(t *testing.T) {
	t.Parallel()
	env := redistest.Real(t)
	rdb := env.Client(t)
	asked := make(chan struct{}, 9)
	late := func(next func() error) error {
		err := next()
		asked <- struct{}{}
		time.Sleep(10 * time.Millisecond)
		return err
	}
	rdb.AddHook(hooks{ // they may travel together
		script: func(cmd redis.Cmder, next func() error) error {
			if isScript(cmd, "acquire") && strings.Contains(cmd.Args()[3].(string), ":slow") {
				return late(next)
			}
			return next()
		},
		pipeline: late,
	})
	l, err := core.New(rdb, core.WithPrefix(env.Prefix), core.WithObserver(slowLost{}))
	require.NoError(t, err)
	_, err = l.TryAcquire(context.Background(), "held")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for _, key := range []string{"slow1", "slow2"} {
		go func() { _, _ = l.Acquire(ctx, key) }()
	}
	<-asked
	time.Sleep(5 * time.Millisecond)
	_ = l.Close() // it does not hang
}

// Commands that Redis has taken and never answers keep Close for two seconds.
func TestClose_OfASilentRedisTakesTwoSeconds(t *testing.T) {
	t.Parallel()
	redistest.InVirtualTime(t, func(t *testing.T, env *redistest.Env) {
		l := newLocker(t, env)
		held, err := l.TryAcquire(t.Context(), "held")
		require.NoError(t, err)
		listening(t, l)
		env.FallSilent()
		calls := make(chan error, 20)
		for i := range cap(calls) {
			go func() {
				_, err := l.Acquire(context.Background(), fmt.Sprint(i))
				calls <- err
			}()
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
