package core_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

// TestOutcome_EachCallHasExactlyOne goes over every reason for which a call ends, but for those of the next two tests. It
// is long since it is the list of them.
func TestOutcome_EachCallHasExactlyOne(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		s := newSides(t, env)
		each := s.each
		each("a free key", core.OutcomeAcquired, allWays, unbounded, patient, func(e core.Outcome) {
			require.Equal(t, max(1, len(e.Keys)), e.Leases)
			require.Len(t, e.Fences, len(e.Keys))
			require.Equal(t, 1, e.Attempts)
			require.NotEmpty(t, e.Key)
			require.Equal(t, core.ModeExclusive, e.Mode)
			require.False(t, e.DidWait)
		})
		each("one key for all who wait", core.OutcomeAcquired, waits, unbounded, entered{key: "contended", policy: untilGranted}, nil)

		s.hold("held")
		held := entered{key: "held", policy: untilGranted}
		isHeld := func(didWait bool) func(core.Outcome) {
			return func(e core.Outcome) {
				require.Equal(t, "held", e.Key)
				require.Equal(t, didWait, e.DidWait, "%+v", e)
				require.Positive(t, e.Attempts)
				if e.Keys != nil {
					require.Equal(t, []string{"held", "held'"}, e.Keys)
				}
				if didWait {
					require.Positive(t, e.Waiting)
				}
			}
		}
		each("a held key", core.OutcomeConflict, triesOnce, unbounded, held, isHeld(false))
		each("a held key", core.OutcomeConflict, []string{"Guard.Do"}, unbounded, entered{key: "held"}, isHeld(false))
		each("a wait that ends", core.OutcomeConflict, []string{"Guard.Do"}, unbounded, entered{key: "held", policy: oneWait(reject)}, isHeld(true))
		each("a deferred call", core.OutcomeDeferred, []string{"Guard.Do"}, unbounded, entered{key: "held", policy: policyFunc(deferAll)}, isHeld(false))
		each("a deferred call that waited", core.OutcomeDeferred, []string{"Guard.Do"}, unbounded,
			entered{key: "held", policy: oneWait(deferAll)}, isHeld(true))
		each("the deadline while it waits", core.OutcomeDeadline, waits, whenItWaits(context.DeadlineExceeded, context.DeadlineExceeded), held, isHeld(true))
		each("a caller that leaves while it waits", core.OutcomeCancelled, waits, whenItWaits(context.Canceled, context.Canceled), held, isHeld(true))
		each("readers that leave while they wait", core.OutcomeCancelled, waits, whenItWaits(context.Canceled, core.ErrConflict),
			entered{key: "held", policy: untilGranted, opts: []core.AcquireOption{core.Shared()}},
			func(e core.Outcome) { require.Equal(t, core.ModeShared, e.Mode) })
		notAsked := func(e core.Outcome) {
			require.Zero(t, e.Attempts)
			require.NotEmpty(t, e.Key)
		}
		each("a ctx that was cancelled", core.OutcomeCancelled, allWays, cancelledAfter(0, core.ErrUnavailable), patient, notAsked)
		each("a ctx whose deadline has passed", core.OutcomeDeadline, allWays, within(-time.Second), patient, notAsked)

		outer := acquired(t, s.l, "outer", core.Named("n", "outer"))
		under := func() (context.Context, context.CancelFunc) { return context.WithCancel(outer.Context()) }
		each("a key that its ctx holds", core.OutcomeAcquired, []string{"TryAcquire", "Acquire", "Do", "Guard.Do"}, under, entered{key: "outer"},
			func(e core.Outcome) {
				require.Zero(t, e.Leases)
				require.Zero(t, e.Attempts)
				require.Equal(t, outer.Fence(), e.Fence)
			})
		require.NoError(t, outer.Release(t.Context()))
		outer = acquired(t, s.l, "outer", core.Shared(), core.Named("n", "outer"))
		each("an upgrade", core.OutcomeError, byKey, under, entered{key: "outer"}, nil)
		require.NoError(t, outer.Release(t.Context()))

		s.requireNothingHeld()
		require.NoError(t, s.l.Close())
		each("a closed Locker", core.OutcomeClosed, allWays, unbounded, patient, notAsked)
	})
}

// A policy's error is one whatever it wraps, but for a conflict and the end of the caller's ctx.
func TestOutcome_PoliciesThatFail(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		broken := errors.New("broken")
		s := newSides(t, env)
		s.hold("held")
		fails := func(err error) entered {
			return entered{policy: policyFunc(func(context.Context, core.Conflict) (core.Decision, error) { return core.Decision{}, err })}
		}
		ends := func(how func()) entered {
			return entered{policy: policyFunc(func(context.Context, core.Conflict) (core.Decision, error) { how(); panic("") })}
		}
		before := func(err error) entered { return entered{policy: untilGranted, beforeWait: err} }
		for name, test := range map[string]struct {
			kind core.OutcomeKind
			call entered
		}{
			"a policy's error":                         {core.OutcomeError, fails(fmt.Errorf("%w, and %w", broken, core.ErrUnavailable))},
			"a policy's panic":                         {core.OutcomeError, ends(func() { panic("policy") })},
			"a policy's Goexit":                        {core.OutcomeError, ends(runtime.Goexit)},
			"BeforeWait's error":                       {core.OutcomeError, before(broken)},
			"BeforeWait's error that wraps a deferral": {core.OutcomeError, before(&core.DeferredError{})},
			"BeforeWait's refusal":                     {core.OutcomeConflict, before(fmt.Errorf("%w, and %w", broken, core.ErrConflict))},
			"a policy's error that wraps a conflict and a deferral of others": {
				core.OutcomeConflict, fails(errors.Join(&core.DeferredError{}, &core.ConflictError{}, broken)),
			},
			"a policy that leaves with its caller": {core.OutcomeCancelled, entered{policy: policyFunc(func(ctx context.Context, _ core.Conflict) (core.Decision, error) {
				<-ctx.Done()
				return core.Decision{}, ctx.Err()
			})}},
		} {
			ctx := unbounded
			if test.kind == core.OutcomeCancelled {
				ctx = cancelledAfter(100*time.Millisecond, nil)
			}
			test.call.key = "held"
			s.each(name, test.kind, []string{"Guard.Do"}, ctx, test.call, func(e core.Outcome) {
				require.Equal(t, "held", e.Key)
				require.Positive(t, e.Attempts)
				require.False(t, e.DidWait)
				require.NotErrorIs(t, e.Cause, core.ErrDeferred)
				_, deferred := errors.AsType[*core.DeferredError](e.Cause)
				require.False(t, deferred)
				if test.kind == core.OutcomeConflict && test.call.beforeWait == nil {
					_, conflict := errors.AsType[*core.ConflictError](e.Cause)
					require.True(t, conflict)
					require.ErrorIs(t, e.Cause, broken)
				}
			})
		}
	})
}

func TestOutcome_CallsThatCannotSucceed(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		s := newSides(t, env)
		each := s.each
		unknown := func(e core.Outcome) {
			require.Zero(t, e.Attempts)
			require.Empty(t, e.Key)
			require.Empty(t, e.Mode)
		}
		each("an invalid key", core.OutcomeError, byKey, unbounded, entered{key: "a\nb", policy: untilGranted}, unknown)
		each("an invalid token", core.OutcomeError, []string{"Resume"}, unbounded, entered{token: "pk1.x"}, unknown)
		each("an invalid option", core.OutcomeError, allWays, unbounded,
			entered{key: "each", token: "each", policy: untilGranted, opts: []core.AcquireOption{core.LeaseTTL(1)}}, nil)
		each("no function", core.OutcomeError, []string{"Do", "Guard.Do"}, unbounded, entered{key: "each", noWork: true},
			func(e core.Outcome) {
				require.Zero(t, e.Attempts)
				require.NotEmpty(t, e.Key)
			})
		lost := s.token("lost")
		require.NoError(t, env.Client(t).Del(t.Context(), core.RecordName(env.Prefix, "lost")).Err())
		each("a token that was lost", core.OutcomeError, []string{"Resume"}, unbounded, entered{token: lost}, func(e core.Outcome) {
			require.Equal(t, "lost", e.Key)
			require.Equal(t, 1, e.Attempts)
		})
		require.NoError(t, env.Client(t).Set(t.Context(), core.RecordName(env.Prefix, "foreign"), "x", 0).Err())
		each("a foreign type", core.OutcomeUnavailable, byKey, unbounded, entered{key: "foreign", policy: untilGranted}, nil)
		each("replicas that do not exist", core.OutcomeUnavailable, []string{"TryAcquire", "Acquire", "Do", "Guard.Do"}, unbounded,
			entered{key: "each", policy: untilGranted, opts: []core.AcquireOption{core.WaitReplicas(1, 10*time.Millisecond)}}, nil)
		s.requireNothingHeld()
	})
}

func TestOutcome_InAnOutage(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		s := fragileSides(t, env, 3*time.Second) // it is taken for down only after all those that leave earlier
		each := s.each
		s.proxy.Blackhole(redistest.Requests)
		asked := func(e core.Outcome) { require.LessOrEqual(t, e.Attempts, 1) } // 0: its time was over before
		each("a caller that leaves while it asks", core.OutcomeCancelled, []string{"TryAcquire", "Resume"}, cancelledAfter(clientTimeout/10, nil), patient, asked)
		each("the deadline while it asks", core.OutcomeDeadline, byKey, within(clientTimeout/20), patient, asked)
		each("a Redis that swallows everything", core.OutcomeUnavailable, allWays, unbounded, patient, nil)
		heal(s.proxy)
		redistest.Eventually(t, func() bool {
			lease, err := s.l.TryAcquire(t.Context(), "healed")
			return releaseOf(lease, err) == nil
		}, "Redis is back")
		s.proxy.Refuse(true)
		each("a Redis that refuses", core.OutcomeUnavailable, allWays, unbounded, patient, nil)
		heal(s.proxy)
	})
}

func TestOutcome_CallsThatWaitWhenTheLockerCloses(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		for name, end := range map[string]func(*core.Locker) error{
			"Close":    (*core.Locker).Close,
			"Shutdown": func(l *core.Locker) error { return l.Shutdown(context.Background()) },
		} {
			for _, way := range waits {
				t.Run(name+" "+way, func(t *testing.T) {
					s := newSides(t, env)
					s.hold("k")
					calls := makeCalls(unbounded, way, callsEach, func() {
						redistest.Eventually(t, func() bool { return s.seen.waiting() == callsEach }, "all wait")
						require.NoError(t, end(s.l))
					}, func(int) entered { return entered{l: s.l, key: "k", policy: untilGranted} })
					for _, e := range s.seen.requireOutcomes(t, calls) {
						require.Equal(t, core.OutcomeClosed, e.Kind, e.Cause)
						require.True(t, e.DidWait)
					}
				})
			}
		}
	})
}

func TestOutcome_OnAQuorum(t *testing.T) {
	t.Parallel()
	var clients, direct []redis.UniversalClient
	var proxies []*redistest.Proxy
	for range 3 {
		env := redistest.Embedded(t)
		proxy := redistest.NewProxy(t, env.Addr)
		opt := &redis.Options{Addr: proxy.Addr, MaxRetries: -1, DialerRetries: 1, DialTimeout: time.Minute, ReadTimeout: time.Minute}
		clients, proxies, direct = append(clients, redistest.Client(t, opt)), append(proxies, proxy), append(direct, env.Client(t))
	}
	s := &sides{T: t, seen: newLedger()}
	s.l = newQuorum(t, clients, core.WithObserver(s.seen))
	s.l.WaitForNodes(time.Minute, clients) // a busy machine is no outage
	s.rival = newQuorum(t, direct)
	s.rival.WaitForNodes(time.Minute, direct)
	lease := s.hold("held")
	held := entered{key: "held", policy: untilGranted}
	s.each("free keys", core.OutcomeAcquired, byKey, unbounded, patient, nil)
	s.each("a held key", core.OutcomeConflict, triesOnce, unbounded, held, nil)
	s.each("the deadline", core.OutcomeDeadline, waits, whenItWaits(context.DeadlineExceeded, context.DeadlineExceeded), held, nil)
	s.each("callers that leave", core.OutcomeCancelled, waits, whenItWaits(context.Canceled, context.Canceled), held, nil)
	release(t, lease)
	s.each("one key for all", core.OutcomeAcquired, waits, unbounded, entered{key: "contended", policy: untilGranted}, nil)
	for _, proxy := range proxies[1:] {
		proxy.Refuse(true)
	}
	s.each("an outage", core.OutcomeUnavailable, byKey, unbounded, patient, nil)
	require.NoError(t, s.l.Shutdown(t.Context()))
	s.each("a closed Locker", core.OutcomeClosed, byKey, unbounded, patient, nil)
}

// bursting is an observer that panics, once for each call.
type bursting struct {
	*ledger
	whileWaiting bool
}

func (o bursting) OnOutcome(ctx context.Context, e core.Outcome) {
	o.ledger.OnOutcome(ctx, e)
	if !o.whileWaiting {
		panic("observer")
	}
}

func (o bursting) OnWaiting(ctx context.Context, e core.Waiting) {
	o.ledger.OnWaiting(ctx, e)
	if o.whileWaiting {
		panic("observer")
	}
}

func TestOutcome_AnObserverThatPanicsIsToldOnceAndKeepsNoKey(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		s := newSides(t, env)
		for ways, kind := range map[*[]string]core.OutcomeKind{&byKey: core.OutcomeAcquired, &waits: core.OutcomeError} {
			whileWaiting := kind == core.OutcomeError
			seen := newLedger()
			l := newLocker(t, env, core.WithObserver(bursting{seen, whileWaiting}))
			for _, way := range *ways {
				key := fmt.Sprint(way, whileWaiting)
				if whileWaiting {
					s.hold(key)
				}
				calls := makeCalls(unbounded, way, callsEach, nil, func(i int) entered {
					c := entered{l: l, key: key, policy: untilGranted}
					if !whileWaiting {
						c.key += fmt.Sprint(i)
					}
					return c
				})
				for _, c := range calls {
					require.True(t, c.panicked)
					require.Len(t, seen.outcomes[c.id], 1, c.id)
					require.Equal(t, kind, seen.outcomes[c.id][0].Kind)
				}
			}
			require.Zero(t, seen.held)
		}
		for _, name := range redistest.Keys(t, env.Client(t), env.Prefix) {
			require.Contains(t, name, "true", "a key is still held")
		}
	})
}

func TestOutcome_ShedCalls(t *testing.T) {
	const most = 5
	shed := func(t *testing.T, outcomes []core.Outcome) []core.Outcome {
		t.Helper()
		all := slices.DeleteFunc(slices.Clone(outcomes), func(e core.Outcome) bool { return e.Kind != core.OutcomeShed })
		require.Len(t, all, callsEach-most)
		return all
	}
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		for _, way := range waits {
			t.Run("of a held key by "+way, func(t *testing.T) {
				s := newSides(t, env, core.WithMaxWaiters(most, most))
				key := "held for " + way
				lease := s.hold(key)
				call := func(int) entered { return entered{l: s.l, key: key, policy: untilGranted} }
				first := make(chan []made, 1)
				go func() { first <- makeCalls(unbounded, "Acquire", most, nil, call) }()
				redistest.Eventually(t, func() bool { return s.l.InformedCalls() == most }, "the first wait")
				later := makeCalls(unbounded, way, callsEach-most, nil, call)
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
				calls := makeCalls(unbounded, way, callsEach, nil, func(int) entered {
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
		s.hold("k")
		other := newLocker(t, env)
		acquiring(t, other, "k")
		queued(t, env, "k", 1)
		require.NoError(t, env.Client(t).HSet(t.Context(), core.RecordName(env.Prefix, "k"), "waiting", 1024).Err())
		calls := makeCalls(unbounded, "Acquire", 1, nil, func(int) entered { return entered{l: s.l, key: "k"} })
		e := s.seen.requireOutcomes(t, calls)[0]
		require.Equal(t, core.OutcomeShed, e.Kind)
		require.Equal(t, 1, e.Attempts)
		require.GreaterOrEqual(t, e.Waiting, 1024)
		var conflict *core.ConflictError
		require.ErrorAs(t, e.Cause, &conflict)
		require.Equal(t, 1, conflict.Attempts)
	})
}
