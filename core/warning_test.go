package core_test

import (
	"bytes"
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
)

// watch keeps the warnings that a Locker gives.
type watch struct {
	core.NopObserver
	warnings chan core.Warning
}

func newWatch() watch { return watch{warnings: make(chan core.Warning, 100)} }

func (w watch) OnWarning(_ context.Context, warning core.Warning) { w.warnings <- warning }

func TestWarning_AServerThatMayEvictIsWarnedOfOnce(t *testing.T) {
	t.Parallel()
	const unset = "once maxmemory is set"
	for policy, want := range map[string]string{"allkeys-lru": unset, "volatile-ttl": unset, "volatile-lru": "held keys can be evicted", "noeviction": ""} {
		t.Run(policy, func(t *testing.T) {
			t.Parallel()
			args := []string{"--maxmemory-policy", policy}
			if policy == "volatile-lru" {
				args = append(args, "--maxmemory", "100mb")
			}
			env := &redistest.Env{Addr: redistest.Start(t, args...).Addr, Prefix: "p"}
			seen := newWatch()
			l := newLocker(t, env, core.WithObserver(seen))
			warm(t, l)
			warm(t, l)
			if want != "" {
				w := <-seen.warnings
				require.Equal(t, core.WarnEviction, w.Kind)
				require.Contains(t, w.Detail, policy)
				require.Contains(t, w.Detail, want)
			}
			require.NoError(t, l.Close())
			require.Empty(t, seen.warnings)
		})
	}
}

func TestWarning_AnEvictionPolicyThatCannotBeReadIsWarnedOf(t *testing.T) {
	t.Parallel()
	rdb := redistest.Client(t, &redis.Options{Addr: redistest.Start(t).Addr})
	redistest.AddUser(t, rdb, aclUser, redistest.Rights(t, toLock, toBeWoken))
	denied := redistest.Client(t, &redis.Options{Addr: rdb.Options().Addr, Username: aclUser, Password: redistest.Password})
	silent := redistest.Embedded(t).Client(t) // it knows no such section
	for _, client := range []*redis.Client{denied, silent} {
		seen := newWatch()
		l := lockerOn(t, client, "perkey", core.WithObserver(seen))
		warm(t, l)
		w := <-seen.warnings
		require.Equal(t, core.WarnEvictionUnknown, w.Kind)
		require.Error(t, w.Err)
	}
}

func TestWarning_EveryPrimaryOfAClusterIsAskedForItsEvictionPolicy(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, 3, 0)
	rdb := c.Client(t)
	require.NoError(t, rdb.ForEachMaster(t.Context(), func(ctx context.Context, node *redis.Client) error {
		return node.ConfigSet(ctx, "maxmemory-policy", "allkeys-random").Err()
	}))
	seen := newWatch()
	warm(t, lockerOn(t, rdb, "p", core.WithObserver(seen)))
	nodes := map[string]bool{}
	for range 3 {
		w := <-seen.warnings
		require.Equal(t, core.WarnEviction, w.Kind)
		nodes[w.Node] = true
	}
	require.Len(t, nodes, 3)
}

func TestWarning_ADeniedSubscriptionIsWarnedOfOnceAndWaitingGoesOn(t *testing.T) {
	t.Parallel()
	rdb := redistest.Client(t, &redis.Options{Addr: redistest.Start(t).Addr})
	redistest.AddUser(t, rdb, aclUser, append(redistest.Rights(t, toLock, "an Observer"), "+subscribe", "+publish", "+ping"))
	client := func() *redis.Client {
		return redistest.Client(t, &redis.Options{Addr: rdb.Options().Addr, Username: aclUser, Password: redistest.Password})
	}
	seen := newWatch()
	holder, waiting := lockerOn(t, client(), "perkey"), lockerOn(t, client(), "perkey", core.WithObserver(seen))
	lease := testbed.Take(t, holder, "k")
	waited := make(chan error)
	go func() { waited <- waiting.Do(t.Context(), "k", nothing) }()
	w := <-seen.warnings
	require.Equal(t, core.WarnNoSubscription, w.Kind)
	require.ErrorContains(t, w.Err, "NOPERM")
	require.False(t, w.Resolved)
	require.NoError(t, lease.Release(t.Context()))
	require.NoError(t, <-waited)
	require.Empty(t, seen.warnings, "told once")

	require.NoError(t, rdb.Do(t.Context(), "acl", "setuser", aclUser, "&perkey:wake:*").Err())
	w = <-seen.warnings
	require.Equal(t, core.WarnNoSubscription, w.Kind)
	require.True(t, w.Resolved)
}

func TestWarning_ASubscriptionThatIsCutAndMadeAnewIsNotWarnedOf(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		proxy := redistest.NewProxy(t, env.Addr)
		seen := newWatch()
		l := lockerOn(t, redistest.Client(t, &redis.Options{Addr: proxy.Addr}), env.Prefix, core.WithObserver(seen))
		warm(t, l)
		if !env.Real {
			require.Equal(t, core.WarnEvictionUnknown, (<-seen.warnings).Kind)
		}
		for range 3 {
			listening(t, l)
			before := proxy.Accepted()
			proxy.Cut()
			redistest.Eventually(t, func() bool { return proxy.Accepted() > before }, "the cut is noticed")
		}
		listening(t, l)
		for len(seen.warnings) > 0 { // the look at the eviction policy may have been cut too
			require.NotEqual(t, core.WarnNoSubscription, (<-seen.warnings).Kind)
		}
	})
}

func TestSlogObserver_WarnsOfADeploymentOnce(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	o := core.SlogObserver(slog.New(slog.NewTextHandler(&out, nil)))
	o.OnWarning(t.Context(), core.Warning{Kind: core.WarnEviction, Node: "10.0.0.1:6379", Detail: "policy"})
	require.Contains(t, out.String(), "level=WARN")
	require.Contains(t, out.String(), "10.0.0.1:6379")
	out.Reset()
	o.OnWarning(t.Context(), core.Warning{Kind: core.WarnNoSubscription, Err: core.ErrUnavailable, Resolved: true})
	o.OnWarning(t.Context(), core.Warning{Kind: core.WarnEvictionUnknown})
	require.Equal(t, 2, bytes.Count(out.Bytes(), []byte("level=INFO")))
}

func TestOutage_IsWarnedOfOnceAndItsEndToo(t *testing.T) {
	for name, away := range outages {
		t.Run(name, func(t *testing.T) {
			redistest.Each(t, func(t *testing.T, env *redistest.Env) {
				proxy := redistest.NewProxy(t, env.Addr)
				options := &redis.Options{Addr: proxy.Addr}
				impatient(options)
				seen := newWatch()
				l := lockerOn(t, redistest.Client(t, options), env.Prefix, core.WithObserver(seen), core.WithRenewalClient(env.Client(t)))
				warm(t, l)
				said := func() (told []bool) {
					for len(seen.warnings) > 0 {
						if w := <-seen.warnings; w.Kind == core.WarnUnreachable {
							told = append(told, w.Resolved)
						}
					}
					return told
				}
				require.Empty(t, said())
				away(proxy)
				var calls sync.WaitGroup
				for range 20 {
					calls.Go(func() { assert.ErrorIs(t, errOf(l.TryAcquire(t.Context(), "k")), core.ErrUnavailable) })
				}
				calls.Wait()
				var told []bool
				redistest.Eventually(t, func() bool { told = append(told, said()...); return len(told) > 0 }, "a warning")
				require.Equal(t, []bool{false}, told)
				heal(proxy)
				redistest.Eventually(t, func() bool { told = append(told, said()...); return len(told) > 1 }, "its end")
				require.Equal(t, []bool{false, true}, told)
				warm(t, l)
			})
		})
	}
}

// Redis refuses what a client that has not signed in sends, and closes its connection for a command of more than ten words, as that of a
// release: with a cancellation every 100 ms the server seemed to go away and come back.
func TestWarning_ACallThatMayNotSignInLeavesNothingToCancel(t *testing.T) {
	t.Parallel()
	addr := redistest.Start(t).Addr
	require.NoError(t, redistest.Client(t, &redis.Options{Addr: addr}).ConfigSet(t.Context(), "requirepass", "right").Err())
	for cause, password := range map[string]string{"NOAUTH": "", "WRONGPASS": "wrong"} {
		t.Run(cause, func(t *testing.T) {
			t.Parallel()
			var scripts atomic.Int64
			rdb := redistest.Client(t, &redis.Options{Addr: addr, Password: password})
			rdb.AddHook(redistest.BeforeEach(func(cmd redis.Cmder) {
				if redistest.IsScript(cmd) {
					scripts.Add(1)
				}
			}))
			seen := newWatch()
			l := lockerOn(t, rdb, "p", core.WithObserver(seen))
			var calls sync.WaitGroup
			for range 20 {
				calls.Go(func() {
					for _, err := range []error{l.Do(t.Context(), "k", nothing), errOf(l.AcquireAll(t.Context(), []string{"k", "m"}))} {
						assert.ErrorIs(t, err, core.ErrUnavailable)
						assert.ErrorContains(t, err, cause)
					}
				})
			}
			calls.Wait()
			sent := scripts.Load()
			require.Never(t, func() bool { return scripts.Load() > sent }, 400*time.Millisecond, 20*time.Millisecond, "cancelled, though nothing was granted")
			require.Empty(t, seen.warnings)
		})
	}
}
