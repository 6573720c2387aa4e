package core_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

// holderVar makes this test binary a holder: "addr prefix key ttl", and "once" or "lead" if it is to call that, or "stopped" if
// it is to hold many keys.
const holderVar = "PERKEY_TEST_HOLDER"

// runHolder takes a key, says "held FENCE", holds until a line comes in, and says what became of the lease.
func runHolder() {
	var addr, prefix, key, ttl, mode string
	_, _ = fmt.Sscan(os.Getenv(holderVar), &addr, &prefix, &key, &ttl, &mode)
	d, _ := time.ParseDuration(ttl)
	l, err := core.New(redis.NewClient(&redis.Options{Addr: addr}), core.WithPrefix(prefix), core.WithTTL(d))
	if err != nil {
		fmt.Println(err)
		return
	}
	if run := map[string]func(*core.Locker, string){"once": runOnce, "lead": runLead, "stopped": runStopped}[mode]; run != nil {
		run(l, key)
		return
	}
	lease, err := l.Acquire(context.Background(), key)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("held", lease.Fence())
	_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
	ended := lease.Context().Err() != nil
	fmt.Println("lost", ended && errors.Is(context.Cause(lease.Context()), core.ErrLeaseLost))
	err = lease.Release(context.Background())
	fmt.Println("release", errors.Is(err, core.ErrLeaseLost))
}

// runOnce says "ready", and calls Once for each line that comes in, which is a period: it says what became
// of the call, or, if the period is an hour, "running" under one that does not end.
func runOnce(l *core.Locker, key string) {
	_, _ = l.Inspect(context.Background(), key) // connects
	fmt.Println("ready")
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		every, _ := time.ParseDuration(in.Text())
		fmt.Println(l.Once(context.Background(), key, every, func(context.Context) error {
			if every == time.Hour {
				fmt.Println("running")
				select {}
			}
			return nil
		}))
	}
}

// runLead says "leads FENCE" each time that it leads, and "ended" when its ctx is over, until a line comes in.
func runLead(l *core.Locker, key string) {
	go func() {
		_ = l.Lead(context.Background(), key, func(ctx context.Context) error {
			lease, _ := core.LeaseFrom(ctx)
			fmt.Println("leads", lease.Fence())
			for ctx.Err() == nil {
				time.Sleep(5 * time.Millisecond)
			}
			fmt.Println("ended")
			return ctx.Err()
		})
	}()
	_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
	_ = l.Shutdown(context.Background())
}

type holder struct {
	t     *testing.T
	cmd   *exec.Cmd
	in    io.Writer
	out   *bufio.Scanner
	fence int64
}

func startHolder(t *testing.T, env *redistest.Env, key string, ttl time.Duration) *holder {
	t.Helper()
	h := launchHolder(t, env, key, ttl)
	_, err := fmt.Sscan(strings.TrimPrefix(h.line(), "held "), &h.fence)
	require.NoError(t, err)
	return h
}

// launchHolder does not wait until the holder holds.
func launchHolder(t *testing.T, env *redistest.Env, key string, ttl time.Duration, mode ...string) *holder {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s %s %s %s %s", holderVar, env.Addr, env.Prefix, key, ttl, strings.Join(mode, "")))
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	h := &holder{t: t, cmd: cmd, in: in, out: bufio.NewScanner(out)}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return h
}

func (h *holder) line() string {
	require.True(h.t, h.out.Scan(), "the holder says something")
	return h.out.Text()
}

func (h *holder) tell(line string) { require.NoError(h.t, errOf(fmt.Fprintln(h.in, line))) }

func (h *holder) signal(s syscall.Signal) { require.NoError(h.t, h.cmd.Process.Signal(s)) }

func TestProcess_KeyOfAKilledHolderIsFreeWithinItsTTL(t *testing.T) {
	t.Parallel()
	env := redistest.Real(t)
	h := startHolder(t, env, "k", 2*time.Second)
	h.signal(syscall.SIGKILL)

	rdb := env.Client(t)
	left, err := rdb.PTTL(t.Context(), env.Prefix+":lock{}:k").Result()
	require.NoError(t, err)
	require.LessOrEqual(t, left, 2*time.Second)

	lease := acquired(t, newLocker(t, env), "k")
	require.Greater(t, lease.Fence(), h.fence)
	require.NoError(t, lease.Release(t.Context()))
}

func TestProcess_AStoppedHolderFindsItsLeaseLost(t *testing.T) {
	t.Parallel()
	env := redistest.Real(t)
	h := startHolder(t, env, "k", time.Second)
	h.signal(syscall.SIGSTOP)

	next := acquired(t, newLocker(t, env), "k")
	require.Greater(t, next.Fence(), h.fence)

	h.signal(syscall.SIGCONT)
	h.tell("go")
	require.Equal(t, "lost true", h.line())
	require.Equal(t, "release true", h.line())

	require.NoError(t, next.Context().Err())
	require.NoError(t, next.Extend(t.Context(), time.Minute), "the late release left the new holder alone")
	require.NoError(t, next.Release(t.Context()))
}

func TestProcess_RedisRestartedEmptyTellsHoldersAndKeepsFencesGrowing(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	env := &redistest.Env{Addr: server.Addr, Prefix: "p"}
	l := newLocker(t, env, core.WithTTL(time.Second))
	lease := acquired(t, l, "k")

	server.Kill()
	server.Restart(t)

	next := acquired(t, newLocker(t, env), "k")
	require.Greater(t, next.Fence(), lease.Fence())
	endsLost(t, lease)
	require.ErrorIs(t, lease.Release(t.Context()), core.ErrLeaseLost)
	require.NoError(t, next.Release(t.Context()))
}

func TestProcess_AHolderIsToldInTimeWhenRedisDies(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	l := newLocker(t, &redistest.Env{Addr: server.Addr, Prefix: "p"}, core.WithTTL(time.Second))
	err := l.Do(t.Context(), "k", func(ctx context.Context) error {
		server.Kill()
		<-ctx.Done()
		require.ErrorIs(t, context.Cause(ctx), core.ErrLeaseLost)
		return nil
	})
	require.ErrorIs(t, err, core.ErrLeaseLost)
	_, err = l.TryAcquire(t.Context(), "k")
	require.ErrorIs(t, err, core.ErrUnavailable)
	require.NotErrorIs(t, err, core.ErrConflict)
}
