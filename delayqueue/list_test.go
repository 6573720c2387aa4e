package delayqueue_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/delayqueue"
)

// pages reads all pages of a list.
func (b *bench) pages(state delayqueue.State, limit int) (all []delayqueue.Entry) {
	b.t.Helper()
	for cursor, n := "", 0; ; n++ {
		require.Less(b.t, n, 1000, "the list has no end")
		entries, next, err := b.queue.List(b.t.Context(), state, cursor, limit)
		require.NoError(b.t, err)
		require.LessOrEqual(b.t, len(entries), limit)
		all = append(all, entries...)
		if next == "" {
			return all
		}
		cursor = next
	}
}

func TestList_EachMessageIsOnOnePage(t *testing.T) {
	eachKind(t, func(t *testing.T, b *bench) {
		want := []string{}
		for i := range 23 {
			want = append(want, b.enqueue(delayqueue.Job{
				ID: fmt.Sprint("m", i), Key: []string{"", "1", "2", "3", "4"}[i%5], MaxAge: time.Hour + time.Duration(i/4)*time.Minute,
			}))
		}
		for _, limit := range []int{1, 3, 22, 23, 24, 1000} {
			got := b.pages(delayqueue.StateQueued, limit)
			require.ElementsMatch(t, want, ids(got), limit)
			last := map[string]int{}
			for _, e := range got {
				n, err := strconv.Atoi(e.ID[1:])
				require.NoError(t, err)
				require.True(t, e.Key == "" || n >= last[e.Key], "those of a key in order of arrival")
				last[e.Key] = n
			}
		}
		// What leaves the list meanwhile takes nobody's place, not even the cursor's own.
		first, cursor, err := b.queue.List(t.Context(), delayqueue.StateQueued, "", 10)
		require.NoError(t, err)
		for _, e := range first {
			require.NoError(t, b.queue.Cancel(t.Context(), e.ID))
		}
		rest, next, err := b.queue.List(t.Context(), delayqueue.StateQueued, cursor, 100)
		require.NoError(t, err)
		require.Empty(t, next)
		require.ElementsMatch(t, want, append(ids(first), ids(rest)...))
	})
}

// Redis orders members of one score by their bytes, which Lua's < need not do.
func TestList_PagesOfOneScore(t *testing.T) {
	eachKind(t, func(t *testing.T, b *bench) {
		want := []string{}
		for _, id := range []string{"a", "B", "_", "ab", "~", "!", "a!", "Z", "z", "9", "-"} {
			want = append(want, b.enqueue(delayqueue.Job{ID: id}), b.enqueue(delayqueue.Job{ID: id + id, Key: "ü " + id}))
		}
		due, err := b.rdb.Keys(t.Context(), strings.ReplaceAll(b.env.Prefix, "*", "?")+"*:z").Result()
		require.NoError(t, err)
		require.NotEmpty(t, due)
		for _, set := range due {
			for _, id := range want {
				require.NoError(t, b.rdb.ZAddXX(t.Context(), set, redisZ(9e15, id+" ")).Err())
			}
		}
		for _, limit := range []int{1, 2, 3, 7, 21, 22, 23} {
			require.ElementsMatch(t, want, ids(b.pages(delayqueue.StateQueued, limit)))
		}
	})
}

// TestList_EntriesTellWhatIsKnown is long since it is one story: a message in each state, and what is known of it.
func TestList_EntriesTellWhatIsKnown(t *testing.T) {
	eachKind(t, func(t *testing.T, b *bench) {
		ctx := t.Context()
		const payload, result = "a secret", "an answer"
		job := func(id string) delayqueue.Job {
			return delayqueue.Job{ID: id, Key: "key of " + id, Name: id, Principal: "me", Payload: []byte(payload)}
		}
		started, block := make(chan struct{}), make(chan struct{})
		defer close(block)
		b.start(func(ctx context.Context, m delayqueue.Message) error {
			switch m.Name {
			case "running":
				close(started)
				<-block
			case "dead":
				return delayqueue.SkipRetry(errors.New("no luck"))
			}
			return delayqueue.SetResult(ctx, []byte(result))
		})
		b.enqueue(job("done"))
		b.enqueue(job("dead"))
		b.enqueue(job("running"))
		queued := job("queued")
		queued.Delay = time.Minute
		b.enqueue(queued)
		next(t, started)
		b.reaches("done", delayqueue.StateDone)
		b.reaches("dead", delayqueue.StateDead)
		now := time.Now()

		peek := map[string]delayqueue.Entry{}
		for _, state := range []delayqueue.State{"queued", "running", "dead", "done"} {
			id := string(state)
			e, err := b.queue.Peek(ctx, id)
			require.NoError(t, err)
			require.Equal(t, b.status(id), e.Status)
			require.Equal(t, state, e.State)
			require.Equal(t, []string{"key of " + id, id, "me"}, []string{e.Key, e.Name, e.Principal})
			peek[id] = e
			if state != "done" {
				listed := b.list(state)
				require.Len(t, listed, 1)
				e.ClaimEnds, listed[0].ClaimEnds = e.ClaimEnds.Truncate(time.Hour), listed[0].ClaimEnds.Truncate(time.Hour)
				require.Equal(t, e, listed[0])
				opened, err := b.queue.Payload(ctx, id)
				require.NoError(t, err)
				require.Equal(t, payload, string(opened))
				require.GreaterOrEqual(t, e.PayloadSize, int64(len(payload)))
			}
			require.NotContains(t, fmt.Sprintf("%+v", e), payload)
			require.NotContains(t, fmt.Sprintf("%+v", e), result)
		}
		require.WithinDuration(t, now.Add(time.Minute), peek["queued"].DueAt, 20*time.Second)
		require.WithinDuration(t, now.Add(30*time.Second), peek["running"].ClaimEnds, 20*time.Second)
		require.WithinDuration(t, now, peek["dead"].EndedAt, 20*time.Second)
		require.WithinDuration(t, now, peek["done"].EndedAt, 20*time.Second)
		require.Equal(t, "no luck", peek["dead"].Cause)
		require.GreaterOrEqual(t, peek["done"].ResultSize, int64(len(result)))
		require.Zero(t, peek["done"].PayloadSize)
		opened, err := b.queue.Result(ctx, "done")
		require.NoError(t, err)
		require.Equal(t, result, string(opened))

		_, err = b.queue.Payload(ctx, "done")
		require.ErrorIs(t, err, delayqueue.ErrNotFound)
		require.ErrorContains(t, err, "done")
		for _, id := range []string{"", "unknown", "a b", strings.Repeat("x", 1000)} {
			_, err = b.queue.Status(ctx, id)
			require.ErrorIs(t, err, delayqueue.ErrNotFound)
			_, err = b.queue.Payload(ctx, id)
			require.ErrorIs(t, err, delayqueue.ErrNotFound)
			_, err = b.queue.Peek(ctx, id)
			require.ErrorIs(t, err, delayqueue.ErrNotFound)
		}
	})
}

func TestList_APayloadThatCannotBeOpenedIsSealed(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		plain, first := b.unencrypted(), b.unencrypted()
		b.queue = b.newQueue(b.rdb, delayqueue.WithEncryption(keyring))
		_, err := b.queue.Stats(t.Context())
		require.NoError(t, err)
		_, err = first.Enqueue(t.Context(), delayqueue.Job{Payload: []byte("plain")})
		require.ErrorIs(t, err, delayqueue.ErrOtherEncryption, "nothing was stored yet, so it asks")
		b.enqueue(delayqueue.Job{})
		ticket, err := plain.Enqueue(t.Context(), delayqueue.Job{Payload: []byte("plain")})
		require.NoError(t, err)
		_, err = b.queue.Payload(t.Context(), ticket.ID)
		require.ErrorIs(t, err, delayqueue.ErrSealed)
	})
}

func TestList_DeadLettersAreListedNewestFirst(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		dead := b.bury(jobs(9, func(i int) delayqueue.Job { return delayqueue.Job{Key: fmt.Sprint(i)} })...)
		for _, limit := range []int{1, 4, 100} {
			got := b.pages(delayqueue.StateDead, limit)
			require.ElementsMatch(t, dead, ids(got))
			for i := 1; i < len(got); i++ {
				require.False(t, got[i].EndedAt.After(got[i-1].EndedAt))
			}
		}
	}, delayqueue.WithPartitions(3))
}
