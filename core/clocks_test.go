//go:build soak

package core_test

import (
	"context"
	"fmt"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/internal/test/embedded"
	"github.com/perkey-go/perkey/internal/test/history"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

// The wall clock of a process cannot be set apart from its machine's. That the clocks of clients do not matter is shown
// from two sides: they are in nothing that clients send, and it makes no difference when the server's is an hour off.

func TestClocks_NothingThatAClientSendsTellsItsTime(t *testing.T) {
	t.Parallel()
	// Fences, which clients hand back, are of the server's clock, four days ahead.
	server, err := embedded.Start()
	require.NoError(t, err)
	defer server.Close()
	sent := &sentNumbers{}
	c := soakClient{
		Addr: server.Addr(), Prefix: "p", File: filepath.Join(t.TempDir(), "history"), Client: 1, Seed: soakSeed(),
		Goroutines: 4, Timeout: 3 * time.Second, Workload: lively,
		hooks: []redis.Hook{redistest.BeforeEach(sent.look), serverClock(server, 4*24*time.Hour)},
	}
	for try := 0; try < tries && sent.count <= 100; try++ {
		ctx, cancel := context.WithTimeout(t.Context(), 600*time.Millisecond)
		require.NoError(t, c.run(ctx))
		cancel()
	}
	require.Greater(t, sent.count, 100)
	require.Empty(t, sent.times)
}

// sentNumbers looks for times in commands.
type sentNumbers struct {
	mu    sync.Mutex
	count int
	times []string
}

func (s *sentNumbers) look(cmd redis.Cmder) {
	s.mu.Lock()
	defer s.mu.Unlock()
	args := redistest.Args(cmd)
	for _, arg := range args {
		n, err := strconv.ParseInt(fmt.Sprint(arg), 10, 64)
		if err != nil {
			continue
		}
		s.count++
		now := time.Now()
		for _, t := range []time.Time{time.Unix(n, 0), time.UnixMilli(n), time.UnixMicro(n), time.Unix(0, n)} {
			if t.Sub(now).Abs() < 24*time.Hour {
				s.times = append(s.times, fmt.Sprint(args...))
			}
		}
	}
}

// serverClock is a hook that keeps the clock of an embedded server off from the
// true time: it stands still unless it is set.
func serverClock(server *embedded.Server, off time.Duration) redis.Hook {
	var mu sync.Mutex
	return redistest.BeforeEach(func(redis.Cmder) {
		mu.Lock()
		defer mu.Unlock()
		server.SetTime(time.Now().Add(off))
	})
}

func TestClocks_AnHourApartBreakNoPromise(t *testing.T) {
	t.Parallel()
	for _, off := range []time.Duration{-time.Hour, time.Hour} {
		t.Run(off.String(), func(t *testing.T) {
			t.Parallel()
			server, err := embedded.Start()
			require.NoError(t, err)
			defer server.Close()
			clock, windows := serverClock(server, off), 0
			for try := 0; try < tries && windows <= 20; try++ {
				ops := clockRound(t, server, fmt.Sprint("p", try), clock)
				_, _, violations := tell(ops, history.Rules{Late: 2 * time.Second})
				require.Empty(t, violations)
				windows += history.Count(ops).Windows
			}
			require.Greater(t, windows, 20)
		})
	}
}

// clockRound is what two clients do for some seconds.
func clockRound(t *testing.T, server *embedded.Server, prefix string, clock redis.Hook) []history.Op {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	var running sync.WaitGroup
	w := lively
	w.MinLease, w.MaxLease, w.Overrun = 400*time.Millisecond, 500*time.Millisecond, 5
	files, errs := make([]string, 2), make([]error, 2)
	for i := range files {
		files[i] = filepath.Join(t.TempDir(), "history")
		c := &soakClient{
			Addr: server.Addr(), Prefix: prefix, File: files[i], Client: i + 1,
			Seed: soakSeed(), Goroutines: 3, Timeout: 3 * time.Second, Workload: w,
			hooks: []redis.Hook{clock},
		}
		running.Go(func() { errs[i] = c.run(ctx) })
	}
	running.Wait()
	for _, err := range errs {
		require.NoError(t, err)
	}
	ops, err := history.Read(files...)
	require.NoError(t, err)
	return ops
}
