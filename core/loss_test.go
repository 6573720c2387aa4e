package core_test

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
)

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
			told := make(chan core.Lost, 1)
			l, other := newLocker(t, env, core.WithObserver(onLoss{call: func(e core.Lost) { told <- e }})), newLocker(t, env)
			opts := []core.AcquireOption{core.Named("pay", "1")}
			if kind == core.LossExpired {
				opts = append(opts, core.FixedLease(time.Second))
			}
			lease := testbed.Take(t, l, string(kind), opts...)
			listening(t, l)
			lose(l, other, lease)
			e := <-told
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
		told := make(chan core.Lost)
		l := lockerOn(t, nodes[0].client(t), "p", core.WithObserver(onLoss{call: func(e core.Lost) { told <- e }}))
		lease := testbed.Take(t, l, "k", core.MaxHold(time.Second))
		released := make(chan error, 1)
		context.AfterFunc(lease.Context(), func() { released <- lease.Release(t.Context()) })
		<-lease.Context().Done()
		synctest.Wait()
		require.Empty(t, released)
		<-told
		require.ErrorIs(t, <-released, core.ErrLeaseLost)

		lease = testbed.Take(t, l, "j", core.MaxHold(time.Second))
		<-lease.Context().Done()
		require.ErrorIs(t, lease.Release(t.Context()), core.ErrLeaseLost)
		<-told // an observer that waits for the holder does not keep it
	})
}

// quitter is an Observer that ends the goroutine on which it is called, as a test's require does, or panics.
type quitter struct {
	core.NopObserver
	end                              func()
	warned, lost, renewed, unclaimed atomic.Int64
}

func (q *quitter) OnWarning(context.Context, core.Warning)     { q.warned.Add(1); q.end() }
func (q *quitter) OnLost(context.Context, core.Lost)           { q.lost.Add(1); q.end() }
func (q *quitter) OnUnclaimed(context.Context, core.Unclaimed) { q.unclaimed.Add(1); q.end() }
func (q *quitter) OnRenewed(context.Context, core.Renewed)     { q.renewed.Add(1); q.end() }

// An Observer that panics, or ends its goroutine, on one of the Locker's ends that call, and neither renewals nor the probes of a node.
func TestObserver_MayEndItsGoroutine(t *testing.T) {
	for name, end := range map[string]func(){"Goexit": runtime.Goexit, "panic": func() { panic("observer") }} {
		t.Run(name, func(t *testing.T) { testQuitter(t, end) })
	}
}

func testQuitter(t *testing.T, end func()) {
	t.Helper()
	onFakeNodes(t, 1, func(t *testing.T, nodes []*fakeNode) {
		n, q := nodes[0], &quitter{end: end}
		l := lockerOn(t, n.client(t), "p", core.WithObserver(q), core.WithTTL(6*time.Second))
		var kept []*core.Lease
		for i := range 10 {
			kept = append(kept, testbed.Take(t, l, fmt.Sprint("kept", i)))
		}
		gone := testbed.Take(t, l, "gone")
		n.Del(core.RecordName("p", "gone"))
		<-gone.Context().Done()
		for outage := range int64(2) {
			n.die()
			redistest.Eventually(t, func() bool {
				_, err := l.TryAcquire(t.Context(), "k")
				assert.ErrorIs(t, err, core.ErrUnavailable)
				return q.warned.Load() > 2*outage
			}, "a warning")
			n.live()
			time.Sleep(2 * time.Second)
			var callers sync.WaitGroup
			for i := range 20 {
				callers.Go(func() { assert.NoError(t, l.Do(t.Context(), fmt.Sprint(outage, i%10), nothing)) })
			}
			callers.Wait()
			time.Sleep(20 * time.Second)
		}
		for _, lease := range kept {
			require.NoError(t, lease.Context().Err())
			require.NoError(t, lease.Release(t.Context()))
		}
		require.EqualValues(t, 1, q.lost.Load())
		require.Greater(t, q.renewed.Load(), int64(8), "more than may be in flight")
	})
}

// lossCounter counts what was lost.
type lossCounter struct {
	core.NopObserver
	lost, batches, renewed, failed atomic.Int64
}

func (o *lossCounter) OnLost(context.Context, core.Lost) { o.lost.Add(1) }

func (o *lossCounter) OnRenewed(_ context.Context, r core.Renewed) {
	o.batches.Add(1)
	o.renewed.Add(int64(r.Leases))
	if r.Err != nil {
		o.failed.Add(1)
	}
}
