//go:build soak

package core_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
)

const (
	followLeases = 50
	followTTL    = 9 * time.Second
)

var followFirst = core.WithFirstLease(3 * time.Second) // renewed after one

// A primary that is cut off from the other servers goes on to answer its clients: what
// it renews is worth nothing, and what it publishes reaches nobody who has left it.
func TestFailover_RenewalsAndTheSubscriptionFollowEachFailover(t *testing.T) {
	t.Parallel()
	testFailovers(t, 2)
}

func testFailovers(t *testing.T, failovers int) {
	s := redistest.StartSentinel(t)
	rdb, otherRdb := s.AppClient(t), s.AppClient(t)
	gate := muted(otherRdb)
	holder, other := lockerOn(t, rdb, "p", core.WithTTL(followTTL), followFirst), lockerOn(t, otherRdb, "p", core.WithTTL(followTTL), followFirst)
	keeper := lockerOn(t, rdb, "p", core.WithTTL(10*followTTL), core.WithFirstLease(10*followTTL)) // which a busy machine does not lose
	for round := range failovers {
		kept := takeAll(t, keeper, fmt.Sprintf("kept %d", round))
		warm(t, other)
		listening(t, other)
		for _, replica := range s.Replicas(t) {
			rdb := replica.AppClient(t)
			for _, lease := range kept {
				redistest.Eventually(t, func() bool { return rdb.PTTL(t.Context(), core.RecordName("p", lease.Key())).Val() > followTTL }, "renewed, and replicated")
			}
		}
		grants := map[string]chan got{}
		for _, lease := range kept {
			grant := make(chan got, 1)
			grants[lease.Key()] = grant
			go func() { // a call that asks in the middle of a failover may be refused
				next, err := acquireInTheEnd(context.Background(), other, lease.Key())
				grant <- got{l: next, err: err}
			}()
		}

		var lost []*core.Lease
		old, heal := s.Isolate(t, func() { lost = takeAll(t, holder, fmt.Sprintf("lost %d", round)) })
		redistest.Eventually(t, func() bool {
			return serves(t, rdb) != old.Addr && serves(t, otherRdb) != old.Addr
		}, "clients that follow")
		requireLost(t, lost)
		told := 0
		for _, lease := range kept {
			require.NoError(t, context.Cause(lease.Context()), "the new primary has it")
			g, byMessage := toldOf(gate, func() { require.NoError(t, lease.Release(t.Context())) }, grants[lease.Key()])
			require.NoError(t, g.err)
			if byMessage {
				told++
			}
			require.NoError(t, g.l.Release(t.Context()))
		}
		require.Greater(t, told, followLeases/2, "round %d: woken, and not by asking once a second", round)
		heal()
	}
}

// A new primary that this process cannot reach, while it reaches the old one, is no reason to trust what the old one renews.
func TestFailover_AFailoverThatCannotBeFollowedIsWarnedOf(t *testing.T) {
	t.Parallel()
	s := redistest.StartSentinel(t)
	others := s.Replicas(t)
	var apart atomic.Bool
	rdb := s.AppClient(t, func(o *redis.FailoverOptions) {
		o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
			if apart.Load() && slices.ContainsFunc(others, func(s *redistest.Server) bool { return s.Addr == addr }) {
				return nil, errors.New("there is no way to it")
			}
			return (&net.Dialer{}).DialContext(ctx, network, addr)
		}
	})
	seen := newWatch()
	l := lockerOn(t, rdb, "p", core.WithTTL(followTTL), followFirst, core.WithObserver(seen))
	leases := takeAll(t, l, "lost")
	redistest.Eventually(t, l.Listening, "a subscription")
	time.Sleep(1500 * time.Millisecond) // renewed

	apart.Store(true)
	_, heal := s.Isolate(t, func() {})
	w := warningOf(seen, core.WarnNoSubscription)
	require.False(t, w.Resolved)
	require.ErrorContains(t, w.Err, "there is no way to it")
	requireLost(t, leases)
	heal()
	apart.Store(false)
	require.True(t, warningOf(seen, core.WarnNoSubscription).Resolved)
	warm(t, l)
}

// Where channels are denied nothing tells that the client has gone elsewhere.
func TestFailover_RenewalsFollowAFailoverWithoutASubscription(t *testing.T) {
	t.Parallel()
	s := redistest.StartSentinel(t)
	rdb := s.AppClient(t)
	user := rdb.(*redis.Client).Options().Username
	for _, server := range append(s.Replicas(t), s.Primary(t)) {
		require.NoError(t, redistest.Client(t, &redis.Options{Addr: server.Addr}).ACLSetUser(t.Context(), user, "resetchannels").Err())
	}
	l := lockerOn(t, rdb, "p", core.WithTTL(followTTL), followFirst)
	takeAll(t, l, "before")
	time.Sleep(1500 * time.Millisecond) // renewed
	var lost []*core.Lease
	old, _ := s.Isolate(t, func() { lost = takeAll(t, l, "lost") })
	redistest.Eventually(t, func() bool { return serves(t, rdb) != old.Addr }, "a client that follows")
	requireLost(t, lost)
}

func requireLost(t *testing.T, leases []*core.Lease) {
	t.Helper()
	for _, lease := range leases {
		redistest.Eventually(t, func() bool { return lease.Context().Err() != nil }, "the old primary does not renew "+lease.Key())
		require.ErrorIs(t, context.Cause(lease.Context()), core.ErrLeaseLost)
	}
}

// takeAll takes some keys.
func takeAll(t *testing.T, l *core.Locker, name string) (leases []*core.Lease) {
	t.Helper()
	for i := range followLeases {
		leases = append(leases, testbed.Take(t, l, fmt.Sprintf("%s %d", name, i)))
	}
	return leases
}

// serves is the address of the server that the client's commands go to.
func serves(t *testing.T, rdb redis.UniversalClient) string {
	t.Helper()
	return net.JoinHostPort("127.0.0.1", rdb.ConfigGet(t.Context(), "port").Val()["port"])
}
