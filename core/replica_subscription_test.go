package core_test

import (
	"context"
	"net"
	"runtime/debug"
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

// subscribing is a client whose subscription goes to the first replica, once it has moved.
func (r *replicated) subscribing(t *testing.T, moved *atomic.Bool) *redis.Client {
	t.Helper()
	return redistest.Client(t, &redis.Options{Addr: r.env.Addr, Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
		if moved.Load() && strings.Contains(string(debug.Stack()), "(*PubSub)") {
			addr = r.replicas[0].Addr
		}
		return (&net.Dialer{}).DialContext(ctx, network, addr)
	}})
}

// A proxy, or a name that has moved on, can bring the subscription to a replica: the primary
// counts no receivers, and the replica passes on what is published there.
func TestWaiting_WithTheSubscriptionOnAReplica(t *testing.T) {
	t.Parallel()
	r := startReplicated(t, 1)
	env := r.env
	lease := testbed.Take(t, newLocker(t, env), "k")
	var moved atomic.Bool
	moved.Store(true)

	const lockers, rounds = 5, 3
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var turns []int // guarded by the key
	var wg sync.WaitGroup
	for i := range lockers {
		l := lockerOn(t, r.subscribing(t, &moved), env.Prefix)
		l.NeverPoll()
		warm(t, l)
		listening(t, l)
		wg.Go(func() {
			for range rounds {
				assert.NoError(t, l.Do(ctx, "k", func(context.Context) error {
					turns = append(turns, i)
					queued(t, env, "k", min(lockers-1, lockers*rounds-len(turns))) // the others have their places
					return nil
				}))
			}
		})
		queued(t, env, "k", i+1)
	}
	release(t, lease)
	wg.Wait()
	for i := range turns {
		require.Equal(t, i%lockers, turns[i], "each has its place: %v", turns)
	}
	require.Len(t, turns, lockers*rounds)
}

// The primary may take a waiter for gone whose subscription has just moved to a replica, which
// passes the messages on. Then it must not hear that it was granted the key: the next one is.
func TestWaiting_WhenTheSubscriptionMovesToAReplica(t *testing.T) {
	t.Parallel()
	r := startReplicated(t, 1)
	env, primary := r.env, r.primary
	var moved atomic.Bool
	resume := make(chan struct{}) // closed when the lockers may ask again
	held := testbed.Take(t, newLocker(t, env), "k")

	const lockers = 3
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var holders atomic.Int32
	var work sync.WaitGroup
	for i := range lockers {
		rdb := r.subscribing(t, &moved)
		rdb.AddHook(hooks{script: func(_ redis.Cmder, next func() error) error {
			if moved.Load() {
				<-resume
			}
			return next()
		}})
		l := lockerOn(t, rdb, env.Prefix)
		warm(t, l)
		listening(t, l)
		work.Go(func() {
			assert.NoError(t, l.Do(ctx, "k", func(context.Context) error {
				assert.EqualValues(t, 1, holders.Add(1), "holders")
				time.Sleep(100 * time.Millisecond)
				holders.Add(-1)
				return nil
			}))
		})
		queued(t, env, "k", i+1)
	}
	redistest.Eventually(t, func() bool {
		return strings.Count(primary.HGet(ctx, core.RecordName(env.Prefix, "k"), "queue").Val(), "@") == lockers
	}, "waiters that the primary counts")

	moved.Store(true)
	require.NoError(t, primary.ClientKillByFilter(ctx, "TYPE", "pubsub").Err())
	replica := redistest.Client(t, &redis.Options{Addr: r.replicas[0].Addr})
	redistest.Eventually(t, func() bool {
		return len(replica.PubSubChannels(ctx, env.Prefix+":wake:*").Val()) >= 2*lockers
	}, "subscriptions to the replica")
	require.NoError(t, held.Release(ctx))
	time.Sleep(300 * time.Millisecond)
	close(resume)
	work.Wait()
}
