package delayqueue_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
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

// checkForeign knows which messages the handlers of these tests run.
func checkForeign(m delayqueue.Message) error {
	if m.Name == "ours" {
		return nil
	}
	return errNotHere
}

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
		require.EqualValues(t, 1, calls.Load(), "the handler is not asked each time")
	}, delayqueue.WithMaxAttempts(1))
}

// The handler is called again for what it handed back: soon, though the key of another message of the name is held, and though others of
// the name come; and once in 30 s, however long it takes.
func TestHandBack_TheHandlerIsAskedAgain(t *testing.T) {
	redistest.InVirtualTime(t, func(t *testing.T, env *redistest.Env) {
		b, began, slow := setup(t, env), time.Now(), atomic.Int64{}
		b.start(func(ctx context.Context, m delayqueue.Message) error {
			if m.Name == "slow" {
				slow.Add(1)
				time.Sleep(3 * time.Second)
				return handsBack(ctx, m)
			}
			if time.Since(began) < 20*time.Second {
				return handsBack(ctx, m)
			}
			return nil
		})
		id := b.enqueue(delayqueue.Job{Key: "k"})
		b.enqueue(delayqueue.Job{Key: "held"})
		time.Sleep(3 * time.Second)
		_, err := b.locker.Acquire(t.Context(), "held")
		require.NoError(t, err)
		for range 10 {
			b.enqueue(delayqueue.Job{Name: "slow"})
		}
		time.Sleep(67 * time.Second)
		require.LessOrEqual(t, slow.Load(), int64(10+3))
		require.Equal(t, delayqueue.StateDone, b.status(id).State)
	})
}

func TestHandBack_EndsAsExpired(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		b.start(handsBack)
		b.reaches(b.enqueue(delayqueue.Job{Key: "k"}), delayqueue.StateExpired)
	}, delayqueue.WithMaxAge(2*time.Second), delayqueue.WithMaxAttempts(1))
}

// The last call of the test waits for nothing: the key is kept for no message that nobody runs, whether the handler says so under its lock or
// a check before it.
func TestHandBack_LeavesTheKeyToFreshCalls(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		for name, opts := range map[string][]delayqueue.WorkerOption{"handler": nil, "check": {delayqueue.WithCheck(checkForeign)}} {
			own := *env
			own.Prefix += name
			b := setup(t, &own)
			guard := b.other.Guard(delayqueue.Policy(b.queue))
			park := func() error {
				return guard.Do(t.Context(), core.Call{Key: "k", Encode: func() ([]byte, error) { return []byte("x"), nil }},
					func(context.Context) error { return nil })
			}
			calls := atomic.Int64{}
			w := b.start(func(ctx context.Context, m delayqueue.Message) error {
				calls.Add(1)
				return handsBack(ctx, m)
			}, opts...)
			b.enqueue(delayqueue.Job{}) // the first of the name, which the check is not asked about
			redistest.Eventually(t, func() bool { return calls.Load() == 1 && b.inState() == [3]int64{1, 0, 0} }, "it is handed back")
			w.Pause()
			time.Sleep(20 * time.Millisecond) // a claim may be under way
			lease := b.hold("k")
			require.ErrorIs(t, park(), core.ErrDeferred)
			require.ErrorIs(t, park(), core.ErrDeferred)
			require.NoError(t, lease.Release(t.Context()))
			require.ErrorIs(t, park(), core.ErrDeferred, "it is reserved until a worker comes by")
			w.Resume()
			redistest.Eventually(t, func() bool {
				info, err := b.other.Inspect(t.Context(), "k")
				require.NoError(t, err)
				return info.Reserved == 0 && len(info.Holders) == 0
			}, "the reservation ends")
			require.NoError(t, park(), "it runs")
			redistest.Eventually(t, func() bool { return b.inState()[0] == 4 }, "all are back")
			require.EqualValues(t, 2-len(opts), calls.Load(), "the check knows those of the key")
		}
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

// A check that ends its goroutine is one that failed: its messages are claimed, and run by a handler that can.
func TestHandBack_ACheckThatEndsItsGoroutineStopsNoFetcher(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		var mended atomic.Bool
		var r ran
		seen := newEvents()
		b.start(func(ctx context.Context, m delayqueue.Message) error {
			if !mended.Load() {
				return handsBack(ctx, m)
			}
			return r.handle(ctx, m)
		}, delayqueue.WithCheck(func(delayqueue.Message) error { runtime.Goexit(); return nil }), delayqueue.WithObserver(seen))
		b.enqueue(delayqueue.Job{Name: "n"})
		require.Equal(t, delayqueue.OutcomeReturned, next(t, seen.settled).Outcome)
		mended.Store(true)
		for i := range 8 {
			b.reaches(b.enqueue(delayqueue.Job{Name: "n", Key: fmt.Sprint(i)}), delayqueue.StateDone)
		}
	})
}
