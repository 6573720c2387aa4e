package delayqueue_test

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

// What docs/operations.md says of the memory that done messages take.
func TestQueue_ADoneMessageKeepsItsRecord(t *testing.T) {
	// A field of more than 64 bytes makes a hash of Redis a table for good (hash-max-listpack-value).
	for payload, most := range map[int]int64{64: 650, 1024: 1050} {
		t.Run(fmt.Sprint(payload, " bytes"), func(t *testing.T) {
			t.Parallel()
			b := setup(t, redistest.Real(t))
			const messages = 100
			var ids []string
			for n := range messages {
				ids = append(ids, b.enqueue(delayqueue.Job{
					Key: fmt.Sprint("order:", n%10), Name: "POST /orders/:id/ship", Payload: bytes.Repeat([]byte("x"), payload),
				}))
			}
			b.start(func(context.Context, delayqueue.Message) error { return nil })
			var sizes []int64
			for _, id := range ids {
				b.reaches(id, delayqueue.StateDone)
				size, err := b.rdb.MemoryUsage(t.Context(), b.key("message:"+id), 0).Result()
				require.NoError(t, err)
				sizes = append(sizes, size)
				left := b.rdb.PTTL(t.Context(), b.key("message:"+id)).Val()
				require.Greater(t, left, 74*time.Minute, "the age of 15 min that it might have reached, and the retention of an hour")
				require.LessOrEqual(t, left, 75*time.Minute)
			}
			slices.Sort(sizes)
			t.Logf("MEMORY USAGE of a message that is done: %d to %d bytes", sizes[0], sizes[messages-1])
			require.Less(t, sizes[messages-1], most)
		})
	}
}
