package core_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
)

// The release of a key for which other processes wait follows a PING, and no other release does: Redis writes
// the grant before the release's reply then.
func TestRelease_OfAKeyThatAnotherProcessWaitsForFollowsAPing(t *testing.T) {
	t.Parallel()
	env := &redistest.Env{Addr: redistest.Start(t).Addr, Prefix: "p"}
	rdb := env.Client(t)
	pings := func() (n int) {
		info, err := rdb.Info(t.Context(), "commandstats").Result()
		require.NoError(t, err)
		if _, rest, found := strings.Cut(info, "cmdstat_ping:calls="); found {
			_, err = fmt.Sscan(strings.ReplaceAll(rest, ",", " "), &n)
			require.NoError(t, err)
		}
		return n
	}
	lockers := []*core.Locker{newSleeper(t, env), newSleeper(t, env), newSleeper(t, env)}
	for _, l := range lockers {
		warm(t, l)
	}
	listening(t, lockers...)
	for _, key := range []string{"k", "other"} {
		lease := acquire(t, lockers[0], key)
		before := pings()
		second := acquiring(t, lockers[1], key)
		queued(t, env, key, 1)
		third := acquiring(t, lockers[2], key)
		queued(t, env, key, 2)
		redistest.Eventually(t, func() bool { return lockers[0].KnowsContention(key) }, "the message that another process waits")
		require.NoError(t, lease.Release(t.Context()))
		require.Equal(t, before+1, pings(), "the message told")
		require.NoError(t, granted(t, second).Release(t.Context()))
		require.Equal(t, before+2, pings(), "the grant told")
		require.NoError(t, granted(t, third).Release(t.Context()))
		require.Equal(t, before+2, pings(), "nobody waits")
		// The message about the third may come after the release: the next one forgets it.
		redistest.Eventually(t, func() bool {
			require.NoError(t, acquire(t, lockers[0], key).Release(t.Context()))
			return !lockers[0].KnowsContention(key)
		}, "a release forgets who waited")
	}
}

// A call of this process that begins to wait after the message that another process waits does not make it forgotten.
func TestRelease_ARivalThatCameBeforeACallOfThisProcess(t *testing.T) {
	t.Parallel()
	onFakeNodes(t, 1, func(t *testing.T, nodes []*fakeNode) {
		own, other := lockerOn(t, nodes[0].distant(t, 10*time.Millisecond), "p"), lockerOn(t, nodes[0].client(t), "p")
		for _, l := range []*core.Locker{own, other} {
			warm(t, l)
			<-acquiring(t, l, "k", core.FixedLease(core.MinTTL)) // subscribes
			listening(t, l)
		}
		time.Sleep(time.Second)
		lease := acquire(t, own, "k")
		rival := acquiring(t, other, "k")
		time.Sleep(time.Millisecond)
		synctest.Wait()
		require.True(t, own.KnowsContention("k"))
		call := acquiring(t, own, "k")
		time.Sleep(5 * time.Millisecond) // Redis has not got its question yet
		synctest.Wait()
		require.NoError(t, lease.Release(t.Context()))
		require.False(t, own.KnowsContention("k"), "nothing is left of it")
		next := granted(t, rival)
		waiting(t, call, "the other process was first")
		require.NoError(t, next.Release(t.Context()))
		require.NoError(t, granted(t, call).Release(t.Context()))
	})
}

// What is known of rivals is bounded, whatever becomes of the grants that they wait behind.
func TestRivals_AreBounded(t *testing.T) {
	t.Parallel()
	l := newLocker(t, redistest.Embedded(t))
	for i := range 5000 {
		l.HearWanted(fmt.Sprint("k", i), time.Now().UnixMicro())
	}
	require.LessOrEqual(t, l.Contended(), 1024)
}

// Redis takes time for each argument: a call sends those that say something.
func TestScripts_ArgumentsOfAPairAndAHandOver(t *testing.T) {
	t.Parallel()
	env := redistest.Embedded(t)
	rdb, sent := env.Client(t), map[string]int{}
	rdb.AddHook(redistest.BeforeEach(func(cmd redis.Cmder) {
		for _, script := range []string{"acquire", "release"} {
			if strings.HasPrefix(cmd.Name(), "eval") && isScript(cmd, script) {
				sent[script] = max(sent[script], len(cmd.Args()))
			}
		}
	}))
	l, err := core.New(rdb, core.WithPrefix(env.Prefix))
	require.NoError(t, err)
	other := newLocker(t, env)
	warm(t, l)
	listening(t, l)
	for range 2 {
		lease := testbed.Take(t, l, "k")
		next := acquiring(t, other, "k")
		redistest.Eventually(t, func() bool { return l.KnowsContention("k") }, "the message that another process waits")
		require.NoError(t, lease.Release(t.Context()))
		require.NoError(t, granted(t, next).Release(t.Context()))
	}
	require.NoError(t, l.Close())
	require.Equal(t, map[string]int{"acquire": 7, "release": 7}, sent, "evalsha, its hash, 1, the record, the token and two more")
}
