package lifecycle_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core/internal/lifecycle"
)

func TestLifecycle_RefusesCallsAndThenGoroutines(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := lifecycle.New()
		require.True(t, c.Open())
		ran, late := 0, make(chan struct{})
		require.True(t, c.Background(func() { <-late; ran++ }))
		require.NoError(t, c.Pause(t.Context(), time.Second))

		go func() { time.Sleep(time.Second); c.Drain() }()
		require.ErrorIs(t, c.Pause(t.Context(), time.Minute), lifecycle.ErrClosed)
		c.Drain()
		require.False(t, c.Open())
		require.False(t, c.Closed())
		require.ErrorIs(t, c.Context().Err(), context.Canceled)
		require.True(t, c.Enlist())

		c.Close()
		c.Close()
		c.Drain() // which does not take the Close back
		require.True(t, c.Closed())
		<-c.Over()
		require.False(t, c.Enlist())
		require.False(t, c.Background(func() { t.Error("it runs") }))
		c.Later(func() { ran++ })
		require.Equal(t, 1, ran)

		done := make(chan bool, 1)
		go func() { c.Wait(); done <- true }()
		c.Leave()
		synctest.Wait()
		require.Empty(t, done, "a goroutine runs")
		close(late)
		<-done
		require.Equal(t, 2, ran)
	})
}

// No goroutine begins after Wait has returned, however many try.
func TestLifecycle_CloseAmongManyCallers(t *testing.T) {
	t.Parallel()
	for range 50 {
		c := lifecycle.New()
		var callers sync.WaitGroup
		var mu sync.Mutex
		waited, late := false, 0
		for range 16 {
			callers.Go(func() {
				for c.Background(func() {
					mu.Lock()
					defer mu.Unlock()
					if waited {
						late++
					}
				}) {
				}
			})
		}
		c.Close()
		c.Wait()
		mu.Lock()
		waited = true
		mu.Unlock()
		callers.Wait()
		require.Zero(t, late)
	}
}
