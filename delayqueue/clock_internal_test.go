package delayqueue

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/internal/test/redistest"
)

// playPutRight sets the clock of Redis back and puts it right again, also in two steps, beside a message that is young.
func playPutRight(t *testing.T, _ *redistest.Env, hooks ...redis.Hook) error {
	t.Helper()
	server := redistest.StartClocked(t)
	q := hookedQueue(t, &redistest.Env{Addr: server.Addr, Prefix: "p"}, "q", hooks)
	enqueueJob(t, q, Job{MaxAge: 20 * time.Minute})
	for _, ahead := range []time.Duration{-time.Hour, 0, -time.Hour, -time.Hour / 2, 0} {
		server.SetClock(t, ahead)
		claimTest(t, q, "none", 0)
	}
	s := statsTest(t, q)
	if s.ClockBack != 0 {
		return violated("ahead by %s", s.ClockBack)
	} else if len(claimTest(t, q, "token.1", 1)) == 0 {
		return violated("expired")
	}
	return nil
}

func TestClock_PutRightMakesNothingOlder(t *testing.T) {
	t.Parallel()
	require.NoError(t, playPutRight(t, nil))
}

// The clock of Redis was set back: what is too old for the queue is so for Status too.
func TestClock_StatusGoesByThePartitions(t *testing.T) {
	t.Parallel()
	server := redistest.StartClocked(t)
	q := testQueue(t, &redistest.Env{Addr: server.Addr, Prefix: "p"})
	enqueueTest(t, q, "first", "")
	server.SetClock(t, -time.Hour)
	enqueueJob(t, q, Job{ID: "x", MaxAge: time.Millisecond})
	redistest.Eventually(t, func() bool {
		s, err := q.Status(t.Context(), "x")
		return err == nil && s.State == StateExpired
	}, "it is queued for ever")
}

// warnings are what an Observer is warned of.
type warnings struct {
	NopObserver
	mu   sync.Mutex
	told []Warning
}

func (w *warnings) OnWarning(_ context.Context, e Warning) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.told = append(w.told, e)
}

// A warning of what goes on is told once, and that it is over when nothing was found for a minute.
func TestRecurring_IsOverAfterAMinuteWithout(t *testing.T) {
	t.Parallel()
	rdb := redis.NewClient(&redis.Options{})
	t.Cleanup(func() { _ = rdb.Close() })
	synctest.Test(t, func(t *testing.T) {
		var seen warnings
		q := of(New(rdb, "q", WithQueueObserver(&seen)))(t)
		told := func(n int, resolved bool, detail string) {
			t.Helper()
			synctest.Wait()
			seen.mu.Lock()
			defer seen.mu.Unlock()
			require.Len(t, seen.told, n)
			if n > 0 {
				require.Equal(t, resolved, seen.told[n-1].Resolved)
				require.Contains(t, seen.told[n-1].Detail, detail)
			}
		}
		q.reports.noteSetBack(time.Hour)
		told(1, false, "ahead of that clock by 1h0m0s")
		time.Sleep(40 * time.Second)
		q.reports.noteSetBack(2 * time.Hour)
		time.Sleep(59 * time.Second)
		told(1, false, "")
		time.Sleep(2 * time.Second)
		told(2, true, "the clock of redis was not set back again for 1m0s")
		q.reports.noteSetBack(5 * time.Second)
		told(3, false, "by 5s")
		time.Sleep(time.Hour)
		told(4, true, "")
		q.reports.noteForgotten(3, "pay")
		told(5, false, `"pay"`)
	})
}
