package core_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

// stoppedVar makes this test binary hold many keys: "addr prefix".
const stoppedVar = "PERKEY_TEST_STOPPED"

const (
	stoppedEach = 15 // holders of each kind
	stoppedTTL  = 600 * time.Millisecond
)

// stoppedKinds are the ways to come by a ctx that ends with a lease.
var stoppedKinds = map[string]func(ctx context.Context, l *core.Locker, key string) (context.Context, error){
	"acquired": func(ctx context.Context, l *core.Locker, key string) (context.Context, error) {
		lease, err := l.Acquire(ctx, key)
		if err != nil {
			return nil, err
		}
		return lease.Context(), nil
	},
	"set": func(ctx context.Context, l *core.Locker, key string) (context.Context, error) {
		set, err := l.AcquireAll(ctx, []string{key, key + ", too"})
		if err != nil {
			return nil, err
		}
		return set.Context(), nil
	},
	"again": func(ctx context.Context, l *core.Locker, key string) (context.Context, error) {
		first, err := l.Acquire(ctx, key)
		if err != nil {
			return nil, err
		}
		again, err := l.Acquire(first.Context(), key)
		if err != nil {
			return nil, err
		}
		return again.Context(), nil
	},
	"resumed": func(ctx context.Context, l *core.Locker, key string) (context.Context, error) {
		first, err := l.Acquire(ctx, key)
		if err != nil {
			return nil, err
		}
		token, err := first.Detach(ctx)
		if err != nil {
			return nil, err
		}
		lease, err := l.Resume(ctx, token)
		if err != nil {
			return nil, err
		}
		return context.WithValue(lease.Context(), stoppedKind{}, "resumed"), nil
	},
}

type stoppedKind struct{}

// runStopped says "held" when it holds its keys, and after it was stopped for longer than
// a lease, for each kind of holder, how many of them found Done open.
func runStopped() {
	var addr, prefix string
	_, _ = fmt.Sscan(os.Getenv(stoppedVar), &addr, &prefix)
	l, err := core.New(redis.NewClient(&redis.Options{Addr: addr}), core.WithPrefix(prefix), core.WithTTL(stoppedTTL))
	if err != nil {
		fmt.Println(err)
		return
	}
	var holders sync.WaitGroup
	open := map[string]*atomic.Int64{}
	for kind, hold := range stoppedKinds {
		open[kind] = &atomic.Int64{}
		for i := range stoppedEach {
			ctx, err := hold(context.Background(), l, fmt.Sprintf("%s %d", kind, i))
			if err != nil {
				fmt.Println(err)
				return
			}
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
	env := redistest.Real(t)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s %s", stoppedVar, env.Addr, env.Prefix))
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	lines := bufio.NewScanner(out)
	require.True(t, lines.Scan())
	require.Equal(t, "held", lines.Text())
	time.Sleep(2 * stoppedTTL) // renewed
	require.NoError(t, cmd.Process.Signal(syscall.SIGSTOP))
	time.Sleep(3 * stoppedTTL)
	require.NoError(t, cmd.Process.Signal(syscall.SIGCONT))
	var open []string
	for range stoppedKinds {
		require.True(t, lines.Scan())
		if kind, n, _ := strings.Cut(lines.Text(), " "); n != "0" {
			open = append(open, fmt.Sprintf("%s: %s of %d", kind, n, stoppedEach))
		}
	}
	require.Empty(t, open, "holders whose lease is over and whose Done is open")
}
