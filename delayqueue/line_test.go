package delayqueue_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

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
	_, _, err := b.queue.Line(t.Context(), "", "", 10)
	require.ErrorIs(t, err, core.ErrInvalidKey)
	for _, limit := range []int{0, -1, 1001} {
		_, _, err = b.queue.Line(t.Context(), "k", "", limit)
		require.ErrorIs(t, err, delayqueue.ErrInvalidArgument)
	}
	b.enqueue(delayqueue.Job{Key: "k"})
	b.enqueue(delayqueue.Job{Key: "k"})
	_, cursor, err := b.queue.Line(t.Context(), "k", "", 1)
	require.NoError(t, err)
	for _, bad := range []string{"junk", "%", cursor + "x"} {
		_, _, err = b.queue.Line(t.Context(), "other", bad, 1)
		require.ErrorIs(t, err, delayqueue.ErrInvalidArgument)
	}
	_, _, err = b.queue.Line(t.Context(), "other", cursor, 1)
	require.ErrorIs(t, err, delayqueue.ErrInvalidArgument)
}

func TestCount_IsWhatTheActionWouldChange(t *testing.T) {
	eachKind(t, func(t *testing.T, b *bench) {
		ctx := t.Context()
		for i := range 40 {
			b.enqueue(delayqueue.Job{ID: fmt.Sprint("dead", i), Key: fmt.Sprint(i % 5), Name: fmt.Sprint("n", i%2)})
		}
		var ids []string
		for i := range 40 {
			ids = append(ids, fmt.Sprint("dead", i))
		}
		b.work(func(context.Context, delayqueue.Message) error { return delayqueue.SkipRetry(fmt.Errorf("no")) }, delayqueue.StateDead, ids...)
		for i := range 60 {
			b.enqueue(delayqueue.Job{Key: fmt.Sprint(i % 5), Name: fmt.Sprint("n", i%2), Principal: []string{"p", "q", "q"}[i%3]})
		}
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
		n, err := b.queue.CancelAll(ctx, f)
		require.NoError(t, err)
		require.EqualValues(t, want, n)
		f = delayqueue.Filter{Name: "n0"}
		want = count(delayqueue.StateDead, f)
		n, err = b.queue.PurgeAll(ctx, f)
		require.NoError(t, err)
		require.EqualValues(t, want, n)

		_, _, err = b.queue.Count(ctx, delayqueue.StateDone, delayqueue.Filter{})
		require.ErrorIs(t, err, delayqueue.ErrInvalidArgument)
		_, _, err = b.queue.Count(ctx, delayqueue.StateQueued, delayqueue.Filter{DiedFrom: time.Now()})
		require.ErrorIs(t, err, delayqueue.ErrInvalidArgument)
		gone, cancel := context.WithCancel(ctx)
		cancel()
		_, exact, err := b.queue.Count(gone, delayqueue.StateQueued, delayqueue.Filter{})
		require.ErrorIs(t, err, context.Canceled)
		require.False(t, exact)
	})
}

// Of a large queue it looks at a bounded part, and leaves Redis to others meanwhile.
func TestCount_IsBoundedAndPaced(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	b := setup(t, &redistest.Env{Addr: server.Addr, Prefix: "t"}, delayqueue.WithMaxDepth(200_000), delayqueue.WithMaxDepthPerKey(200_000))
	b.queue.SetCountMost(2000)
	fill := func(n int) {
		var wg sync.WaitGroup
		for range 64 {
			wg.Go(func() {
				for range n / 64 {
					_, err := b.queue.Enqueue(t.Context(), delayqueue.Job{Key: "k"})
					require.NoError(t, err)
				}
			})
		}
		wg.Wait()
	}
	fill(1984)
	began, before := time.Now(), commandsOf(t, b.rdb)
	n, exact, err := b.queue.Count(t.Context(), delayqueue.StateQueued, delayqueue.Filter{})
	require.NoError(t, err)
	require.EqualValues(t, 1984, n)
	require.True(t, exact)
	took := time.Since(began)
	t.Logf("1,984 counted in %s with %d commands", took, commandsOf(t, b.rdb)-before)
	fill(640)
	n, exact, err = b.queue.Count(t.Context(), delayqueue.StateQueued, delayqueue.Filter{Key: "k"})
	require.NoError(t, err)
	require.False(t, exact)
	require.InDelta(t, 2250, n, 250)
}

// Of several partitions one has the line of a key, and the messages that somebody waits for.
func TestLine_AndWaitWithPartitions(t *testing.T) {
	virtually(t, func(t *testing.T, b *bench) {
		var ids []string
		for range 5 {
			ids = append(ids, b.enqueue(delayqueue.Job{Key: "k"}))
		}
		first, last := b.wait(b.queue, ids[0]), b.wait(b.queue, ids[4])
		b.told(b.queue, 2)
		for range 5 {
			ids = append(ids, b.enqueue(delayqueue.Job{Key: "k"}))
		}
		for _, limit := range []int{3, 100} {
			line := b.line("k", limit)
			require.Len(t, line, 10)
			for i, e := range line {
				require.Equal(t, ids[i], e.ID)
				require.EqualValues(t, i+1, e.Position)
			}
		}
		began := time.Now()
		b.start((&ran{}).handle)
		for _, ended := range []<-chan ending{first, last, b.wait(b.queue, ids[9])} {
			got := next(t, ended)
			require.NoError(t, got.err)
			require.Equal(t, delayqueue.StateDone, got.status.State)
			require.Less(t, got.at.Sub(began), soonTold)
		}
		require.Empty(t, b.line("k", 100))
	}, delayqueue.WithPartitions(3))
}
