package core_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
)

// candidate calls Lead, and says when it leads.
type candidate struct {
	leads   chan int64 // the fence of each term
	leading atomic.Int64
	done    chan error // what Lead returned
	stop    context.CancelFunc
}

// campaign starts a candidate. Those of one office notice when two lead.
func campaign(t *testing.T, l *core.Locker, office *atomic.Int64) *candidate {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	c := &candidate{leads: make(chan int64, 100), done: make(chan error, 1), stop: cancel}
	finished := make(chan struct{})
	go func() {
		defer close(finished)
		c.done <- l.Lead(ctx, "k", func(ctx context.Context) error {
			assert.EqualValues(t, 1, c.leading.Add(1), "fn runs once at a time in a process")
			assert.EqualValues(t, 1, office.Add(1), "leaders at a time")
			lease, _ := core.LeaseFrom(ctx)
			c.leads <- lease.Fence()
			<-ctx.Done()
			office.Add(-1)
			c.leading.Add(-1)
			return context.Cause(ctx)
		})
	}()
	t.Cleanup(func() {
		cancel()
		<-finished
	})
	return c
}

// leader waits for the next term of one of the candidates.
func leader(t *testing.T, candidates ...*candidate) (c *candidate, fence int64) {
	t.Helper()
	redistest.Eventually(t, func() bool {
		for _, c = range candidates {
			select {
			case fence = <-c.leads:
				return true
			default:
			}
		}
		return false
	}, "somebody leads")
	return c, fence
}

func TestLead_HandsOverWhenItIsToldToStop(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		var office atomic.Int64
		var lockers []*core.Locker
		var all []*candidate
		for range 3 {
			l := newLocker(t, env, core.WithTTL(time.Hour), core.WithFirstLease(time.Hour)) // for whose end nobody waits
			l.NeverPoll()
			lockers, all = append(lockers, l), append(all, campaign(t, l, &office))
			redistest.Eventually(t, func() bool {
				info, err := l.Inspect(t.Context(), "k")
				return err == nil && info.Held+info.Waiting == len(all)
			}, "a candidate that stands in the queue")
		}
		listening(t, lockers...)
		_, first := leader(t, all[0])
		all[0].stop()
		require.ErrorIs(t, <-all[0].done, context.Canceled)
		_, second := leader(t, all[1])
		require.Greater(t, second, first)
		require.NoError(t, lockers[1].Shutdown(t.Context()))
		require.ErrorIs(t, <-all[1].done, core.ErrClosed)
		_, third := leader(t, all[2])
		require.Greater(t, third, second)
		require.NoError(t, lockers[2].Close())
		require.Error(t, <-all[2].done)
	})
}

func TestLead_ReturnsWhatItsFunctionDoes(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		l := newLocker(t, env)
		failed := errors.New("failed")
		for _, want := range []error{nil, failed, core.ErrUnavailable} {
			require.Equal(t, want, l.Lead(t.Context(), "k", func(context.Context) error { return want }))
		}
		require.PanicsWithValue(t, "boom", func() {
			_ = l.Lead(t.Context(), "k", func(context.Context) error { panic("boom") })
		})
		require.NoError(t, l.Do(t.Context(), "k", func(ctx context.Context) error {
			return l.Lead(ctx, "k", nothing) // passes through
		}))
		require.NoError(t, l.Do(t.Context(), "k", nothing), "it is free")

		require.ErrorIs(t, l.Lead(t.Context(), "", nothing), core.ErrInvalidKey)
		require.ErrorIs(t, l.Lead(t.Context(), "k", nil), core.ErrInvalidOption)
		require.ErrorIs(t, l.Lead(t.Context(), "k", nothing, core.Counted(0)), core.ErrInvalidOption)
		testbed.Take(t, l, "k")
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		require.ErrorIs(t, l.Lead(ctx, "k", nothing), context.DeadlineExceeded)
		require.NoError(t, l.Close())
		require.ErrorIs(t, l.Lead(t.Context(), "k", nothing), core.ErrClosed)
	})
}

// A leader that does not heed its ctx is not called again before it has returned, whatever it returns then.
func TestLead_ADeafLeader(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		deaf, other := newLocker(t, env), newLocker(t, env)
		var terms, running atomic.Int64
		fences, hears, done := make(chan int64, 2), make(chan struct{}), make(chan error)
		go func() {
			done <- deaf.Lead(t.Context(), "k", func(ctx context.Context) error {
				assert.EqualValues(t, 1, running.Add(1))
				defer running.Add(-1)
				lease, _ := core.LeaseFrom(ctx)
				fences <- lease.Fence()
				if terms.Add(1) == 1 {
					<-hears
				}
				return nil
			})
		}()
		first := <-fences
		require.True(t, force(t, other, "k", first))
		var second int64
		require.NoError(t, other.Lead(t.Context(), "k", func(ctx context.Context) error {
			lease, _ := core.LeaseFrom(ctx)
			second = lease.Fence()
			return nil
		}))
		require.Greater(t, second, first)
		require.EqualValues(t, 1, terms.Load())
		// A fence that follows a taken key is ahead of the clock, and its record remembers it for that long. On the embedded
		// Redis, whose keys expire in steps, a record can be gone some ms early.
		time.Sleep(time.Until(time.UnixMicro(second)))
		close(hears)
		require.NoError(t, <-done, "the nil of a term that was lost is not the end")
		require.EqualValues(t, 2, terms.Load())
		require.Greater(t, <-fences, second)
	})
}

// Redis is away for a minute: the leader stops, and afterwards one of the candidates leads soon. They ask
// with pauses between.
func TestLead_GoesOnAfterAnOutage(t *testing.T) {
	onFakeLockers(t, func(t *testing.T, nodes []*fakeNode, locker func(...core.Option) *core.Locker) {
		var seen recorder
		var office atomic.Int64
		all := []*candidate{campaign(t, locker(core.WithObserver(&seen)), &office), campaign(t, locker(core.WithObserver(&seen)), &office)}
		_, first := leader(t, all...)
		for _, n := range nodes {
			n.die()
		}
		time.Sleep(core.DefaultTTL)
		require.Zero(t, office.Load())
		time.Sleep(45 * time.Second)
		tries := len(eventsOf[core.Outcome](&seen))
		for _, n := range nodes {
			n.live()
		}
		start := time.Now()
		leads, second := leader(t, all...)
		require.Greater(t, second, first)
		require.Less(t, time.Since(start), 5*time.Second)
		require.Less(t, tries, 200)
		require.GreaterOrEqual(t, tries, 10)

		time.Sleep(2 * time.Second)
		leads.stop()
		require.ErrorIs(t, <-leads.done, context.Canceled)
		start = time.Now()
		_, third := leader(t, all...)
		require.Greater(t, third, second)
		require.Less(t, time.Since(start), 500*time.Millisecond)
	})
}

// A process that was stopped finds that it leads no longer before it does anything else, and leads again
// when the others are gone.
func TestLead_AStoppedAndAKilledLeader(t *testing.T) {
	t.Parallel()
	env := redistest.Real(t)
	fenceOf := func(h *holder) (fence int64) {
		_, err := fmt.Sscan(strings.TrimPrefix(h.line(), "leads "), &fence)
		require.NoError(t, err)
		return fence
	}
	one := launchHolder(t, env, "k", 3*time.Second, "lead")
	first := fenceOf(one)
	two := launchHolder(t, env, "k", 3*time.Second, "lead")
	one.signal(syscall.SIGSTOP)
	second := fenceOf(two)
	require.Greater(t, second, first)
	one.signal(syscall.SIGCONT)
	require.Equal(t, "ended", one.line())
	two.signal(syscall.SIGKILL)
	third := fenceOf(one)
	require.Greater(t, third, second)

	var wg sync.WaitGroup
	started := make(chan time.Time, 1)
	wg.Go(func() {
		assert.NoError(t, newLocker(t, env).Lead(t.Context(), "k", func(context.Context) error { started <- time.Now(); return nil }))
	})
	stopped := time.Now()
	one.tell("stop")
	require.Equal(t, "ended", one.line())
	wg.Wait()
	require.Less(t, (<-started).Sub(stopped), 2*time.Second, "a Shutdown hands over")
}
