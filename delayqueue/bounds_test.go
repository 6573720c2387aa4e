package delayqueue_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
)

// flood has many callers at once enqueue what job makes until all were refused, and returns what was stored and
// why the last was not.
func (b *bench) flood(job func(i int) delayqueue.Job) (ids []string, refused error) {
	b.t.Helper()
	const callers, each = 16, 40
	var mu sync.Mutex
	var all sync.WaitGroup
	for c := range callers {
		all.Go(func() {
			for i := range each {
				ticket, err := b.queue.Enqueue(b.t.Context(), job(c*each+i))
				mu.Lock()
				if err == nil {
					ids = append(ids, ticket.ID)
				} else if refused == nil || assert.ErrorIs(b.t, err, refused) {
					for _, full := range []error{delayqueue.ErrKeyFull, delayqueue.ErrPrincipalFull, delayqueue.ErrQueueFull} {
						if errors.Is(err, full) {
							refused = full
						}
					}
				}
				mu.Unlock()
			}
		})
	}
	all.Wait()
	return ids, refused
}

// memory is what the queue's keys take in Redis, by Redis itself.
func (b *bench) memory() (n int64) {
	b.t.Helper()
	for _, name := range redistest.Keys(b.t, b.rdb, b.key("")) {
		size := of(b.rdb.MemoryUsage(b.t.Context(), name, 0).Result())(b.t)
		n += size
	}
	return n
}

func bounded(opts ...delayqueue.Option) []delayqueue.Option {
	return append([]delayqueue.Option{
		delayqueue.WithMaxPayload(8 << 10), delayqueue.WithMaxResult(8 << 10), delayqueue.WithMaxBytes(1 << 20),
		delayqueue.WithMaxBytesPerKey(256 << 10), delayqueue.WithMaxBytesPerPrincipal(512 << 10), delayqueue.WithMaxDepthPerKey(1_000_000),
	}, opts...)
}

func TestQueueBounds_EachHasItsErrorAndEndsWithItsMessages(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		for name, c := range map[string]struct {
			job     func(i int) delayqueue.Job
			payload int // in a record, or beside it
			full    error
			bytes   int64
			room    delayqueue.Job // there is some for it
		}{
			"key": {func(int) delayqueue.Job { return delayqueue.Job{Key: "hot"} }, 8 << 10, delayqueue.ErrKeyFull, 256 << 10, delayqueue.Job{Key: "other"}},
			"principal": {
				func(i int) delayqueue.Job { return delayqueue.Job{Key: fmt.Sprint(i), Principal: "mallory"} }, 2500,
				delayqueue.ErrPrincipalFull, 512 << 10,
				delayqueue.Job{Key: "1", Principal: "alice"},
			},
			"queue": {
				func(i int) delayqueue.Job { return delayqueue.Job{Principal: fmt.Sprint(i % 9), Key: fmt.Sprint(i)} }, 8 << 10,
				delayqueue.ErrQueueFull, 1 << 20,
				delayqueue.Job{},
			},
		} {
			own := *env
			own.Prefix += name
			b := setup(t, &own, bounded()...)
			job := func(i int) delayqueue.Job {
				job := c.job(i)
				job.Payload = make([]byte, c.payload)
				return job
			}
			ids, full := b.flood(job)
			require.ErrorIs(t, full, c.full, name)
			require.ErrorIs(t, full, delayqueue.ErrFull)
			stored := b.stats().Bytes
			require.LessOrEqual(t, stored, c.bytes, name)
			require.Greater(t, stored, c.bytes-int64(c.payload*5/4)-2048, "there was room for another one")
			if name != "queue" {
				b.enqueue(c.room)
			}
			require.GreaterOrEqual(t, b.cancelAll(delayqueue.Filter{}), len(ids))
			require.Less(t, b.stats().Bytes, stored/10, "what is cancelled has no payload")
			b.enqueue(job(0))
		}
	})
}

// Counts that were lost, or are junk, begin anew, and are right when the queue was empty.
func TestQueueBounds_CountsThatWereLostAreMadeAnew(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		for name, damage := range map[string]func(ctx context.Context, b *bench) error{
			"lost":     func(ctx context.Context, b *bench) error { return b.rdb.Del(ctx, b.key("c"), b.key("u")).Err() },
			"junk":     func(ctx context.Context, b *bench) error { return b.rdb.HSet(ctx, b.key("c"), "bytes", "many").Err() },
			"negative": func(ctx context.Context, b *bench) error { return b.rdb.HSet(ctx, b.key("c"), "bytes", -5).Err() },
		} {
			own := *env
			own.Prefix += name
			b := setup(t, &own, bounded()...)
			for i := range 60 {
				b.enqueue(delayqueue.Job{ID: strconv.Itoa(i), Key: fmt.Sprint(i), Payload: make([]byte, 5000)})
			}
			was := b.stats().Bytes
			require.NoError(t, damage(t.Context(), b), name)
			b.enqueue(delayqueue.Job{ID: "one-more", Payload: make([]byte, 5000)})
			require.Less(t, b.stats().Bytes, was*11/10, name)
			require.GreaterOrEqual(t, b.stats().Bytes, int64(6250), "%s: what comes from now on is counted", name)
			b.start(func(context.Context, delayqueue.Message) error { return nil })
			redistest.Eventually(t, func() bool { return b.inState() == [3]int64{} }, "all run")
			id := b.enqueue(delayqueue.Job{ID: "the-last", Key: "1"})
			b.reaches(id, delayqueue.StateDone)
			s := b.stats()
			require.Less(t, s.Bytes, int64(62*300), "%s: what is done is remembered: %+v", name, s)
			require.Empty(t, b.rdb.HGetAll(t.Context(), b.key("u")).Val())
		}
	})
}

func TestQueueBounds_ThatTheLargestPayloadExceedsAreAnError(t *testing.T) {
	rdb := redistest.Client(t, &redis.Options{Addr: "127.0.0.1:1"})
	for _, opts := range [][]delayqueue.Option{
		{delayqueue.WithMaxBytes(1 << 20)},
		{delayqueue.WithMaxBytesPerKey(1 << 20)},
		{delayqueue.WithMaxBytesPerPrincipal(1 << 20)},
		{delayqueue.WithMaxPayload(100 << 20), delayqueue.WithMaxBytes(100 << 20)},
		{delayqueue.WithMaxBytes(0)},
		{delayqueue.WithMaxBytesPerKey(-1)},
		{delayqueue.WithMaxBytesPerPrincipal(1 << 41)},
	} {
		require.ErrorContains(t, errOf(delayqueue.New(rdb, "q", opts...)), "WithMaxBytes")
	}
	for _, opts := range [][]delayqueue.Option{
		nil, {delayqueue.WithMaxPayload(512 << 20)}, {delayqueue.WithMaxBytes(2 << 20)}, {delayqueue.WithMaxPayload(10), delayqueue.WithMaxBytes(10_000)},
	} {
		testbed.NewQueue(t, rdb, "q", opts...)
	}
}

func TestRegression_AKeyFullOfExpiredMessagesIsNotFull(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		for i := range 60 {
			b.enqueue(delayqueue.Job{Key: fmt.Sprint("other", i), MaxAge: 500 * time.Millisecond})
		}
		for range 5 {
			b.enqueue(delayqueue.Job{Key: "k", MaxAge: 550 * time.Millisecond})
		}
		time.Sleep(600 * time.Millisecond)
		b.enqueue(delayqueue.Job{Key: "k"})
	}, delayqueue.WithMaxDepthPerKey(5))
}

// Dead letters with large payloads refuse nothing, and leave what is open its whole room.
func TestHistory_LargeDeadLettersRefuseNothing(t *testing.T) {
	var warned watch
	b := setup(t, redistest.Real(t), delayqueue.WithMaxAttempts(1), delayqueue.WithMaxPayload(32<<10), delayqueue.WithMaxBytes(2<<20),
		delayqueue.WithQueueObserver(&warned))
	payload := make([]byte, 32<<10)
	w := b.start(func(context.Context, delayqueue.Message) error { return errors.New("no") }, delayqueue.WithConcurrency(4))
	var ids []string
	for n := int64(1); n <= 3; n++ { // there is room for 50 that are open at once
		ids = append(ids, b.enqueueAll(20, func(i int) delayqueue.Job {
			return delayqueue.Job{Key: fmt.Sprint(i), Principal: fmt.Sprint("p", i), Payload: payload}
		})...)
		redistest.Eventually(t, func() bool { return b.stats().Totals.Died == 20*n }, "all are dead")
	}
	require.NoError(t, w.Stop(t.Context()))
	last := 0
	for _, id := range ids {
		require.Equal(t, delayqueue.StateDead, b.status(id).State)
		if _, err := b.queue.Payload(t.Context(), id); err == nil {
			last++
		}
	}
	t.Logf("%d are kept, counted %d KiB, of Redis %d KiB", last, b.stats().Bytes>>10, b.memory()>>10)
	require.GreaterOrEqual(t, last, 24)
	require.EqualValues(t, last, b.stats().Dead)
	redistest.Eventually(t, func() bool { return len(redistest.Keys(t, b.rdb, b.key("b:"))) == last }, "payloads go with them")
	require.Len(t, warned.warnings(), 1)
	require.Equal(t, delayqueue.WarnForgotten, warned.warnings()[0].Kind)
	b.enqueueAll(48, func(i int) delayqueue.Job { return delayqueue.Job{Payload: payload} })
	require.EqualValues(t, 48, b.stats().Queued)
	require.LessOrEqual(t, b.memory(), int64(3<<20))
}

// What docs/operations.md says of the memory that messages take.
func TestQueue_MemoryOfAMessage(t *testing.T) {
	const messages, done = 500, 150                                            // bytes of each
	for payload, queued := range map[int]int{64: 400, 1024: 400, 16384: 450} { // beside a payload; a long one has a key of its own
		t.Run(fmt.Sprint(payload, " bytes"), func(t *testing.T) {
			t.Parallel()
			b := setup(t, redistest.Real(t), delayqueue.WithMaxDepthPerKey(messages))
			b.enqueueAll(messages, func(n int) delayqueue.Job {
				return delayqueue.Job{Key: fmt.Sprint("order:", n%10), Name: "ship", Payload: bytes.Repeat([]byte("x"), payload)}
			})
			size := b.memory() / messages
			t.Logf("MEMORY USAGE of a message that is queued: %d bytes", size)
			require.LessOrEqual(t, size, int64(queued+payload*5/4)) // the allocator rounds up
			b.start((&ran{}).handle)
			redistest.Eventually(t, func() bool { return b.stats().Totals.Done == messages }, "all run")
			size = b.memory() / messages
			t.Logf("MEMORY USAGE of a message that is done: %d bytes", size)
			most := int64(done)
			if !strings.Contains(b.rdb.Info(t.Context(), "memory").Val(), "mem_allocator:jemalloc") {
				most += 10 // libc's allocator rounds up further
			}
			require.LessOrEqual(t, size, most)
		})
	}
}

// What ended is remembered for as long as it has to be, and not much longer.
func TestQueue_WhatEndedIsForgotten(t *testing.T) {
	const retention = time.Minute
	virtually(t, func(t *testing.T, b *bench) {
		b.start(func(ctx context.Context, _ delayqueue.Message) error {
			return delayqueue.SetResult(ctx, []byte("result"))
		}, delayqueue.WithClaimLease(retention/3))
		began, ids := time.Now(), map[string]time.Time{}
		for time.Since(began) < 3*retention {
			before, id := time.Now(), b.enqueue(delayqueue.Job{})
			require.Equal(t, delayqueue.StateDone, b.waitFor(id).State)
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
			time.Sleep(retention / 5)
		}
		time.Sleep(3 * retention)
		for i := range 4 {
			require.Zero(t, b.rdb.Exists(t.Context(), b.key(fmt.Sprint("s", i)), b.key(fmt.Sprint("n", i)), b.key(fmt.Sprint("d", i))).Val(), "nothing is remembered")
		}
	}, delayqueue.WithRetention(retention))
}
