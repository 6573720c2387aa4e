package delayqueue_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

// A delayed message joins its key's FIFO when it is due: behind what waits there then.
func TestOrder_ADelayedMessageJoinsBehindThoseThatWait(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		var r ran
		started, block := make(chan struct{}), make(chan struct{})
		b.start(func(ctx context.Context, m delayqueue.Message) error {
			if m.Name == "first" {
				close(started)
				<-block
			}
			return r.handle(ctx, m)
		})
		first := b.enqueue(delayqueue.Job{Key: "k", Name: "first"})
		next(t, started)
		late := b.enqueue(delayqueue.Job{Key: "k", Delay: 500 * time.Millisecond})
		before := b.enqueue(delayqueue.Job{Key: "k"})
		redistest.Eventually(t, func() bool {
			return b.rdb.ZCount(t.Context(), b.key("z"), "-inf", "+inf").Val() == 0
		}, "it has joined")
		after := b.enqueue(delayqueue.Job{Key: "k"})
		close(block)
		b.reaches(after, delayqueue.StateDone)
		require.Equal(t, []string{first, before, late, after}, r.ids())
	})
}

func TestOrder_TheKeyIsFreeWhenTheNextMessageOfItComes(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		ids := []string{}
		for range 50 {
			ids = append(ids, b.enqueue(delayqueue.Job{Key: "k"}))
		}
		var r ran
		for range 2 {
			b.start(r.handle)
		}
		b.reaches(ids[len(ids)-1], delayqueue.StateDone)
		require.Equal(t, ids, r.ids())
		for _, m := range r.all() {
			require.Zero(t, m.Conflicts, "a worker met its own lock")
		}
	})
}
