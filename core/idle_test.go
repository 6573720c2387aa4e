//go:build soak

package core_test

import (
	"context"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

// waitIdly has calls of lockers wait for keys that holder has, each locker for its share of them, until all are queued.
func waitIdly(t *testing.T, env *redistest.Env, lockers []*core.Locker, waits func(locker int) []string) {
	t.Helper()
	ctx, leave := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	t.Cleanup(func() {
		leave()
		wg.Wait()
	})
	keys := map[string]int{}
	for i, l := range lockers {
		listening(t, l)
		for _, key := range waits(i) {
			keys[key]++
			wg.Go(func() {
				_, err := l.Acquire(ctx, key)
				if ctx.Err() == nil {
					t.Errorf("%s: %v", key, err)
				}
			})
		}
	}
	rdb := env.Client(t)
	redistest.Eventually(t, func() bool {
		for key, n := range keys {
			queue := rdb.HGet(t.Context(), core.RecordName(env.Prefix, key), "queue").Val()
			if strings.Count(queue, " ") != n {
				return false
			}
			delete(keys, key)
		}
		return true
	}, "all are queued")
}

func TestIdle_WaitingCostsRedisLittle(t *testing.T) {
	t.Parallel()
	const length = 6 * time.Second
	for name, test := range map[string]struct{ keys, lockers int }{"for many keys": {1000, 10}, "for one key": {1, 100}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "no", "--auto-aof-rewrite-percentage", "0")
			env := &redistest.Env{Addr: server.Addr, Prefix: "p", Real: true}
			admin, holder := env.Client(t), newLocker(t, env)
			eachOf(test.keys, func(i int) {
				_, err := holder.TryAcquire(t.Context(), strconv.Itoa(i))
				assert.NoError(t, err)
			})
			rdb := redistest.Client(t, &redis.Options{Addr: env.Addr, PoolSize: 100})
			var all []*core.Locker
			for range test.lockers {
				l := lockerOn(t, rdb, env.Prefix, core.WithRenewalClient(rdb))
				warm(t, l)
				all = append(all, l)
			}
			waitIdly(t, env, all, func(locker int) (some []string) {
				for i := locker % test.keys; i < test.keys; i += test.lockers {
					some = append(some, strconv.Itoa(i))
				}
				return some
			})
			appended := func() float64 { return stat(t, admin, "persistence", `aof_current_size:(\d+)`) }
			time.Sleep(length / 2)
			commandsSince(t, admin)
			before := appended()
			time.Sleep(length)
			after := appended()
			scripts, commands := commandsSince(t, admin)
			perSecond := float64(max(test.keys, test.lockers)) * length.Seconds() // of each call one
			if test.keys > 1 {
				require.Less(t, float64(scripts), perSecond/10, "the tokens of a locker go together")
				require.Less(t, float64(commands), 3*perSecond)
			} else {
				require.Less(t, after-before, 40*perSecond, "bytes")
			}
		})
	}
}
