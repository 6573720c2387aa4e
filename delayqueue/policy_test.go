package delayqueue_test

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

func TestPolicy_ACallThatCannotBeParkedIsRefused(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
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
	}, delayqueue.WithMaxDepth(1))
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

func TestPolicy_CallsOfOneDeduplicationIDAreOneMessage(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
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
