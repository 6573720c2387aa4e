package core_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
	"github.com/perkey-go/perkey/retry"
)

type policyFunc func(context.Context, core.Conflict) (core.Decision, error)

func (f policyFunc) OnConflict(ctx context.Context, c core.Conflict) (core.Decision, error) {
	return f(ctx, c)
}

func TestGuard_DoesAsThePolicyDecides(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		l := newLocker(t, env)
		lease := testbed.Take(t, l, "k")
		defer func() { _ = lease.Release(t.Context()) }()
		ask := func(policy core.ConflictPolicy, call core.Call) error {
			return l.Guard(policy).Do(t.Context(), call, mustNotRun)
		}

		var conflict *core.ConflictError
		for name, policy := range map[string]core.ConflictPolicy{
			"named": core.RejectConflicts, "nil": nil, "then": retry.Policy{MaxWait: 10 * time.Millisecond, Then: core.RejectConflicts},
		} {
			require.NoError(t, l.Guard(policy).Err())
			require.Equal(t, name == "then", l.Guard(policy).Policy() != nil)
			require.ErrorAs(t, ask(policy, core.Call{Key: "k"}), &conflict, name)
			require.True(t, name == "then" || conflict.Attempts == 1)
			require.Positive(t, conflict.Remaining)
		}

		ticket := core.Ticket{ID: "id", Queue: "q"}
		err := ask(policyFunc(func(context.Context, core.Conflict) (core.Decision, error) {
			return core.Deferred(ticket), nil
		}), core.Call{Key: "k"})
		var deferred *core.DeferredError
		require.ErrorAs(t, err, &deferred)
		require.ErrorIs(t, err, core.ErrDeferred)
		require.NotErrorIs(t, err, core.ErrConflict)
		require.Equal(t, ticket, deferred.Ticket)

		broken := errors.New("broken")
		require.ErrorIs(t, ask(testbed.Failing{Err: broken}, core.Call{Key: "k"}), broken)

		var seen []core.Conflict
		err = ask(policyFunc(func(_ context.Context, c core.Conflict) (core.Decision, error) {
			seen = append(seen, c)
			if c.Attempt == 3 {
				return core.Reject(), nil
			}
			return core.RetryAfter(time.Duration(c.Attempt) * time.Millisecond), nil
		}), core.Call{Key: "k", Name: "n"})
		require.ErrorAs(t, err, &conflict)
		require.Equal(t, 3, conflict.Attempts)
		require.Len(t, seen, 3)
		for i, c := range seen {
			require.Equal(t, i+1, c.Attempt)
			require.Equal(t, "n", c.Call.Name)
			require.Equal(t, time.Duration(i)*time.Millisecond, c.LastDelay)
			require.Positive(t, c.Remaining)
		}

		called := 0
		err = ask(untilWoken, core.Call{Key: "k", BeforeWait: func() error { called++; return broken }})
		require.ErrorIs(t, err, broken)
		require.Equal(t, 1, called)
	})
}

func TestGuard_ReleasesOnEveryWayOut(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		l, rdb := newLocker(t, env), env.Client(t)
		guard := l.Guard(core.RejectConflicts)
		call := core.Call{Key: "k"}
		failed := errors.New("failed")
		require.ErrorIs(t, guard.Do(t.Context(), call, func(context.Context) error { return failed }), failed)
		require.PanicsWithValue(t, "boom", func() {
			_ = guard.Do(t.Context(), call, func(context.Context) error { panic("boom") })
		})
		var wg sync.WaitGroup
		wg.Go(func() {
			_ = guard.Do(t.Context(), call, func(context.Context) error { runtime.Goexit(); return nil })
		})
		wg.Wait()
		require.Empty(t, redistest.Keys(t, rdb, env.Prefix))

		err := guard.Do(t.Context(), call, func(ctx context.Context) error {
			require.NoError(t, rdb.Del(ctx, env.Prefix+":lock{}:k").Err())
			return failed
		})
		require.ErrorIs(t, err, failed)
		require.ErrorIs(t, err, core.ErrLeaseLost)
	})
}

type recorder struct {
	mu     sync.Mutex
	events []any
}

func (r *recorder) add(e any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, e)
}

func (r *recorder) OnOutcome(_ context.Context, e core.Outcome)     { r.add(e) }
func (r *recorder) OnWaiting(_ context.Context, e core.Waiting)     { r.add(e) }
func (r *recorder) OnReleased(_ context.Context, e core.Released)   { r.add(e) }
func (r *recorder) OnLost(_ context.Context, e core.Lost)           { r.add(e) }
func (r *recorder) OnUnclaimed(_ context.Context, e core.Unclaimed) { r.add(e) }
func (r *recorder) OnRenewed(_ context.Context, e core.Renewed)     { r.add(e) }
func (r *recorder) OnWarning(_ context.Context, w core.Warning)     { r.add(w) }

func eventsOf[T any](r *recorder) (events []T) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range r.events {
		if e, is := e.(T); is {
			events = append(events, e)
		}
	}
	return events
}

// awaitRenewal waits until leases were renewed.
func (r *recorder) awaitRenewal(t *testing.T) {
	t.Helper()
	redistest.Eventually(t, func() bool {
		return slices.ContainsFunc(eventsOf[core.Renewed](r), func(e core.Renewed) bool { return e.Err == nil })
	}, "a renewal")
}

// lastOutcome is that of the call that ended last.
func (r *recorder) lastOutcome() core.Outcome {
	outcomes := eventsOf[core.Outcome](r)
	if len(outcomes) == 0 {
		return core.Outcome{}
	}
	return outcomes[len(outcomes)-1]
}

func TestGuard_TheObserverIsTold(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		var seen recorder
		guard := newLocker(t, env, core.WithObserver(&seen), core.WithTTL(time.Second)).Guard(core.RejectConflicts)
		call := core.Call{Key: "k", Name: "n"}
		require.NoError(t, guard.Do(t.Context(), call, func(ctx context.Context) error {
			lease, _ := core.LeaseFrom(ctx)
			acquired := seen.lastOutcome()
			require.Equal(t, []any{core.OutcomeAcquired, lease.Fence(), "n"}, []any{acquired.Kind, acquired.Fence, acquired.Name})
			require.ErrorIs(t, guard.Do(t.Context(), call, mustNotRun), core.ErrConflict)
			seen.awaitRenewal(t)
			return nil
		}))
		renewed, released, outcomes := eventsOf[core.Renewed](&seen)[0], eventsOf[core.Released](&seen)[0], eventsOf[core.Outcome](&seen)
		require.Equal(t, 1, renewed.Leases)
		require.Positive(t, renewed.Latency)
		require.Len(t, outcomes, 2)
		require.Equal(t, core.OutcomeConflict, outcomes[1].Kind)
		require.NoError(t, released.Err)
		require.Equal(t, outcomes[0].Fence, released.Fence)
		require.Positive(t, released.Held)
	})
}

func TestSlogObserver_WarnsOfLossAndKeepsQuietOtherwise(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	o := core.SlogObserver(slog.New(slog.NewTextHandler(&out, nil)))
	ctx := t.Context()
	for _, kind := range []core.OutcomeKind{
		core.OutcomeAcquired, core.OutcomeConflict, core.OutcomeDeferred, core.OutcomeCancelled, core.OutcomeDeadline, core.OutcomeClosed,
	} {
		o.OnOutcome(ctx, core.Outcome{Kind: kind})
	}
	core.SlogObserver(nil).OnOutcome(ctx, core.Outcome{})
	o.OnWaiting(ctx, core.Waiting{})
	o.OnReleased(ctx, core.Released{})
	o.OnRenewed(ctx, core.Renewed{})
	require.Empty(t, out.String())
	o.OnLost(ctx, core.Lost{Key: "lost-key", Cause: core.ErrLeaseLost})
	require.Contains(t, out.String(), "lost-key")
	o.OnReleased(ctx, core.Released{Err: core.ErrUnavailable})
	o.OnRenewed(ctx, core.Renewed{Err: core.ErrUnavailable})
	for _, kind := range []core.OutcomeKind{core.OutcomeShed, core.OutcomeUnavailable, core.OutcomeError} {
		o.OnOutcome(ctx, core.Outcome{Kind: kind, Key: "k", Name: "n", Cause: core.ErrUnavailable})
		require.Contains(t, out.String(), "outcome="+string(kind))
	}
	require.Equal(t, 6, bytes.Count(out.Bytes(), []byte("level=WARN")))
}

// mustNotRun is the work of a call that is not to get its key.
func mustNotRun(context.Context) error { return errors.New("the key was free") }
