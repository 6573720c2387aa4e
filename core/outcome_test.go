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
		each := s.each(t)
		each("a free key", core.OutcomeAcquired, allWays, unbounded, patient, func(t *testing.T, e core.Outcome) {
			leases := max(1, len(e.Keys))
			require.Equal(t, leases, e.Leases)
			require.Len(t, e.Fences, len(e.Keys))
			require.Equal(t, 1, e.Attempts)
			require.NotEmpty(t, e.Key)
			require.Equal(t, core.ModeExclusive, e.Mode)
			require.False(t, e.DidWait)
		})
		each("one key for all who wait", core.OutcomeAcquired, waits, unbounded, entered{key: "contended", policy: untilGranted}, nil)

		s.hold(t, "held")
		held := entered{key: "held", policy: untilGranted}
		isHeld := func(didWait bool) func(*testing.T, core.Outcome) {
			return func(t *testing.T, e core.Outcome) {
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
			func(t *testing.T, e core.Outcome) { require.Equal(t, core.ModeShared, e.Mode) })
		notAsked := func(t *testing.T, e core.Outcome) {
			require.Zero(t, e.Attempts)
			require.NotEmpty(t, e.Key)
		}
		each("a ctx that was cancelled", core.OutcomeCancelled, allWays, cancelledAfter(0, core.ErrUnavailable), patient, notAsked)
		each("a ctx whose deadline has passed", core.OutcomeDeadline, allWays, within(-time.Second), patient, notAsked)

		outer, err := s.l.Acquire(t.Context(), "outer", core.Named("n", "outer"))
		require.NoError(t, err)
		under := func() (context.Context, context.CancelFunc) { return context.WithCancel(outer.Context()) }
		each("a key that its ctx holds", core.OutcomeAcquired, []string{"TryAcquire", "Acquire", "Do", "Guard.Do"}, under, entered{key: "outer"},
			func(t *testing.T, e core.Outcome) {
				require.Zero(t, e.Leases)
				require.Zero(t, e.Attempts)
				require.Equal(t, outer.Fence(), e.Fence)
			})
		require.NoError(t, outer.Release(t.Context()))
		outer, err = s.l.Acquire(t.Context(), "outer", core.Shared(), core.Named("n", "outer"))
		require.NoError(t, err)
		each("an upgrade", core.OutcomeError, byKey, under, entered{key: "outer"}, nil)
		require.NoError(t, outer.Release(t.Context()))

		s.seen.mu.Lock()
		require.Zero(t, s.seen.held, "leases that were granted, and not released")
		s.seen.mu.Unlock()

		require.NoError(t, s.l.Close())
		each("a closed Locker", core.OutcomeClosed, allWays, unbounded, patient, notAsked)
	})
}

// A policy's error is one whatever it wraps, but for a conflict and the end of the caller's ctx.
func TestOutcome_PoliciesThatFail(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		broken := errors.New("broken")
		s := newSides(t, env)
		each := s.each(t)
		s.hold(t, "held")
		isHeld := func(t *testing.T, e core.Outcome) {
			require.Equal(t, "held", e.Key)
			require.Positive(t, e.Attempts)
			require.False(t, e.DidWait)
			require.NotErrorIs(t, e.Cause, core.ErrDeferred)
		}
		each("a policy's error", core.OutcomeError, []string{"Guard.Do"}, unbounded, entered{
			key: "held",
			policy: policyFunc(func(context.Context, core.Conflict) (core.Decision, error) {
				return core.Decision{}, fmt.Errorf("%w, and %w", broken, core.ErrUnavailable)
			}),
		}, isHeld)
		each("a policy's error that wraps a conflict and a deferral of others", core.OutcomeConflict, []string{"Guard.Do"}, unbounded, entered{
			key: "held",
			policy: policyFunc(func(context.Context, core.Conflict) (core.Decision, error) {
				return core.Decision{}, errors.Join(&core.DeferredError{}, &core.ConflictError{}, broken)
			}),
		}, func(t *testing.T, e core.Outcome) {
			isHeld(t, e)
			_, deferred := errors.AsType[*core.DeferredError](e.Cause)
			require.False(t, deferred)
			_, conflict := errors.AsType[*core.ConflictError](e.Cause)
			require.True(t, conflict)
			require.ErrorIs(t, e.Cause, broken)
		})
		each("BeforeWait's error that wraps a deferral", core.OutcomeError, []string{"Guard.Do"}, unbounded,
			entered{key: "held", policy: untilGranted, beforeWait: &core.DeferredError{}}, isHeld)
		each("a policy that leaves with its caller", core.OutcomeCancelled, []string{"Guard.Do"}, cancelledAfter(100*time.Millisecond, nil), entered{
			key: "held",
			policy: policyFunc(func(ctx context.Context, _ core.Conflict) (core.Decision, error) {
				<-ctx.Done()
				return core.Decision{}, ctx.Err()
			}),
		}, isHeld)
		each("a policy's panic", core.OutcomeError, []string{"Guard.Do"}, unbounded, entered{
			key:    "held",
			policy: policyFunc(func(context.Context, core.Conflict) (core.Decision, error) { panic("policy") }),
		}, isHeld)
		each("a policy's Goexit", core.OutcomeError, []string{"Guard.Do"}, unbounded, entered{
			key:    "held",
			policy: policyFunc(func(context.Context, core.Conflict) (core.Decision, error) { runtime.Goexit(); panic("") }),
		}, isHeld)
		each("BeforeWait's error", core.OutcomeError, []string{"Guard.Do"}, unbounded, entered{key: "held", policy: untilGranted, beforeWait: broken}, isHeld)
		each("BeforeWait's refusal", core.OutcomeConflict, []string{"Guard.Do"}, unbounded,
			entered{key: "held", policy: untilGranted, beforeWait: fmt.Errorf("%w, and %w", broken, core.ErrConflict)}, isHeld)
	})
}

func TestOutcome_CallsThatCannotSucceed(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		s := newSides(t, env)
		each := s.each(t)
		unknown := func(t *testing.T, e core.Outcome) {
			require.Zero(t, e.Attempts)
			require.Empty(t, e.Key)
			require.Empty(t, e.Mode)
		}
		each("an invalid key", core.OutcomeError, byKey, unbounded, entered{key: "a\nb", policy: untilGranted}, unknown)
		each("an invalid token", core.OutcomeError, []string{"Resume"}, unbounded, entered{token: "pk1.x"}, unknown)
		each("an invalid option", core.OutcomeError, allWays, unbounded,
			entered{key: "each", token: "each", policy: untilGranted, opts: []core.AcquireOption{core.LeaseTTL(1)}}, nil)
		each("no function", core.OutcomeError, []string{"Do", "Guard.Do"}, unbounded, entered{key: "each", noWork: true},
			func(t *testing.T, e core.Outcome) {
				require.Zero(t, e.Attempts)
				require.NotEmpty(t, e.Key)
			})
		lost := s.token(t, "lost")
		require.NoError(t, env.Client(t).Del(t.Context(), core.RecordName(env.Prefix, "lost")).Err())
		each("a token that was lost", core.OutcomeError, []string{"Resume"}, unbounded, entered{token: lost}, func(t *testing.T, e core.Outcome) {
			require.Equal(t, "lost", e.Key)
			require.Equal(t, 1, e.Attempts)
		})
		require.NoError(t, env.Client(t).Set(t.Context(), core.RecordName(env.Prefix, "foreign"), "x", 0).Err())
		each("a foreign type", core.OutcomeUnavailable, byKey, unbounded, entered{key: "foreign", policy: untilGranted}, nil)
		each("replicas that do not exist", core.OutcomeUnavailable, []string{"TryAcquire", "Acquire", "Do", "Guard.Do"}, unbounded,
			entered{key: "each", policy: untilGranted, opts: []core.AcquireOption{core.WaitReplicas(1, 10*time.Millisecond)}}, nil)
		s.seen.mu.Lock()
		defer s.seen.mu.Unlock()
		require.Zero(t, s.seen.held, "leases that were granted, and not released")
	})
}

func TestOutcome_InAnOutage(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		s := fragileSides(t, env, 3*time.Second) // it is taken for down only after all those that leave earlier
		each := s.each(t)
		s.proxy.Blackhole(redistest.Requests)
		asked := func(t *testing.T, e core.Outcome) { require.LessOrEqual(t, e.Attempts, 1) } // 0: its time was over before
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
					s.hold(t, "k")
					calls := makeCalls(t, unbounded, way, callsEach, func() {
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
	var clients []redis.UniversalClient
	var direct []redis.UniversalClient
	var proxies []*redistest.Proxy
	for range 3 {
		env := redistest.Embedded(t)
		proxy := redistest.NewProxy(t, env.Addr)
		opt := &redis.Options{Addr: proxy.Addr, MaxRetries: -1, DialerRetries: 1, DialTimeout: time.Minute, ReadTimeout: time.Minute}
		clients, proxies, direct = append(clients, redistest.Client(t, opt)), append(proxies, proxy), append(direct, env.Client(t))
	}
	seen := newLedger()
	l, err := core.NewQuorum(clients, core.WithObserver(seen))
	require.NoError(t, err)
	l.WaitForNodes(time.Minute, clients) // a busy machine is no outage
	t.Cleanup(func() { _ = l.Close() })
	rival, err := core.NewQuorum(direct)
	require.NoError(t, err)
	t.Cleanup(func() { _ = rival.Close() })
	lease, err := rival.Acquire(t.Context(), "held")
	require.NoError(t, err)
	each := func(kind core.OutcomeKind, ways []string, ctx makeContext, key string) {
		for _, way := range ways {
			calls := makeCalls(t, ctx, way, callsEach, nil, func(i int) entered {
				c := entered{l: l, key: key, policy: untilGranted}
				if key == "each" {
					c.key = fmt.Sprint(way, kind, i)
				}
				return c
			})
			for _, e := range seen.requireOutcomes(t, calls) {
				require.Equal(t, kind, e.Kind, "by %s: %v", way, e.Cause)
			}
		}
	}
	each(core.OutcomeAcquired, byKey, unbounded, "each")
	each(core.OutcomeConflict, triesOnce, unbounded, "held")
	each(core.OutcomeDeadline, waits, whenItWaits(context.DeadlineExceeded, context.DeadlineExceeded), "held")
	each(core.OutcomeCancelled, waits, whenItWaits(context.Canceled, context.Canceled), "held")
	require.NoError(t, lease.Release(t.Context()))
	each(core.OutcomeAcquired, waits, unbounded, "contended")
	for _, proxy := range proxies[1:] {
		proxy.Refuse(true)
	}
	each(core.OutcomeUnavailable, byKey, unbounded, "each")
	require.NoError(t, l.Shutdown(t.Context()))
	each(core.OutcomeClosed, byKey, unbounded, "each")
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
		rival := newLocker(t, env)
		for _, whileWaiting := range []bool{false, true} {
			seen := newLedger()
			l := newLocker(t, env, core.WithObserver(bursting{seen, whileWaiting}))
			for _, way := range byKey {
				if whileWaiting && slices.Contains(triesOnce, way) {
					continue
				}
				key, kind := fmt.Sprint(way, whileWaiting), core.OutcomeAcquired
				if whileWaiting {
					kind = core.OutcomeError
					lease, err := rival.Acquire(t.Context(), key)
					require.NoError(t, err)
					t.Cleanup(func() { _ = lease.Release(context.Background()) })
				}
				calls := makeCalls(t, unbounded, way, callsEach, nil, func(i int) entered {
					c := entered{l: l, key: key, policy: untilGranted}
					if !whileWaiting {
						c.key += fmt.Sprint(i)
					}
					return c
				})
				for _, c := range calls {
					require.True(t, c.panicked)
					told := seen.outcomes[c.id]
					require.Len(t, told, 1, c.id)
					require.Equal(t, kind, told[0].Kind)
				}
			}
			require.Zero(t, seen.held)
		}
		for _, name := range redistest.Keys(t, env.Client(t), env.Prefix) {
			require.Contains(t, name, "true", "a key is still held")
		}
	})
}
