package delayqueue

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

// Pause, or Stop, comes after a turn decided to go on, and before its settlement.
func TestPause_ASettlementOfAPausedWorkerClaimsNothing(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		q := testQueue(t, env)
		locker, err := core.New(env.Client(t), core.WithPrefix(env.Prefix))
		require.NoError(t, err)
		defer func() { _ = locker.Close() }()
		w, err := NewWorker(q, locker, func(context.Context, Message) error { return nil }, WithLogger(slog.New(slog.DiscardHandler)))
		require.NoError(t, err)
		enqueueTest(t, q, "first", "k")
		enqueueTest(t, q, "behind", "k")
		sent := time.Now()
		taken, err := q.partitions[0].claim(t.Context(), "token", w.lease, 1)
		require.NoError(t, err)
		require.Len(t, taken.messages, 1)
		c := w.claims.add(w.ctx, q.partitions[0], taken.messages[0], "token", sent.Add(w.lease))
		w.Pause()
		followed := w.settle(c, outcome{kind: OutcomeDone, which: nextOfKey})
		require.Nil(t, followed, "claimed all the same")
		s, err := q.Status(t.Context(), "behind")
		require.NoError(t, err)
		require.Equal(t, StateQueued, s.State)
	})
}
