package core_test

import (
	"cmp"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
)

// deployment is a Redis of several processes. The funcs primary and replicas are for one goroutine.
type deployment struct {
	client    func(t testing.TB, protocol int) redis.UniversalClient
	primary   func(t testing.TB, record string) *redistest.Server // that holds it
	replicas  func(t testing.TB, record string) []*redistest.Server
	primaries int
}

// eachDeployment runs test where locks run in earnest.
func eachDeployment(t *testing.T, test func(t *testing.T, d deployment)) {
	t.Helper()
	t.Run("sentinel", func(t *testing.T) {
		t.Parallel()
		s := redistest.StartSentinel(t)
		test(t, deployment{
			client: func(t testing.TB, protocol int) redis.UniversalClient {
				t.Helper()
				return s.Client(t, func(o *redis.FailoverOptions) { o.Protocol = protocol })
			},
			primary: func(t testing.TB, _ string) *redistest.Server {
				t.Helper()
				return s.Primary(t)
			},
			replicas: func(t testing.TB, _ string) []*redistest.Server {
				t.Helper()
				return s.Replicas(t)
			},
			primaries: 1,
		})
	})
	t.Run("cluster", func(t *testing.T) {
		t.Parallel()
		c := redistest.StartCluster(t, 3, 1)
		test(t, deployment{
			client: func(t testing.TB, protocol int) redis.UniversalClient {
				t.Helper()
				return c.Client(t, func(o *redis.ClusterOptions) { o.Protocol = protocol })
			},
			primary: c.NodeOf, replicas: c.ReplicasOf, primaries: 3,
		})
	})
}

const resp3 = 3

// lockerOn returns a locker with a client.
func lockerOn(t testing.TB, rdb redis.UniversalClient, prefix string, opts ...core.Option) *core.Locker {
	t.Helper()
	l, err := core.New(rdb, append([]core.Option{core.WithPrefix(prefix)}, opts...)...)
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	return l
}

func keyNames(n int) []string {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = fmt.Sprintf("key %d", i)
	}
	return keys
}

func TestDeployment_TheWholeLifeOfALockOnSentinelAndCluster(t *testing.T) {
	t.Parallel()
	eachDeployment(t, func(t *testing.T, d deployment) {
		for _, protocol := range []int{2, resp3} {
			prefix, keys := fmt.Sprintf("resp%d", protocol), keyNames(24)
			owners := map[*redistest.Server]bool{}
			for _, key := range keys {
				owners[d.primary(t, core.RecordName(prefix, key))] = true
			}
			require.Len(t, owners, d.primaries, "the keys are on every primary")
			t.Run(prefix, func(t *testing.T) {
				t.Parallel()
				told := life{
					holder: d.client(t, protocol), other: d.client(t, protocol), prefix: prefix, keys: keys,
				}.run(t)
				require.Greater(t, told, len(keys)/2, "woken, and not by asking once a second")
			})
		}
	})
}

// muted has a client's scripts wait while the result is locked: whoever is granted a key then was told by a message.
func muted(rdb redis.UniversalClient) *sync.RWMutex {
	var gate sync.RWMutex
	wait := func() { gate.RLock(); gate.RUnlock() } //nolint:staticcheck // it only waits
	rdb.AddHook(hooks{
		script:   func(_ redis.Cmder, next func() error) error { wait(); return next() },
		pipeline: func(next func() error) error { wait(); return next() },
	})
	return &gate
}

// toldOf releases a key for which a call waits, and says whether that call, whose client asks nothing meanwhile, was told.
func toldOf(gate *sync.RWMutex, release func(), grants <-chan got) (g got, told bool) {
	gate.Lock()
	release()
	select {
	case g = <-grants:
		gate.Unlock()
		return g, true
	case <-time.After(2 * time.Second):
		gate.Unlock() // it asks
		return <-grants, false
	}
}

// life is what happens to locks on keys from the first call to the last. The two
// lockers have clients of their own, as two processes would.
type life struct {
	holder, other redis.UniversalClient
	prefix        string
	keys          []string
	admin         redis.UniversalClient // deletes records; nil: holder
	deaf          bool                  // no message tells: a waiting call has to ask
}

// run returns how many of the waiting calls a message told that their key is free. It is long since it is one story.
func (f life) run(t *testing.T) (told int) {
	t.Helper()
	const ttl = 3 * time.Second // a busy machine renews within that
	ctx := t.Context()
	gate := &sync.RWMutex{}
	if !f.deaf {
		gate = muted(f.other)
	}
	holder, other := lockerOn(t, f.holder, f.prefix, core.WithTTL(ttl)), lockerOn(t, f.other, f.prefix, core.WithTTL(3*ttl)) // it is muted for a while

	held := map[string]*core.Lease{}
	for _, key := range f.keys {
		lease := testbed.Take(t, holder, key)
		held[key] = lease
		_, err := other.TryAcquire(ctx, key)
		var conflict *core.ConflictError
		require.ErrorAs(t, err, &conflict)
		require.Positive(t, conflict.Remaining)
	}

	var calls []<-chan got
	for _, key := range f.keys {
		calls = append(calls, acquiring(t, other, key))
	}
	grants := merged(calls)
	time.Sleep(2 * ttl) // the leases live by renewals alone
	require.Empty(t, grants)
	for _, lease := range held {
		require.NoError(t, lease.Context().Err())
	}
	next := map[string]*core.Lease{}
	for _, key := range f.keys {
		g, byMessage := toldOf(gate, func() { require.NoError(t, held[key].Release(ctx)) }, grants)
		require.NoError(t, g.err)
		require.Equal(t, key, g.l.Key())
		require.Greater(t, g.l.Fence(), held[key].Fence())
		next[key] = g.l
		if byMessage {
			told++
		}
	}

	admin := cmp.Or(f.admin, f.holder)
	gone, kept := f.keys[:len(f.keys)/2], f.keys[len(f.keys)/2:]
	for _, key := range gone {
		require.NoError(t, admin.Del(ctx, core.RecordName(f.prefix, key)).Err())
	}
	for _, key := range gone {
		<-next[key].Context().Done()
		require.ErrorIs(t, next[key].Release(ctx), core.ErrLeaseLost)
	}
	for _, key := range kept {
		require.NoError(t, next[key].Release(ctx))
	}
	for _, key := range f.keys {
		lease := testbed.Take(t, holder, key)
		require.Greater(t, lease.Fence(), next[key].Fence())
		require.NoError(t, lease.Release(ctx))
	}
	for _, l := range []*core.Locker{holder, other} {
		require.NoError(t, l.Shutdown(ctx))
	}
	return told
}
