package delayqueue_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

// save is a call whose payload says which save it is.
func save(key, principal string, n int) core.Call {
	return core.Call{Key: key, Name: "save", Principal: principal, Encode: func() ([]byte, error) { return []byte(strconv.Itoa(n)), nil }}
}

// park has a guard park a call, and returns its ticket.
func park(t *testing.T, guard *core.Guard, call core.Call) string {
	t.Helper()
	err := guard.Do(t.Context(), call, mustNotRun)
	var deferred *core.DeferredError
	if !assert.ErrorAs(t, err, &deferred) {
		return ""
	}
	return deferred.Ticket.ID
}

// burst has many callers park saves 0 to n-1 of a key at once, and returns their tickets.
func burst(t *testing.T, guard *core.Guard, n int, key string) []string {
	t.Helper()
	ids := make([]string, n)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() { ids[i] = park(t, guard, save(key, "u", i)) })
	}
	all.Wait()
	return ids
}

// history is what the queue says of tickets, by their ids.
func (b *bench) history(ids []string) map[string]delayqueue.Status {
	b.t.Helper()
	all := map[string]delayqueue.Status{}
	for _, id := range ids {
		all[id] = b.status(id)
	}
	return all
}

// A burst of 200 saves parks one, and the newest runs.
func TestCoalesce_ABurstParksOne(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		guard := b.other.Guard(delayqueue.Coalesce(b.queue))
		require.NoError(t, guard.Err())
		lease := b.hold("doc")
		ids := burst(t, guard, 200, "doc")
		last := park(t, guard, save("doc", "u", 200))
		require.Equal(t, [3]int64{1, 0, 0}, b.inState(), "one is parked")
		var r ran
		b.start(r.handle)
		require.NoError(t, lease.Release(t.Context()))
		b.reaches(last, delayqueue.StateDone)
		require.Equal(t, []string{last}, r.ids(), "nothing else ran")
		require.Equal(t, "200", string(r.all()[0].Payload))
		b.requireChains(append(ids, last), r.all())
		s := b.stats()
		require.EqualValues(t, 200, s.Totals.Superseded)
		require.EqualValues(t, 1, s.Totals.Done)
	})
}

// requireChains checks the history of coalesced saves: each ran once, or was replaced by a newer one of
// its key and principal; what was replaced did not run; of each key and principal they ran in the order of
// arrival, and the last accepted ran last.
func (b *bench) requireChains(ids []string, runs []delayqueue.Message) {
	b.t.Helper()
	all := b.history(ids)
	ranAt := map[string]int{}
	last := map[[2]string]delayqueue.Message{}
	for i, m := range runs {
		_, twice := ranAt[m.ID]
		require.False(b.t, twice, "%s ran twice", m.ID)
		ranAt[m.ID] = i
		if before, ok := last[[2]string{m.Key, m.Principal}]; ok {
			require.False(b.t, m.EnqueuedAt.Before(before.EnqueuedAt), "%s ran after %s, which is newer", m.ID, before.ID)
		}
		last[[2]string{m.Key, m.Principal}] = m
	}
	for id, s := range all {
		_, has := ranAt[id]
		switch s.State {
		case delayqueue.StateDone:
			require.True(b.t, has)
			require.Empty(b.t, s.SupersededBy)
		case delayqueue.StateSuperseded:
			require.False(b.t, has, "%s was replaced and ran", id)
			by, known := all[s.SupersededBy]
			require.True(b.t, known, "%s was replaced by %q", id, s.SupersededBy)
			require.Equal(b.t, [3]string{s.Key, s.Name, s.Principal}, [3]string{by.Key, by.Name, by.Principal})
			require.False(b.t, by.EnqueuedAt.Before(s.EnqueuedAt), "%s was replaced by an older one", id)
			require.Zero(b.t, s.Attempts)
			for hops := 0; by.State == delayqueue.StateSuperseded; hops++ { // to one that ran
				require.Less(b.t, hops, len(all))
				by = all[by.SupersededBy]
			}
			require.Equal(b.t, delayqueue.StateDone, by.State)
		default:
			require.Fail(b.t, "a save has another end", "%+v", s)
		}
		if m := last[[2]string{s.Key, s.Principal}]; m.ID != id {
			require.False(b.t, s.EnqueuedAt.After(m.EnqueuedAt), "%s is newer than %s, which ran last", id, m.ID)
		}
	}
}

// 200 saves of ten keys and two principals at once, while workers run them and others hold the keys now and then.
func TestCoalesce_TheLastSaveOfEachRuns(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		guard := b.other.Guard(delayqueue.Coalesce(b.queue))
		var r ran
		for range 3 {
			b.start(func(ctx context.Context, m delayqueue.Message) error {
				time.Sleep(time.Millisecond)
				return r.handle(ctx, m)
			}, delayqueue.WithConcurrency(4))
		}
		var (
			mu     sync.Mutex
			ids    []string
			direct sync.WaitGroup
		)
		for i := range 200 {
			direct.Go(func() {
				key, principal := fmt.Sprint("doc", i%10), fmt.Sprint("u", i/10%2)
				for {
					err := guard.Do(t.Context(), save(key, principal, i), func(context.Context) error {
						time.Sleep(2 * time.Millisecond)
						return nil
					})
					if deferred, ok := errors.AsType[*core.DeferredError](err); ok {
						mu.Lock()
						ids = append(ids, deferred.Ticket.ID)
						mu.Unlock()
						return
					} else if !assert.NoError(t, err) {
						return
					} // it ran, and makes one more
				}
			})
		}
		direct.Wait()
		redistest.Eventually(t, func() bool { return b.inState() == [3]int64{} }, "all is through")
		require.Len(t, ids, 200)
		b.requireChains(ids, r.all())
		require.Less(t, len(r.all()), 160, "some were replaced")
		t.Logf("%d of 200 ran", len(r.all()))
	})
}

// One that runs, or waits for a retry, is not replaced, and neither is one of another principal or name, or
// one that was not enqueued to be.
func TestCoalesce_WhatAHandlerWasGivenIsNeverReplaced(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		job := delayqueue.Job{Key: "k", Name: "save", Principal: "u", Coalesce: true}
		var r ran
		free := make(chan struct{})
		w := b.start(func(ctx context.Context, m delayqueue.Message) error {
			_ = r.handle(ctx, m)
			<-free
			return errors.New("no")
		}, delayqueue.WithRetryBackoff(time.Minute, time.Minute))
		first := b.enqueue(job)
		b.reaches(first, delayqueue.StateRunning)
		second := b.enqueue(job)
		third := b.enqueue(job)
		require.Equal(t, delayqueue.StateRunning, b.status(first).State)
		require.Equal(t, third, b.status(second).SupersededBy)
		free <- struct{}{}
		redistest.Eventually(t, func() bool { return b.stats().Totals.Retried == 1 }, "the first failed")
		fourth := b.enqueue(job)
		require.Equal(t, delayqueue.StateQueued, b.status(first).State, "it waits for its retry")
		require.Equal(t, fourth, b.status(third).SupersededBy)
		for _, other := range []delayqueue.Job{
			{Key: "k", Name: "save", Principal: "v", Coalesce: true},
			{Key: "k", Name: "load", Principal: "u", Coalesce: true},
			{Key: "k", Name: "save", Principal: "u"},
			{Key: "l", Name: "save", Principal: "u", Coalesce: true},
		} {
			b.enqueue(other)
		}
		require.Equal(t, delayqueue.StateQueued, b.status(fourth).State)
		close(free)
		require.NoError(t, w.Stop(t.Context()))
	})
}

// A job that is enqueued again gets its old ticket, also when it was replaced, and replaces nothing.
func TestCoalesce_AnIDIsOneJob(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		one := delayqueue.Job{ID: "one", Key: "k", Payload: []byte("1"), Coalesce: true}
		two := delayqueue.Job{ID: "two", Key: "k", Payload: []byte("2"), Coalesce: true}
		was, err := b.queue.Enqueue(t.Context(), one)
		require.NoError(t, err)
		b.enqueue(two)
		again, err := b.queue.Enqueue(t.Context(), one)
		require.NoError(t, err)
		require.Equal(t, was.Ticket, again.Ticket)
		require.False(t, again.Stored)
		b.enqueue(two)
		require.Equal(t, "two", b.status("one").SupersededBy)
		require.Equal(t, delayqueue.StateQueued, b.status("two").State)
		require.ErrorIs(t, b.queue.Cancel(t.Context(), "one"), delayqueue.ErrEnded)
		s, err := b.queue.Wait(t.Context(), "one")
		require.NoError(t, err)
		require.Equal(t, delayqueue.StateSuperseded, s.State)
		_, err = b.queue.Payload(t.Context(), "one")
		require.ErrorIs(t, err, delayqueue.ErrNotFound)
		require.NoError(t, b.queue.Cancel(t.Context(), "two"))
		require.Empty(t, b.rdb.HGetAll(t.Context(), b.key("u")).Val())
	})
}

// A job takes the place in line, and the time, of the one that it replaces, whatever their sizes.
func TestCoalesce_InItsPlaceInLine(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		for _, encrypted := range []bool{false, true} {
			own := *env
			own.Prefix = fmt.Sprint(env.Prefix, encrypted)
			var opts []delayqueue.Option
			if encrypted {
				opts = append(opts, delayqueue.WithEncryption(delayqueue.Keyring{Current: "k", Keys: map[string][]byte{"k": []byte("thirty-two bytes that do not lie")}}))
			}
			b := setup(t, &own, opts...)
			for _, size := range []int{10, 10_000, 10} {
				b.enqueue(delayqueue.Job{ID: fmt.Sprint("save", size, "-", b.stats().Totals.Enqueued), Key: "k", Payload: make([]byte, size), Coalesce: true})
				if b.stats().Totals.Enqueued == 1 {
					b.enqueue(delayqueue.Job{ID: "other", Key: "k"})
				}
			}
			delayed := b.enqueue(delayqueue.Job{Key: "l", Delay: time.Minute, Coalesce: true})
			due := b.list(delayqueue.StateQueued)
			sooner := b.enqueue(delayqueue.Job{ID: "last", Key: "l", Payload: []byte("now"), Coalesce: true})
			require.Equal(t, sooner, b.status(delayed).SupersededBy)
			require.Equal(t, due[len(due)-1].DueAt, b.list(delayqueue.StateQueued)[len(due)-1].DueAt, "it is due when the other one was")
			var r ran
			b.start(r.handle)
			b.reaches("other", delayqueue.StateDone)
			require.Equal(t, []string{"save10-3", "other"}, r.ids())
			require.Len(t, r.all()[0].Payload, 10)
		}
	})
}

func TestDebounce_RunsWhenItIsQuiet(t *testing.T) {
	redistest.InVirtualTime(t, func(t *testing.T, env *redistest.Env) {
		const quiet = time.Second
		b := setup(t, env)
		guard := b.other.Guard(delayqueue.Debounce(b.queue, quiet, time.Minute))
		require.NoError(t, guard.Err())
		var r ran
		b.start(r.handle)
		lease := b.hold("doc")
		ids := burst(t, guard, 50, "doc")
		require.NoError(t, lease.Release(t.Context()))
		var called time.Time
		for i := range 15 { // for longer than the quiet period
			time.Sleep(quiet / 10)
			called = time.Now()
			ids = append(ids, park(t, guard, save("doc", "u", 50+i))) // a fresh call is not run before it
		}
		require.Empty(t, r.all(), "it is not quiet")
		last := ids[len(ids)-1]
		b.reaches(last, delayqueue.StateDone)
		require.Equal(t, []string{last}, r.ids())
		require.GreaterOrEqual(t, time.Since(called), quiet-10*time.Millisecond)
		b.requireChains(ids, r.all())
		require.NoError(t, guard.Do(t.Context(), core.Call{Key: "doc"}, func(context.Context) error { return nil }), "the key is free again")
	})
}

func TestDebounce_IsBounded(t *testing.T) {
	virtually(t, func(t *testing.T, b *bench) {
		var r ran
		b.start(r.handle)
		began := time.Now()
		for i := 0; len(r.all()) == 0; i++ {
			b.enqueue(delayqueue.Job{Key: "k", Payload: []byte(strconv.Itoa(i)), Coalesce: true, QuietPeriod: time.Second, MaxDelay: 2 * time.Second})
			time.Sleep(20 * time.Millisecond)
		}
		require.InDelta(t, 2*time.Second, time.Since(began), float64(100*time.Millisecond))
		require.Greater(t, b.stats().Totals.Superseded, int64(3))
	})
}

func TestDebounce_HoldsUpNobodyParked(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		var r ran
		b.start(r.handle)
		lease := b.hold("k")
		quiet := park(t, b.other.Guard(delayqueue.Debounce(b.queue, time.Minute, time.Minute)), save("k", "u", 1))
		other := park(t, b.other.Guard(delayqueue.Policy(b.queue)), save("k", "v", 2))
		require.NoError(t, lease.Release(t.Context()))
		b.reaches(other, delayqueue.StateDone)
		time.Sleep(50 * time.Millisecond)
		park(t, b.other.Guard(delayqueue.Policy(b.queue)), save("k", "u", 3)) // the key is still reserved
		require.Equal(t, delayqueue.StateQueued, b.status(quiet).State)
		require.NoError(t, b.queue.Cancel(t.Context(), quiet))
		redistest.Eventually(t, func() bool {
			return b.other.Do(t.Context(), "k", func(context.Context) error { return nil }) == nil
		}, "the key is free when nothing is quiet")
	})
}

func TestCoalesce_WhatCannotWorkIsRefused(t *testing.T) {
	env := redistest.Embedded(t)
	b := setup(t, env)
	for _, job := range []delayqueue.Job{
		{Coalesce: true},
		{Key: "k", QuietPeriod: time.Second, MaxDelay: time.Second},
		{Key: "k", Coalesce: true, QuietPeriod: time.Second},
		{Key: "k", Coalesce: true, MaxDelay: time.Second},
		{Key: "k", Coalesce: true, QuietPeriod: 2 * time.Second, MaxDelay: time.Second},
		{Key: "k", Coalesce: true, QuietPeriod: time.Second, MaxDelay: time.Second, Delay: time.Second},
		{Key: "k", Coalesce: true, QuietPeriod: time.Second, MaxDelay: time.Hour},
		{Key: "k", Coalesce: true, QuietPeriod: -time.Second, MaxDelay: time.Second},
	} {
		_, err := b.queue.Enqueue(t.Context(), job)
		require.ErrorIs(t, err, delayqueue.ErrInvalidJob, "%+v", job)
	}
	for _, p := range []core.ConflictPolicy{
		delayqueue.Coalesce(nil), delayqueue.Debounce(nil, time.Second, time.Minute), delayqueue.Debounce(b.queue, 0, time.Minute),
		delayqueue.Debounce(b.queue, time.Minute, time.Second), delayqueue.Debounce(b.queue, time.Minute, time.Hour),
	} {
		require.ErrorIs(t, b.other.Guard(p).Err(), core.ErrInvalidOption)
	}
}
