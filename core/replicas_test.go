package core_test

import (
	"context"
	"net"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
)

// replicated is a primary with replicas that are in step with it.
type replicated struct {
	env      *redistest.Env
	primary  *redis.Client
	replicas []*redistest.Server
}

func startReplicated(t *testing.T, n int) *replicated {
	t.Helper()
	server := redistest.Start(t, "--repl-diskless-sync-delay", "0")
	r := &replicated{env: &redistest.Env{Addr: server.Addr, Prefix: "p", Real: true}}
	r.primary = r.env.Client(t)
	host, port, err := net.SplitHostPort(server.Addr)
	require.NoError(t, err)
	for range n {
		replica := redistest.Start(t, "--replicaof", host, port)
		t.Cleanup(replica.Resume)
		r.replicas = append(r.replicas, replica)
		rdb := redistest.Client(t, &redis.Options{Addr: replica.Addr})
		redistest.Eventually(t, func() bool {
			return strings.Contains(rdb.Info(t.Context(), "replication").Val(), "master_link_status:up")
		}, "the replica is in step")
	}
	redistest.Eventually(t, func() bool {
		return strings.Count(r.primary.Info(t.Context(), "replication").Val(), "state=online") == n
	}, "the primary knows")
	return r
}

// waits is how often WAIT was called.
func (r *replicated) waits(t *testing.T) int {
	t.Helper()
	calls := regexp.MustCompile(`cmdstat_wait:calls=(\d+)`).FindStringSubmatch(r.primary.Info(t.Context(), "commandstats").Val())
	if calls == nil {
		return 0
	}
	n, err := strconv.Atoi(calls[1])
	require.NoError(t, err)
	return n
}

func requireNotReplicated(t *testing.T, err error) {
	t.Helper()
	require.ErrorIs(t, err, core.ErrNotReplicated)
	require.ErrorIs(t, err, core.ErrUnavailable)
	require.NotErrorIs(t, err, core.ErrConflict)
}

func TestReplicas_AGrantIsOnTheReplicas(t *testing.T) {
	t.Parallel()
	r := startReplicated(t, 2)
	for _, protocol := range []int{2, 3} {
		rdb := redistest.Client(t, &redis.Options{Addr: r.env.Addr, Protocol: protocol})
		l := lockerOn(t, rdb, "p")
		lease := acquired(t, l, "k", core.WaitReplicas(2, 5*time.Second))
		set, err := l.TryAcquireAll(t.Context(), []string{"a", "b"}, core.WaitReplicas(2, 5*time.Second), core.FixedLease(time.Second))
		require.NoError(t, err)
		for _, replica := range r.replicas {
			names := redistest.Keys(t, redistest.Client(t, &redis.Options{Addr: replica.Addr}), "p:lock")
			require.Len(t, names, 3)
		}
		release(t, set)
		release(t, lease)

		_, err = l.TryAcquire(t.Context(), "k", core.WaitReplicas(3, 50*time.Millisecond))
		requireNotReplicated(t, err)
		require.ErrorContains(t, err, "2 of 3 replicas")
		require.Empty(t, redistest.Keys(t, r.primary, "p"), "released")
	}
}

func TestReplicas_AStoppedReplicaDoesNotCount(t *testing.T) {
	t.Parallel()
	r := startReplicated(t, 2)
	rdb := redistest.Client(t, &redis.Options{Addr: r.env.Addr, ReadTimeout: 100 * time.Millisecond})
	l := lockerOn(t, rdb, "p")
	r.replicas[0].Pause()
	lease := testbed.Take(t, l, "k", core.WaitReplicas(1, 5*time.Second))
	require.NoError(t, lease.Release(t.Context()))

	// Longer than the client reads for.
	_, err := l.TryAcquire(t.Context(), "k", core.WaitReplicas(2, 300*time.Millisecond))
	requireNotReplicated(t, err)
	_, err = l.AcquireAll(t.Context(), []string{"a", "b", "k"}, core.WaitReplicas(2, 50*time.Millisecond))
	requireNotReplicated(t, err)
	require.Empty(t, redistest.Keys(t, r.primary, "p"))

	// The wait is longer than the lease: it is renewed meanwhile.
	start := time.Now()
	time.AfterFunc(3*time.Second, r.replicas[0].Resume)
	lease = acquired(t, l, "k", core.WaitReplicas(2, 10*time.Second), core.LeaseTTL(2*time.Second))
	require.Greater(t, time.Since(start), 2900*time.Millisecond)
	require.NoError(t, lease.Context().Err())
	require.NoError(t, lease.Release(t.Context()))

	r.replicas[0].Pause()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err = l.Acquire(ctx, "k", core.WaitReplicas(2, time.Minute))
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.NotErrorIs(t, err, core.ErrUnavailable)
	requireNothingLeft(t, r.primary, "p")
}

func TestReplicas_AKeyFromTheQueueIsReplicatedToo(t *testing.T) {
	t.Parallel()
	r := startReplicated(t, 1)
	holder, l := newLocker(t, r.env), newLocker(t, r.env)
	for _, timeout := range []time.Duration{5 * time.Second, 200 * time.Millisecond} {
		lease := acquired(t, holder, "k")
		waiter := acquiring(t, l, "k", core.WaitReplicas(1, timeout))
		queued(t, r.env, "k", 1)
		listening(t, l)
		if timeout > time.Second {
			release(t, lease)
			release(t, granted(t, waiter))
			continue
		}
		r.replicas[0].Pause()
		release(t, lease)
		requireNotReplicated(t, outcome(t, waiter).err)
		requireNothingLeft(t, r.primary, "p")
	}
}

func TestReplicas_AGrantThatIsHandedOverIsReplicatedOnce(t *testing.T) {
	t.Parallel()
	r := startReplicated(t, 1)
	l := newLocker(t, r.env)
	lease := acquired(t, l, "k", core.WaitReplicas(1, 5*time.Second))
	guard := l.Guard(untilWoken, core.WaitReplicas(1, 5*time.Second))
	inLine, done := make(chan struct{}), make(chan error)
	const calls = 5
	for range calls {
		call := core.Call{Key: "k", BeforeWait: func() error { inLine <- struct{}{}; return nil }}
		go func() { done <- guard.Do(t.Context(), call, nothing) }()
		<-inLine
	}
	before := r.waits(t)
	require.NoError(t, lease.Release(t.Context()))
	for range calls {
		require.NoError(t, <-done)
	}
	// One for each time that Redis was asked, because the time for handing over was spent.
	require.Less(t, r.waits(t)-before, calls)
}

func TestReplicas_ALostKeyIsNotReplicated(t *testing.T) {
	t.Parallel()
	r := startReplicated(t, 1)
	l := newLocker(t, r.env)
	r.replicas[0].Pause()
	waiter := acquiring(t, l, "k", core.WaitReplicas(1, 10*time.Second), core.LeaseTTL(2*time.Second))
	name := core.RecordName("p", "k")
	redistest.Eventually(t, func() bool { return r.primary.Exists(t.Context(), name).Val() == 1 }, "the grant")
	require.NoError(t, r.primary.Del(t.Context(), name).Err())
	time.Sleep(2 * time.Second)
	r.replicas[0].Resume()
	lease := granted(t, waiter)
	require.NoError(t, lease.Context().Err(), "it asked again")
	require.NoError(t, lease.Extend(t.Context(), time.Minute))
	require.NoError(t, lease.Release(t.Context()))
}

func TestReplicas_WithoutReplicasNothingIsReplicated(t *testing.T) {
	t.Parallel()
	env := redistest.Embedded(t)
	l := newLocker(t, env)
	_, err := l.TryAcquire(t.Context(), "k", core.WaitReplicas(1, 10*time.Millisecond))
	requireNotReplicated(t, err)
	require.Empty(t, redistest.Keys(t, env.Client(t), env.Prefix))
	token := detach(t, testbed.Take(t, l, "k"))
	require.ErrorIs(t, errOf(l.Resume(t.Context(), token, core.WaitReplicas(1, 20*time.Millisecond))), core.ErrUnavailable)
	release(t, resume(t, l, token)) // it is good for another try
	for _, opt := range []core.AcquireOption{
		core.WaitReplicas(0, time.Second), core.WaitReplicas(101, time.Second), core.WaitReplicas(1, 0), core.WaitReplicas(1, time.Hour),
	} {
		require.ErrorIs(t, errOf(l.TryAcquire(t.Context(), "k", opt)), core.ErrInvalidOption)
	}
	other := lockerOn(t, &oneByOne{env.Client(t)}, env.Prefix)
	require.ErrorIs(t, errOf(other.TryAcquire(t.Context(), "k", core.WaitReplicas(1, time.Second))), core.ErrInvalidOption)
}
