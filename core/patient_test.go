package core_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

// Calls whose ctx never ends.

// silent is a client whose scripts have no reply, once it is told so, until the test ends.
func silent(t *testing.T, env *redistest.Env) (rdb *redis.Client, silence func()) {
	t.Helper()
	begun, over := make(chan struct{}), make(chan struct{})
	rdb = env.Client(t)
	t.Cleanup(func() { close(over) })
	wait := func() {
		select {
		case <-begun:
			<-over
		default:
		}
	}
	rdb.AddHook(hooks{
		script:   func(_ redis.Cmder, next func() error) error { wait(); return next() },
		pipeline: func(next func() error) error { wait(); return next() },
	})
	return rdb, sync.OnceFunc(func() { close(begun) })
}

func TestPatientCalls_GrantedByMessageDoNotWaitForTheirQuestion(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		const keys = 20
		rdb, silence := silent(t, env)
		holder, waiter := newLocker(t, env), lockerOn(t, rdb, env.Prefix, core.WithRenewalClient(env.Client(t)))
		warm(t, waiter)
		listening(t, waiter)
		var held []*core.Lease
		done := make(chan error, keys)
		for i := range keys {
			lease, err := holder.Acquire(t.Context(), fmt.Sprint(i), core.LeaseTTL(2*time.Second))
			require.NoError(t, err)
			held = append(held, lease)
			go func() {
				_, err := waiter.Acquire(context.Background(), fmt.Sprint(i))
				done <- err
			}()
			queued(t, env, fmt.Sprint(i), 1)
		}
		silence()
		time.Sleep(3 * time.Second) // they ask whether the holder's lease has ended
		for _, lease := range held {
			require.NoError(t, lease.Release(t.Context()))
		}
		end := time.After(time.Minute)
		for range keys {
			select {
			case err := <-done:
				require.NoError(t, err)
			case <-end:
				require.Fail(t, "a call holds its key and does not return")
			}
		}
	})
}
