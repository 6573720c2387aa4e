package delayqueue_test

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

func TestPolicy_AConflictingCallIsParkedAndRunLater(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		b := setup(t, env)
		guard := b.other.Guard(delayqueue.Policy(b.queue))
		require.NoError(t, guard.Err())
		lease := b.hold("k")

		err := guard.Do(t.Context(), core.Call{
			Key: "k", Name: "ship", Encode: func() ([]byte, error) { return []byte("work"), nil },
		}, mustNotRun)
		var deferred *core.DeferredError
		require.ErrorAs(t, err, &deferred)
		require.Equal(t, "q", deferred.Ticket.Queue)

		var r ran
		b.start(r.handle)
		require.NoError(t, lease.Release(t.Context()))
		b.reaches(deferred.Ticket.ID, delayqueue.StateDone)
		require.Equal(t, "work", string(r.all()[0].Payload))
		require.Equal(t, "ship", r.all()[0].Name)
	})
}

func TestPolicy_ACallThatCannotBeParkedIsRefused(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		b := setup(t, env, delayqueue.WithMaxDepth(1))
		policy := delayqueue.Policy(b.queue)
		conflict := func(encode func() ([]byte, error)) (core.Decision, error) {
			return policy.OnConflict(t.Context(), core.Conflict{Call: core.Call{Key: "k", Encode: encode}})
		}

		d, err := conflict(nil)
		require.NoError(t, err)
		require.Equal(t, core.Reject(), d)

		broken := errors.New("broken")
		_, err = conflict(func() ([]byte, error) { return nil, broken })
		require.ErrorIs(t, err, broken)

		work := func() ([]byte, error) { return []byte("work"), nil }
		d, err = conflict(work)
		require.NoError(t, err)
		ticket, ok := d.Ticket()
		require.True(t, ok)
		require.WithinDuration(t, time.Now().Add(15*time.Minute), ticket.ExpiresAt, time.Minute)
		_, err = conflict(work)
		require.ErrorIs(t, err, delayqueue.ErrQueueFull)
	})
}

func TestPolicy_APolicyWithoutAQueueIsAnError(t *testing.T) {
	policy := delayqueue.Policy(nil)
	_, err := policy.OnConflict(t.Context(), core.Conflict{})
	require.ErrorIs(t, err, core.ErrInvalidOption)
	locker, err := core.New(redistest.Embedded(t).Client(t))
	require.NoError(t, err)
	defer func() { _ = locker.Close() }()
	require.ErrorIs(t, locker.Guard(policy).Err(), core.ErrInvalidOption)
}

func TestPolicy_AParkedCallWhoseReplyWasLostIsStoredOnce(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		proxy := redistest.NewProxy(t, env.Addr)
		rdb := redistest.Client(t, &redis.Options{Addr: proxy.Addr, MaxRetries: -1})
		q, err := delayqueue.New(rdb, "q", delayqueue.WithPrefix(env.Prefix))
		require.NoError(t, err)
		park := func(payload string) (core.Decision, error) {
			return delayqueue.Policy(q).OnConflict(t.Context(), core.Conflict{Call: core.Call{
				Key: "k", Encode: func() ([]byte, error) { return []byte(payload), nil },
			}})
		}
		_, err = park("first") // loads the script
		require.NoError(t, err)
		lost := false
		proxy.LoseReply(func(request []byte) bool {
			match := !lost && bytes.Contains(request, []byte("second"))
			lost = lost || match
			return match
		})
		d, err := park("second")
		require.NoError(t, err)
		require.True(t, lost)
		ticket, _ := d.Ticket()
		status, err := q.Status(t.Context(), ticket.ID)
		require.NoError(t, err)
		require.Equal(t, delayqueue.StateQueued, status.State)
		stats, err := q.Stats(t.Context())
		require.NoError(t, err)
		require.EqualValues(t, 2, stats.Queued)
	})
}

func TestPolicy_CallsOfOneDeduplicationIDAreOneMessage(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		b := setup(t, env)
		park := func(call core.Call) string {
			call.Encode = func() ([]byte, error) { return []byte("work"), nil }
			d, err := delayqueue.Policy(b.queue).OnConflict(t.Context(), core.Conflict{Call: call})
			require.NoError(t, err)
			ticket, _ := d.Ticket()
			require.Equal(t, delayqueue.StateQueued, b.status(ticket.ID).State)
			return ticket.ID
		}
		call, seen := core.Call{Key: "k", DeduplicationID: "d"}, []string{}
		for i := range 12 { // a client cancels it again and again
			id := park(call)
			require.NotContains(t, seen, id)
			if seen = append(seen, id); i < 8 {
				require.Equal(t, id, park(call))
			}
			require.NoError(t, b.queue.Cancel(t.Context(), id))
		}
		for _, other := range []core.Call{{Key: "k"}, {Key: "j", DeduplicationID: "d"}, {Key: "k", DeduplicationID: "e"}, {Key: "k", Name: "n", DeduplicationID: "d"}, {Key: "k", Principal: "p", DeduplicationID: "d"}} {
			seen = append(seen, park(other))
			require.NotContains(t, seen[:len(seen)-1], seen[len(seen)-1])
		}
	})
}
