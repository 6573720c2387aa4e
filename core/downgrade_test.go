package core_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

func TestDowngrade_LetsReadersInAndKeepsWritersOut(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		a, b := newLocker(t, env), newLocker(t, env)
		before, err := b.Acquire(t.Context(), "k")
		require.NoError(t, err)
		local := []<-chan got{acquiring(t, a, "k"), acquiring(t, a, "k")}
		queued(t, env, "k", 1)
		require.NoError(t, before.Release(t.Context()))
		var lease *core.Lease
		select {
		case g := <-local[0]:
			lease, local = g.l, local[1:]
		case g := <-local[1]:
			lease = g.l
		}
		require.NotNil(t, lease)
		queued(t, env, "k", 0) // the other one of this process does not ask
		var readers []<-chan got
		for i, l := range []*core.Locker{a, b} {
			readers = append(readers, acquiring(t, l, "k", core.Shared()))
			queued(t, env, "k", i+1)
		}
		writer := acquiring(t, newLocker(t, env), "k")
		queued(t, env, "k", 3)

		require.NoError(t, lease.Downgrade(t.Context()))
		require.NoError(t, lease.Context().Err())
		var held []*core.Lease
		for _, r := range readers {
			held = append(held, granted(t, r))
			require.Greater(t, held[len(held)-1].Fence(), lease.Fence())
		}
		_, err = b.TryAcquire(t.Context(), "k")
		require.ErrorIs(t, err, core.ErrConflict)
		queued(t, env, "k", 2) // now it does

		require.NoError(t, lease.Downgrade(t.Context()), "twice")
		require.NoError(t, lease.Extend(t.Context(), time.Minute))
		require.NoError(t, lease.Release(t.Context()))
		for _, l := range held {
			require.NoError(t, l.Downgrade(t.Context()), "of a shared one")
			require.NoError(t, l.Release(t.Context()))
		}
		for range 2 {
			var g got
			select {
			case g = <-writer:
			case g = <-local[0]:
			}
			require.NoError(t, g.err)
			for _, l := range held {
				require.Greater(t, g.l.Fence(), l.Fence())
			}
			require.NoError(t, g.l.Release(t.Context()))
		}
		requireNothingLeft(t, env.Client(t), env.Prefix) // a late question is taken back
	})
}

func TestDowngrade_ALostDowngradeReplyIsAnsweredAgain(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		l, proxy, direct := throughProxy(t, env, 3)
		lease, err := l.Acquire(t.Context(), "k")
		require.NoError(t, err)
		proxy.LoseReply(bothTokens())
		require.NoError(t, lease.Downgrade(t.Context()))
		reader, err := newLocker(t, env).TryAcquire(t.Context(), "k", core.Shared())
		require.NoError(t, err)
		require.NoError(t, reader.Release(t.Context()))
		require.NoError(t, lease.Release(t.Context()))
		require.Empty(t, redistest.Keys(t, direct, env.Prefix))
	})
}

// Whether the downgrade took place is not known: the lease goes on either way, and its release leaves nothing.
func TestDowngrade_ADowngradeWithoutAnAnswerKeepsTheLease(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		for _, lost := range []bool{true, false} {
			var seen recorder
			l, proxy, direct := throughProxy(t, env, noRetries, core.WithObserver(&seen), core.WithFirstLease(core.DefaultFirstLease))
			lease, err := l.Acquire(t.Context(), "k")
			require.NoError(t, err)
			match := bothTokens()
			if lost {
				proxy.LoseReply(match)
			} else {
				proxy.Refuse(true)
			}
			require.ErrorIs(t, lease.Downgrade(t.Context()), core.ErrUnavailable)
			proxy.Refuse(false)
			seen.awaitRenewal(t)
			require.NoError(t, lease.Context().Err())
			_, err = l.TryAcquire(lease.Context(), "k")
			require.ErrorIs(t, err, core.ErrUpgrade, "no more than shared")
			require.NoError(t, lease.Release(t.Context()))
			requireNothingLeft(t, direct, env.Prefix)
		}
	})
}

func TestDowngrade_OfALostLease(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		l := newLocker(t, env)
		lease, err := l.Acquire(t.Context(), "k")
		require.NoError(t, err)
		require.NoError(t, env.Client(t).Del(t.Context(), core.RecordName(env.Prefix, "k")).Err())
		require.ErrorIs(t, lease.Downgrade(t.Context()), core.ErrLeaseLost)
		require.ErrorIs(t, lease.Release(t.Context()), core.ErrLeaseLost)
		require.ErrorIs(t, lease.Downgrade(t.Context()), core.ErrLeaseLost, "released")
	})
}

func TestDowngrade_OnlyAnExclusiveLeaseIsDowngraded(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		l := newLocker(t, env)
		counted, err := l.Acquire(t.Context(), "counted", core.Counted(2))
		require.NoError(t, err)
		require.ErrorIs(t, counted.Downgrade(t.Context()), core.ErrNotExclusive)
		require.NoError(t, counted.Release(t.Context()))

		outer, err := l.Acquire(t.Context(), "k")
		require.NoError(t, err)
		inner, err := l.Acquire(outer.Context(), "k", core.Shared())
		require.NoError(t, err)
		require.Equal(t, outer.Fence(), inner.Fence(), "a writer may read")
		require.ErrorIs(t, inner.Downgrade(t.Context()), core.ErrNotExclusive)
		_, err = newLocker(t, env).TryAcquire(t.Context(), "k", core.Shared())
		require.ErrorIs(t, err, core.ErrConflict)
		require.NoError(t, outer.Downgrade(t.Context()))
		require.NoError(t, inner.Downgrade(t.Context()))
		_, err = l.TryAcquire(inner.Context(), "k")
		require.ErrorIs(t, err, core.ErrUpgrade)
		require.NoError(t, inner.Release(t.Context()))
		require.NoError(t, outer.Release(t.Context()))
		require.ErrorIs(t, inner.Downgrade(t.Context()), core.ErrLeaseLost)
	})
}

// bothTokens matches the first request of a downgrade, which has an exclusive token and a shared one.
func bothTokens() func([]byte) bool { return once("\r\n1:", "\r\n0:") }

func TestLease_Mode(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		l := newLocker(t, env)
		for key, test := range map[string]struct {
			opts []core.AcquireOption
			want core.Mode
		}{
			"exclusive":  {nil, core.ModeExclusive},
			"one":        {[]core.AcquireOption{core.Counted(1)}, core.ModeExclusive},
			"shared":     {[]core.AcquireOption{core.Shared()}, core.ModeShared},
			"counted":    {[]core.AcquireOption{core.Counted(3)}, core.ModeCounted},
			"downgraded": {nil, core.ModeShared},
		} {
			lease, err := l.TryAcquire(t.Context(), key, test.opts...)
			require.NoError(t, err)
			if key == "downgraded" {
				require.Equal(t, core.ModeExclusive, lease.Mode())
				require.NoError(t, lease.Downgrade(t.Context()))
			}
			require.Equal(t, test.want, lease.Mode(), key)
			again, err := l.TryAcquire(lease.Context(), key, core.Shared())
			require.NoError(t, err)
			require.Equal(t, test.want, again.Mode(), "what holds the key of %s", key)
			token, err := lease.Detach(t.Context())
			require.NoError(t, err)
			resumed, err := l.Resume(t.Context(), token)
			require.NoError(t, err)
			require.Equal(t, test.want, resumed.Mode(), key)
			require.NoError(t, resumed.Release(t.Context()))
		}
		require.Empty(t, (*core.Lease)(nil).Mode())
	})
}
