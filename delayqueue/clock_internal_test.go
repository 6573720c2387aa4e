package delayqueue

import (
	"errors"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/internal/test/redistest"
)

// playPutRight sets the clock of Redis back and puts it right again, also in two steps, beside a message that is young.
func playPutRight(t *testing.T, hooks ...redis.Hook) error {
	t.Helper()
	server := redistest.StartClocked(t)
	rdb := redistest.Client(t, &redis.Options{Addr: server.Addr})
	q, err := New(rdb, "q")
	require.NoError(t, err)
	for _, hook := range hooks {
		rdb.AddHook(hook)
	}
	_, err = q.Enqueue(t.Context(), Job{MaxAge: 20 * time.Minute})
	require.NoError(t, err)
	for _, ahead := range []time.Duration{-time.Hour, 0, -time.Hour, -time.Hour / 2, 0} {
		server.SetClock(t, ahead)
		claimTest(t, q, "none", 0)
	}
	s, err := q.Stats(t.Context())
	require.NoError(t, err)
	if s.ClockBack != 0 {
		return errors.New("ahead by " + s.ClockBack.String())
	} else if len(claimTest(t, q, "token.1", 1)) == 0 {
		return errors.New("expired")
	}
	return nil
}

func TestClock_PutRightMakesNothingOlder(t *testing.T) {
	t.Parallel()
	require.NoError(t, playPutRight(t))
}

// The clock of Redis was set back: what is too old for the queue is so for Status too.
func TestClock_StatusGoesByThePartitions(t *testing.T) {
	t.Parallel()
	server := redistest.StartClocked(t)
	q, err := New(redistest.Client(t, &redis.Options{Addr: server.Addr}), "q")
	require.NoError(t, err)
	enqueueTest(t, q, "first", "")
	server.SetClock(t, -time.Hour)
	_, err = q.Enqueue(t.Context(), Job{ID: "x", MaxAge: time.Millisecond})
	require.NoError(t, err)
	redistest.Eventually(t, func() bool {
		s, err := q.Status(t.Context(), "x")
		return err == nil && s.State == StateExpired
	}, "it is queued for ever")
}
