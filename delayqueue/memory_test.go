package delayqueue_test

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

// What docs/operations.md says of the memory that messages take.
func TestQueue_MemoryOfAMessage(t *testing.T) {
	const messages, done = 500, 150                                            // bytes of each
	for payload, queued := range map[int]int{64: 400, 1024: 400, 16384: 450} { // beside a payload; a long one has a key of its own
		t.Run(fmt.Sprint(payload, " bytes"), func(t *testing.T) {
			t.Parallel()
			b := setup(t, redistest.Real(t), delayqueue.WithMaxDepthPerKey(messages))
			used := func() (bytes int64) {
				for _, name := range redistest.Keys(t, b.rdb, b.key("")) {
					size, err := b.rdb.MemoryUsage(t.Context(), name, 0).Result()
					require.NoError(t, err)
					bytes += size
				}
				return bytes / messages
			}
			for n := range messages {
				b.enqueue(delayqueue.Job{
					Key: fmt.Sprint("order:", n%10), Name: "ship", Payload: bytes.Repeat([]byte("x"), payload),
				})
			}
			size := used()
			t.Logf("MEMORY USAGE of a message that is queued: %d bytes", size)
			require.LessOrEqual(t, size, int64(queued+payload*5/4)) // the allocator rounds up
			b.start(func(context.Context, delayqueue.Message) error { return nil })
			redistest.Eventually(t, func() bool { return b.stats().Totals.Done == messages }, "all run")
			size = used()
			t.Logf("MEMORY USAGE of a message that is done: %d bytes", size)
			most := int64(done)
			if info, err := b.rdb.Info(t.Context(), "memory").Result(); err != nil || !strings.Contains(info, "mem_allocator:jemalloc") {
				most += 10 // libc's allocator rounds up further
			}
			require.LessOrEqual(t, size, most)
		})
	}
}

// What ended is remembered for as long as it has to be, and not much longer.
func TestQueue_WhatEndedIsForgotten(t *testing.T) {
	const retention = time.Second
	virtually(t, func(t *testing.T, b *bench) {
		b.start(func(ctx context.Context, _ delayqueue.Message) error {
			return delayqueue.SetResult(ctx, []byte("result"))
		}, delayqueue.WithClaimLease(retention/3))
		began := time.Now()
		ids := map[string]time.Time{}
		for len(ids) == 0 || time.Since(began) < 3*retention {
			before := time.Now()
			id := b.enqueue(delayqueue.Job{})
			s, err := b.queue.Wait(t.Context(), id)
			require.NoError(t, err)
			require.Equal(t, delayqueue.StateDone, s.State)
			ids[id] = before // it ends
			for id, ended := range ids {
				_, err := b.queue.Result(t.Context(), id)
				if time.Since(ended) < retention {
					require.NoError(t, err, "%s after it ended", time.Since(ended))
				} else if err != nil {
					require.ErrorIs(t, err, delayqueue.ErrNotFound)
					delete(ids, id)
				}
			}
			time.Sleep(50 * time.Millisecond)
		}
		redistest.Eventually(t, func() bool {
			for i := range 4 {
				if b.rdb.Exists(t.Context(), b.key(fmt.Sprint("s", i)), b.key(fmt.Sprint("n", i)), b.key(fmt.Sprint("d", i))).Val() > 0 {
					return false
				}
			}
			return true
		}, "nothing is remembered")
	}, delayqueue.WithRetention(retention))
}
