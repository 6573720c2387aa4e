//go:build soak

package core_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"runtime/debug"
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
	"github.com/perkey-go/perkey/retry"
)

// In a black hole Redis takes connections and requests, and answers nothing. These tests have go-redis's own time-outs: 3 s for a
// reply, and three retries.

// replyTimeout is how long nobody waits without a word from Redis.
const replyTimeout = 3 * time.Second

// briefly waits so long for a key.
func briefly(d time.Duration) retry.Policy {
	return retry.Policy{MaxWait: d, Initial: 10 * time.Millisecond, Max: 50 * time.Millisecond}
}

// holePaths are the ways to a refusal, each with the time that it may take besides that for a word from Redis.
var holePaths = []struct {
	name string
	wait time.Duration
	call func(l *core.Locker, opts []core.AcquireOption) error
}{
	{"a retry policy", 50 * time.Millisecond, func(l *core.Locker, opts []core.AcquireOption) error {
		return l.Guard(briefly(50*time.Millisecond), opts...).Do(context.Background(), core.Call{Key: "k"}, nothing)
	}},
	{"a retry policy that waits long", 2 * time.Second, func(l *core.Locker, opts []core.AcquireOption) error {
		return l.Guard(briefly(2*time.Second), opts...).Do(context.Background(), core.Call{Key: "k"}, nothing)
	}},
	{"a call that is shed", 0, func(l *core.Locker, opts []core.AcquireOption) error {
		return l.Guard(briefly(time.Minute), opts...).Do(context.Background(), core.Call{Key: "full"}, nothing)
	}},
	{"TryAcquire", 0, func(l *core.Locker, opts []core.AcquireOption) error {
		_, err := l.TryAcquire(context.Background(), "k", opts...)
		return err
	}},
	{"TryAcquireAll", 0, func(l *core.Locker, opts []core.AcquireOption) error {
		_, err := l.TryAcquireAll(context.Background(), []string{"j", "k"}, opts...)
		return err
	}},
	{"a free key", 0, func(l *core.Locker, opts []core.AcquireOption) error {
		_, err := l.Acquire(context.Background(), "free", opts...)
		return err
	}},
	{"Peek", 0, func(l *core.Locker, opts []core.AcquireOption) error {
		return l.Guard(nil, opts...).Peek(context.Background(), core.Call{Key: "k"})
	}},
}

func TestBlackhole_EveryPathHearsOfItWithinReplyTimeout(t *testing.T) {
	for mode, opts := range modes {
		t.Run(mode, func(t *testing.T) {
			onFakeLockers(t, func(t *testing.T, nodes []*fakeNode, locker func(...core.Option) *core.Locker) {
				holder := locker(core.WithTTL(time.Hour))
				for _, key := range []string{"k", "full"} {
					acquire(t, holder, key)
				}
				l := locker(core.WithMaxWaiters(2, 1000), core.WithObserver(outageTold{t: t}))
				var all, waiters sync.WaitGroup
				for key, n := range map[string]int{"k": 1, "full": 2} {
					for range n {
						waiters.Go(func() {
							assert.NoError(t, l.Do(t.Context(), key, nothing, opts...), "a call that knows of the holder waits it out")
						})
					}
				}
				time.Sleep(10 * time.Second)
				require.Equal(t, 3, l.InformedCalls())
				for _, n := range nodes {
					n.stop()
				}
				start := time.Now()
				for _, path := range holePaths {
					if path.name == "Peek" && len(nodes) > 1 {
						continue // a quorum cannot be inspected
					}
					all.Go(func() {
						for time.Since(start) < 4*replyTimeout {
							began := time.Now()
							err := path.call(l, opts)
							took, now := time.Since(began), time.Since(start)
							assert.LessOrEqual(t, took, path.wait+replyTimeout, path.name)
							if errors.Is(err, core.ErrConflict) {
								assert.LessOrEqual(t, now, replyTimeout, "%s: %v", path.name, err)
							} else {
								assert.ErrorIs(t, err, core.ErrUnavailable, path.name)
							}
							time.Sleep(20 * time.Millisecond)
						}
					})
				}
				time.Sleep(4*replyTimeout + 6*time.Second)
				all.Wait()
				for _, n := range nodes {
					n.FlushAll() // their holder's leases are over
					n.live()
				}
				back := time.Now()
				waiters.Wait()
				require.LessOrEqual(t, time.Since(back), time.Duration(len(nodes))*500*time.Millisecond)
			})
		})
	}
}

// outageTold checks that only what is refused for want of room is told as shed.
type outageTold struct {
	core.NopObserver
	t *testing.T
}

func (o outageTold) OnOutcome(_ context.Context, e core.Outcome) {
	if e.Kind == core.OutcomeShed && !errors.Is(e.Cause, core.ErrConflict) {
		assert.ErrorContains(o.t, e.Cause, "too many calls wait")
	}
}

// A Locker that nobody calls has heard nothing for a while. That is no outage: it asks before it refuses.
func TestBlackhole_ALockerThatWasIdleAsksBeforeItRefuses(t *testing.T) {
	onFakeLockers(t, func(t *testing.T, _ []*fakeNode, locker func(...core.Option) *core.Locker) {
		l := locker(core.WithTTL(time.Hour))
		first := acquire(t, l, "k")
		next := acquiring(t, l, "k")
		time.Sleep(20 * time.Millisecond)
		require.NoError(t, first.Release(t.Context()))
		lease := granted(t, next) // while it is held, this process knows it
		for range 3 {
			time.Sleep(17 * time.Second)
			err := l.Guard(briefly(10*time.Millisecond)).Do(t.Context(), core.Call{Key: "k"}, nothing)
			require.ErrorIs(t, err, core.ErrConflict)
		}
		require.NoError(t, lease.Release(t.Context()))
	})
}

// Nobody waits for as long as his lease or the client's time-outs would allow. A release goes on in the background.
func TestBlackhole_AnExtensionAndARelease(t *testing.T) {
	onFakeNodes(t, 1, func(t *testing.T, nodes []*fakeNode) {
		n := nodes[0]
		own, patient := n.client(t), *n.client(t).Options()
		const ms = time.Millisecond
		patient.ReadTimeout, patient.WriteTimeout = time.Hour, time.Hour
		var all sync.WaitGroup
		stopped := make(chan struct{})
		for client, rdb := range map[string]*redis.Client{"go-redis's": own, "patient": redistest.Client(t, &patient)} {
			closed := lockerOn(t, rdb, "p", core.WithTTL(time.Hour))
			left := acquire(t, closed, "left by "+client)
			require.NoError(t, closed.Close())
			all.Go(func() {
				<-stopped
				start := time.Now()
				assert.ErrorIs(t, left.Release(t.Context()), core.ErrClosed)
				assert.LessOrEqual(t, time.Since(start), replyTimeout+500*time.Millisecond, client)
			})
			l := lockerOn(t, rdb, "p", core.WithTTL(time.Hour))
			for _, after := range []time.Duration{0, ms, ms, time.Second, 2500 * time.Millisecond, 5 * time.Second} {
				held := acquire(t, l, fmt.Sprint(client, after, rand.Int()))
				lease, err := l.Acquire(t.Context(), fmt.Sprint(client, after, rand.Int()))
				require.NoError(t, err)
				all.Go(func() {
					<-stopped
					time.Sleep(after + ms) // the first release is alone
					start := time.Now()
					assert.ErrorIs(t, held.Extend(t.Context(), time.Minute), core.ErrUnavailable, client)
					assert.LessOrEqual(t, time.Since(start), replyTimeout, "%s, after %s", client, after)
				})
				all.Go(func() {
					<-stopped
					time.Sleep(after)
					start := time.Now()
					assert.ErrorIs(t, lease.Release(t.Context()), core.ErrUnavailable, client)
					assert.LessOrEqual(t, time.Since(start), replyTimeout+500*time.Millisecond, "%s, after %s", client, after)
				})
			}
		}
		n.stop()
		close(stopped)
		all.Wait()
		n.live()
		time.Sleep(20 * time.Second)
		require.Len(t, records(nodes), 2*6, "all others are released")
	})
}

// Once a command has failed the node is down. Who waits for a silent one is told nevertheless.
func TestBlackhole_ACommandThatFailsHidesNoSilence(t *testing.T) {
	t.Parallel()
	onFakeNodes(t, 1, func(t *testing.T, nodes []*fakeNode) {
		n := nodes[0]
		rdb := n.client(t)
		rdb.AddHook(hooks{script: func(cmd redis.Cmder, next func() error) error {
			if cmd.Args()[3] == core.RecordName("p", "fails") {
				return refuse(cmd, io.EOF)
			}
			return next()
		}})
		l := lockerOn(t, rdb, "p")
		warm(t, l)
		n.stop()
		stopped := time.Now()
		var all sync.WaitGroup
		for _, key := range []string{"early", "late", "fails"} {
			all.Go(func() {
				_, err := l.TryAcquire(t.Context(), key)
				assert.ErrorIs(t, err, core.ErrUnavailable)
				assert.LessOrEqual(t, time.Since(stopped), replyTimeout, key)
			})
			time.Sleep(800 * time.Millisecond)
		}
		all.Wait()
		n.live()
	})
}

// throughHook has a client's connections made by a hook.
type throughHook struct {
	hooks
	dial func(ctx context.Context, network, addr string) (net.Conn, error)
}

func (h throughHook) DialHook(redis.DialHook) redis.DialHook { return h.dial }

// A node is up again as soon as the Locker's client has a connection: a new one, which its hooks make, or one of its pool while it gets no
// other. A slow observer delays nobody, and is told in order.
func TestOutage_IsOverWhenTheClientHasAConnection(t *testing.T) {
	t.Parallel()
	for name, pooled := range map[string]bool{"a new one": false, "one of its pool": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onFakeNodes(t, 1, func(t *testing.T, nodes []*fakeNode) {
				n, usual := nodes[0], nodes[0].client(t)
				var fails, refuses atomic.Bool
				opt := *usual.Options()
				opt.Dialer = func(context.Context, string, string) (net.Conn, error) { return nil, io.EOF }
				rdb := redistest.Client(t, &opt)
				rdb.AddHook(throughHook{hooks{script: func(cmd redis.Cmder, next func() error) error {
					if fails.Load() {
						return refuse(cmd, io.EOF)
					}
					return next()
				}}, func(ctx context.Context, network, addr string) (net.Conn, error) {
					if refuses.Load() {
						return nil, io.EOF
					}
					return n.dial(ctx, network, addr)
				}})
				seen := slowWatch{over: make(chan struct{}), told: make(chan bool, 100)}
				l := lockerOn(t, rdb, "p", core.WithTTL(3*time.Second), core.WithRenewalClient(usual), core.WithObserver(seen))
				renewed := acquire(t, l, "renewed")
				soon := 500 * time.Millisecond
				if fails.Store(pooled); pooled {
					refuses.Store(true)
					soon += time.Second // the next renewal
				} else {
					require.NoError(t, renewed.Release(t.Context()))
					n.die()
				}
				_, err := l.TryAcquire(t.Context(), "k")
				assert.ErrorIs(t, err, core.ErrUnavailable)
				time.Sleep(time.Second)
				fails.Store(false)
				n.live()
				for back := time.Now(); l.Do(t.Context(), "k", nothing) != nil && assert.Less(t, time.Since(back), soon); {
					time.Sleep(10 * time.Millisecond)
				}
				close(seen.over)
				require.NoError(t, l.Close())
				assert.Equal(t, []bool{false, true}, []bool{<-seen.told, <-seen.told})
				assert.Empty(t, seen.told)
			})
		})
	}
}

// One node of a Cluster is silent: its keys are unavailable, those of the others are served, and who knows of its holder waits it out.
func TestBlackhole_OfANodeOfACluster(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, 3, 0)
	rdb := c.Client(t)
	require.NoError(t, rdb.ForEachMaster(t.Context(), func(ctx context.Context, node *redis.Client) error {
		return node.ConfigSet(ctx, "cluster-node-timeout", "600000").Err() // they do not take it for dead
	}))
	silent := c.NodeOf(t, core.RecordName("p", "k"))
	holder := acquire(t, lockerOn(t, rdb, "p", core.WithTTL(time.Hour)), "k")
	l := lockerOn(t, c.Client(t), "p")
	const waiters = 20
	results := informedCalls(t, l, waiters, func() error { return l.Do(t.Context(), "k", nothing) })
	listening(t, l)
	silent.Pause()
	t.Cleanup(silent.Resume)
	var told atomic.Bool
	var all sync.WaitGroup
	for _, key := range keyNames(24) {
		if c.NodeOf(t, core.RecordName("p", key)) == silent {
			continue
		}
		all.Go(func() {
			for !told.Load() {
				assert.NoError(t, l.Do(t.Context(), key, nothing), "another node serves it")
				time.Sleep(5 * time.Millisecond)
			}
		})
	}
	refused := l.Guard(briefly(10 * time.Millisecond))
	redistest.Eventually(t, func() bool {
		return errors.Is(refused.Do(t.Context(), core.Call{Key: "k"}, nothing), core.ErrUnavailable)
	}, "conflicts have an end")
	for range 16 {
		all.Go(func() {
			for range 30 {
				assert.ErrorIs(t, refused.Do(t.Context(), core.Call{Key: "k"}, nothing), core.ErrUnavailable, "a conflict after it was known to be away")
			}
		})
	}
	time.AfterFunc(time.Second, func() { told.Store(true) })
	all.Wait()
	require.Empty(t, results, "a call left that knew of the holder")
	silent.Resume()
	require.NoError(t, holder.Release(t.Context()))
	for range waiters {
		require.NoError(t, <-results)
	}
}

// dialTimeout is go-redis's own.
const dialTimeout = 5 * time.Second

// slowDials has a client dial for so long, whatever its context says, as go-redis does with TLS; once in a black hole until its
// DialTimeout.
func slowDials(t *testing.T, n *fakeNode, hole *atomic.Bool, usual time.Duration) *redis.Client {
	t.Helper()
	opt := *n.client(t).Options()
	dial := opt.Dialer
	opt.Dialer = func(_ context.Context, network, addr string) (net.Conn, error) {
		subscribes := bytes.Contains(debug.Stack(), []byte("listener.(*Listener)")) // with a mutex, which would keep the bubble's clock still
		if hole.Load() {
			if !subscribes {
				time.Sleep(dialTimeout)
			}
			return nil, &net.OpError{Op: "dial", Net: network, Err: os.ErrDeadlineExceeded}
		}
		if !subscribes {
			time.Sleep(usual)
		}
		return dial(context.Background(), network, addr)
	}
	return redistest.Client(t, &opt)
}

// A black hole takes the attempts to dial too. Nobody waits for them, and once it is over everybody is served as soon as go-redis has
// a connection: when as many attempts have failed as its pool has connections, it makes one at a time, with a second between two.
func TestBlackhole_OfAClientThatDialsSlowly(t *testing.T) {
	t.Parallel()
	for _, usual := range []time.Duration{0, 400 * time.Millisecond} {
		t.Run(fmt.Sprint(usual), func(t *testing.T) {
			t.Parallel()
			onFakeNodes(t, 1, func(t *testing.T, nodes []*fakeNode) {
				n, hole := nodes[0], &atomic.Bool{}
				l := lockerOn(t, slowDials(t, n, hole, usual), "p", core.WithTTL(time.Hour), core.WithFirstLease(time.Minute))
				const callers = 15
				var leases []*core.Lease
				for i := range callers {
					leases = append(leases, testbed.Take(t, l, fmt.Sprint(i)))
				}
				time.Sleep(10 * time.Second)
				for range 3 {
					hole.Store(true)
					n.die() // what was connected ends
					start := time.Now()
					var all sync.WaitGroup
					for i := range callers {
						all.Go(func() {
							for time.Since(start) < 20*time.Second {
								began := time.Now()
								_, err := l.TryAcquire(t.Context(), fmt.Sprint("k", i))
								assert.ErrorIs(t, err, core.ErrUnavailable)
								assert.LessOrEqual(t, time.Since(began), replyTimeout)
								time.Sleep(100 * time.Millisecond)
							}
						})
					}
					if lease := leases[0]; lease != nil {
						leases = leases[1:]
						began := time.Now()
						assert.ErrorIs(t, lease.Release(t.Context()), core.ErrUnavailable)
						assert.LessOrEqual(t, time.Since(began), replyTimeout+500*time.Millisecond)
					}
					all.Wait()
					hole.Store(false)
					n.live()
					back := time.Now()
					for i := range callers {
						all.Go(func() {
							for l.Do(t.Context(), fmt.Sprint("k", i), nothing) != nil {
								time.Sleep(10 * time.Millisecond)
							}
						})
					}
					all.Wait()
					assert.LessOrEqual(t, time.Since(back), dialTimeout+time.Second+500*time.Millisecond+4*usual)
				}
				time.Sleep(30 * time.Second) // until nobody dials
			})
		})
	}
}

// slowWatch keeps the warnings of one kind. It is slow with them.
type slowWatch struct {
	core.NopObserver
	over chan struct{}
	told chan bool
}

func (w slowWatch) OnWarning(_ context.Context, warning core.Warning) {
	if <-w.over; warning.Kind == core.WarnUnreachable {
		w.told <- warning.Resolved
	}
}
