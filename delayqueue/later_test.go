package delayqueue_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

var errUnavailable = errors.New("the dependency answers 503")

func unavailable(context.Context, delayqueue.Message) error {
	return delayqueue.RetryLater(errUnavailable, 0)
}

func TestRetryLater_SpendsNoAttemptAndWaitsLongerEachTime(t *testing.T) {
	require.NoError(t, delayqueue.RetryLater(nil, time.Second))
	each(t, func(t *testing.T, b *bench) {
		seen, calls := newEvents(), atomic.Int64{}
		b.start(func(ctx context.Context, m delayqueue.Message) error {
			assert.Equal(t, 1, m.Attempt)
			if calls.Add(1) > 4 {
				return nil
			}
			return fmt.Errorf("ship: %w", unavailable(ctx, m))
		}, delayqueue.WithObserver(seen), delayqueue.WithRetryBackoff(50*time.Millisecond, time.Minute))
		id := b.enqueue(delayqueue.Job{Key: "k"})
		for n := range 4 {
			e := next(t, seen.settled)
			require.Equal(t, delayqueue.OutcomeRetry, e.Outcome)
			require.ErrorIs(t, e.Err, errUnavailable)
			most := 50 * time.Millisecond << n
			require.InDelta(t, most, e.Delay, float64(most)/5+1)
			if n == 3 {
				s := b.status(id)
				require.Equal(t, [3]any{delayqueue.StateQueued, 0, 0}, [3]any{s.State, s.Attempts, s.Losses})
				require.Equal(t, "ship: the dependency answers 503", s.Cause)
			}
		}
		require.Equal(t, 1, b.reaches(id, delayqueue.StateDone).Attempts)
	}, delayqueue.WithMaxAttempts(1))
}

func TestRetryLater_IsHonoredAndEndsWhatWouldBeTooOld(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		started := make(chan time.Time, 10)
		b.start(func(ctx context.Context, m delayqueue.Message) error {
			if m.Name == "soon" && len(started) == 1 {
				started <- time.Now()
				return nil
			}
			started <- time.Now()
			after := 400 * time.Millisecond
			if m.Name == "too late" {
				after = time.Hour
			}
			assert.NoError(t, delayqueue.SetResult(ctx, []byte("try in "+after.String())))
			return delayqueue.RetryLater(errUnavailable, after)
		})
		b.reaches(b.enqueue(delayqueue.Job{Key: "k", Name: "soon"}), delayqueue.StateDone)
		require.GreaterOrEqual(t, -(<-started).Sub(<-started), 395*time.Millisecond)

		id := b.enqueue(delayqueue.Job{Key: "k", Name: "too late", MaxAge: 30 * time.Second})
		s := b.reaches(id, delayqueue.StateDead)
		require.Equal(t, [2]any{1, "the dependency answers 503"}, [2]any{s.Attempts, s.Cause})
		result, err := b.queue.Result(t.Context(), id)
		require.NoError(t, err)
		require.Equal(t, "try in 1h0m0s", string(result))
	})
}

func TestRetryLater_LeavesTheKeyToFreshCallsAndKeepsTheOrder(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		guard, payload := b.other.Guard(delayqueue.Policy(b.queue)), "first"
		park := func() error {
			return guard.Do(t.Context(), core.Call{Key: "k", Encode: func() ([]byte, error) { return []byte(payload), nil }},
				func(context.Context) error { return nil })
		}
		lease := b.hold("k")
		require.ErrorIs(t, park(), core.ErrDeferred)
		payload = "second"
		require.ErrorIs(t, park(), core.ErrDeferred)
		refused, ran := make(chan struct{}, 10), make(chan string, 10)
		var back atomic.Bool
		b.start(func(ctx context.Context, m delayqueue.Message) error {
			if !back.Load() {
				refused <- struct{}{}
				return unavailable(ctx, m)
			}
			ran <- string(m.Payload)
			return nil
		}, delayqueue.WithRetryBackoff(time.Second, time.Second))
		require.NoError(t, lease.Release(t.Context()))
		next(t, refused)
		redistest.Eventually(t, func() bool { return park() == nil }, "a fresh call runs")
		back.Store(true)
		require.Equal(t, [2]string{"first", "second"}, [2]string{next(t, ran), next(t, ran)})
	})
}

func TestRetryLater_LostLeaseIsAnAttemptAllTheSame(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		b.start(func(ctx context.Context, m delayqueue.Message) error {
			assert.NoError(t, b.rdb.Del(ctx, b.env.Prefix+":lock{}:k").Err())
			lease, _ := core.LeaseFrom(ctx)
			assert.ErrorIs(t, lease.Extend(ctx, time.Second), core.ErrLeaseLost)
			return unavailable(ctx, m)
		})
		s := b.reaches(b.enqueue(delayqueue.Job{Key: "k"}), delayqueue.StateDead)
		require.Equal(t, [2]int{2, 2}, [2]int{s.Attempts, s.Losses})
	}, delayqueue.WithMaxAttempts(2))
}

func TestDeadLetter_KeepsTheLastResultIfItIsShort(t *testing.T) {
	ring := delayqueue.Keyring{Current: "a", Keys: map[string][]byte{"a": bytes.Repeat([]byte{7}, 32)}}
	for name, opts := range map[string][]delayqueue.Option{"plain": nil, "sealed": {delayqueue.WithEncryption(ring)}} {
		t.Run(name, func(t *testing.T) {
			each(t, func(t *testing.T, b *bench) {
				fails := atomic.Bool{}
				fails.Store(true)
				b.start(func(ctx context.Context, m delayqueue.Message) error {
					if !fails.Load() {
						return nil
					}
					assert.NoError(t, delayqueue.SetResult(ctx, m.Payload))
					return delayqueue.SkipRetry(errUnavailable)
				})
				long := b.enqueue(delayqueue.Job{Payload: bytes.Repeat([]byte("x"), 4<<10+1)})
				b.reaches(long, delayqueue.StateDead)
				_, err := b.queue.Result(t.Context(), long)
				require.ErrorIs(t, err, delayqueue.ErrNotFound)

				payload := bytes.Repeat([]byte(" 1 2\n"), 819)
				id := b.enqueue(delayqueue.Job{Key: "k", Name: "n", Principal: "p", Payload: payload})
				require.Equal(t, errUnavailable.Error(), b.reaches(id, delayqueue.StateDead).Cause)
				result, err := b.queue.Result(t.Context(), id)
				require.NoError(t, err)
				require.Equal(t, string(payload), string(result))
				entry, err := b.queue.Peek(t.Context(), id)
				require.NoError(t, err)
				require.GreaterOrEqual(t, entry.ResultSize, int64(len(payload)))
				require.Equal(t, [2]string{"p", errUnavailable.Error()}, [2]string{entry.Principal, entry.Cause})

				require.NoError(t, b.queue.Pause(t.Context(), time.Minute))
				require.NoError(t, b.queue.Redrive(t.Context(), id, 0))
				require.Equal(t, errUnavailable.Error(), b.status(id).Cause, "until it has another")
				_, err = b.queue.Result(t.Context(), id)
				require.ErrorIs(t, err, delayqueue.ErrNotFound)
				fails.Store(false)
				require.NoError(t, b.queue.Resume(t.Context()))
				b.reaches(id, delayqueue.StateDone)
			}, opts...)
		})
	}
}
