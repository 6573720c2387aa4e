package core_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
)

// losses passes on what OnLost is told.
type losses struct {
	core.NopObserver
	told chan core.Lost
}

func (l losses) OnLost(_ context.Context, e core.Lost) { l.told <- e }

func TestObserver_IsToldWhyALeaseWasLost(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		ctx, rdb := t.Context(), env.Client(t)
		for kind, lose := range map[core.LossKind]func(l, other *core.Locker, lease *core.Lease){
			core.LossExpired: func(*core.Locker, *core.Locker, *core.Lease) {},
			core.LossGone: func(_, _ *core.Locker, lease *core.Lease) {
				require.NoError(t, rdb.Del(ctx, core.RecordName(env.Prefix, lease.Key())).Err())
				require.ErrorIs(t, lease.Extend(ctx, time.Second), core.ErrLeaseLost)
			},
			core.LossForced: func(_, other *core.Locker, lease *core.Lease) {
				require.True(t, force(t, other, lease.Key(), lease.Fence()))
			},
			core.LossReleased: func(_, other *core.Locker, lease *core.Lease) {
				resumed, err := other.Resume(ctx, lease.Token())
				require.NoError(t, err)
				require.NoError(t, resumed.Release(ctx))
			},
			core.LossClosed: func(l, _ *core.Locker, _ *core.Lease) { require.NoError(t, l.Close()) },
		} {
			seen := losses{told: make(chan core.Lost, 1)}
			l, other := newLocker(t, env, core.WithObserver(seen)), newLocker(t, env)
			opts := []core.AcquireOption{core.Named("pay", "1")}
			if kind == core.LossExpired {
				opts = append(opts, core.FixedLease(time.Second))
			}
			lease := testbed.Take(t, l, string(kind), opts...)
			listening(t, l)
			lose(l, other, lease)
			e := <-seen.told
			assert.Equal(t, kind, e.Kind, e.Cause)
			assert.Equal(t, lease.Fence(), e.Fence)
			assert.ErrorIs(t, e.Cause, core.ErrLeaseLost)
			assert.Equal(t, e.Cause, context.Cause(lease.Context()))
		}
	})
}

// What the observer adds to the span of a request is added before that ends.
func TestObserver_IsToldOfALossBeforeTheReleaseReturns(t *testing.T) {
	onFakeNodes(t, 1, func(t *testing.T, nodes []*fakeNode) {
		seen := losses{told: make(chan core.Lost)}
		l := lockerOn(t, nodes[0].client(t), "p", core.WithObserver(seen))
		lease := testbed.Take(t, l, "k", core.MaxHold(time.Second))
		released := make(chan error, 1)
		context.AfterFunc(lease.Context(), func() { released <- lease.Release(t.Context()) })
		<-lease.Context().Done()
		synctest.Wait()
		require.Empty(t, released)
		<-seen.told
		require.ErrorIs(t, <-released, core.ErrLeaseLost)

		lease = testbed.Take(t, l, "j", core.MaxHold(time.Second))
		<-lease.Context().Done()
		require.ErrorIs(t, lease.Release(t.Context()), core.ErrLeaseLost)
		<-seen.told // an observer that waits for the holder does not keep it
	})
}
