package delayqueue_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

func TestRedrive_ARedrivenDeadLetterRunsAsIfItWereNew(t *testing.T) {
	eachKind(t, func(t *testing.T, b *bench) {
		ctx := t.Context()
		dead := b.bury(delayqueue.Job{Key: "k", Name: "n", Principal: "me", Payload: []byte("work"), MaxAge: time.Minute})[0]
		before := b.status(dead)
		behind := b.enqueue(delayqueue.Job{Key: "k"})
		require.NoError(t, b.queue.Redrive(ctx, dead, 2*time.Hour))
		e := b.peek(dead)
		require.Equal(t, delayqueue.StateQueued, e.State)
		require.Zero(t, e.Attempts)
		require.Equal(t, before.Cause, e.Cause)
		require.Equal(t, before.EnqueuedAt, e.EnqueuedAt)
		require.WithinDuration(t, time.Now().Add(2*time.Hour), e.ExpiresAt, time.Minute)
		require.Equal(t, [3]int64{2, 0, 0}, b.inState())

		err := b.queue.Redrive(ctx, dead, 0)
		require.ErrorIs(t, err, delayqueue.ErrNotDead)
		require.ErrorContains(t, err, "queued")
		require.ErrorIs(t, b.queue.Redrive(ctx, behind, 0), delayqueue.ErrNotDead)
		require.ErrorIs(t, b.queue.Redrive(ctx, "unknown", 0), delayqueue.ErrNotFound)

		var r ran
		b.work(r.handle, delayqueue.StateDone, dead, behind)
		require.Equal(t, []string{behind, dead}, r.ids(), "it goes to the end of its key's line")
		m := r.all()[1]
		require.Equal(t, []any{"k", "n", "me", "work", 1}, []any{m.Key, m.Name, m.Principal, string(m.Payload), m.Attempt})
		require.ErrorIs(t, b.queue.Redrive(ctx, dead, 0), delayqueue.ErrNotDead)
		require.Equal(t, delayqueue.Totals{Enqueued: 2, Died: 1, Redriven: 1, Done: 2}, b.stats().Totals)
	})
}

func TestRedrive_ARedrivenDeadLetterKeepsItsLossesAndMayDieAgain(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		dead := b.bury(delayqueue.Job{ID: "id", Key: "k"})[0]
		require.NoError(t, b.queue.EditRecord("y", "id", func(s string) string { return strings.Replace(s, "1 0 0 ", "1 0 3 ", 1) }))
		require.NoError(t, b.queue.Redrive(t.Context(), dead, 0))
		s := b.status(dead)
		require.Equal(t, []int{0, 3}, []int{s.Attempts, s.Losses})
		require.WithinDuration(t, time.Now().Add(15*time.Minute), s.ExpiresAt, time.Minute, "the queue's max age")
		b.work(func(context.Context, delayqueue.Message) error {
			return delayqueue.SkipRetry(errors.New("something else"))
		}, delayqueue.StateDead, dead)
		require.Equal(t, "something else", b.status(dead).Cause)
		require.NoError(t, b.queue.Redrive(t.Context(), dead, time.Second))
	})
}

func TestRedrive_TheBoundsHoldForWhatIsRedriven(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		ctx := t.Context()
		dead := b.bury(delayqueue.Job{Key: "full"}, delayqueue.Job{Key: "free"}, delayqueue.Job{})
		b.enqueue(delayqueue.Job{Key: "full"})
		err := b.queue.Redrive(ctx, dead[0], 0)
		require.ErrorIs(t, err, delayqueue.ErrKeyFull)
		require.ErrorContains(t, err, "at most 1")

		n, err := b.queue.RedriveAll(ctx, delayqueue.Filter{Key: "full"}, delayqueue.RedriveOptions{})
		require.ErrorIs(t, err, delayqueue.ErrKeyFull)
		require.Zero(t, n)
		n, err = b.queue.RedriveAll(ctx, delayqueue.Filter{}, delayqueue.RedriveOptions{})
		require.ErrorIs(t, err, delayqueue.ErrQueueFull, "after the one with the free key")
		require.Equal(t, 1, n)
		require.ErrorIs(t, b.queue.Redrive(ctx, dead[2], 0), delayqueue.ErrQueueFull)
		require.Equal(t, [3]int64{2, 0, 2}, b.inState())
	}, delayqueue.WithMaxDepthPerKey(1), delayqueue.WithMaxDepth(2))
}

func TestRedrive_WhatIsTooOldGivesWayToWhatIsRedriven(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		dead := b.bury(delayqueue.Job{Key: "k"})[0]
		b.enqueue(delayqueue.Job{Key: "k", MaxAge: 20 * time.Millisecond})
		redistest.Eventually(t, func() bool { return b.queue.Redrive(t.Context(), dead, 0) == nil }, "the key stays full")
	}, delayqueue.WithMaxDepthPerKey(1))
}

func TestRedrive_AFilterChooses(t *testing.T) {
	eachKind(t, func(t *testing.T, b *bench) {
		ctx := t.Context()
		b.bury(
			delayqueue.Job{ID: "0", Key: "a", Name: "ship", Principal: "x"}, delayqueue.Job{ID: "1", Key: "a", Name: "pay", Principal: "y"},
			delayqueue.Job{ID: "2", Key: "b", Name: "ship", Principal: "y"}, delayqueue.Job{ID: "3", Name: "pack", Principal: "z"},
			delayqueue.Job{ID: "4", Key: "c"},
		)
		last := b.peek("4")
		after := delayqueue.Filter{DiedFrom: last.EndedAt.Add(time.Millisecond)}
		for _, c := range []struct {
			filter delayqueue.Filter
			want   []string
		}{
			{delayqueue.Filter{Key: "d"}, nil},
			{delayqueue.Filter{Cause: "No"}, nil},
			{after, nil},
			{delayqueue.Filter{DiedBefore: last.EndedAt.Add(-time.Hour)}, nil},
			{delayqueue.Filter{Name: "ship", Principal: "y"}, []string{"2"}},
			{delayqueue.Filter{Key: "a"}, []string{"0", "1"}},
			{delayqueue.Filter{Cause: `with "pa`}, []string{"3"}},
			{delayqueue.Filter{DiedFrom: last.EndedAt, DiedBefore: last.EndedAt.Add(time.Millisecond)}, []string{"4"}},
		} {
			queued := b.inState()[0]
			n := of(b.queue.RedriveAll(ctx, c.filter, delayqueue.RedriveOptions{}))(t)
			require.Equal(t, len(c.want), n, "%+v", c.filter)
			require.EqualValues(t, n, b.inState()[0]-queued)
			for _, id := range c.want {
				require.Equal(t, delayqueue.StateQueued, b.status(id).State, id)
			}
		}
		require.Equal(t, 1, b.cancelAll(delayqueue.Filter{Key: "a", Principal: "y"}))
		require.Equal(t, delayqueue.StateCancelled, b.status("1").State)
		require.Equal(t, [3]int64{4, 0, 0}, b.inState())
	})
}

func TestRedriveAll_KeepsTheOrderOfEachKey(t *testing.T) {
	eachKind(t, func(t *testing.T, b *bench) {
		dead := b.bury(jobs(12, func(i int) delayqueue.Job { return delayqueue.Job{ID: fmt.Sprintf("%02d", i), Key: "k"} })...)
		for _, limit := range []int{5, 5, 5} {
			b.redriveAll(delayqueue.Filter{}, delayqueue.RedriveOptions{Limit: limit})
		}
		var r ran
		b.work(r.handle, delayqueue.StateDone, dead...)
		require.Equal(t, dead, r.ids())
	})
}

// What dies of the same cause again is not redriven for ever.
func TestRedriveAll_TakesEachDeadLetterOnce(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		const deadLetters = 150
		var runs atomic.Int64
		b.start(func(context.Context, delayqueue.Message) error {
			runs.Add(1)
			return delayqueue.SkipRetry(errors.New("as ever"))
		})
		b.enqueueAll(deadLetters, func(int) delayqueue.Job { return delayqueue.Job{} })
		redistest.Eventually(t, func() bool { return b.inState() == [3]int64{0, 0, deadLetters} }, "they do not die")
		require.Equal(t, deadLetters, b.redriveAll(delayqueue.Filter{}, delayqueue.RedriveOptions{PerSecond: 1000}))
		redistest.Eventually(t, func() bool { return b.inState() == [3]int64{0, 0, deadLetters} }, "they do not die again")
		require.EqualValues(t, 2*deadLetters, runs.Load())
	}, delayqueue.WithPartitions(3))
}

func TestRedriveAll_HasARateThatItsContextEnds(t *testing.T) {
	virtually(t, func(t *testing.T, b *bench) {
		b.bury(jobs(8, func(int) delayqueue.Job { return delayqueue.Job{} })...)
		began := time.Now()
		require.Equal(t, 5, b.redriveAll(delayqueue.Filter{}, delayqueue.RedriveOptions{PerSecond: 20, Limit: 5}))
		require.InDelta(t, 200*time.Millisecond, time.Since(began), float64(50*time.Millisecond))

		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		n, err := b.queue.RedriveAll(ctx, delayqueue.Filter{}, delayqueue.RedriveOptions{PerSecond: 0.001})
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, 1, n)
		require.Equal(t, [3]int64{6, 0, 2}, b.inState(), "what is not redriven stays dead")
	})
}

func TestPurge_APurgedDeadLetterIsForgotten(t *testing.T) {
	eachKind(t, func(t *testing.T, b *bench) {
		ctx := t.Context()
		dead := b.bury(delayqueue.Job{ID: "id", Key: "k", Payload: []byte("secret")})[0]
		queued := b.enqueue(delayqueue.Job{Key: "k"})
		require.ErrorIs(t, b.queue.Purge(ctx, queued), delayqueue.ErrNotDead)
		require.NoError(t, b.queue.Purge(ctx, dead))
		require.ErrorIs(t, b.queue.Purge(ctx, dead), delayqueue.ErrNotFound)
		require.ErrorIs(t, errOf(b.queue.Status(ctx, dead)), delayqueue.ErrNotFound)
		require.Equal(t, [3]int64{1, 0, 0}, b.inState())
		require.Equal(t, dead, b.enqueue(delayqueue.Job{ID: "id", Key: "k"}), "its id is free")
		var r ran
		b.work(r.handle, delayqueue.StateDone, queued, dead)
		require.Equal(t, []string{queued, dead}, r.ids())
	})
}

func TestPurgeAll_GoesThroughMoreThanAPage(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		ctx := t.Context()
		pipe := b.rdb.Pipeline()
		now := time.Now().UnixMilli()
		for i := range 1300 { // of one time, as after an outage
			id := fmt.Sprint(i)
			pipe.ZAdd(ctx, b.key("x"), redisZ(float64(now-1000), id))
			pipe.HSet(ctx, b.key("m"), id, "")
			pipe.HSet(ctx, b.key("y"), id, fmt.Sprintf("x%011x------1 0 0 0 0 0 0 1 0 %d", now-1000, i%2))
		}
		require.NoError(t, errOf(pipe.Exec(ctx)))
		require.Equal(t, 650, b.purgeAll(delayqueue.Filter{Name: "1"}))
		require.Len(t, b.pages(delayqueue.StateDead, 100), 650)
		require.Equal(t, 650, b.purgeAll(delayqueue.Filter{}))
		require.EqualValues(t, 1300, b.stats().Totals.Purged)
		require.Zero(t, b.inState())
	})
}

func TestCancelAll_FindsAKeyBehindMoreThanAPage(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		b.enqueueAll(1100, func(i int) delayqueue.Job { return delayqueue.Job{Key: fmt.Sprint(i % 7)} })
		want := []string{b.enqueue(delayqueue.Job{Key: "k", MaxAge: time.Minute}), b.enqueue(delayqueue.Job{Key: "k", MaxAge: time.Hour})}
		require.Equal(t, 2, b.cancelAll(delayqueue.Filter{Key: "k"}))
		for _, id := range want {
			require.Equal(t, delayqueue.StateCancelled, b.status(id).State)
		}
		require.EqualValues(t, 1100, b.stats().Queued)
		require.Equal(t, 1100, b.cancelAll(delayqueue.Filter{}))
		require.Zero(t, b.inState())
	})
}
