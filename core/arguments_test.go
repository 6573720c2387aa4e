package core_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

// A command's arguments are used again, and stay as they are for as long as go-redis may send them: whether its caller
// leaves, a reply is late or lost, or go-redis tries again. It is long since it is one story.
func TestArguments_AreUsedAgainOnlyOnceGoRedisIsDone(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		const callers, keys, calls = 32, 8, 12
		proxy := redistest.NewProxy(t, env.Addr)
		rdb := redistest.Client(t, &redis.Options{Addr: proxy.Addr, MaxRetries: 2, MinRetryBackoff: time.Millisecond})
		acquire := redis.NewScript(core.Scripts["acquire"]).Hash()
		check := func(cmd redis.Cmder) func() {
			before := redistest.Args(cmd)
			if len(before) > 7 && before[1] == acquire { // its record, and NAME;ID;TTL
				if name, _, named := strings.Cut(fmt.Sprint(before[7]), ";"); named && !strings.HasSuffix(fmt.Sprint(before[3]), name) {
					t.Error("the arguments of two calls: ", before)
				}
			}
			return func() {
				if after := redistest.Args(cmd); fmt.Sprint(before) != fmt.Sprint(after) {
					t.Error(before, " became ", after)
				}
			}
		}
		rdb.AddHook(afterEach(check))
		l := lockerOn(t, rdb, env.Prefix, core.WithObserver(onLoss{call: func(e core.Lost) {
			// A grant by hand-over lasts for 1 s. So a slow machine can lose one, but Redis does not forget it sooner:
			// its fence is Redis's clock, or a little more.
			if e.Kind == core.LossGone && time.Since(time.UnixMicro(e.Fence)) < 900*time.Millisecond {
				t.Error(e.Key, ": ", e.Cause)
			}
		}}))
		warm(t, l)
		proxy.Delay(func() time.Duration { return rand.N(20 * time.Millisecond) })
		proxy.LoseReply(func(request []byte) bool { return rand.N(8) == 0 && bytes.Contains(request, []byte("lock{}")) })
		var holders [keys]atomic.Pointer[core.Lease]
		var granted atomic.Int64
		var work sync.WaitGroup
		for range callers {
			work.Go(func() {
				for n := range calls {
					i := rand.N(keys)
					key := fmt.Sprint("k", i)
					ctx, cancel := context.WithCancel(t.Context())
					if n%2 == 0 { // the others do not leave, however slow this machine is
						ctx, cancel = context.WithTimeout(t.Context(), rand.N(300*time.Millisecond))
					}
					options := []core.AcquireOption{core.Named(key, ""), core.LeaseTTL(time.Second + rand.N(time.Second).Round(time.Millisecond))}
					// After a command that has lost all of its replies each call fails at once for a while.
					lease, err := acquireInTheEnd(ctx, l, key, options...)
					if err == nil {
						granted.Add(1)
						if other := holders[i].Swap(lease); other != nil && other.Context().Err() == nil {
							t.Error(key, "is held twice")
						}
						time.Sleep(rand.N(time.Millisecond))
						holders[i].CompareAndSwap(lease, nil)
						_ = lease.Release(t.Context())
					}
					cancel()
				}
			})
		}
		work.Wait()
		proxy.Delay(nil)
		proxy.LoseReply(nil)
		require.GreaterOrEqual(t, granted.Load(), int64(callers*calls/2), "all that do not leave")
		requireExpires(t, env.Client(t), env.Prefix)
	})
}

// onLoss is called with each loss.
type onLoss struct {
	core.NopObserver
	call func(core.Lost)
}

func (o onLoss) OnLost(_ context.Context, e core.Lost) { o.call(e) }

// afterEach is a hook that is called before each command and pipeline, and returns what to call after it.
type afterEach func(cmd redis.Cmder) (after func())

func (f afterEach) DialHook(next redis.DialHook) redis.DialHook { return next }

func (f afterEach) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		defer f(cmd)()
		return next(ctx, cmd)
	}
}

func (f afterEach) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		after := make([]func(), len(cmds))
		for i, cmd := range cmds {
			after[i] = f(cmd)
		}
		err := next(ctx, cmds)
		for _, check := range after {
			check()
		}
		return err
	}
}

// acquireInTheEnd asks until Redis answers.
func acquireInTheEnd(ctx context.Context, l *core.Locker, key string, opts ...core.AcquireOption) (*core.Lease, error) {
	for {
		lease, err := l.Acquire(ctx, key, opts...)
		if !errors.Is(err, core.ErrUnavailable) {
			return lease, err
		}
		time.Sleep(20 * time.Millisecond)
	}
}
