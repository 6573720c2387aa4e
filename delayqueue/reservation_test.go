package delayqueue_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

// The second call is parked between the first one's claim and its lease: the worker that
// runs the first does not know of it, and must not end its reservation.
func TestReservation_ACallThatIsParkedBetweenClaimAndLeaseIsNotOvertaken(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		guard := b.other.Guard(delayqueue.Policy(b.queue))
		call := core.Call{Key: "k", Encode: func() ([]byte, error) { return nil, nil }}
		var parked [2]string
		park := func(i int) {
			var deferred *core.DeferredError
			require.ErrorAs(t, guard.Do(context.Background(), call, mustNotRun), &deferred)
			parked[i] = deferred.Ticket.ID
		}
		lease := b.hold("k")
		park(0)
		require.NoError(t, lease.Release(t.Context()))

		rdb := b.env.Client(t)
		var first, ended atomic.Bool
		var asked atomic.Int64
		rdb.AddHook(redistest.BeforeEach(func(cmd redis.Cmder) {
			if !redistest.IsScript(cmd) {
				return
			}
			if first.CompareAndSwap(false, true) {
				park(1)
			}
			if ended.Load() {
				asked.Add(1)
				if lease, err := b.other.TryAcquire(context.Background(), "k"); err == nil {
					t.Error("a fresh call got the key before the parked one")
					_ = lease.Release(context.Background())
				}
			}
		}))
		var err error
		b.locker, err = core.New(rdb, core.WithPrefix(b.env.Prefix))
		require.NoError(t, err)
		defer func() { _ = b.locker.Close() }()
		var r ran
		w := b.start(func(ctx context.Context, m delayqueue.Message) error {
			ended.Store(m.ID == parked[0])
			return r.handle(ctx, m)
		})
		redistest.Eventually(t, func() bool { return len(r.ids()) == 2 }, "both run")
		b.reaches(parked[1], delayqueue.StateDone)
		require.Positive(t, asked.Load())
		require.Equal(t, parked[:], r.ids())
		require.NoError(t, w.Stop(t.Context()))
	})
}

// A reservation is for work that could run now.
func TestReservation_WhatCannotRunNowKeepsNoFreshCallOut(t *testing.T) {
	t.Parallel()
	for name, begin := range map[string]func(b *bench) string{
		"a delayed job beside it": func(b *bench) string {
			b.enqueue(delayqueue.Job{Key: "k", Delay: 10 * time.Minute})
			return b.parkCall("k")
		},
		"a paused queue": func(b *bench) string {
			require.NoError(b.t, b.queue.Pause(b.t.Context(), time.Minute))
			return b.parkCall("k")
		},
	} {
		t.Run(name, func(t *testing.T) {
			each(t, func(t *testing.T, b *bench) {
				lease := b.hold("k")
				id := begin(b)
				b.start((&ran{}).handle)
				require.NoError(t, lease.Release(t.Context()))
				if name == "a delayed job beside it" {
					b.reaches(id, delayqueue.StateDone)
				}
				b.isNotReserved("k")
				for range 14 {
					require.NoError(t, b.hold("k").Release(t.Context()))
				}
			})
		})
	}
}
