package core_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

const (
	stoppedEach = 15 // holders of each kind
	stoppedTTL  = 600 * time.Millisecond
)

// stoppedKinds are the ways to come by a ctx that ends with a lease.
var stoppedKinds = map[string]func(ctx context.Context, l *core.Locker, key string) context.Context{
	"acquired": func(ctx context.Context, l *core.Locker, key string) context.Context {
		return must(l.Acquire(ctx, key)).Context()
	},
	"set": func(ctx context.Context, l *core.Locker, key string) context.Context {
		return must(l.AcquireAll(ctx, []string{key, key + ", too"})).Context()
	},
	"again": func(ctx context.Context, l *core.Locker, key string) context.Context {
		return must(l.Acquire(must(l.Acquire(ctx, key)).Context(), key)).Context()
	},
	"resumed": func(ctx context.Context, l *core.Locker, key string) context.Context {
		token := must(must(l.Acquire(ctx, key)).Detach(ctx))
		return context.WithValue(must(l.Resume(ctx, token)).Context(), stoppedKind{}, "resumed")
	},
}

// must is for a process without a test.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

type stoppedKind struct{}

// runStopped says "held" when it holds its keys, and after it was stopped for longer than
// a lease, for each kind of holder, how many of them found Done open.
func runStopped(l *core.Locker, _ string) {
	var holders sync.WaitGroup
	open := map[string]*atomic.Int64{}
	for kind, hold := range stoppedKinds {
		open[kind] = &atomic.Int64{}
		for i := range stoppedEach {
			ctx := hold(context.Background(), l, fmt.Sprintf("%s %d", kind, i))
			holders.Go(func() {
				for last := time.Now(); ; {
					time.Sleep(time.Millisecond)
					for woken := time.Now(); time.Since(woken) < 20*time.Microsecond; { // or they all wake after the scheduler
						continue
					}
					stopped, looked := time.Since(last) > stoppedTTL, time.Now()
					select {
					case <-ctx.Done():
						if context.Cause(ctx) == nil {
							open[kind].Add(1)
						}
						return
					default:
					}
					if stopped && ctx.Err() != nil {
						if time.Since(looked) < time.Millisecond { // else the lease may have ended between the two looks
							open[kind].Add(1)
						}
						return
					}
					last = time.Now()
				}
			})
		}
	}
	fmt.Println("held")
	holders.Wait()
	for kind := range stoppedKinds {
		fmt.Println(kind, open[kind].Load())
	}
}

func TestProcess_ManyStoppedHoldersFindDoneClosed(t *testing.T) {
	t.Parallel()
	h := launchHolder(t, redistest.Real(t), "k", stoppedTTL, "stopped")
	require.Equal(t, "held", h.line())
	time.Sleep(2 * stoppedTTL) // renewed
	h.signal(syscall.SIGSTOP)
	time.Sleep(3 * stoppedTTL)
	h.signal(syscall.SIGCONT)
	var open []string
	for range stoppedKinds {
		if kind, n, _ := strings.Cut(h.line(), " "); n != "0" {
			open = append(open, fmt.Sprintf("%s: %s of %d", kind, n, stoppedEach))
		}
	}
	require.Empty(t, open, "holders whose lease is over and whose Done is open")
}
