package store_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core/internal/lifecycle"
	"github.com/perkey-go/perkey/core/internal/store"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

// silent is a Locker that takes no notice of anything.
type silent struct{}

func (silent) Message(store.Message)                       {}
func (silent) LookAgain()                                  {}
func (silent) RenewSoon()                                  {}
func (silent) Orphaned(string, string, store.AcquireReply) {}
func (silent) Unclaimed(string)                            {}
func (silent) Warn(store.Warning)                          {}

// deploymentOn returns a store with a client, and the id of its Locker.
func deploymentOn(t *testing.T, rdb redis.UniversalClient, prefix string) (s store.Store, id string) {
	t.Helper()
	life, id := lifecycle.New(), store.NewLockerID()
	s = store.NewDeployment(rdb, store.Config{ID: id, Prefix: prefix, TTL: 15 * time.Second, Life: life, Events: silent{}})
	t.Cleanup(func() {
		life.Close()
		s.Close()
		s.Wait()
	})
	return s, id
}

// A node that has given all its slots away answers as before, and nothing is sent to it.
func TestDeployment_ANodeOfAClusterThatServesNoSlotsIsForgotten(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, 3, 0)
	s, id := deploymentOn(t, c.Client(t), "p")
	call := func(key string) {
		record, token := store.RecordName("p", key), store.NewToken(store.Exclusive, id)
		reply, _, err := s.Acquire(t.Context(), store.AcquireRequest{
			Record: record, Token: token, Fresh: true, Lease: 10 * time.Second, Sent: time.Now(), Timeout: store.ReplyTimeout,
		}, nil)
		if err == nil && reply.Granted {
			_, err = s.Release(t.Context(), store.ReleaseRequest{Record: record, Token: token})
		}
		assert.NoError(t, err)
	}
	const callers = 24
	calls := func(n int) {
		t.Helper()
		var all sync.WaitGroup
		for i := range callers {
			all.Go(func() {
				for range n {
					call(fmt.Sprint(i % (callers / 2)))
				}
			})
		}
		all.Wait()
	}
	redistest.Eventually(t, func() bool {
		calls(1)
		used := 0
		for _, goroutines := range store.Batchers(s) {
			used += min(goroutines(), 1) // a release alone needs none
		}
		return used == 3
	}, "all nodes are in use")
	empty := c.NodeOf(t, store.RecordName("p", "0"))
	emptied := redistest.Client(t, &redis.Options{Addr: empty.Addr})
	before := store.Batchers(s)
	require.Positive(t, before[empty.Addr]())
	store.LookAtNodes(s)
	calls(1)
	require.Len(t, store.Batchers(s), 3, "all serve")

	redistest.Eventually(t, func() bool { // no lease's record is left there
		keys, err := emptied.DBSize(t.Context()).Result()
		return err == nil && keys == 0
	}, "no keys")
	c.Empty(t, empty, c.AnotherThan(t, store.RecordName("p", "0")))
	redistest.Eventually(t, func() bool {
		store.LookAtNodes(s)
		calls(20) // of which none may fail
		return len(store.Batchers(s)) == 2
	}, "it is forgotten")
	require.NotContains(t, store.Batchers(s), empty.Addr)
	require.NoError(t, emptied.Ping(t.Context()).Err(), "it answers")
	redistest.Eventually(t, func() bool { return before[empty.Addr]() == 0 }, "its goroutines end")
}
