package core_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
)

// Many goroutines ask for the end of a ctx while it ends.
func TestLease_ContextIsAskedWhileItEnds(t *testing.T) {
	l := newLocker(t, redistest.Embedded(t))
	for i := range 100 {
		lease := testbed.Take(t, l, "k")
		ctx := lease.Context()
		var all sync.WaitGroup
		for n := range 8 {
			all.Go(func() {
				if n%2 == 0 {
					child, cancel := context.WithCancel(ctx)
					defer cancel()
					<-child.Done()
					assert.Equal(t, context.Canceled, context.Cause(child))
				}
				<-ctx.Done()
				assert.Equal(t, context.Canceled, context.Cause(ctx))
				assert.ErrorIs(t, ctx.Err(), context.Canceled)
			})
		}
		if i%2 == 0 {
			time.Sleep(10 * time.Microsecond)
		}
		require.NoError(t, lease.Release(t.Context()))
		all.Wait()
	}
}

// A caller's ctx may be a framework's own, which the caller's goroutine changes meanwhile: the goroutine that finds the
// lease lost does not ask it.
func TestLease_ALossAsksNothingOfTheCallersCtx(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		told := make(chan struct{})
		l := newLocker(t, env, core.WithObserver(onLoss{call: func(core.Lost) { close(told) }}))
		caller := &countedContext{Context: t.Context()}
		lease, err := l.TryAcquire(caller, "k")
		require.NoError(t, err)
		before := caller.asked.Load()
		require.True(t, force(t, l, "k", lease.Fence()))
		<-told
		require.Equal(t, before, caller.asked.Load(), "questions to the caller's ctx")
		require.ErrorIs(t, lease.Context().Err(), context.Canceled)
		require.ErrorIs(t, context.Cause(lease.Context()), core.ErrLeaseLost)
	})
}

// Who has seen that a ctx is over sees the same end of it from then on.
func TestLease_AnEndThatWasSeenStays(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		told := make(chan struct{})
		l := newLocker(t, env, core.WithObserver(onLoss{call: func(core.Lost) { close(told) }}))
		caller := &foreignContext{Context: t.Context(), done: make(chan struct{}), err: context.DeadlineExceeded}
		lease, err := l.TryAcquire(caller, "k")
		require.NoError(t, err)
		close(caller.done)
		require.ErrorIs(t, lease.Context().Err(), context.DeadlineExceeded)
		require.True(t, force(t, l, "k", lease.Fence()))
		<-told
		require.ErrorIs(t, lease.Context().Err(), context.DeadlineExceeded)
		require.ErrorIs(t, context.Cause(lease.Context()), context.DeadlineExceeded)
	})
}

// countedContext counts the questions that it is asked.
type countedContext struct {
	context.Context
	asked atomic.Int64
}

func (c *countedContext) Done() <-chan struct{} {
	c.asked.Add(1)
	return c.Context.Done()
}

func (c *countedContext) Err() error {
	c.asked.Add(1)
	return c.Context.Err()
}

func (c *countedContext) Value(key any) any {
	c.asked.Add(1)
	return c.Context.Value(key)
}

// A call whose key is free, and whose function does not wait for its ctx.
func TestGuard_AllocatesLittle(t *testing.T) {
	l := newLocker(t, redistest.Real(t))
	guard := l.Guard(core.RejectConflicts)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	do := func() {
		if err := guard.Do(ctx, core.Call{Key: "k", Name: "POST /orders/{id}"}, func(context.Context) error { return nil }); err != nil {
			t.Error(err)
		}
	}
	do()
	require.LessOrEqual(t, testing.AllocsPerRun(200, do), 26.0) // 20 without the race detector, which makes pools forget
}

// foreignContext is a ctx of somebody's own: package context does not know how it ends.
type foreignContext struct {
	context.Context
	done chan struct{}
	err  error // once done is closed
}

func (c *foreignContext) Done() <-chan struct{} { return c.done }

func (c *foreignContext) Err() error {
	select {
	case <-c.done:
		return c.err
	default:
		return nil
	}
}

// wrapped hides the type of the ctx in it.
type wrapped struct{ context.Context }

// A lease's ctx ends in the same way whether or not anybody waited for it before. What is derived from it ends with it, with its cause,
// whatever types are between; what is cut loose does not.
func TestLease_ContextIsAskedAfterItsEnd(t *testing.T) {
	mine := errors.New("mine")
	for how, want := range map[string]error{
		"released": context.Canceled, "lost": core.ErrLeaseLost, "the caller's ends": context.Canceled, "released, the caller's has ended": mine,
	} {
		for _, asked := range []string{"never", "Done", "Cause"} {
			t.Run(how+", asked before: "+asked, func(t *testing.T) {
				l := newLocker(t, redistest.Embedded(t))
				caller, cancel := context.WithCancelCause(context.WithValue(t.Context(), wrapped{}, "value"))
				foreign := &foreignContext{Context: caller, done: make(chan struct{}), err: context.Canceled}
				var parent context.Context = foreign
				if strings.HasPrefix(how, "released") {
					parent = caller
				}
				lease, err := l.TryAcquire(parent, "k")
				require.NoError(t, err)
				ctx := lease.Context()
				switch asked {
				case "Done":
					require.NotNil(t, ctx.Done())
				case "Cause":
					require.NoError(t, context.Cause(ctx))
				}
				loose := context.WithoutCancel(ctx)
				derived, end := context.Background(), func() {}
				if asked != "never" {
					derived, end = context.WithCancel(&wrapped{context.WithValue(ctx, foreignContext{}, "another")})
				}
				defer end()
				switch how {
				case "lost":
					require.NoError(t, l.Close())
				case "the caller's ends":
					close(foreign.done)
					<-ctx.Done() // package context may need a goroutine to see it
				default:
					if errors.Is(want, mine) {
						cancel(mine)
					}
					require.NoError(t, lease.Release(t.Context()))
				}
				cancel(errors.New("too late"))
				require.ErrorIs(t, context.Cause(ctx), want)
				require.ErrorIs(t, ctx.Err(), context.Canceled)
				<-ctx.Done()
				require.ErrorIs(t, context.Cause(&wrapped{ctx}), want)
				after, stop := context.WithTimeout(&wrapped{ctx}, time.Hour)
				defer stop()
				<-after.Done()
				require.ErrorIs(t, context.Cause(after), want)
				if asked != "never" {
					<-derived.Done()
					require.ErrorIs(t, context.Cause(derived), want)
				}
				ran := make(chan struct{})
				context.AfterFunc(&wrapped{ctx}, func() { close(ran) })
				<-ran
				require.NoError(t, context.Cause(loose))
				require.Equal(t, "value", loose.Value(wrapped{}))
				_ = lease.Release(t.Context())
			})
		}
	}
}
