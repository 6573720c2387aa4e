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

// A process that was frozen past the end of its claim goes on before its timers do.
func TestAClaimThatEndedDuringAFreezeStartsNoHandler(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		q := testQueue(t, env)
		locker, err := core.New(env.Client(t), core.WithPrefix(env.Prefix))
		require.NoError(t, err)
		defer func() { _ = locker.Close() }()
		var runs int
		var frozen *claim
		freeze := func() {
			frozen.expiry.Stop()
			frozen.deadline = time.Now().Add(-time.Millisecond)
		}
		w, err := NewWorker(q, locker, func(ctx context.Context, m Message) error {
			runs++
			if m.ID == "frozen inside" {
				freeze()
			}
			if ctx.Err() != nil {
				require.ErrorIs(t, context.Cause(ctx), ErrClaimLost)
			}
			return ctx.Err()
		}, WithLogger(slog.New(slog.DiscardHandler)))
		require.NoError(t, err)
		for _, key := range []string{"", "k"} {
			runs = 0
			for _, id := range []string{"frozen", "frozen inside", "well"} {
				m := Message{ID: id, Key: key, Attempt: 1}
				c := w.claims.add(w.ctx, q.partitions[0], m, "token", time.Now().Add(time.Hour))
				frozen = c
				if id == "frozen" {
					freeze()
				}
				w.process(c)
			}
			require.Equal(t, 2, runs)
		}
	})
}
