package core_test

import (
	"context"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

// stat is a number in what INFO says.
func stat(t *testing.T, admin *redis.Client, section, pattern string) float64 {
	t.Helper()
	m := regexp.MustCompile(pattern).FindStringSubmatch(admin.Info(t.Context(), section).Val())
	if m == nil {
		return 0
	}
	n, err := strconv.ParseFloat(m[1], 64)
	require.NoError(t, err)
	return n
}

// spent is what a server has done: its processor time, and bytes written to the append-only file.
type spent struct {
	cpu      time.Duration
	appended int
}

func spentBy(t *testing.T, admin *redis.Client) spent {
	t.Helper()
	seconds := stat(t, admin, "cpu", `used_cpu_user_main_thread:([\d.]+)`) + stat(t, admin, "cpu", `used_cpu_sys_main_thread:([\d.]+)`)
	return spent{time.Duration(seconds * float64(time.Second)), int(stat(t, admin, "persistence", `aof_current_size:(\d+)`))}
}

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

func TestIdle_WaitingForManyKeysCostsRedisLittle(t *testing.T) {
	t.Parallel()
	const keys, lockers, length = 1000, 10, 6 * time.Second
	env, admin := ownServer(t)
	holder := newLocker(t, env)
	eachOf(keys, func(i int) {
		if _, err := holder.TryAcquire(t.Context(), strconv.Itoa(i)); err != nil {
			t.Error(err)
		}
	})
	var all []*core.Locker
	for range lockers {
		l := newLocker(t, env)
		warm(t, l)
		all = append(all, l)
	}
	waitIdly(t, env, all, func(locker int) (some []string) {
		for i := locker; i < keys; i += lockers {
			some = append(some, strconv.Itoa(i))
		}
		return some
	})
	time.Sleep(length / 2)
	commandsSince(t, admin)
	before := spentBy(t, admin)
	time.Sleep(length)
	after := spentBy(t, admin)
	usec := stat(t, admin, "commandstats", `cmdstat_evalsha:calls=\d+,usec=(\d+)`)
	scripts, commands := commandsSince(t, admin)
	t.Logf("%d keys that %d lockers wait for: %.2f%% of a core, %.2f%% in scripts; %.0f scripts/s, %.0f commands/s",
		keys, lockers, 100*(after.cpu-before.cpu).Seconds()/length.Seconds(), usec/1e4/length.Seconds(),
		float64(scripts)/length.Seconds(), float64(commands)/length.Seconds())
	perSecond := keys * length.Seconds()
	require.Less(t, float64(scripts), perSecond/10, "the tokens of a locker go together")
	require.Less(t, float64(commands), 3*perSecond)
}

func TestIdle_WaitingForOneKeyWritesLittle(t *testing.T) {
	t.Parallel()
	const lockers, length = 100, 6 * time.Second
	server := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "no", "--auto-aof-rewrite-percentage", "0")
	env := &redistest.Env{Addr: server.Addr, Prefix: "p", Real: true}
	admin := env.Client(t)
	_, err := newLocker(t, env).TryAcquire(t.Context(), crowdKey)
	require.NoError(t, err)
	rdb := redistest.Client(t, &redis.Options{Addr: env.Addr, PoolSize: 100})
	var all []*core.Locker
	for range lockers {
		l := lockerOn(t, rdb, env.Prefix, core.WithRenewalClient(rdb))
		warm(t, l)
		all = append(all, l)
	}
	waitIdly(t, env, all, func(int) []string { return []string{crowdKey} })
	time.Sleep(length / 2)
	commandsSince(t, admin)
	before := spentBy(t, admin)
	time.Sleep(length)
	after := spentBy(t, admin)
	scripts, _ := commandsSince(t, admin)
	appended := float64(after.appended-before.appended) / length.Seconds()
	t.Logf("%d lockers that wait for one key: %.1f KB/s appended, %.1f scripts/s, %.2f%% of a core", lockers,
		appended/1000, float64(scripts)/length.Seconds(), 100*(after.cpu-before.cpu).Seconds()/length.Seconds())
	require.Less(t, appended, 40.*float64(lockers))
}
