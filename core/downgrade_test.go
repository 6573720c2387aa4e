package core_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
)

func TestDowngrade_LetsReadersInAndKeepsWritersOut(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		a, b := newLocker(t, env), newLocker(t, env)
		before := acquire(t, b, "k")
		local := merged([]<-chan got{acquiring(t, a, "k"), acquiring(t, a, "k")})
		queued(t, env, "k", 1)
		require.NoError(t, before.Release(t.Context()))
		lease := granted(t, local)
		queued(t, env, "k", 0) // the other one of this process does not ask
		var readers []*core.Lease
		var waits []<-chan got
		for i, l := range []*core.Locker{a, b} {
			waits = append(waits, acquiring(t, l, "k", core.Shared()))
			queued(t, env, "k", i+1)
		}
		writers := merged([]<-chan got{local, acquiring(t, newLocker(t, env), "k")})
		queued(t, env, "k", 3)

		require.NoError(t, lease.Downgrade(t.Context()))
		require.NoError(t, lease.Context().Err())
		for _, r := range waits {
			readers = append(readers, granted(t, r))
			require.Greater(t, readers[len(readers)-1].Fence(), lease.Fence())
		}
		_, err := b.TryAcquire(t.Context(), "k")
		require.ErrorIs(t, err, core.ErrConflict)
		queued(t, env, "k", 2) // now it does

		require.NoError(t, lease.Downgrade(t.Context()), "twice")
		require.NoError(t, lease.Extend(t.Context(), time.Minute))
		require.NoError(t, lease.Release(t.Context()))
		for _, l := range readers {
			require.NoError(t, l.Downgrade(t.Context()), "of a shared one")
			require.NoError(t, l.Release(t.Context()))
		}
		for range 2 {
			writer := granted(t, writers)
			require.Greater(t, writer.Fence(), max(readers[0].Fence(), readers[1].Fence()))
			require.NoError(t, writer.Release(t.Context()))
		}
		requireNothingLeft(t, env.Client(t), env.Prefix) // a late question is taken back
	})
}

func TestDowngrade_OnlyAnExclusiveLeaseIsDowngraded(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		l := newLocker(t, env)
		lost := acquire(t, l, "lost")
		require.NoError(t, env.Client(t).Del(t.Context(), core.RecordName(env.Prefix, "lost")).Err())
		require.ErrorIs(t, lost.Downgrade(t.Context()), core.ErrLeaseLost)
		require.ErrorIs(t, lost.Release(t.Context()), core.ErrLeaseLost)
		require.ErrorIs(t, lost.Downgrade(t.Context()), core.ErrLeaseLost, "released")
		counted := acquire(t, l, "counted", core.Counted(2))
		require.ErrorIs(t, counted.Downgrade(t.Context()), core.ErrNotExclusive)
		require.NoError(t, counted.Release(t.Context()))

		outer := acquire(t, l, "k")
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
			lease := testbed.Take(t, l, key, test.opts...)
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

// Whether the downgrade took place may not be known: the lease goes on either way, and its release leaves nothing.
func TestDowngrade_ALostReplyKeepsTheLease(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		for name, test := range map[string]struct {
			retries int
			refused bool // it is not sent; else its reply is lost
			err     error
		}{"sent again": {3, false, nil}, "no reply": {noRetries, false, core.ErrUnavailable}, "not sent": {noRetries, true, core.ErrUnavailable}} {
			var seen recorder
			l, proxy, direct := throughProxy(t, env, test.retries, core.WithObserver(&seen), core.WithFirstLease(core.DefaultFirstLease))
			lease := acquire(t, l, "k")
			if proxy.Refuse(test.refused); !test.refused {
				proxy.LoseReply(bothTokens())
			}
			require.ErrorIs(t, lease.Downgrade(t.Context()), test.err, name)
			proxy.Refuse(false)
			if test.err == nil {
				require.NoError(t, testbed.Take(t, newLocker(t, env), "k", core.Shared()).Release(t.Context()))
			} else {
				seen.awaitRenewal(t)
			}
			require.NoError(t, lease.Context().Err())
			_, err := l.TryAcquire(lease.Context(), "k")
			require.ErrorIs(t, err, core.ErrUpgrade, "no more than shared")
			require.NoError(t, lease.Release(t.Context()))
			requireNothingLeft(t, direct, env.Prefix)
		}
	})
}
