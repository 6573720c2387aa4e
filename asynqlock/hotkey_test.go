package asynqlock_test

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/asynqlock"
	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/retry"
)

// What docs/asynq.md says of its settings: many tasks of few keys are done sooner. With
// PERKEY_SCALE_ASYNQ=1 the defaults are measured beside them, which takes minutes.
func TestPerKey_AShortWaitIsFasterThanDeferrals(t *testing.T) {
	run := func(t *testing.T, cfg asynq.Config, policy core.ConflictPolicy, opts ...asynqlock.Option) time.Duration {
		t.Helper()
		b := setup(t, redistest.Real(t))
		const tasks, wallets = 300, 3
		var inside [wallets]alone
		done := make(chan struct{}, tasks)
		for n := range tasks {
			b.enqueue(t, asynq.NewTask(kind, fmt.Appendf(nil, `{"user_id":%d,"n":%d}`, n%wallets, n)))
		}
		cfg.Concurrency, cfg.Queues, cfg.Logger = 10, map[string]int{b.queue: 1}, quiet{}
		start := time.Now()
		b.serve(t, cfg, asynqlock.PerKey(b.locker.Guard(policy), walletKey, opts...)(asynq.HandlerFunc(
			func(_ context.Context, task *asynq.Task) error {
				var wallet, n int
				if _, err := fmt.Sscanf(string(task.Payload()), `{"user_id":%d,"n":%d}`, &wallet, &n); err != nil {
					return err
				}
				defer inside[wallet].enter(t)()
				time.Sleep(10 * time.Millisecond)
				done <- struct{}{}
				return nil
			})))
		for range tasks {
			<-done
		}
		took := time.Since(start).Round(100 * time.Millisecond)
		t.Logf("300 tasks of 3 keys, 10 ms each, 10 workers: %s, %d conflicts", took, b.conflicts.n.Load())
		return took
	}
	took := run(t, asynq.Config{TaskCheckInterval: 200 * time.Millisecond, DelayedTaskCheckInterval: time.Second},
		retry.Policy{MaxWait: 100 * time.Millisecond}, asynqlock.WithDelay(time.Second, 2*time.Second))
	require.Less(t, took, 20*time.Second)
	if os.Getenv("PERKEY_SCALE_ASYNQ") != "" {
		require.Greater(t, run(t, asynq.Config{}, nil), took)
	}
}
