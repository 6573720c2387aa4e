package console_test

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"strings"
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

// Beside many keys of others, held keys and parked work, no page scans.
func TestConsole_DefaultPagesScanNothing(t *testing.T) {
	const foreign, held, parked = 100_000, 300, 500
	env := &redistest.Env{Addr: redistest.Start(t).Addr, Prefix: "load", Real: true}
	rdb := env.Client(t)
	addForeignKeys(t, rdb, foreign)
	locker := newReportingLocker(t, rdb, env.Prefix)
	q := testbed.NewQueue(t, rdb, "q", delayqueue.WithPrefix(env.Prefix))
	for i := range held {
		testbed.Take(t, locker, fmt.Sprint("order:", i), core.Named("work", ""), core.LeaseTTL(5*time.Minute))
	}
	for i := range parked {
		testbed.Enqueue(t, q, delayqueue.Job{Key: fmt.Sprint("parked:", i%100), Name: "n"})
	}
	redistest.Eventually(t, func() bool {
		f, err := ops.ReadFleet(t.Context(), rdb, env.Prefix)
		return err == nil && len(f.Processes) == 1
	}, "the process reports")
	scans := func() int { return commandStats(t, rdb)["scan"] }
	for _, path := range append([]string{"queue?queue=q", "key?key=order:1", "key?key=parked:1"}, pages...) {
		server, _ := newConsole(t, env, nil) // that has read nothing
		before := scans()
		code, _, _ := get(t, server.URL+"/"+path)
		assert.Equal(t, http.StatusOK, code, path)
		assert.Equal(t, before, scans(), path)
	}

	// A search finds what is there while it looks, and ends when its page is left.
	server, _ := newConsole(t, env, nil)
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

func addForeignKeys(t *testing.T, rdb *redis.Client, foreign int) {
	for i := 0; i < foreign; i += 1000 {
		pairs := make([]any, 0, 2000)
		for j := range 1000 {
			pairs = append(pairs, fmt.Sprint("cache:", i+j), "x")
		}
		require.NoError(t, rdb.MSet(t.Context(), pairs...).Err())
	}
}
