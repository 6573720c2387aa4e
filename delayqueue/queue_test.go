package delayqueue_test

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
)

func TestQueue_AMessageIsStoredAndRunOnce(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		payload := []byte("\x00\xff{}\r\n")
		ticket := enqueueOn(t, b.queue, delayqueue.Job{Key: "order {7}:*", Name: "POST /ship", Payload: payload})
		require.Equal(t, "q", ticket.Queue)
		require.Len(t, ticket.ID, 32)
		require.WithinDuration(t, time.Now().Add(15*time.Minute), ticket.ExpiresAt, time.Minute)

		s := b.status(ticket.ID)
		require.Equal(t, delayqueue.StateQueued, s.State)
		require.Equal(t, "POST /ship", s.Name)
		require.Equal(t, ticket.ExpiresAt, s.ExpiresAt)
		require.Equal(t, [3]int64{1, 0, 0}, b.inState())

		var r ran
		b.start(r.handle)
		s = b.reaches(ticket.ID, delayqueue.StateDone)
		require.Equal(t, []int{1, 0, 0}, []int{s.Attempts, s.Conflicts, s.Losses})
		require.Equal(t, []delayqueue.Message{{
			ID: ticket.ID, Key: "order {7}:*", Name: "POST /ship", Payload: payload, Attempt: 1,
			EnqueuedAt: s.EnqueuedAt, ExpiresAt: s.ExpiresAt,
		}}, []delayqueue.Message{r.all()[0]})
		require.Len(t, r.all(), 1)
		require.Zero(t, b.inState())
		require.False(t, b.rdb.HExists(t.Context(), b.key("m"), ticket.ID).Val(), "the payload of a done message is dropped")
	})
}

func TestQueue_AFullQueueTellsWhatIsFull(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		refused := func(key string, is, isNot error, says string) {
			t.Helper()
			_, err := b.queue.Enqueue(t.Context(), delayqueue.Job{Key: key})
			require.ErrorIs(t, err, is)
			require.ErrorContains(t, err, says)
			require.ErrorIs(t, err, delayqueue.ErrFull)
			require.NotErrorIs(t, err, isNot)
			require.NotErrorIs(t, err, core.ErrUnavailable)
		}
		first := b.enqueue(delayqueue.Job{ID: "first", Key: "a"})
		b.enqueue(delayqueue.Job{Key: "a"})
		refused("a", delayqueue.ErrKeyFull, delayqueue.ErrQueueFull,
			"a key has at most 2 messages and 16777216 bytes: try again later, or raise WithMaxDepthPerKey or WithMaxBytesPerKey")
		b.enqueue(delayqueue.Job{})
		b.enqueue(delayqueue.Job{Key: "b"})
		refused("b", delayqueue.ErrQueueFull, delayqueue.ErrKeyFull,
			"a partition has at most 4 messages and 67108864 bytes: try again later, make sure that workers run, or raise")
		require.Equal(t, first, b.enqueue(delayqueue.Job{ID: "first", Key: "a"}), "what is in already is not refused")
	}, delayqueue.WithMaxDepthPerKey(2), delayqueue.WithMaxDepth(4))
}

func TestQueue_BadJobsAreRefusedBeforeRedis(t *testing.T) {
	nowhere := redistest.Client(t, &redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1})
	q := testbed.NewQueue(t, nowhere, "q", delayqueue.WithMaxPayload(10))
	for name, c := range map[string]struct {
		job delayqueue.Job
		err error
	}{
		"payload too large":         {delayqueue.Job{Payload: make([]byte, 11)}, delayqueue.ErrPayloadTooLarge},
		"control byte in key":       {delayqueue.Job{Key: "a\nb"}, core.ErrInvalidKey},
		"oversized key":             {delayqueue.Job{Key: strings.Repeat("k", core.MaxKeyLen+1)}, core.ErrInvalidKey},
		"space in id":               {delayqueue.Job{ID: "a b"}, delayqueue.ErrInvalidJob},
		"oversized id":              {delayqueue.Job{ID: strings.Repeat("i", 129)}, delayqueue.ErrInvalidJob},
		"oversized name":            {delayqueue.Job{Name: strings.Repeat("n", 257)}, delayqueue.ErrInvalidJob},
		"negative delay":            {delayqueue.Job{Delay: -1}, delayqueue.ErrInvalidJob},
		"negative age":              {delayqueue.Job{MaxAge: -1}, delayqueue.ErrInvalidJob},
		"too old before it is due":  {delayqueue.Job{Delay: time.Minute, MaxAge: time.Minute}, delayqueue.ErrInvalidJob},
		"too old in whole ms":       {delayqueue.Job{Delay: 1200 * time.Microsecond, MaxAge: 1900 * time.Microsecond}, delayqueue.ErrInvalidJob},
		"too old, by queue's age":   {delayqueue.Job{Delay: time.Hour}, delayqueue.ErrInvalidJob},
		"too old, by any age":       {delayqueue.Job{Delay: math.MaxInt64}, delayqueue.ErrInvalidJob},
		"good, but redis is away":   {delayqueue.Job{Payload: make([]byte, 10)}, core.ErrUnavailable},
		"age that no clock can add": {delayqueue.Job{MaxAge: 1 << 62}, delayqueue.ErrInvalidJob},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := q.Enqueue(t.Context(), c.job)
			require.ErrorIs(t, err, c.err)
		})
	}
}

// TestQueue_BadOptionsAreRefusedAtConstruction is long since most of it is tables.
func TestQueue_BadOptionsAreRefusedAtConstruction(t *testing.T) {
	rdb := redistest.Client(t, &redis.Options{Addr: "127.0.0.1:1"})
	q := of(delayqueue.New(rdb, "Az09._-"))(t)
	require.Equal(t, "Az09._-", q.Name())
	locker := testbed.NewLocker(t, rdb)
	handler := func(context.Context, delayqueue.Message) error { return nil }

	require.ErrorIs(t, errOf(delayqueue.NewWorker(q, locker, handler, nil)), core.ErrInvalidOption)
	require.ErrorIs(t, errOf(delayqueue.New(nil, "q")), core.ErrInvalidOption)
	require.ErrorIs(t, errOf(delayqueue.New((*redis.Client)(nil), "q")), core.ErrInvalidOption)
	for _, name := range []string{"", "a b", "a{b}", "a:b", "é", strings.Repeat("n", 65)} {
		require.ErrorIs(t, errOf(delayqueue.New(rdb, name)), core.ErrInvalidOption, "name %q", name)
	}
	for name, opt := range map[string]delayqueue.Option{
		"nil":                      nil,
		"empty prefix":             delayqueue.WithPrefix(""),
		"brace in prefix":          delayqueue.WithPrefix("a{b"),
		"no age":                   delayqueue.WithMaxAge(0),
		"negative payload":         delayqueue.WithMaxPayload(-1),
		"no depth":                 delayqueue.WithMaxDepth(0),
		"no depth per key":         delayqueue.WithMaxDepthPerKey(0),
		"no attempts":              delayqueue.WithMaxAttempts(0),
		"short retention":          delayqueue.WithRetention(time.Millisecond),
		"negative retention":       delayqueue.WithDeadRetention(-time.Hour),
		"retention for years":      delayqueue.WithDeadRetention(10 * 366 * 24 * time.Hour),
		"short reservation window": delayqueue.WithReservationWindow(50 * time.Millisecond), // no key can be reserved so
		"long reservation window":  delayqueue.WithReservationWindow(25 * time.Hour),
		"halt below":               delayqueue.WithHaltOnDeath(-1),
		"halt beyond":              delayqueue.WithHaltOnDeath(3),
		"nil observer":             delayqueue.WithQueueObserver(nil),
		"nil pointer as observer":  delayqueue.WithQueueObserver((*watch)(nil)),
	} {
		require.ErrorIs(t, errOf(delayqueue.New(rdb, "q", opt)), core.ErrInvalidOption, name)
	}
	for name, opt := range map[string]delayqueue.WorkerOption{
		"no concurrency":   delayqueue.WithConcurrency(0),
		"short claim":      delayqueue.WithClaimLease(time.Millisecond),
		"endless claim":    delayqueue.WithClaimLease(24 * time.Hour),
		"half a retention": delayqueue.WithClaimLease(30 * time.Minute),
		"no backoff":       delayqueue.WithRetryBackoff(0, time.Second),
		"shrinking":        delayqueue.WithRetryBackoff(time.Minute, time.Second),
		"nil logger":       delayqueue.WithLogger(nil),
		"nil observer":     delayqueue.WithObserver(nil),
		"nil pointer":      delayqueue.WithObserver((*watch)(nil)),
		"nil client":       delayqueue.WithHeartbeatClient((*redis.Client)(nil)),
		"negative backoff": delayqueue.WithRetryBackoff(-1, time.Second),
	} {
		require.ErrorIs(t, errOf(delayqueue.NewWorker(q, locker, handler, opt)), core.ErrInvalidOption, name)
	}
	require.ErrorContains(t, errOf(delayqueue.NewWorker(q, locker, handler, delayqueue.WithClaimLease(30*time.Minute))),
		"WithClaimLease(30m0s): want less than half of the queue's WithRetention, which is 1h0m0s")
	require.NoError(t, errOf(delayqueue.NewWorker(q, locker, handler, delayqueue.WithClaimLease(29*time.Minute))))
	require.ErrorIs(t, errOf(delayqueue.NewWorker(nil, locker, handler)), core.ErrInvalidOption)
	require.ErrorIs(t, errOf(delayqueue.NewWorker(q, nil, handler)), core.ErrInvalidOption)
	require.ErrorIs(t, errOf(delayqueue.NewWorker(q, locker, nil)), core.ErrInvalidOption)
}

func TestQueue_TheCallersOwnContextIsReportedAsSuch(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		why := errors.New("why")
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(why)
		_, enqueued := b.queue.Enqueue(ctx, delayqueue.Job{})
		_, status := b.queue.Status(ctx, "id")
		_, _, list := b.queue.List(ctx, delayqueue.StateDead, "", 1)
		_, peek := b.queue.Peek(ctx, "id")
		_, payload := b.queue.Payload(ctx, "id")
		_, stats := b.queue.Stats(ctx)
		redrive := b.queue.Redrive(ctx, "id", 0)
		_, redriveAll := b.queue.RedriveAll(ctx, delayqueue.Filter{}, delayqueue.RedriveOptions{})
		purge := b.queue.Purge(ctx, "id")
		_, purgeAll := b.queue.PurgeAll(ctx, delayqueue.Filter{})
		_, cancelAll := b.queue.CancelAll(ctx, delayqueue.Filter{})
		pause, resume := b.queue.Pause(ctx, time.Minute), b.queue.Resume(ctx)
		for _, err := range []error{
			enqueued, status, list, peek, payload, stats, redrive, redriveAll, purge, purgeAll, cancelAll, pause, resume,
		} {
			require.ErrorIs(t, err, context.Canceled)
			require.ErrorIs(t, err, why)
			require.NotErrorIs(t, err, core.ErrUnavailable)
		}
	})
}
