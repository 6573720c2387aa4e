//go:build soak

package ops_test

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
	"github.com/perkey-go/perkey/ops"
)

// 1,000 processes that have as much to tell as can be: 100 calls a second of 16 KiB, and 16 MiB in Redis.
func TestSoakBeacon_OfAThousandProcesses(t *testing.T) {
	const processes = 1000
	rdb := redistest.Client(t, &redis.Options{Addr: redistest.Start(t).Addr, PoolSize: 20, ReadTimeout: 20 * time.Second})
	recorder := ops.NewRecorder()
	observer := recorder.Locks(nil)
	for i := range 100 {
		key := fmt.Sprintf("%03d", i) + strings.Repeat("k", 200)
		observer.OnOutcome(t.Context(), core.Outcome{Kind: core.OutcomeShed, DidWait: true, Waited: time.Second, Key: key, Name: fmt.Sprint("name", i)})
	}
	for range processes {
		locker := testbed.NewLocker(t, rdb)
		beacon, err := ops.StartBeacon(rdb, recorder, locker)
		require.NoError(t, err)
		t.Cleanup(func() { _ = beacon.Close() })
	}
	// Reading the fleet takes a second of computing: it is done once, below.
	redistest.Eventually(t, func() bool { return len(redistest.Keys(t, rdb, "perkey:ops:")) == processes+1 }, "all have told")

	start, before := time.Now(), callsOf(t, rdb, "set")
	time.Sleep(10 * time.Second)
	perSecond := float64(callsOf(t, rdb, "set")-before) / time.Since(start).Seconds()
	assert.LessOrEqual(t, perSecond, 115.0, "calls a second")
	assert.GreaterOrEqual(t, perSecond, 50.0, "calls a second: those that were started last may not have told twice")

	bytes, entries := int64(0), redistest.Keys(t, rdb, "perkey:ops:")
	require.Len(t, entries, processes+1)
	for _, key := range entries {
		bytes += rdb.MemoryUsage(t.Context(), key).Val()
	}
	assert.LessOrEqual(t, bytes, int64(16<<20))
	assert.Greater(t, bytes, int64(14<<20), "the entries are full")

	began, scripts, ranges := time.Now(), callsOf(t, rdb, "evalsha"), callsOf(t, rdb, "getrange")
	scans := callsOf(t, rdb, "scan")
	fleet := readFleet(t, rdb, "")
	require.Len(t, fleet.Processes, processes)
	assert.Equal(t, int64(processes), callsOf(t, rdb, "getrange")-ranges)
	assert.Equal(t, scans, callsOf(t, rdb, "scan"))
	t.Logf("%.0f calls/s, %d KiB in Redis, read in %v beside %d calls; %s", perSecond, bytes>>10, time.Since(began), callsOf(t, rdb, "evalsha")-scripts,
		regexp.MustCompile(`cmdstat_evalsha:.*`).FindString(rdb.Info(t.Context(), "commandstats").Val()))
}

// A large fleet in which everything goes wrong, each time for another key, is judged in about a second: not in half a minute.
func TestSoakFacts_OfAThousandProcesses(t *testing.T) {
	f := ops.Facts{Fleet: ops.Reading[ops.Fleet]{At: examined}}
	for i := range 1000 {
		p := ops.Process{ID: fmt.Sprint(i), Snapshot: ops.Snapshot{At: examined}}
		for j := range 64 {
			key := fmt.Sprintf("customer:order:%d", 64*i+j)
			p.Snapshot.Events = append(p.Snapshot.Events, ops.Event{At: examined, Source: "locks", Kind: "lost", Key: key})
			if j < 32 {
				p.Local.Leases = append(p.Local.Leases, core.LocalLease{Key: key, Held: time.Hour, TTL: time.Hour, Remaining: time.Hour, Contended: true})
			}
		}
		f.Fleet.Value.Processes = append(f.Fleet.Value.Processes, p)
	}
	began := time.Now()
	assert.NotEmpty(t, f.Findings(examined))
	assert.Less(t, time.Since(began), 20*time.Second)
}

// callsOf is how often a server has run a command, in scripts too.
func callsOf(t testing.TB, rdb *redis.Client, command string) int64 {
	t.Helper()
	found := regexp.MustCompile(`cmdstat_` + command + `:calls=(\d+)`).FindStringSubmatch(rdb.Info(t.Context(), "commandstats").Val())
	if found == nil {
		return 0
	}
	n, err := strconv.ParseInt(found[1], 10, 64)
	require.NoError(t, err)
	return n
}
