package core_test

import (
	"context"
	"fmt"
	"os"
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

// readersBehind returns the lease of a writer, and the grants of a's readers that wait for it.
func readersBehind(t *testing.T, env *redistest.Env, writer, a *core.Locker, readers int) (writing *core.Lease, grants <-chan got) {
	t.Helper()
	writing, err := writer.Acquire(t.Context(), "k")
	require.NoError(t, err)
	return writing, merged(acquiringMany(t, env, a, readers, core.Shared()))
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
				refuse := l.Guard(policyFunc(func(context.Context, core.Conflict) (core.Decision, error) { return core.Reject(), nil }))
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
		writing, grants := readersBehind(t, env, b, a, readers)
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
		requireNothingLeft(t, env.Client(t), env.Prefix)
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
		fences, err := rdb.Eval(t.Context(), core.Scripts["admit"], []string{record}, token, leader.Fence(), 0, "0:a.follower", 1000, "x").Int64Slice()
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
			fences, err := rdb.Eval(t.Context(), core.Scripts["admit"], []string{record}, "0:a.leader", now.Add(-age).UnixMicro(), 0, "0:a.follower", 100, "x").Int64Slice()
			require.NoError(t, err)
			return fences[0]
		}
		require.Zero(t, admit(1100*time.Millisecond))
		require.Zero(t, rdb.Exists(t.Context(), record).Val())
		require.NotZero(t, admit(100*time.Millisecond))
	})
}

// What came of an admission is not known: its reply is lost, and go-redis sends it again or not; its error is that of a later try; or
// nothing comes at all, and the wait queue asks by itself meanwhile.
func TestReaders_ALostReplyToTheirAdmission(t *testing.T) {
	for name, test := range map[string]struct {
		retries int
		first   func(next func() error, over <-chan struct{}) error // in place of the first one; nil: its connection breaks
		left    func(*testing.T, *redis.Client, string)
	}{
		"sent again":    {3, nil, requireNothingLeft},
		"cancelled":     {noRetries, nil, requireNothingLeft},
		"no connection": {noRetries, func(next func() error, _ <-chan struct{}) error { _ = next(); return redis.ErrPoolTimeout }, requireNothingLeft},
		"no answer":     {noRetries, func(_ func() error, over <-chan struct{}) error { <-over; return os.ErrDeadlineExceeded }, requireExpires},
	} {
		t.Run(name, func(t *testing.T) {
			redistest.Each(t, func(t *testing.T, env *redistest.Env) {
				const readers = 20
				proxy, direct := redistest.NewProxy(t, env.Addr), env.Client(t)
				rdb := redistest.Client(t, &redis.Options{Addr: proxy.Addr, MaxRetries: test.retries})
				var came atomic.Bool
				over := make(chan struct{})
				end := sync.OnceFunc(func() { close(over) })
				t.Cleanup(end)
				admissions(t, rdb, func(next func() error) error {
					if test.first != nil && came.CompareAndSwap(false, true) {
						return test.first(next, over)
					}
					return next()
				})
				a, b := lockerOn(t, rdb, env.Prefix, core.WithRenewalClient(direct)), newLocker(t, env)
				writing, grants := readersBehind(t, env, b, a, readers)
				if test.first == nil {
					proxy.LoseReply(once(redis.NewScript(core.Scripts["admit"]).Hash()))
				}
				require.NoError(t, writing.Release(t.Context()))
				fences := map[int64]bool{}
				var leases []*core.Lease
				for range readers {
					lease := granted(t, grants)
					fences[lease.Fence()] = true
					leases = append(leases, lease)
				}
				require.Len(t, fences, readers)
				end()
				redistest.Eventually(t, func() bool {
					held, err := direct.HGet(t.Context(), core.RecordName(env.Prefix, "k"), "held").Int()
					return err == nil && held == readers
				}, "nobody else holds the key")
				for _, lease := range leases {
					require.NoError(t, lease.Release(t.Context()))
				}
				test.left(t, direct, env.Prefix)
			})
		})
	}
}

// heldAdmission has the answer to the first admission, which closes ran, arrive when gate is closed.
func heldAdmission(t *testing.T, rdb *redis.Client) (ran <-chan struct{}, gate chan<- struct{}) {
	sent, answered := make(chan struct{}), make(chan struct{})
	var first sync.Once
	admissions(t, rdb, func(next func() error) error {
		err := next()
		first.Do(func() { close(sent); <-answered })
		return err
	})
	return sent, answered
}

func TestReaders_WhoLeaveDuringTheirAdmissionHoldNothing(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		const readers = 20
		rdb := env.Client(t)
		ran, gate := heldAdmission(t, rdb)
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
		requireNothingLeft(t, env.Client(t), env.Prefix)
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
		writing, grants := readersBehind(t, env, l, a, readers)
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
		ran, gate := heldAdmission(t, rdb)
		a, b := lockerOn(t, rdb, env.Prefix, core.WithTTL(time.Hour), core.WithFirstLease(time.Hour)), newLocker(t, env)
		writing, grants := readersBehind(t, env, b, a, readers)
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
		require.NoError(t, granted(t, acquiring(t, b, "k")).Release(t.Context()), "nobody's lease, of an hour, is left")
	})
}
