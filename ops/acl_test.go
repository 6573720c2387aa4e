package ops_test

import (
	"slices"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
	"github.com/perkey-go/perkey/ops"
)

// Each use is made with the rights that docs/operations.md prints for it, which are all that it needs.
func TestACL_TheSmallestRightsToTellAndToRead(t *testing.T) {
	t.Parallel()
	admin := redistest.Client(t, &redis.Options{Addr: redistest.Start(t).Addr})
	tellAndWatch(t, admin, func(user string) redis.UniversalClient {
		return redistest.Client(t, &redis.Options{Addr: admin.Options().Addr, Username: user, Password: redistest.Password})
	})
	for _, use := range usesOfOps {
		redistest.RequireUsed(t, admin, redistest.Rights(t, use), map[string]string{
			"ping": "a subscription that is idle for seconds", "zscore": "as many watches as there may be",
		})
	}
}

func TestACL_TheSmallestRightsToTellAndToReadOnACluster(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, 3, 0)
	tellAndWatch(t, c.Client(t), func(user string) redis.UniversalClient {
		return c.Client(t, func(o *redis.ClusterOptions) { o.Username, o.Password = user, redistest.Password })
	}, "on a Cluster")
}

// usesOfOps are what docs/operations.md calls the uses, by the user that has their rights.
var usesOfOps = map[string]string{"teller": "a Beacon", "reader": "ops.ReadFleet", "watcher": "ops.Watch"}

// tellAndWatch does all that there is, as a user for each use.
func tellAndWatch(t *testing.T, admin redis.UniversalClient, client func(user string) redis.UniversalClient, more ...string) {
	t.Helper()
	for user, use := range usesOfOps {
		redistest.AddUser(t, admin, user, redistest.Rights(t, append(more, use)...))
	}
	recorder := ops.NewRecorder()
	observer := recorder.Locks(nil)
	locker := testbed.NewLocker(t, admin)
	beacon := startBeacon(t, client("teller"), recorder, locker)
	reader := client("reader")
	redistest.Eventually(t, func() bool { return len(readFleet(t, reader, "").Processes) == 1 }, "it is told")
	w := startWatch(t, client("watcher"), "", ops.Watched{Key: "k"})
	redistest.Eventually(t, func() bool { return recorder.Watches() == 1 }, "it is watched")
	observer.OnOutcome(t.Context(), core.Outcome{Kind: core.OutcomeAcquired, Key: "k"})
	seenBy(t, w, func(ops.Event) bool { return true })
	w.Close()
	redistest.Eventually(t, func() bool { return recorder.Watches() == 0 }, "it is forgotten")
	require.NoError(t, beacon.Close())
	require.Empty(t, readFleet(t, reader, "").Processes)
	require.Empty(t, redistest.Denied(t, admin), "nothing more was asked for")
}

// What may not be read is an error, and no damage.
func TestReadFleet_WithoutTheRightToReadEntries(t *testing.T) {
	t.Parallel()
	admin := redistest.Client(t, &redis.Options{Addr: redistest.Start(t).Addr})
	rights := slices.DeleteFunc(redistest.Rights(t, "ops.ReadFleet"), func(right string) bool { return right == "+getrange" })
	redistest.AddUser(t, admin, "reader", rights)
	putEntry(t, admin, "perkey", "good", `{"id":"good","ttl":60000}`)
	_, err := ops.ReadFleet(t.Context(), redistest.Client(t, &redis.Options{Addr: admin.Options().Addr, Username: "reader", Password: redistest.Password}), "")
	require.ErrorIs(t, err, core.ErrUnavailable)
	require.ErrorContains(t, err, "NOPERM")
}

// A process that may not publish still tells of itself.
func TestACL_ABeaconThatMayNotPublishTells(t *testing.T) {
	t.Parallel()
	admin := redistest.Client(t, &redis.Options{Addr: redistest.Start(t).Addr})
	rights := slices.DeleteFunc(redistest.Rights(t, "a Beacon"), func(right string) bool { return right == "+publish" })
	redistest.AddUser(t, admin, "mute", rights)
	rdb := redistest.Client(t, &redis.Options{Addr: admin.Options().Addr, Username: "mute", Password: redistest.Password})
	recorder := ops.NewRecorder()
	locker := testbed.NewLocker(t, admin)
	startBeacon(t, rdb, recorder, locker)
	startWatch(t, admin, "", ops.Watched{Key: "k"})
	redistest.Eventually(t, func() bool { return recorder.Watches() == 1 }, "it is watched")
	recorder.Locks(nil).OnOutcome(t.Context(), core.Outcome{Kind: core.OutcomeAcquired, Key: "k"})
	redistest.Eventually(t, func() bool { return len(redistest.Denied(t, admin)) > 0 }, "it is denied")
	_, err := locker.TryAcquire(t.Context(), "k")
	require.NoError(t, err)
	tells(t, &redistest.Env{Addr: admin.Options().Addr}, func(p ops.Process) bool { return p.Local.Held == 1 }, "it goes on")
}
