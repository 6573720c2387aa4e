package lockprom_test

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
	"github.com/perkey-go/perkey/lockprom"
	"github.com/perkey-go/perkey/ops"
)

// process is one with a Beacon, which holds a key that another call wants.
func process(t *testing.T, rdb *redis.Client, prefix, key string) (end func()) {
	t.Helper()
	recorder := ops.NewRecorder()
	locker, err := core.New(rdb, core.WithPrefix(prefix), core.WithObserver(recorder.Locks(core.NopObserver{})))
	require.NoError(t, err)
	testbed.Take(t, locker, key)
	_, err = locker.TryAcquire(t.Context(), key)
	require.ErrorIs(t, err, core.ErrConflict)
	beacon, err := ops.StartBeacon(rdb, recorder, locker, ops.WithInterval(10*time.Second))
	require.NoError(t, err)
	return func() {
		assert.NoError(t, beacon.Close())
		assert.NoError(t, locker.Close())
	}
}

// TestFleet_ExportsTheTable is long since it is one story.
func TestFleet_ExportsTheTable(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		rdb := env.Client(t)
		for _, name := range []string{"ship", "mail"} {
			queue := testbed.NewQueue(t, rdb, name, delayqueue.WithPrefix(env.Prefix))
			testbed.Enqueue(t, queue, delayqueue.Job{ID: "secret-ticket", Key: "secret-key", Principal: "secret-user"})
		}
		endFirst, endSecond := process(t, rdb, env.Prefix, "secret-1"), process(t, rdb, env.Prefix, "secret-2")
		defer endFirst()
		redistest.Eventually(t, func() bool {
			fleet, err := ops.ReadFleet(t.Context(), rdb, env.Prefix)
			require.NoError(t, err)
			return len(fleet.Processes) == 2
		}, "both tell")

		collector := lockprom.NewFleet(rdb, env.Prefix)
		registry := prometheus.NewPedanticRegistry()
		require.NoError(t, registry.Register(collector))
		families, err := registry.Gather()
		require.NoError(t, err)
		assertTable(t, lockprom.FleetMetrics(), families)
		problems, err := testutil.CollectAndLint(collector)
		require.NoError(t, err)
		assert.Empty(t, problems)

		text := scrape(t, collector)
		for _, line := range []string{
			"perkey_fleet_up 1", "perkey_fleet_processes 2", "perkey_fleet_config_refused 0", "perkey_fleet_held 2", "perkey_fleet_waiting 0",
			`perkey_queue_up{queue="mail"} 1`, `perkey_queue_due{queue="ship"} 1`, `perkey_fleet_workers{queue="ship"} 0`, `perkey_fleet_no_worker{queue="ship"} 0`,
		} {
			assert.Contains(t, text, line+"\n")
		}
		assert.Contains(t, text, "perkey_fleet_silent 0\n")
		assert.NotContains(t, text, "secret")
		assert.NotContains(t, text, "perkey_lock_calls_total", "its sum over processes would fall when one ends")

		endSecond()
		silent := env.Prefix + ":ops:{fleet}:process:silent"
		require.NoError(t, rdb.Set(t.Context(), silent, `{"id":"silent","ttl":35000,"version":"v1.2.3"}`, time.Minute).Err())
		now, err := rdb.Time(t.Context()).Result()
		require.NoError(t, err)
		require.NoError(t, rdb.ZAdd(t.Context(), env.Prefix+":ops:{fleet}:processes",
			redis.Z{Score: float64(now.Add(15 * time.Second).UnixMilli()), Member: "silent"}).Err()) // it told 20 s ago
		rdb.HSet(t.Context(), env.Prefix+":queue:{ship}:c", "claimed", 1000)
		text = scrape(t, collector)
		for _, line := range []string{"perkey_fleet_processes 2", "perkey_fleet_silent 1", "perkey_fleet_versions 1", "perkey_fleet_held 1", `perkey_fleet_no_worker{queue="ship"} 1`, `perkey_fleet_no_worker{queue="mail"} 0`} {
			assert.Contains(t, text, line+"\n")
		}
	})
}
