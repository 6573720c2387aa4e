package delayqueue_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

func TestRetry_AFailedMessageIsTriedAgainAndThenDies(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		ev := newEvents()
		var r ran
		b.start(func(ctx context.Context, m delayqueue.Message) error {
			_ = r.handle(ctx, m)
			if m.Name == "fails" {
				return fmt.Errorf("no luck at attempt %d", m.Attempt)
			}
			return nil
		}, delayqueue.WithObserver(ev))
		id, after := b.enqueue(delayqueue.Job{Key: "k", Name: "fails"}), b.enqueue(delayqueue.Job{Key: "k"})
		s := b.reaches(id, delayqueue.StateDead)
		require.Equal(t, []any{3, 0, 0, "no luck at attempt 3"}, []any{s.Attempts, s.Conflicts, s.Losses, s.Cause})
		b.reaches(after, delayqueue.StateDone)
		require.Equal(t, []string{id, id, id, after}, r.ids(), "a failed message keeps its place")
		var outcomes []delayqueue.Outcome // told after the fact: the next attempt may be over first
		for range 4 {
			outcomes = append(outcomes, next(t, ev.settled).Outcome)
		}
		require.ElementsMatch(t, []delayqueue.Outcome{"retry", "retry", "dead", "done"}, outcomes)
	}, delayqueue.WithMaxAttempts(3))
}

// exits is an error whose text ends its goroutine, as a test's require does.
type exits struct{}

func (exits) Error() string { runtime.Goexit(); return "" }

// picky is an error whose text cannot be had if it is nil.
type picky struct{ why string }

func (p *picky) Error() string { return p.why }

// A handler that panics or exits has failed, and so has one whose error does when it is looked at: the key is free, and the Worker goes on.
func TestRetry_APanicIsAFailedAttempt(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		b.start(func(_ context.Context, m delayqueue.Message) error {
			switch m.Name {
			case "panics":
				panic("boom")
			case "shouts":
				panic(strings.Repeat("ü\xff", 10_000))
			case "exits":
				runtime.Goexit()
			case "fails":
				return fmt.Errorf("wrapped: %w", exits{})
			case "hands back":
				return delayqueue.HandBack(exits{})
			case "is nil":
				return (*picky)(nil)
			}
			return nil
		}, delayqueue.WithConcurrency(2))
		causes := map[string]string{
			"panics": "panic: boom", "shouts": "panic: ü", "exits": "Goexit",
			"fails": "Goexit", "hands back": "Goexit", "is nil": "panic: runtime error: invalid memory address",
		}
		var bad, good []string
		for name := range causes {
			key := []string{"k", "l", ""}[len(bad)%3]
			bad, good = append(bad, b.enqueue(delayqueue.Job{Key: key, Name: name})), append(good, b.enqueue(delayqueue.Job{Key: key, Name: "fine"}))
		}
		for i := range bad {
			s := b.reaches(bad[i], delayqueue.StateDead)
			require.Equal(t, []int{2, 0}, []int{s.Attempts, s.Losses})
			require.Contains(t, s.Cause, causes[s.Name])
			require.LessOrEqual(t, len(s.Cause), 4<<10, "the cause is bounded")
			if s.Name == "panics" {
				require.Contains(t, s.Cause, "retry_test.go", "the cause has the stack")
			}
			b.reaches(good[i], delayqueue.StateDone)
		}
		require.Empty(t, b.rdb.Keys(t.Context(), b.env.Prefix+":lock*").Val(), "the keys are free")
	}, delayqueue.WithMaxAttempts(2))
}

func TestRetry_AnAttemptThatLostItsLeaseIsCountedAsLost(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		b.start(func(ctx context.Context, m delayqueue.Message) error {
			if m.Name == "once" && m.Attempt > 1 {
				return nil
			}
			// Somebody takes the key away.
			require.NoError(t, b.rdb.Del(ctx, b.env.Prefix+":lock{}:"+m.Key).Err())
			lease, _ := core.LeaseFrom(ctx)
			require.ErrorIs(t, lease.Extend(ctx, time.Second), core.ErrLeaseLost)
			<-ctx.Done()
			require.ErrorIs(t, context.Cause(ctx), core.ErrLeaseLost)
			if m.Name == "later" {
				return unavailable(ctx, m) // which spends no attempt otherwise
			}
			return nil // in vain: what it did may have overlapped
		})
		s := b.reaches(b.enqueue(delayqueue.Job{Key: "k", Name: "once"}), delayqueue.StateDone)
		require.Equal(t, []int{2, 1}, []int{s.Attempts, s.Losses})
		require.Contains(t, s.Cause, "lease lost")
		s = b.reaches(b.enqueue(delayqueue.Job{Key: "l", Name: "later"}), delayqueue.StateDead)
		require.Equal(t, []int{2, 2}, []int{s.Attempts, s.Losses})
	}, delayqueue.WithMaxAttempts(2))
}

func TestRetry_AMessageExpiresWhileItWaitsForItsKey(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		b.hold("k")
		ev := newEvents()
		b.start((&ran{}).handle, delayqueue.WithObserver(ev))
		require.Zero(t, b.reaches(b.enqueue(delayqueue.Job{Key: "k", MaxAge: 100 * time.Millisecond}), delayqueue.StateExpired).Attempts)
		redistest.Eventually(t, func() bool { return next(t, ev.reaped).Expired == 1 }, "it is told")
	})
}

var errUnavailable = errors.New("the dependency answers 503")

func unavailable(context.Context, delayqueue.Message) error {
	return delayqueue.RetryLater(errUnavailable, 0)
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
		require.Equal(t, "try in 1h0m0s", b.result(id))
	})
}

func TestDeadLetter_KeepsTheLastResultIfItIsShort(t *testing.T) {
	for name, opts := range map[string][]delayqueue.Option{"plain": nil, "sealed": {delayqueue.WithEncryption(keyring)}} {
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
				require.ErrorIs(t, errOf(b.queue.Result(t.Context(), long)), delayqueue.ErrNotFound)

				payload := bytes.Repeat([]byte(" 1 2\n"), 819)
				id := b.enqueue(delayqueue.Job{Key: "k", Name: "n", Principal: "p", Payload: payload})
				require.Equal(t, errUnavailable.Error(), b.reaches(id, delayqueue.StateDead).Cause)
				require.Equal(t, string(payload), b.result(id))
				entry := b.peek(id)
				require.GreaterOrEqual(t, entry.ResultSize, int64(len(payload)))
				require.Equal(t, [2]string{"p", errUnavailable.Error()}, [2]string{entry.Principal, entry.Cause})

				require.NoError(t, b.queue.Pause(t.Context(), time.Minute))
				require.NoError(t, b.queue.Redrive(t.Context(), id, 0))
				require.Equal(t, errUnavailable.Error(), b.status(id).Cause, "until it has another")
				require.ErrorIs(t, errOf(b.queue.Result(t.Context(), id)), delayqueue.ErrNotFound)
				fails.Store(false)
				require.NoError(t, b.queue.Resume(t.Context()))
				b.reaches(id, delayqueue.StateDone)
			}, opts...)
		})
	}
}

var errNotHere = errors.New("of a newer release")

func handsBack(context.Context, delayqueue.Message) error { return delayqueue.HandBack(errNotHere) }

// So does RetryLater, in what a retry waits.
func TestHandBack_SpendsNothingAndWaitsTwiceAsLongEachTime(t *testing.T) {
	t.Parallel()
	require.NoError(t, errors.Join(delayqueue.RetryLater(nil, time.Second), delayqueue.SkipRetry(nil)))
	for name, c := range map[string]struct {
		err     error
		is      error
		becomes delayqueue.Outcome
		first   time.Duration
	}{
		"handed back": {delayqueue.HandBack(errNotHere), errNotHere, delayqueue.OutcomeReturned, time.Second},
		"later":       {delayqueue.RetryLater(errUnavailable, 0), errUnavailable, delayqueue.OutcomeRetry, 50 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			each(t, func(t *testing.T, b *bench) {
				calls, seen := atomic.Int64{}, newEvents()
				b.start(func(_ context.Context, m delayqueue.Message) error {
					assert.Equal(t, 1, m.Attempt)
					if calls.Add(1) > 3 {
						return nil
					}
					return fmt.Errorf("ship: %w", c.err)
				}, delayqueue.WithObserver(seen), delayqueue.WithRetryBackoff(50*time.Millisecond, time.Minute))
				id := b.enqueue(delayqueue.Job{Key: "k"})
				for n := range 3 {
					e := next(t, seen.settled)
					require.Equal(t, c.becomes, e.Outcome)
					require.ErrorIs(t, e.Err, c.is)
					require.InDelta(t, c.first<<n, e.Delay, float64(c.first<<n)/5+1)
					if n == 2 && name == "handed back" { // it waits for seconds
						s := b.status(id)
						require.Equal(t, [4]any{delayqueue.StateQueued, 0, 0, 0}, [4]any{s.State, s.Attempts, s.Conflicts, s.Losses})
					}
				}
				s := b.reaches(id, delayqueue.StateDone)
				require.Equal(t, [4]any{1, 0, 0, "ship: " + c.is.Error()}, [4]any{s.Attempts, s.Conflicts, s.Losses, s.Cause})
			}, delayqueue.WithMaxAttempts(1))
		})
	}
}

func TestHandBack_EndsAsExpired(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		b.start(handsBack)
		b.reaches(b.enqueue(delayqueue.Job{Key: "k"}), delayqueue.StateExpired)
	}, delayqueue.WithMaxAge(2*time.Second), delayqueue.WithMaxAttempts(1))
}
