package delayqueue_test

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

func TestPolicy_ACallThatCannotBeParkedIsRefused(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		policy := delayqueue.Policy(b.queue)
		conflict := func(encode func() ([]byte, error)) (core.Decision, error) {
			return policy.OnConflict(t.Context(), core.Conflict{Call: core.Call{Key: "k", Encode: encode}})
		}

		d, err := conflict(nil)
		require.NoError(t, err)
		require.Equal(t, core.Reject(), d)

		broken := errors.New("broken")
		require.ErrorIs(t, errOf(conflict(func() ([]byte, error) { return nil, broken })), broken)

		work := func() ([]byte, error) { return []byte("work"), nil }
		d, err = conflict(work)
		require.NoError(t, err)
		ticket, ok := d.Ticket()
		require.True(t, ok)
		require.WithinDuration(t, time.Now().Add(15*time.Minute), ticket.ExpiresAt, time.Minute)
		require.ErrorIs(t, errOf(conflict(work)), delayqueue.ErrQueueFull)
	}, delayqueue.WithMaxDepth(1))
}

func TestPolicy_CallsOfOneDeduplicationIDAreOneMessage(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		park := func(call core.Call) string {
			call.Encode = func() ([]byte, error) { return []byte("work"), nil }
			d := of(delayqueue.Policy(b.queue).OnConflict(t.Context(), core.Conflict{Call: call}))(t)
			ticket, _ := d.Ticket()
			require.Equal(t, delayqueue.StateQueued, b.status(ticket.ID).State)
			return ticket.ID
		}
		call, seen := core.Call{Key: "k", DeduplicationID: "d"}, []string{}
		for i := range 12 { // a client cancels it again and again
			id := park(call)
			require.NotContains(t, seen, id)
			if seen = append(seen, id); i < 8 {
				require.Equal(t, id, park(call))
			}
			require.NoError(t, b.queue.Cancel(t.Context(), id))
		}
		for _, other := range []core.Call{{Key: "k"}, {Key: "j", DeduplicationID: "d"}, {Key: "k", DeduplicationID: "e"}, {Key: "k", Name: "n", DeduplicationID: "d"}, {Key: "k", Principal: "p", DeduplicationID: "d"}} {
			seen = append(seen, park(other))
			require.NotContains(t, seen[:len(seen)-1], seen[len(seen)-1])
		}
	})
}

// save is a call whose payload says which save it is.
func save(key, principal string, n int) core.Call {
	return core.Call{Key: key, Name: "save", Principal: principal, Encode: func() ([]byte, error) { return []byte(strconv.Itoa(n)), nil }}
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
		for _, id := range ids {
			require.Equal(t, delayqueue.StateSuperseded, b.status(id).State)
		}
		s := b.stats()
		require.EqualValues(t, 200, s.Totals.Superseded)
		require.EqualValues(t, 1, s.Totals.Done)
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
		ids := burst(t, guard, 10, "doc")
		require.NoError(t, lease.Release(t.Context()))
		var called time.Time
		for i := range 5 { // for longer than the quiet period
			time.Sleep(quiet / 3)
			called = time.Now()
			ids = append(ids, park(t, guard, save("doc", "u", 10+i))) // a fresh call is not run before it
		}
		require.Empty(t, r.all(), "it is not quiet")
		last := ids[len(ids)-1]
		b.reaches(last, delayqueue.StateDone)
		require.Equal(t, []string{last}, r.ids())
		require.GreaterOrEqual(t, time.Since(called), quiet-10*time.Millisecond)
		require.EqualValues(t, len(ids)-1, b.stats().Totals.Superseded)
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
			time.Sleep(200 * time.Millisecond)
		}
		require.InDelta(t, 2*time.Second, time.Since(began), float64(200*time.Millisecond))
		require.Greater(t, b.stats().Totals.Superseded, int64(3))
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
		require.ErrorIs(t, errOf(b.queue.Enqueue(t.Context(), job)), delayqueue.ErrInvalidJob, "%+v", job)
	}
	for _, p := range []core.ConflictPolicy{
		delayqueue.Policy(nil), delayqueue.Coalesce(nil), delayqueue.Debounce(nil, time.Second, time.Minute), delayqueue.Debounce(b.queue, 0, time.Minute),
		delayqueue.Debounce(b.queue, time.Minute, time.Second), delayqueue.Debounce(b.queue, time.Minute, time.Hour),
	} {
		require.ErrorIs(t, b.other.Guard(p).Err(), core.ErrInvalidOption)
	}
	require.ErrorIs(t, errOf(delayqueue.Policy(nil).OnConflict(t.Context(), core.Conflict{})), core.ErrInvalidOption)
}

func TestDebounce_HoldsUpNobodyParked(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		b.start(func(_ context.Context, m delayqueue.Message) error {
			if m.Key == "fails" && m.Attempt == 1 {
				return errors.New("it fails once")
			}
			return nil
		})
		for _, key := range []string{"k", "fails"} {
			lease := b.hold(key)
			quiet := park(t, b.other.Guard(delayqueue.Debounce(b.queue, time.Minute, time.Minute)), save(key, "u", 1))
			other := park(t, b.other.Guard(delayqueue.Policy(b.queue)), save(key, "v", 2))
			require.NoError(t, lease.Release(t.Context()))
			b.reaches(other, delayqueue.StateDone)
			time.Sleep(50 * time.Millisecond)
			park(t, b.other.Guard(delayqueue.Policy(b.queue)), save(key, "u", 3)) // the key is still reserved
			require.Equal(t, delayqueue.StateQueued, b.status(quiet).State)
			require.NoError(t, b.queue.Cancel(t.Context(), quiet))
			redistest.Eventually(t, func() bool {
				return b.other.Do(t.Context(), key, func(context.Context) error { return nil }) == nil
			}, "the key is free when nothing is quiet")
		}
	})
}
