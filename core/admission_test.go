package core_test

import (
	"fmt"
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

// readersBehind returns the lease of a writer, and the grants of a's readers that wait for it.
func readersBehind(t *testing.T, env *redistest.Env, writer, a *core.Locker, readers int) (writing *core.Lease, grants <-chan got) {
	t.Helper()
	writing = acquire(t, writer, "k")
	return writing, merged(acquiringMany(t, env, a, readers, core.Shared()))
}

// The script of an admission serves whoever is at the head of the queue, as every other does.
func TestReaders_AnAdmissionAfterTheirLeadersLeaseServesTheNext(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		rdb, record := env.Client(t), core.RecordName(env.Prefix, "k")
		a, b := newLocker(t, env), newLocker(t, env)
		leader := acquire(t, a, "k", core.Shared(), core.FixedLease(time.Minute))
		writer := acquiringMany(t, env, b, 1)[0]
		over := time.Now().Add(-time.Second).UnixMilli()
		fields, err := rdb.HGetAll(t.Context(), record).Result()
		require.NoError(t, err)
		token := ""
		for field := range fields {
			if its, is := strings.CutPrefix(field, "h:"); is {
				token = its
			}
		}
		require.NoError(t, rdb.HSet(t.Context(), record, "next", over, "h:"+token, fmt.Sprintf("%d %d x", over, leader.Fence())).Err())
		fences, err := rdb.Eval(t.Context(), core.Scripts["admit"], []string{record}, token, leader.Fence(), 0, "0:a.follower", 1000, "x").Int64Slice()
		require.NoError(t, err)
		require.Equal(t, []int64{0}, fences)
		require.NoError(t, granted(t, writer).Release(t.Context()))
	})
}

// What Redis gets long after the grant is a copy that was delayed: those who asked have left.
func TestReaders_AnAdmissionThatIsDeliveredLateAdmitsNobody(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		rdb, record := env.Client(t), core.RecordName(env.Prefix, "k")
		admit := func(age time.Duration) int64 {
			now, err := rdb.Time(t.Context()).Result()
			require.NoError(t, err)
			fences, err := rdb.Eval(t.Context(), core.Scripts["admit"], []string{record}, "0:a.leader", now.Add(-age).UnixMicro(), 0, "0:a.follower", 100, "x").Int64Slice()
			require.NoError(t, err)
			return fences[0]
		}
		require.Zero(t, admit(1100*time.Millisecond))
		require.Zero(t, rdb.Exists(t.Context(), record).Val())
		require.NotZero(t, admit(100*time.Millisecond))
	})
}

func TestReaders_AreNotAdmittedWhileTheKeyIsReserved(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		const readers = 5
		rdb, l := env.Client(t), newLocker(t, env)
		require.NoError(t, rdb.ScriptLoad(t.Context(), core.Scripts["admit"]).Err())
		var held sync.Once
		rdb.AddHook(hooks{script: func(cmd redis.Cmder, next func() error) error {
			if isScript(cmd, "admit") {
				held.Do(func() { assert.NoError(t, reserve(t, l, "k", time.Minute)) })
			}
			return next()
		}})
		writing, grants := readersBehind(t, env, l, lockerOn(t, rdb, env.Prefix), readers)
		require.NoError(t, writing.Release(t.Context()))
		leader := granted(t, grants)
		queued(t, env, "k", 1)
		waiting(t, grants, "the key is reserved")
		require.NoError(t, leader.Release(t.Context()))
		work := parked(t, l, "k")
		require.NoError(t, unreserve(t, l, work))
		require.NoError(t, work.Release(t.Context()))
		for range readers - 1 {
			require.NoError(t, granted(t, grants).Release(t.Context()))
		}
	})
}

// Nobody knows whether readers whose admission has no reply were admitted: they ask again, and leave nothing.
func TestReaders_ALostReplyToTheirAdmission(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		const readers = 20
		l, proxy, direct := throughProxy(t, env, noRetries, core.WithRenewalClient(env.Client(t)))
		require.NoError(t, direct.ScriptLoad(t.Context(), core.Scripts["admit"]).Err())
		writing, grants := readersBehind(t, env, newLocker(t, env), l, readers)
		proxy.LoseReply(once(redis.NewScript(core.Scripts["admit"]).Hash()))
		require.NoError(t, writing.Release(t.Context()))
		leases := map[int64]*core.Lease{}
		for range readers {
			lease := granted(t, grants)
			leases[lease.Fence()] = lease
		}
		require.Len(t, leases, readers)
		for _, lease := range leases {
			require.NoError(t, lease.Release(t.Context()))
		}
		requireNothingLeft(t, direct, env.Prefix)
	})
}
