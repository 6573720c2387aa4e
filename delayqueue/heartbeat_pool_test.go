package delayqueue_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

// Heartbeats have connections of their own: a service that uses up its pool, for longer than a
// claim lasts, keeps all that it runs.
func TestHeartbeat_HeartbeatsDoNotWaitForTheUsersPool(t *testing.T) {
	for name, given := range map[string]bool{"of their own": false, "given": true} {
		t.Run(name, func(t *testing.T) {
			redistest.Each(t, func(t *testing.T, env *redistest.Env) {
				const pool, messages, lease = 4, 50, 3 * time.Second
				b := setup(t, env, delayqueue.WithMaxAttempts(10))
				full := redistest.Client(t, redistest.OnePool(&redis.Options{
					Addr: env.Addr, PoolSize: pool, MaxActiveConns: pool, PoolTimeout: 100 * time.Millisecond,
				}))
				opts := []delayqueue.WorkerOption{delayqueue.WithClaimLease(lease), delayqueue.WithConcurrency(messages)}
				if given {
					opts = append(opts, delayqueue.WithHeartbeatClient(env.Client(t)))
				}
				var running, lost atomic.Int64
				done := make(chan struct{})
				b.startOn(b.newQueue(full, delayqueue.WithMaxAttempts(10)), func(ctx context.Context, _ delayqueue.Message) error {
					running.Add(1)
					select {
					case <-done:
					case <-ctx.Done():
						lost.Add(1)
					}
					return nil
				}, opts...)
				ids := make([]string, messages)
				for i := range ids {
					ids[i] = b.enqueue(delayqueue.Job{Key: []string{"", fmt.Sprint(i)}[i%2]})
				}
				redistest.Eventually(t, func() bool { return running.Load() == messages }, "all run")
				var redelivered ran
				seen := newEvents()
				b.start(redelivered.handle, delayqueue.WithObserver(seen)) // another process would run what is lost

				var blocked sync.WaitGroup
				for range 2 * pool { // more wait for their turn
					blocked.Go(func() {
						for end := time.Now().Add(3 * lease); time.Now().Before(end); {
							_ = full.BLPop(t.Context(), time.Until(end).Truncate(time.Second)+time.Second, env.Prefix+"nothing").Err()
						}
					})
				}
				blocked.Wait()
				require.Zero(t, lost.Load(), "claims were lost")
				require.Empty(t, redelivered.ids())
				close(done)
				for _, id := range ids {
					require.Equal(t, 1, b.reaches(id, delayqueue.StateDone).Attempts)
				}
				require.Empty(t, seen.reaped)
				require.Empty(t, redelivered.ids())
			})
		})
	}
}
