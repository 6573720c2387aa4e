package core_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
)

const aclUser = "locker"

// What docs/operations.md calls the uses of a locker.
const (
	toLock    = "locks"
	toBeWoken = "locks that are waited for"
	toInspect = "locks of parked work, Inspect"
)

// seldomUsed are the commands that the life of a lock can do without, by what has them run.
var seldomUsed = map[string]string{
	"hgetall": "a holder whose lease ran out beside others",
	"ping":    "a subscription that is idle for seconds",
}

func TestACL_TheSmallestRightsToLockAndBeWoken(t *testing.T) {
	t.Parallel()
	for _, uses := range [][]string{{toLock}, {toLock, toBeWoken}} {
		t.Run(fmt.Sprint(uses), func(t *testing.T) {
			t.Parallel()
			admin, deaf, rights := redistest.Client(t, &redis.Options{Addr: redistest.Start(t).Addr}), len(uses) == 1, redistest.Rights(t, uses...)
			redistest.AddUser(t, admin, aclUser, rights)
			told := life{holder: limited(t, admin), other: limited(t, admin), admin: admin, prefix: "perkey", keys: keyNames(4), deaf: deaf}.run(t)
			denied := redistest.Denied(t, admin)
			if deaf {
				require.Subset(t, []string{"publish", "subscribe"}, denied)
				return
			}
			require.Positive(t, told, "calls were told of the release")
			require.Empty(t, denied, "nothing more was asked for")
			redistest.RequireUsed(t, admin, rights, seldomUsed)
		})
	}
}

// limited returns a client whose user has the smallest rights.
func limited(t *testing.T, admin *redis.Client) *redis.Client {
	t.Helper()
	return redistest.Client(t, &redis.Options{Addr: admin.Options().Addr, Username: aclUser, Password: redistest.Password})
}

// warningOf waits for the next warning of a kind.
func warningOf(seen watch, kind core.WarningKind) (w core.Warning) {
	for w = <-seen.warnings; w.Kind != kind; w = <-seen.warnings { //nolint:revive // it passes over the others
	}
	return w
}

// Who may subscribe, but not publish, cannot tell whether its subscription works.
func TestACL_ALockerThatMayNotPublishPollsAndWarns(t *testing.T) {
	t.Parallel()
	admin := redistest.Client(t, &redis.Options{Addr: redistest.Start(t).Addr})
	rights := slices.DeleteFunc(redistest.Rights(t, toLock, toBeWoken), func(right string) bool { return right == "+publish" })
	redistest.AddUser(t, admin, aclUser, rights)
	seen := newWatch()
	rdb := limited(t, admin)
	holder, l := lockerOn(t, rdb, "perkey"), lockerOn(t, rdb, "perkey", core.WithObserver(seen))
	warm(t, l)
	warningOf(seen, core.WarnNoSubscription)
	require.False(t, l.Listening())
	for range 3 {
		lease := testbed.Take(t, holder, "k")
		next := acquiring(t, l, "k")
		queued(t, &redistest.Env{Addr: admin.Options().Addr, Prefix: "perkey"}, "k", 1)
		start := time.Now()
		require.NoError(t, lease.Release(t.Context()))
		require.NoError(t, granted(t, next).Release(t.Context()))
		require.Less(t, time.Since(start), beforeItsPlaceIsLost)
	}
}

func TestACL_TheSmallestRightsToLockOnACluster(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, 3, 0)
	admin := c.Client(t)
	redistest.AddUser(t, admin, aclUser, redistest.Rights(t, toLock, toBeWoken, toInspect, "List", "on a Cluster"))
	client := func() redis.UniversalClient {
		return c.Client(t, func(o *redis.ClusterOptions) { o.Username, o.Password = aclUser, redistest.Password })
	}
	told := life{holder: client(), other: client(), admin: admin, prefix: "perkey", keys: keyNames(12)}.run(t)
	require.Greater(t, told, 6)
	callAll(t, lockerOn(t, client(), "perkey"), lockerOn(t, client(), "perkey"))
	lister := lockerOn(t, client(), "perkey")
	lease := testbed.Take(t, lister, "listed")
	require.Len(t, listAll(t, lister, 100), 1)
	require.NoError(t, lease.Release(t.Context()))
	require.Empty(t, redistest.Denied(t, admin), "nothing more was asked for")
}

// Each call of a locker is made, with the rights that are printed for it.
func TestACL_TheSmallestRightsOfEachCall(t *testing.T) {
	t.Parallel()
	r := startReplicated(t, 1)
	require.NoError(t, r.primary.ConfigSet(t.Context(), "maxmemory-policy", "allkeys-lru").Err()) // is warned of
	uses := []string{toLock, toBeWoken}
	for _, use := range []struct {
		name string
		call func(*testing.T, *core.Locker) error
	}{
		{toBeWoken, func(t *testing.T, l *core.Locker) error {
			callAll(t, l, lockerOn(t, limited(t, r.primary), "perkey"))
			return nil
		}},
		{toInspect, func(t *testing.T, l *core.Locker) error {
			_, err := l.Inspect(t.Context(), "held")
			return err
		}},
		{"List", func(t *testing.T, l *core.Locker) error {
			_, err := l.List(t.Context(), "", 10)
			return err
		}},
		{"WaitReplicas", func(t *testing.T, l *core.Locker) error {
			lease, err := l.TryAcquire(t.Context(), "replicated", core.WaitReplicas(1, 5*time.Second))
			if err == nil {
				err = lease.Release(t.Context())
			}
			return err
		}},
		{"an Observer", func(t *testing.T, _ *core.Locker) error {
			seen := newWatch()
			warm(t, lockerOn(t, limited(t, r.primary), "perkey", core.WithObserver(seen)))
			return (<-seen.warnings).Err
		}},
	} {
		if !slices.Contains(uses, use.name) { // the rights so far are not enough
			require.Error(t, use.call(t, lockerOn(t, limited(t, r.primary), "perkey")), use.name)
			require.NotEmpty(t, redistest.Denied(t, r.primary), use.name)
			require.NoError(t, r.primary.Do(t.Context(), "acl", "log", "reset").Err())
			uses = append(uses, use.name)
		}
		redistest.AddUser(t, r.primary, aclUser, redistest.Rights(t, uses...))
		require.NoError(t, use.call(t, lockerOn(t, limited(t, r.primary), "perkey")), use.name)
		require.Empty(t, redistest.Denied(t, r.primary), "nothing more was asked for: %s", use.name)
	}
}

func TestACL_TheSmallestRightsOfAQuorum(t *testing.T) {
	t.Parallel()
	var admins []*redis.Client
	for _, s := range startServers(t, 3) {
		admins = append(admins, redistest.Client(t, &redis.Options{Addr: s.Addr}))
		redistest.AddUser(t, admins[len(admins)-1], aclUser, redistest.Rights(t, toLock, toBeWoken))
	}
	locker := func() *core.Locker {
		l, err := core.NewQuorum([]redis.UniversalClient{limited(t, admins[0]), limited(t, admins[1]), limited(t, admins[2])})
		require.NoError(t, err)
		t.Cleanup(func() { _ = l.Close() })
		return l
	}
	holder, other := locker(), locker()
	lease := acquire(t, holder, "k")
	next := acquiring(t, other, "k")
	listening(t, other)
	require.NoError(t, lease.Extend(t.Context(), time.Minute))
	require.NoError(t, lease.Release(t.Context()))
	require.NoError(t, granted(t, next).Release(t.Context()))
	for _, admin := range admins {
		require.Empty(t, redistest.Denied(t, admin), "nothing more was asked for")
	}
}

// callAll makes each call of a locker, but for those with a row of their own.
func callAll(t *testing.T, l, other *core.Locker) {
	t.Helper()
	ctx := t.Context()
	for _, mode := range [][]core.AcquireOption{nil, {core.Shared()}, {core.Counted(2)}, {core.MinHold(core.MinTTL)}} {
		lease := acquire(t, l, "k", append(mode, core.Named("name", "id"))...)
		require.NoError(t, lease.Extend(ctx, time.Minute))
		require.NoError(t, lease.Release(ctx))
	}
	lease := acquire(t, l, "k")
	require.NoError(t, lease.Downgrade(ctx))
	second := acquire(t, other, "k", core.Shared())
	require.NoError(t, lease.Release(ctx))
	require.NoError(t, second.Release(ctx))

	set, err := l.AcquireAll(ctx, []string{"a", "b"})
	require.NoError(t, err)
	_, err = other.TryAcquireAll(ctx, []string{"b", "c"})
	require.ErrorIs(t, err, core.ErrConflict)
	require.NoError(t, set.Release(ctx))

	freed := make(chan string, 10)
	lease = acquire(t, l, "k")
	_, err = other.TryAcquire(ctx, "k", core.NotifyRelease(freed))
	require.ErrorIs(t, err, core.ErrConflict)
	token, err := lease.Detach(ctx)
	require.NoError(t, err)
	lease, err = other.Resume(ctx, token)
	require.NoError(t, err)
	require.NoError(t, lease.Release(ctx))

	require.NoError(t, reserve(t, l, "k", time.Minute))
	_, err = l.TryAcquire(ctx, "k")
	require.ErrorIs(t, err, core.ErrConflict)
	lease = testbed.Take(t, l, "k", reservations.Reserved(time.Minute))
	require.NoError(t, unreserve(t, l, lease))
	held, err := other.ForceRelease(ctx, "k", lease.Fence())
	require.NoError(t, err)
	require.True(t, held)
	require.ErrorIs(t, lease.Release(ctx), core.ErrLeaseLost)
}
