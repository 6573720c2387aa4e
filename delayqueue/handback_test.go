package delayqueue_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

var errNotHere = errors.New("of a newer release")

func handsBack(context.Context, delayqueue.Message) error { return delayqueue.HandBack(errNotHere) }

func TestHandBack_SpendsNothingAndWaitsTwiceAsLongEachTime(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		calls, seen := atomic.Int64{}, newEvents()
		b.start(func(ctx context.Context, m delayqueue.Message) error {
			assert.Equal(t, 1, m.Attempt)
			calls.Add(1)
			return handsBack(ctx, m)
		}, delayqueue.WithObserver(seen))
		id := b.enqueue(delayqueue.Job{Key: "k"})
		for _, delay := range []time.Duration{time.Second, 2 * time.Second, 4 * time.Second} {
			e := next(t, seen.settled)
			require.Equal(t, delayqueue.OutcomeReturned, e.Outcome)
			require.ErrorIs(t, e.Err, errNotHere)
			require.InDelta(t, delay, e.Delay, float64(delay)/5)
		}
		s := b.status(id)
		require.Equal(t, [4]any{delayqueue.StateQueued, 0, 0, 0}, [4]any{s.State, s.Attempts, s.Conflicts, s.Losses})
		require.EqualValues(t, 3, calls.Load())
	}, delayqueue.WithMaxAttempts(1))
}

func TestHandBack_EndsAsExpired(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		b.start(handsBack)
		b.reaches(b.enqueue(delayqueue.Job{Key: "k"}), delayqueue.StateExpired)
	}, delayqueue.WithMaxAge(2*time.Second), delayqueue.WithMaxAttempts(1))
}

// The last call of the test waits for nothing: the key is kept for no message that nobody runs.
func TestHandBack_LeavesTheKeyToFreshCalls(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		guard := b.other.Guard(delayqueue.Policy(b.queue))
		park := func() error {
			return guard.Do(t.Context(), core.Call{Key: "k", Encode: func() ([]byte, error) { return []byte("x"), nil }},
				func(context.Context) error { return nil })
		}
		lease := b.hold("k")
		require.ErrorIs(t, park(), core.ErrDeferred)
		require.ErrorIs(t, park(), core.ErrDeferred)
		require.NoError(t, lease.Release(t.Context()))
		require.ErrorIs(t, park(), core.ErrDeferred, "it is reserved until a worker comes by")
		b.start(handsBack)
		redistest.Eventually(t, func() bool {
			info, err := b.other.Inspect(t.Context(), "k")
			require.NoError(t, err)
			return info.Reserved == 0 && len(info.Holders) == 0
		}, "the reservation ends")
		require.NoError(t, park(), "it runs")
	})
}

func TestHandBack_OtherMessagesOfTheNameRun(t *testing.T) {
	b := setup(t, redistest.Embedded(t))
	b.start(func(ctx context.Context, m delayqueue.Message) error {
		if string(m.Payload) == "v2" {
			return handsBack(ctx, m)
		}
		return nil
	})
	newer := b.enqueue(delayqueue.Job{Name: "POST /", Key: "1", Payload: []byte("v2")})
	b.reaches(b.enqueue(delayqueue.Job{Name: "POST /", Key: "2", Payload: []byte("v1")}), delayqueue.StateDone)
	b.reaches(newer, delayqueue.StateQueued)
}
