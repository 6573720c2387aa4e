package console_test

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
	"github.com/perkey-go/perkey/ops"
)

// commandStats is how often a server has run each command.
func commandStats(t testing.TB, rdb *redis.Client) map[string]int {
	t.Helper()
	info, err := rdb.Info(context.Background(), "commandstats").Result()
	require.NoError(t, err)
	all := map[string]int{}
	for line := range strings.Lines(info) {
		var n int
		name, rest, _ := strings.Cut(strings.TrimPrefix(line, "cmdstat_"), ":")
		if _, err := fmt.Sscanf(rest, "calls=%d", &n); err == nil {
			all[name] = n
		}
	}
	return all
}

// TestConsole_DefaultPagesScanNothing: beside many keys of others, held keys and parked work, no page scans, and
// a hundred readers cost Redis what one does.
func TestConsole_DefaultPagesScanNothing(t *testing.T) {
	const foreign, held, parked = 1_000_000, 10_000, 100_000
	env := &redistest.Env{Addr: redistest.Start(t).Addr, Prefix: "load", Real: true}
	rdb := env.Client(t)
	ctx := t.Context()
	addForeignKeys(t, rdb, foreign)
	recorder := ops.NewRecorder()
	locker := testbed.NewLocker(t, rdb, core.WithPrefix(env.Prefix), core.WithObserver(recorder.Locks(nil)), core.WithTTL(5*time.Minute), core.WithFirstLease(5*time.Minute))
	q := testbed.NewQueue(t, rdb, "q", delayqueue.WithPrefix(env.Prefix), delayqueue.WithMaxBytes(1<<30), delayqueue.WithMaxDepth(parked))
	var load sync.WaitGroup
	for part := range 50 {
		load.Go(func() {
			for i := part; i < held; i += 50 {
				_, err := locker.TryAcquire(ctx, fmt.Sprint("order:", i), core.Named("work", ""))
				assert.NoError(t, err)
			}
			for i := part; i < parked; i += 50 {
				_, err := q.Enqueue(ctx, delayqueue.Job{Key: fmt.Sprint("parked:", i%5000), Name: "n"})
				assert.NoError(t, err)
			}
		})
	}
	load.Wait()
	beacon, err := ops.StartBeacon(rdb, recorder, locker)
	require.NoError(t, err)
	t.Cleanup(func() { _ = beacon.Close() })
	redistest.Eventually(t, func() bool {
		f, err := ops.ReadFleet(ctx, rdb, env.Prefix)
		return err == nil && len(f.Processes) == 1
	}, "the process reports")

	for _, path := range append([]string{"", "queue?queue=q", "key?key=order:1", "key?key=parked:1"}, pages...) {
		server, _ := newConsole(t, env, nil) // that has read nothing
		before := commandStats(t, rdb)
		began := time.Now()
		code, _, _ := get(t, server.URL+"/"+path)
		took := time.Since(began)
		assert.Equal(t, http.StatusOK, code, path)
		assert.Equal(t, before["scan"], commandStats(t, rdb)["scan"], path)
		t.Logf("%-20s %6.1f ms", path, float64(took.Microseconds())/1000)
	}

	server, _ := newConsole(t, env, nil)
	one, many := commandsOf(t, rdb, server, 1), commandsOf(t, rdb, server, 100)
	t.Logf("commands in 9 s: 1 reader %d, 100 readers %d", one, many)
	assert.LessOrEqual(t, many, 4*one, "a hundred cost about what one does")

	requireSearchEnds(t, rdb, server)
	redistest.Eventually(t, func() bool {
		_, overview, _ := get(t, server.URL+"/")
		return strings.Contains(overview, "no worker is seen") && strings.Contains(overview, "Act now")
	}, "the page says that there is no worker when none has asked for half a minute")
}

func addForeignKeys(t *testing.T, rdb *redis.Client, foreign int) {
	for i := 0; i < foreign; i += 1000 {
		pairs := make([]any, 0, 2000)
		for j := range 1000 {
			pairs = append(pairs, fmt.Sprint("cache:", i+j), "x")
		}
		require.NoError(t, rdb.MSet(t.Context(), pairs...).Err())
	}
}

// commandsOf returns how many commands readers of the overview cost Redis.
func commandsOf(t *testing.T, rdb *redis.Client, server *httptest.Server, readers int) (n int) {
	before := commandStats(t, rdb)
	ctx, cancel := context.WithTimeout(t.Context(), 9*time.Second)
	defer cancel()
	var all sync.WaitGroup
	for range readers {
		all.Go(func() {
			req, _ := http.NewRequestWithContext(ctx, http.MethodGet, server.URL+"/", nil)
			req.Header.Set("Accept", "text/event-stream")
			resp, err := http.DefaultClient.Do(req)
			if assert.NoError(t, err) {
				defer resp.Body.Close()
				buffer := make([]byte, 64<<10)
				for err == nil {
					_, err = resp.Body.Read(buffer)
				}
			}
		})
	}
	all.Wait()
	for name, calls := range commandStats(t, rdb) {
		n += calls - before[name]
	}
	return n
}

// A search finds what is there while it looks, and ends when its page is left.
func requireSearchEnds(t *testing.T, rdb *redis.Client, server *httptest.Server) {
	scans := func() int { return commandStats(t, rdb)["scan"] }
	searching, stop := context.WithCancel(t.Context())
	defer stop()
	req, err := http.NewRequestWithContext(searching, http.MethodGet, server.URL+"/keys?prefix=order:99", nil)
	require.NoError(t, err)
	resp, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	found, lines := false, bufio.NewScanner(resp.Body)
	for !found && lines.Scan() {
		found = strings.Contains(lines.Text(), "key?key=order%3A99")
	}
	assert.True(t, found)
	assert.Positive(t, scans())
	stop()
	last := -1
	redistest.Eventually(t, func() bool {
		was := last
		last = scans()
		time.Sleep(500 * time.Millisecond)
		return was == last && scans() == last
	}, "it has stopped")
}
