package core_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

// acquiringMany begins n Acquires in one process, and waits until all of them wait.
func acquiringMany(t *testing.T, env *redistest.Env, l *core.Locker, n int, opts ...core.AcquireOption) (all []<-chan got) {
	t.Helper()
	for range n {
		all = append(all, acquiring(t, l, "k", opts...))
	}
	redistest.Eventually(t, func() bool { return l.InformedCalls() == n }, "all wait")
	listening(t, l)
	redistest.Eventually(t, func() bool {
		queue, _ := env.Client(t).HGet(t.Context(), core.RecordName(env.Prefix, "k"), "queue").Result()
		return len(queue) > 0 && !strings.Contains(queue, "~")
	}, "it is told by message")
	return all
}

// merged gives what the calls returned, in that order.
func merged(all []<-chan got) <-chan got {
	grants := make(chan got, len(all))
	for _, c := range all {
		go func() { grants <- <-c }()
	}
	return grants
}

// countSends counts the pipelines, and the commands sent alone, of one client.
func countSends(rdb *redis.Client) *atomic.Int64 {
	var sends atomic.Int64
	rdb.AddHook(hooks{
		script:   func(_ redis.Cmder, next func() error) error { sends.Add(1); return next() },
		pipeline: func(next func() error) error { sends.Add(1); return next() },
	})
	return &sends
}

func TestReaders_AllOfAProcessEnterBeforeTheWriterBehindThem(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		const readers = 50
		a, b, c := newSleeper(t, env), newLocker(t, env), newLocker(t, env)
		writing, err := b.Acquire(t.Context(), "k")
		require.NoError(t, err)
		reading := acquiringMany(t, env, a, readers, core.Shared())
		second := acquiring(t, c, "k")
		queued(t, env, "k", 2)

		require.NoError(t, writing.Release(t.Context()))
		fences, greatest := map[int64]bool{}, writing.Fence()
		var leases []*core.Lease
		for _, r := range reading {
			lease := granted(t, r)
			require.Greater(t, lease.Fence(), writing.Fence())
			fences[lease.Fence()], greatest = true, max(greatest, lease.Fence())
			leases = append(leases, lease)
		}
		require.Len(t, fences, readers)
		waiting(t, second, "readers are inside")
		for _, lease := range leases {
			require.NoError(t, lease.Context().Err())
			require.NoError(t, lease.Release(t.Context()))
		}
		written := granted(t, second)
		require.Greater(t, written.Fence(), greatest)
		require.NoError(t, written.Release(t.Context()))
		require.Empty(t, redistest.Keys(t, env.Client(t), env.Prefix))
	})
}

func TestReaders_ManyReadForEachWrite(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		a, b := newLocker(t, env), newLocker(t, env)
		var reads, writes, readBefore atomic.Int64
		var inside atomic.Int64
		ctx, stop := context.WithTimeout(t.Context(), time.Minute)
		defer stop()
		const enough = 30
		var wg sync.WaitGroup
		loop := func(l *core.Locker, n int, work func(), opts ...core.AcquireOption) {
			for range n {
				wg.Go(func() {
					for writes.Load() < enough && ctx.Err() == nil {
						err := l.Do(t.Context(), "k", func(context.Context) error { work(); return nil }, opts...)
						if err != nil {
							t.Error(err)
							return
						}
					}
				})
			}
		}
		loop(a, 50, func() {
			if inside.Add(1) < 0 {
				t.Error("a reader beside a writer")
			}
			time.Sleep(5 * time.Millisecond)
			inside.Add(-1)
			reads.Add(1)
		}, core.Shared())
		const many = 1 << 20
		loop(b, 2, func() {
			if inside.Add(-many) != -many {
				t.Error("a writer beside somebody")
			}
			time.Sleep(5 * time.Millisecond)
			inside.Add(many)
			if writes.Add(1) == enough {
				readBefore.Store(reads.Load())
			}
		})
		wg.Wait()
		t.Logf("%d reads, %d writes", readBefore.Load(), writes.Load())
		require.GreaterOrEqual(t, writes.Load(), int64(enough))
		require.GreaterOrEqual(t, readBefore.Load(), int64(20*enough), "reads a write")
	})
}

// While a writer waits, each reader enters at most once: those that stood before it, as leaders
// or along with one.
func TestReaders_EnterAtMostTwiceBeforeAWriterThatWaits(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		const readers = 25
		stop := make(chan struct{})
		var begun atomic.Int64
		var wg sync.WaitGroup
		for range 2 {
			l := newLocker(t, env)
			for range readers {
				wg.Go(func() {
					for {
						select {
						case <-stop:
							return
						default:
						}
						err := l.Do(t.Context(), "k", func(context.Context) error {
							begun.Add(1)
							time.Sleep(time.Millisecond)
							return nil
						}, core.Shared())
						if err != nil {
							t.Error(err)
							return
						}
					}
				})
			}
		}
		defer wg.Wait()
		defer close(stop)
		writer, rdb := newLocker(t, env), env.Client(t)
		for range 10 {
			before := begun.Load()
			redistest.Eventually(t, func() bool { return begun.Load() > before+4*readers }, "readers read")
			done := acquiring(t, writer, "k")
			redistest.Eventually(t, func() bool {
				if len(done) > 0 {
					return true
				}
				queue, _ := rdb.HGet(t.Context(), core.RecordName(env.Prefix, "k"), "queue").Result()
				return strings.Contains(queue, "1:")
			}, "the writer waits")
			before = begun.Load()
			lease := granted(t, done)
			require.LessOrEqual(t, begun.Load()-before, int64(2*readers))
			require.NoError(t, lease.Release(t.Context()))
		}
	})
}

func TestReaders_EnterInOneRoundTrip(t *testing.T) {
	t.Parallel()
	env := redistest.Real(t)
	const readers, oneWay = 300, time.Millisecond
	proxy := redistest.NewProxy(t, env.Addr)
	proxy.Delay(func() time.Duration { return oneWay })
	rdb := redistest.Client(t, &redis.Options{Addr: proxy.Addr})
	require.NoError(t, rdb.ScriptLoad(t.Context(), core.Scripts["admit"]).Err())
	sends := countSends(rdb)
	a := lockerOn(t, rdb, env.Prefix, core.WithRenewalClient(env.Client(t)))
	a.NeverPoll()
	writing, err := newLocker(t, env).Acquire(t.Context(), "k")
	require.NoError(t, err)
	calls := acquiringMany(t, env, a, readers, core.Shared())
	trip := make([]time.Duration, 9)
	for i := range trip {
		sent := time.Now()
		_, err := rdb.Pipelined(t.Context(), func(p redis.Pipeliner) error { // go-redis has connections of their own for these
			p.Ping(t.Context())
			p.Ping(t.Context())
			return nil
		})
		require.NoError(t, err)
		trip[i] = time.Since(sent)
	}
	slices.Sort(trip)
	sends.Store(0)
	require.NoError(t, writing.Release(t.Context()))
	released := time.Now()
	entered, leases := make([]time.Time, readers), make([]*core.Lease, readers)
	for i, c := range calls {
		g := outcome(t, c)
		require.NoError(t, g.err)
		entered[i], leases[i] = g.at, g.l
	}
	slices.SortFunc(entered, time.Time.Compare)
	t.Logf("%d readers at a round trip of %s, by PING: the first enters %s after the release, the second %s, the last %s; %d sends",
		readers, trip[len(trip)/2], entered[0].Sub(released), entered[1].Sub(released), entered[readers-1].Sub(released), sends.Load())
	require.LessOrEqual(t, sends.Load(), int64(3))
	for _, lease := range leases {
		require.NoError(t, lease.Release(t.Context()))
	}
}

func TestCounted_PermitsOfAProcessEnterTogether(t *testing.T) {
	t.Parallel()
	env := redistest.Real(t)
	const permits, calls = 8, 12
	rdb := env.Client(t)
	require.NoError(t, rdb.ScriptLoad(t.Context(), core.Scripts["admit"]).Err())
	sends := countSends(rdb)
	a := lockerOn(t, rdb, env.Prefix, core.WithRenewalClient(env.Client(t)))
	a.NeverPoll()
	b := newLocker(t, env)
	alone, err := b.Acquire(t.Context(), "k")
	require.NoError(t, err)
	all := acquiringMany(t, env, a, calls, core.Counted(permits))
	sends.Store(0)
	require.NoError(t, alone.Release(t.Context()))
	grants := merged(all)
	var leases []*core.Lease
	for range permits {
		leases = append(leases, granted(t, grants))
	}
	queued(t, env, "k", 1)
	require.LessOrEqual(t, sends.Load(), int64(2), "one for the permits, one to wait again")
	for i := range calls - permits {
		waiting(t, grants, "all permits are taken")
		require.NoError(t, leases[i].Release(t.Context()))
		leases = append(leases, granted(t, grants))
	}
	for _, lease := range leases[calls-permits:] {
		require.NoError(t, lease.Release(t.Context()))
	}
	requireNothingLeft(t, env.Client(t), env.Prefix, promptly)
}

func TestCounted_ManyCallsOfOneProcessDoNotStarveAnother(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		const permits = 3
		var inside atomic.Int64
		stop := make(chan struct{})
		var wg sync.WaitGroup
		use := func(l *core.Locker) {
			err := l.Do(t.Context(), "k", func(context.Context) error {
				if inside.Add(1) > permits {
					t.Error("too many hold the key")
				}
				time.Sleep(time.Millisecond)
				inside.Add(-1)
				return nil
			}, core.Counted(permits))
			if err != nil {
				t.Error(err)
			}
		}
		l := newLocker(t, env)
		for range 30 {
			wg.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
						use(l)
					}
				}
			})
		}
		other := newLocker(t, env)
		start := time.Now()
		for range 50 {
			use(other)
		}
		close(stop)
		wg.Wait()
		require.Less(t, time.Since(start), 20*time.Second)
	})
}

// admissions has at called for each admission; it sends that with next.
func admissions(t *testing.T, rdb *redis.Client, at func(next func() error) error) {
	t.Helper()
	require.NoError(t, rdb.ScriptLoad(t.Context(), core.Scripts["admit"]).Err())
	rdb.AddHook(hooks{script: func(cmd redis.Cmder, next func() error) error {
		if isScript(cmd, "admit") {
			return at(next)
		}
		return next()
	}})
}

// Calls that ask for a free key at the same time, none of which would wait for it. Those that work for less
// than a round trip are gone when the others are to be admitted beside them.
func TestReaders_OfAFreeKeyAreNotRefused(t *testing.T) {
	for _, work := range []time.Duration{time.Millisecond, 20 * time.Millisecond} {
		t.Run(work.String(), func(t *testing.T) {
			redistest.Each(t, func(t *testing.T, env *redistest.Env) {
				l, proxy, _ := throughProxy(t, env, noRetries)
				warm(t, l)
				proxy.Delay(func() time.Duration { return 3 * time.Millisecond })
				refuse := core.NewGuard(l, policyFunc(func(context.Context, core.Conflict) (core.Decision, error) { return core.Reject(), nil }))
				var wg sync.WaitGroup
				for i := range 40 {
					wg.Go(func() {
						time.Sleep(time.Duration(i) * time.Millisecond / 2)
						err := refuse.Do(t.Context(), core.Call{Key: "k", Shared: true}, func(context.Context) error {
							time.Sleep(work)
							return nil
						})
						if err != nil {
							t.Error(err)
						}
					})
				}
				wg.Wait()
			})
		})
	}
}

func TestReaders_ALeaderThatIsGoneAdmitsNobodyPastAWriter(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		const readers = 5
		rdb := env.Client(t)
		sent, gate := make(chan struct{}), make(chan struct{})
		var held sync.Once
		admissions(t, rdb, func(next func() error) error {
			held.Do(func() { close(sent); <-gate })
			return next()
		})
		a, b, c, d := lockerOn(t, rdb, env.Prefix), newLocker(t, env), newLocker(t, env), newLocker(t, env)
		writing, err := b.Acquire(t.Context(), "k")
		require.NoError(t, err)
		grants := merged(acquiringMany(t, env, a, readers, core.Shared()))
		beside := acquiring(t, c, "k", core.Shared())
		queued(t, env, "k", 2)
		second := acquiring(t, d, "k")
		queued(t, env, "k", 3)
		require.NoError(t, writing.Release(t.Context()))
		<-sent
		reading := granted(t, beside)
		require.NoError(t, granted(t, grants).Release(t.Context()))
		close(gate)
		queued(t, env, "k", 2) // the wait queue has asked again
		waiting(t, grants, "their leader is gone, and a writer waits")
		require.NoError(t, reading.Release(t.Context()))
		written := granted(t, second)
		waiting(t, grants, "a writer is inside")
		require.NoError(t, written.Release(t.Context()))
		for range readers - 1 {
			require.NoError(t, granted(t, grants).Release(t.Context()))
		}
		requireNothingLeft(t, env.Client(t), env.Prefix, promptly)
	})
}

// The script of an admission serves whoever is at the head of the queue, as every other does.
func TestReaders_AnAdmissionAfterTheirLeadersLeaseServesTheNext(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		rdb, record := env.Client(t), core.RecordName(env.Prefix, "k")
		a, b := newLocker(t, env), newLocker(t, env)
		leader, err := a.Acquire(t.Context(), "k", core.Shared(), core.FixedLease(time.Minute))
		require.NoError(t, err)
		writer := acquiringMany(t, env, b, 1)[0]
		over := time.Now().Add(-time.Second).UnixMilli()
		fields, err := rdb.HGetAll(t.Context(), record).Result()
		require.NoError(t, err)
		token := ""
		for field := range fields {
			if its, is := strings.CutPrefix(field, "h:"); is {
				token = its
			}
		}
		require.NoError(t, rdb.HSet(t.Context(), record, "next", over, "h:"+token, fmt.Sprintf("%d %d x", over, leader.Fence())).Err())
		fences, err := rdb.Eval(t.Context(), core.Scripts["admit"], []string{record}, token, leader.Fence(), "0:a.follower", 1000, "x").Int64Slice()
		require.NoError(t, err)
		require.Equal(t, []int64{0}, fences)
		require.NoError(t, granted(t, writer).Release(t.Context()))
	})
}

// What Redis gets long after the grant is a copy that was delayed: those who asked have left.
func TestReaders_AnAdmissionThatIsDeliveredLateAdmitsNobody(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		rdb, record := env.Client(t), core.RecordName(env.Prefix, "k")
		admit := func(age time.Duration) int64 {
			now, err := rdb.Time(t.Context()).Result()
			require.NoError(t, err)
			fences, err := rdb.Eval(t.Context(), core.Scripts["admit"], []string{record}, "0:a.leader", now.Add(-age).UnixMicro(), "0:a.follower", 100, "x").Int64Slice()
			require.NoError(t, err)
			return fences[0]
		}
		require.Zero(t, admit(1100*time.Millisecond))
		require.Zero(t, rdb.Exists(t.Context(), record).Val())
		require.NotZero(t, admit(100*time.Millisecond))
	})
}

func TestReaders_ALostReplyToTheirAdmission(t *testing.T) {
	for name, retries := range map[string]int{"sent again": 3, "cancelled": noRetries} {
		t.Run(name, func(t *testing.T) {
			redistest.Each(t, func(t *testing.T, env *redistest.Env) {
				const readers = 20
				a, proxy, direct := throughProxy(t, env, retries)
				require.NoError(t, direct.ScriptLoad(t.Context(), core.Scripts["admit"]).Err())
				b := newLocker(t, env)
				writing, err := b.Acquire(t.Context(), "k")
				require.NoError(t, err)
				grants := merged(acquiringMany(t, env, a, readers, core.Shared()))
				proxy.LoseReply(once(redis.NewScript(core.Scripts["admit"]).Hash()))
				require.NoError(t, writing.Release(t.Context()))
				fences := map[int64]bool{}
				var leases []*core.Lease
				for range readers {
					lease := granted(t, grants)
					fences[lease.Fence()] = true
					leases = append(leases, lease)
				}
				require.Len(t, fences, readers)
				redistest.Eventually(t, func() bool {
					held, err := direct.HGet(t.Context(), core.RecordName(env.Prefix, "k"), "held").Int()
					return err == nil && held == readers
				}, "nobody else holds the key")
				for _, lease := range leases {
					require.NoError(t, lease.Release(t.Context()))
				}
				requireNothingLeft(t, direct, env.Prefix, promptly)
			})
		})
	}
}

func TestReaders_WhoLeaveDuringTheirAdmissionHoldNothing(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		const readers = 20
		rdb := env.Client(t)
		ran, gate := make(chan struct{}), make(chan struct{})
		var held sync.Once
		admissions(t, rdb, func(next func() error) error {
			err := next()
			held.Do(func() { close(ran); <-gate })
			return err
		})
		a, b := lockerOn(t, rdb, env.Prefix), newLocker(t, env)
		writing, err := b.Acquire(t.Context(), "k")
		require.NoError(t, err)
		ctx, leave := context.WithCancel(t.Context())
		staying := acquiringMany(t, env, a, 1, core.Shared())
		var leaving []<-chan got
		for range readers {
			leaving = append(leaving, acquiringCtx(ctx, a, "k", core.Shared()))
		}
		redistest.Eventually(t, func() bool { return a.InformedCalls() == readers+1 }, "all wait")
		require.NoError(t, writing.Release(t.Context()))
		<-ran
		leave()
		for _, c := range leaving {
			require.ErrorIs(t, outcome(t, c).err, context.Canceled)
		}
		late := acquiring(t, a, "k", core.Shared()) // it was in no admission
		close(gate)
		for _, c := range []<-chan got{staying[0], late} {
			require.NoError(t, granted(t, c).Release(t.Context()))
		}
		requireNothingLeft(t, env.Client(t), env.Prefix, promptly)
	})
}

func TestReaders_AreNotAdmittedWhileTheKeyIsReserved(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		const readers = 5
		rdb := env.Client(t)
		l := newLocker(t, env)
		var held sync.Once
		admissions(t, rdb, func(next func() error) error {
			held.Do(func() {
				if err := reserve(t, l, "k", time.Minute); err != nil {
					t.Error(err)
				}
			})
			return next()
		})
		a := lockerOn(t, rdb, env.Prefix)
		writing, err := l.Acquire(t.Context(), "k")
		require.NoError(t, err)
		grants := merged(acquiringMany(t, env, a, readers, core.Shared()))
		require.NoError(t, writing.Release(t.Context()))
		leader := granted(t, grants)
		queued(t, env, "k", 1)
		waiting(t, grants, "the key is reserved")
		require.NoError(t, leader.Release(t.Context()))
		work := parked(t, l, "k")
		require.NoError(t, unreserve(t, l, work))
		require.NoError(t, work.Release(t.Context()))
		for range readers - 1 {
			require.NoError(t, granted(t, grants).Release(t.Context()))
		}
	})
}

func TestReaders_ACloseDuringTheirAdmission(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		const readers = 20
		rdb := env.Client(t)
		ran, gate := make(chan struct{}), make(chan struct{})
		var held sync.Once
		admissions(t, rdb, func(next func() error) error {
			err := next()
			held.Do(func() { close(ran); <-gate })
			return err
		})
		a, b := lockerOn(t, rdb, env.Prefix), newLocker(t, env)
		writing, err := b.Acquire(t.Context(), "k")
		require.NoError(t, err)
		grants := merged(acquiringMany(t, env, a, readers, core.Shared()))
		require.NoError(t, writing.Release(t.Context()))
		<-ran
		time.AfterFunc(20*time.Millisecond, func() { close(gate) })
		require.NoError(t, a.Close())
		for range readers {
			if g := outcome(t, grants); g.err == nil {
				require.Error(t, g.l.Context().Err())
				_ = g.l.Release(t.Context())
			} else {
				require.ErrorIs(t, g.err, core.ErrClosed)
			}
		}
		start := time.Now()
		writing, err = b.Acquire(t.Context(), "k")
		require.NoError(t, err)
		require.Less(t, time.Since(start), 4*time.Second)
		require.NoError(t, writing.Release(t.Context()))
	})
}

// Redis swallows an admission: the wait queue asks by itself, and the calls wait on meanwhile.
func TestReaders_AnAdmissionWithoutAnAnswer(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		const readers = 20
		proxy := redistest.NewProxy(t, env.Addr)
		rdb := redistest.Client(t, &redis.Options{Addr: proxy.Addr, MaxRetries: noRetries, ReadTimeout: 2 * time.Second})
		var swallowed sync.Once
		admissions(t, rdb, func(next func() error) error {
			swallowed.Do(func() { proxy.Blackhole(redistest.Requests) })
			return next()
		})
		a, b := lockerOn(t, rdb, env.Prefix, core.WithRenewalClient(env.Client(t))), newLocker(t, env)
		writing, err := b.Acquire(t.Context(), "k")
		require.NoError(t, err)
		grants := merged(acquiringMany(t, env, a, readers, core.Shared()))
		require.NoError(t, writing.Release(t.Context()))
		leases := []*core.Lease{granted(t, grants)}
		time.AfterFunc(300*time.Millisecond, func() { proxy.Blackhole(0) })
		start := time.Now()
		for range readers - 1 {
			leases = append(leases, granted(t, grants))
		}
		require.Less(t, time.Since(start), 2*time.Second, "the wait queue does not wait for the time-out")
		for _, lease := range leases {
			require.NoError(t, lease.Release(t.Context()))
		}
		requireNothingLeft(t, env.Client(t), env.Prefix, orphan)
	})
}
