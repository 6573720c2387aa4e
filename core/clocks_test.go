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
	"github.com/perkey-go/perkey/internal/test/redistest"
)

// The wall clock of a process cannot be set apart from its machine's. That the clocks of clients do not matter is shown by what they
// send: no time. Fences, which they hand back, are of the server's clock, four days ahead.
func TestClocks_NothingThatAClientSendsTellsItsTime(t *testing.T) {
	t.Parallel()
	server, err := embedded.Start()
	require.NoError(t, err)
	defer server.Close()
	var mu sync.Mutex
	count, times := 0, []string(nil)
	c := soakClient{
		Addr: server.Addr(), Prefix: "p", File: filepath.Join(t.TempDir(), "history"), Client: 1, Seed: soakSeed(),
		Goroutines: 4, Timeout: 3 * time.Second, Workload: lively,
		hooks: []redis.Hook{redistest.BeforeEach(func(cmd redis.Cmder) {
			mu.Lock()
			defer mu.Unlock()
			now, args := time.Now(), redistest.Args(cmd)
			server.SetTime(now.Add(4 * 24 * time.Hour)) // it stands still between
			for _, arg := range args {
				n, err := strconv.ParseInt(fmt.Sprint(arg), 10, 64)
				if err != nil {
					continue
				}
				count++
				for _, t := range []time.Time{time.Unix(n, 0), time.UnixMilli(n), time.UnixMicro(n), time.Unix(0, n)} {
					if t.Sub(now).Abs() < 24*time.Hour {
						times = append(times, fmt.Sprint(args...))
					}
				}
			}
		})},
	}
	for try := 0; try < tries && count <= 100; try++ {
		ctx, cancel := context.WithTimeout(t.Context(), 600*time.Millisecond)
		require.NoError(t, c.run(ctx))
		cancel()
	}
	require.Greater(t, count, 100)
	require.Empty(t, times)
}
