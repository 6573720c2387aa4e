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

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/internal/test/redistest"
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
				n := of(strconv.Atoi(e.ID[1:]))(t)
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
		due := of(b.rdb.Keys(t.Context(), strings.ReplaceAll(b.env.Prefix, "*", "?")+"*:z").Result())(t)
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
			e := b.peek(id)
			require.Equal(t, b.status(id), e.Status)
			require.Equal(t, state, e.State)
			require.Equal(t, []string{"key of " + id, id, "me"}, []string{e.Key, e.Name, e.Principal})
			peek[id] = e
			if state != "done" {
				listed := b.list(state)
				require.Len(t, listed, 1)
				e.ClaimEnds, listed[0].ClaimEnds = e.ClaimEnds.Truncate(time.Hour), listed[0].ClaimEnds.Truncate(time.Hour)
				require.Equal(t, e, listed[0])
				require.Equal(t, payload, b.payload(id))
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
		require.Equal(t, result, b.result("done"))

		_, err := b.queue.Payload(ctx, "done")
		require.ErrorIs(t, err, delayqueue.ErrNotFound)
		require.ErrorContains(t, err, "done")
		for _, id := range []string{"", "unknown", "a b", strings.Repeat("x", 1000)} {
			require.ErrorIs(t, errOf(b.queue.Status(ctx, id)), delayqueue.ErrNotFound)
			require.ErrorIs(t, errOf(b.queue.Payload(ctx, id)), delayqueue.ErrNotFound)
			require.ErrorIs(t, errOf(b.queue.Peek(ctx, id)), delayqueue.ErrNotFound)
		}
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

// line reads the whole line of a key, in pages.
func (b *bench) line(key string, limit int) (all []delayqueue.LineEntry) {
	b.t.Helper()
	for cursor := ""; ; {
		page, next, err := b.queue.Line(b.t.Context(), key, cursor, limit)
		require.NoError(b.t, err)
		require.LessOrEqual(b.t, len(page), limit)
		if all = append(all, page...); next == "" {
			return all
		}
		cursor = next
	}
}

func TestLine_IsInOrderWithPositions(t *testing.T) {
	eachKind(t, func(t *testing.T, b *bench) {
		const n = 12
		var want []string
		delayed := b.enqueue(delayqueue.Job{Key: "k", Delay: time.Hour, MaxAge: 2 * time.Hour})
		for i := range n {
			want = append(want, b.enqueue(delayqueue.Job{Key: "k", Name: fmt.Sprint(i), Payload: []byte("123")}))
			for _, other := range []string{"j", "kk", "k~", "K"} { // around it, by their bytes
				b.enqueue(delayqueue.Job{Key: other})
			}
		}
		want = append(want, delayed)
		for _, limit := range []int{1, 7, 13, 1000} {
			line := b.line("k", limit)
			require.Len(t, line, n+1)
			for i, e := range line {
				require.Equal(t, want[i], e.ID)
				require.Equal(t, delayqueue.StateQueued, e.State)
				require.Equal(t, "k", e.Key)
				if i == n {
					require.Zero(t, e.Position, "it is delayed")
					continue
				}
				require.EqualValues(t, i+1, e.Position)
				require.Equal(t, fmt.Sprint(i), e.Name)
			}
		}
		require.Empty(t, b.line("nobody's", 10))

		// The head runs, and the others move up.
		started, goOn := make(chan struct{}, n), make(chan struct{})
		w := b.start(func(_ context.Context, m delayqueue.Message) error {
			if m.Key == "k" {
				started <- struct{}{}
				<-goOn
			}
			return nil
		})
		next(t, started)
		require.Equal(t, delayqueue.StateRunning, b.line("k", 3)[0].State)
		page, cursor, err := b.queue.Line(t.Context(), "k", "", 5)
		require.NoError(t, err)
		require.Len(t, page, 5)
		goOn <- struct{}{}
		next(t, started)
		page, _, err = b.queue.Line(t.Context(), "k", cursor, 5)
		require.NoError(t, err)
		require.Equal(t, want[5], page[0].ID, "nothing is left out or comes twice")
		require.EqualValues(t, 5, page[0].Position, "one has ended")
		close(goOn)
		require.NoError(t, w.Stop(t.Context()))
	})
}

func TestLine_RefusesWhatCannotWork(t *testing.T) {
	b := setup(t, redistest.Embedded(t))
	require.ErrorIs(t, errOf3(b.queue.Line(t.Context(), "", "", 10)), core.ErrInvalidKey)
	for _, limit := range []int{0, -1, 1001} {
		require.ErrorIs(t, errOf3(b.queue.Line(t.Context(), "k", "", limit)), delayqueue.ErrInvalidArgument)
	}
	b.enqueue(delayqueue.Job{Key: "k"})
	b.enqueue(delayqueue.Job{Key: "k"})
	_, cursor, err := b.queue.Line(t.Context(), "k", "", 1)
	require.NoError(t, err)
	for _, bad := range []string{"junk", "%", cursor + "x"} {
		require.ErrorIs(t, errOf3(b.queue.Line(t.Context(), "other", bad, 1)), delayqueue.ErrInvalidArgument)
	}
	require.ErrorIs(t, errOf3(b.queue.Line(t.Context(), "other", cursor, 1)), delayqueue.ErrInvalidArgument)
}

func TestCount_IsWhatTheActionWouldChange(t *testing.T) {
	eachKind(t, func(t *testing.T, b *bench) {
		ctx := t.Context()
		ids := b.enqueueAll(40, func(i int) delayqueue.Job { return delayqueue.Job{Key: fmt.Sprint(i % 5), Name: fmt.Sprint("n", i%2)} })
		b.work(func(context.Context, delayqueue.Message) error { return delayqueue.SkipRetry(fmt.Errorf("no")) }, delayqueue.StateDead, ids...)
		b.enqueueAll(60, func(i int) delayqueue.Job {
			return delayqueue.Job{Key: fmt.Sprint(i % 5), Name: fmt.Sprint("n", i%2), Principal: []string{"p", "q", "q"}[i%3]}
		})
		count := func(state delayqueue.State, f delayqueue.Filter) int64 {
			t.Helper()
			n, exact, err := b.queue.Count(ctx, state, f)
			require.NoError(t, err)
			require.True(t, exact)
			return n
		}
		require.EqualValues(t, 60, count(delayqueue.StateQueued, delayqueue.Filter{}))
		require.EqualValues(t, 12, count(delayqueue.StateQueued, delayqueue.Filter{Key: "3"}))
		require.EqualValues(t, 30, count(delayqueue.StateQueued, delayqueue.Filter{Name: "n1"}))
		require.EqualValues(t, 0, count(delayqueue.StateRunning, delayqueue.Filter{}))
		require.EqualValues(t, 40, count(delayqueue.StateDead, delayqueue.Filter{Cause: "no"}))
		require.EqualValues(t, 0, count(delayqueue.StateDead, delayqueue.Filter{DiedFrom: time.Now().Add(time.Hour)}))

		f := delayqueue.Filter{Key: "2", Principal: "q"}
		want := count(delayqueue.StateQueued, f)
		require.EqualValues(t, 8, want)
		require.EqualValues(t, want, b.cancelAll(f))
		f = delayqueue.Filter{Name: "n0"}
		want = count(delayqueue.StateDead, f)
		require.EqualValues(t, want, b.purgeAll(f))

		require.ErrorIs(t, errOf3(b.queue.Count(ctx, delayqueue.StateDone, delayqueue.Filter{})), delayqueue.ErrInvalidArgument)
		require.ErrorIs(t, errOf3(b.queue.Count(ctx, delayqueue.StateQueued, delayqueue.Filter{DiedFrom: time.Now()})), delayqueue.ErrInvalidArgument)
		gone, cancel := context.WithCancel(ctx)
		cancel()
		_, exact, err := b.queue.Count(gone, delayqueue.StateQueued, delayqueue.Filter{})
		require.ErrorIs(t, err, context.Canceled)
		require.False(t, exact)
	})
}

// Of a large queue it looks at a bounded part: at whole pages, of 500.
func TestCount_IsBounded(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		b.queue.SetCountMost(600)
		for _, c := range []struct {
			more, counted int
			exact         bool
		}{{450, 450, true}, {200, 650, true}, {400, 1000, false}} {
			b.enqueueAll(c.more, func(int) delayqueue.Job { return delayqueue.Job{Key: "k"} })
			n, exact, err := b.queue.Count(t.Context(), delayqueue.StateQueued, delayqueue.Filter{Key: "k"})
			require.NoError(t, err)
			require.Equal(t, c.exact, exact)
			require.EqualValues(t, c.counted, n)
		}
	}, delayqueue.WithMaxDepthPerKey(2000))
}
