package core_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

func TestOutcome_ShedCalls(t *testing.T) {
	const most = 5
	shed := func(t *testing.T, outcomes []core.Outcome) (shed []core.Outcome) {
		t.Helper()
		for _, e := range outcomes {
			if e.Kind == core.OutcomeShed {
				shed = append(shed, e)
			}
		}
		require.Len(t, shed, callsEach-most)
		return shed
	}
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		for _, way := range waits {
			t.Run("of a held key by "+way, func(t *testing.T) {
				s := newSides(t, env, core.WithMaxWaiters(most, most))
				key := "held for " + way
				lease := s.hold(t, key)
				call := func(int) entered { return entered{l: s.l, key: key, policy: untilGranted} }
				first := make(chan []made, 1)
				go func() { first <- makeCalls(t, unbounded, "Acquire", most, nil, call) }()
				redistest.Eventually(t, func() bool { return s.l.InformedCalls() == most }, "the first wait")
				later := makeCalls(t, unbounded, way, callsEach-most, nil, call)
				require.NoError(t, lease.Release(t.Context()))
				for _, e := range shed(t, s.seen.requireOutcomes(t, append(later, <-first...))) {
					require.ErrorIs(t, e.Cause, core.ErrConflict)
					require.Equal(t, most, e.Waiting)
					require.Positive(t, e.Attempts)
					require.False(t, e.DidWait)
				}
			})
			if way == "AcquireAll" {
				continue // it asks before it waits
			}
			t.Run("of a key of which nothing is known by "+way, func(t *testing.T) {
				s := fragileSides(t, env, clientTimeout, core.WithMaxWaiters(most, most))
				s.proxy.Blackhole(redistest.Requests)
				calls := makeCalls(t, unbounded, way, callsEach, nil, func(int) entered {
					return entered{l: s.l, key: "unknown to " + way, policy: untilGranted}
				})
				heal(s.proxy)
				outcomes := s.seen.requireOutcomes(t, calls)
				for _, e := range shed(t, outcomes) {
					require.ErrorIs(t, e.Cause, core.ErrUnavailable)
					require.Zero(t, e.Attempts)
				}
				for _, e := range outcomes {
					require.Contains(t, []core.OutcomeKind{core.OutcomeShed, core.OutcomeUnavailable}, e.Kind)
				}
			})
		}
	})
}

func TestOutcome_ShedWhenTooManyLockersWait(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		s := newSides(t, env)
		s.hold(t, "k")
		other := newLocker(t, env)
		acquiring(t, other, "k")
		queued(t, env, "k", 1)
		require.NoError(t, env.Client(t).HSet(t.Context(), core.RecordName(env.Prefix, "k"), "waiting", 1024).Err())
		calls := makeCalls(t, unbounded, "Acquire", 1, nil, func(int) entered { return entered{l: s.l, key: "k"} })
		e := s.seen.requireOutcomes(t, calls)[0]
		require.Equal(t, core.OutcomeShed, e.Kind)
		require.Equal(t, 1, e.Attempts)
		require.GreaterOrEqual(t, e.Waiting, 1024)
		var conflict *core.ConflictError
		require.ErrorAs(t, e.Cause, &conflict)
		require.Equal(t, 1, conflict.Attempts)
	})
}
