package delayqueue_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

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
		id := b.enqueue(delayqueue.Job{Key: "k", Name: "fails", Payload: []byte("work")})
		after := b.enqueue(delayqueue.Job{Key: "k"})

		s := b.reaches(id, delayqueue.StateDead)
		require.Equal(t, []int{3, 0, 0}, []int{s.Attempts, s.Conflicts, s.Losses})
		require.Equal(t, "no luck at attempt 3", s.Cause)
		b.reaches(after, delayqueue.StateDone)
		require.Equal(t, []string{id, id, id, after}, r.ids(), "a failed message keeps its place")

		var outcomes []delayqueue.Outcome // told after the fact: the next attempt may be over first
		for range 4 {
			outcomes = append(outcomes, next(t, ev.settled).Outcome)
		}
		require.ElementsMatch(t, []delayqueue.Outcome{"retry", "retry", "dead", "done"}, outcomes)
		require.Equal(t, [3]int64{0, 0, 1}, b.inState())
	}, delayqueue.WithMaxAttempts(3))
}

func TestRetry_AMessageThatWaitsForItsNextAttemptIsNotWoken(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		ev := newEvents()
		b.start(func(context.Context, delayqueue.Message) error { return errors.New("no") },
			delayqueue.WithObserver(ev), delayqueue.WithRetryBackoff(time.Minute, time.Minute))
		lease := b.hold("k")
		id := b.enqueue(delayqueue.Job{Key: "k"})
		require.Equal(t, delayqueue.OutcomeConflict, next(t, ev.settled).Outcome)
		require.NoError(t, lease.Release(t.Context()))
		for e := next(t, ev.settled); e.Outcome != delayqueue.OutcomeRetry; e = next(t, ev.settled) {
			require.Equal(t, delayqueue.OutcomeConflict, e.Outcome)
		}
		require.NoError(t, b.hold("k").Release(t.Context()))
		b.enqueue(delayqueue.Job{Key: "last"})
		e := next(t, ev.settled)
		for e.Outcome == delayqueue.OutcomeConflict { // told after the fact, perhaps after what came later
			e = next(t, ev.settled)
		}
		require.Equal(t, "last", e.Message.Key)
		require.Equal(t, 1, b.status(id).Attempts)
	}, delayqueue.WithReservationWindow(0))
}

func TestSkipRetry_MakesADeadLetterAtOnce(t *testing.T) {
	require.NoError(t, delayqueue.SkipRetry(nil))
	each(t, func(t *testing.T, b *bench) {
		b.start(func(context.Context, delayqueue.Message) error {
			return fmt.Errorf("handler: %w", delayqueue.SkipRetry(errors.New("bad payload")))
		})
		s := b.reaches(b.enqueue(delayqueue.Job{Key: "k"}), delayqueue.StateDead)
		require.Equal(t, 1, s.Attempts)
		require.Equal(t, "handler: bad payload", s.Cause)
	})
}

// exits is an error whose text ends its goroutine, as a test's require does.
type exits struct{}

func (exits) Error() string { runtime.Goexit(); return "" }

// picky is an error whose text cannot be had if it is nil.
type picky struct{ why string }

func (p *picky) Error() string { return p.why }

// An error may do what it likes when it is looked at: its attempt failed, its key is free, and the Worker goes on.
func TestRetry_AnErrorThatCannotBeReadIsAFailedAttempt(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		b.start(func(_ context.Context, m delayqueue.Message) error {
			switch m.Name {
			case "fine":
				return nil
			case "hands back":
				return delayqueue.HandBack(exits{})
			case "is nil":
				return (*picky)(nil)
			default:
				return fmt.Errorf("wrapped: %w", exits{})
			}
		}, delayqueue.WithConcurrency(2))
		var bad, good []string
		causes := map[string]string{"fails": "Goexit", "hands back": "Goexit", "is nil": "panic: runtime error: invalid memory address"}
		for i := range 9 {
			key := fmt.Sprint(i % 4)
			bad = append(bad, b.enqueue(delayqueue.Job{Key: key, Name: []string{"fails", "hands back", "is nil"}[i%3]}))
			good = append(good, b.enqueue(delayqueue.Job{Key: key, Name: "fine"}))
		}
		for i := range bad {
			s := b.reaches(bad[i], delayqueue.StateDead)
			require.Equal(t, 2, s.Attempts)
			require.Contains(t, s.Cause, causes[s.Name])
			b.reaches(good[i], delayqueue.StateDone)
		}
		require.Empty(t, b.rdb.Keys(t.Context(), b.env.Prefix+":lock*").Val(), "the keys are free")
	}, delayqueue.WithMaxAttempts(2))
}

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
			}
			return nil
		}, delayqueue.WithConcurrency(1))
		panics := b.enqueue(delayqueue.Job{Key: "k", Name: "panics"})
		shouts := b.enqueue(delayqueue.Job{Key: "l", Name: "shouts"})
		exits := b.enqueue(delayqueue.Job{Name: "exits"})
		fine := b.enqueue(delayqueue.Job{Key: "k"})

		s := b.reaches(panics, delayqueue.StateDead)
		require.Equal(t, []int{2, 0}, []int{s.Attempts, s.Losses})
		require.Contains(t, s.Cause, "panic: boom")
		require.Contains(t, s.Cause, "retry_test.go", "the cause has the stack")
		require.LessOrEqual(t, len(b.reaches(shouts, delayqueue.StateDead).Cause), 4<<10, "the cause is bounded")
		s = b.reaches(exits, delayqueue.StateDead)
		require.Equal(t, 2, s.Attempts)
		require.Contains(t, s.Cause, "Goexit")
		b.reaches(fine, delayqueue.StateDone)
		require.Empty(t, b.rdb.Keys(t.Context(), b.env.Prefix+":lock*").Val(), "the keys are free")
	}, delayqueue.WithMaxAttempts(2))
}

func TestRetry_AnAttemptThatLostItsLeaseIsCountedAsLost(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		b.start(func(ctx context.Context, m delayqueue.Message) error {
			if m.Attempt > 1 {
				return nil
			}
			// Somebody takes the key away.
			require.NoError(t, b.rdb.Del(ctx, b.env.Prefix+":lock{}:k").Err())
			lease, _ := core.LeaseFrom(ctx)
			require.ErrorIs(t, lease.Extend(ctx, time.Second), core.ErrLeaseLost)
			<-ctx.Done()
			require.ErrorIs(t, context.Cause(ctx), core.ErrLeaseLost)
			return nil // in vain: what it did may have overlapped
		})
		s := b.reaches(b.enqueue(delayqueue.Job{Key: "k"}), delayqueue.StateDone)
		require.Equal(t, []int{2, 1}, []int{s.Attempts, s.Losses})
		require.Contains(t, s.Cause, "lease lost")
	})
}

func TestRetry_AMessageExpiresWhileItWaitsForItsKey(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		b.hold("k")
		ev := newEvents()
		var r ran
		b.start(r.handle, delayqueue.WithObserver(ev))
		id := b.enqueue(delayqueue.Job{Key: "k", MaxAge: 100 * time.Millisecond})
		s := b.reaches(id, delayqueue.StateExpired)
		require.Zero(t, s.Attempts)
		require.Empty(t, r.ids())
		redistest.Eventually(t, func() bool { return b.rdb.ZCard(t.Context(), b.key("f")).Val() == 0 }, "it keeps its place")
		require.False(t, b.rdb.HExists(t.Context(), b.key("m"), id).Val())
		redistest.Eventually(t, func() bool { return next(t, ev.reaped).Expired == 1 }, "it is told")
	})
}
