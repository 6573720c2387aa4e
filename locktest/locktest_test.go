package locktest_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/reservation"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
	"github.com/perkey-go/perkey/locktest"
	"github.com/perkey-go/perkey/retry"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// each runs a test on the embedded Redis of New, and On a real one.
func each(t *testing.T, test func(t *testing.T, redis *locktest.Redis)) {
	t.Helper()
	t.Run("embedded", func(t *testing.T) {
		t.Parallel()
		test(t, locktest.New(t))
	})
	t.Run("real", func(t *testing.T) {
		t.Parallel()
		env := redistest.Real(t)
		test(t, locktest.On(t, env.Client(t), locktest.WithPrefix(env.Prefix)))
	})
}

// recorder is a test that may fail: it records what it failed with.
type recorder struct {
	failure  string
	cleanups []func()
}

func (r *recorder) Helper()          {}
func (r *recorder) Cleanup(f func()) { r.cleanups = append(r.cleanups, f) }

func (r *recorder) Fatalf(format string, args ...any) {
	r.failure = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

// failure runs a test, and returns what it failed with; empty if it passed.
func failure(test func(t locktest.TB)) string {
	r := &recorder{}
	var wg sync.WaitGroup
	wg.Go(func() { test(r) })
	wg.Wait()
	for _, f := range slices.Backward(r.cleanups) {
		f()
	}
	return r.failure
}

var reservations = reservation.Get[*core.Locker, *core.Lease, core.AcquireOption, core.Decision, core.Preference]()

func TestHold_IsAConflictUntilReleased(t *testing.T) {
	each(t, func(t *testing.T, redis *locktest.Redis) {
		locker := redis.Locker(t)
		redis.RequireFree(t, "k")
		release := redis.Hold(t, "k")
		redis.RequireHeld(t, "k")
		_, err := locker.TryAcquire(t.Context(), "k")
		require.ErrorIs(t, err, core.ErrConflict)
		release()
		release()
		redis.RequireFree(t, "k")
		lease := testbed.Take(t, locker, "k")
		redis.RequireHeld(t, "k")
		require.NoError(t, lease.Release(t.Context()))
	})
}

func TestHold_TakesTheModeOfItsOptionsAndWaits(t *testing.T) {
	each(t, func(t *testing.T, redis *locktest.Redis) {
		locker := redis.Locker(t)
		redis.Hold(t, "k", core.Shared())
		lease := testbed.Take(t, locker, "k", core.Shared())
		_, err := locker.TryAcquire(t.Context(), "k")
		require.ErrorIs(t, err, core.ErrConflict)
		require.NoError(t, lease.Release(t.Context()))

		lease = testbed.Take(t, locker, "other")
		go func() {
			redis.RequireWaiting(t, "other")
			_ = lease.Release(context.Background())
		}()
		redis.Hold(t, "other")
		require.Error(t, context.Cause(lease.Context()))
	})
}

func TestHold_EndsWithTheTest(t *testing.T) {
	redis := locktest.New(t)
	require.Empty(t, failure(func(t locktest.TB) {
		redis.Hold(t, "held")
		redis.Hold(t, "stolen")
		redis.Steal(t, "stolen")
		redis.RequireHeld(t, "held")
		redis.RequireHeld(t, "stolen")
	}))
	redis.RequireFree(t, "held")
	redis.RequireFree(t, "stolen")
}

func TestSteal_EndsTheHoldersContext(t *testing.T) {
	each(t, func(t *testing.T, redis *locktest.Redis) {
		locker := redis.Locker(t)
		lease := testbed.Take(t, locker, "k")
		release := redis.Steal(t, "k")
		redis.RequireHeld(t, "k")
		locktest.RequireLost(t, lease.Context())
		require.ErrorIs(t, lease.Release(t.Context()), core.ErrLeaseLost)
		_, err := locker.TryAcquire(t.Context(), "k")
		require.ErrorIs(t, err, core.ErrConflict, "the thief has it")
		release()
		next := testbed.Take(t, locker, "k")
		require.Greater(t, next.Fence(), lease.Fence())
		require.NoError(t, next.Release(t.Context()))
		redis.RequireFree(t, "k")
	})
}

func TestSteal_HoldsTheKeyBeforeThoseThatWait(t *testing.T) {
	each(t, func(t *testing.T, redis *locktest.Redis) {
		var readers []*core.Lease
		for _, locker := range []*core.Locker{redis.Locker(t), redis.Locker(t)} {
			lease := testbed.Take(t, locker, "k", core.Shared())
			readers = append(readers, lease)
		}
		waiter := redis.Locker(t)
		got := make(chan *core.Lease, 1)
		go func() {
			lease, err := waiter.Acquire(t.Context(), "k")
			if err != nil {
				t.Error(err)
			}
			got <- lease
		}()
		redis.RequireWaiting(t, "k")
		release := redis.Steal(t, "k")
		for _, lease := range readers {
			locktest.RequireLost(t, lease.Context())
		}
		info, err := waiter.Inspect(t.Context(), "k")
		require.NoError(t, err)
		require.Equal(t, 1, info.Held)
		require.Equal(t, "Steal", info.Holders[0].ID)
		require.Equal(t, 1, info.Waiting)
		require.Zero(t, info.Reserved)
		release()
		require.NoError(t, (<-got).Release(t.Context()))
	})
}

func TestSteal_LeavesAReservationForParkedWork(t *testing.T) {
	each(t, func(t *testing.T, redis *locktest.Redis) {
		locker := redis.Locker(t)
		lease := testbed.Take(t, locker, "k")
		_, err := reservations.Reserve(t.Context(), locker, "k", time.Minute)
		require.NoError(t, err)
		redis.Steal(t, "k")()
		locktest.RequireLost(t, lease.Context())
		_, err = locker.TryAcquire(t.Context(), "k")
		require.ErrorIs(t, err, core.ErrConflict)
		parked := testbed.Take(t, locker, "k", reservations.Reserved(time.Second))
		require.NoError(t, parked.Release(t.Context()))
	})
}

func TestExpire_HandsTheKeyOnAndItsHolderFindsOut(t *testing.T) {
	each(t, func(t *testing.T, redis *locktest.Redis) {
		dead, other := redis.Locker(t, core.WithTTL(5*time.Second)), redis.Locker(t)
		lease := testbed.Take(t, dead, "k")
		bystander := testbed.Take(t, dead, "bystander")
		redis.Expire(t, "k")
		redis.RequireFree(t, "k")
		next := testbed.Take(t, other, "k")
		require.Greater(t, next.Fence(), lease.Fence())
		locktest.RequireLost(t, lease.Context())
		require.ErrorIs(t, lease.Release(t.Context()), core.ErrLeaseLost)
		redis.RequireHeld(t, "k")

		got := make(chan error, 1)
		go func() { got <- dead.Do(t.Context(), "k", func(context.Context) error { return nil }) }()
		redis.RequireWaiting(t, "k")
		redis.Expire(t, "k")
		require.NoError(t, <-got)
		locktest.RequireLost(t, next.Context())
		require.NoError(t, bystander.Release(t.Context()), "other keys go on")
		redis.RequireFree(t, "k")
	})
}

func TestExpire_EndsAllLeasesOfAKey(t *testing.T) {
	each(t, func(t *testing.T, redis *locktest.Redis) {
		release := redis.Hold(t, "k", core.Shared())
		redis.Hold(t, "k", core.Shared())
		redis.Expire(t, "k")
		lease, err := redis.Locker(t).TryAcquire(t.Context(), "k")
		require.NoError(t, err)
		release() // too late
		redis.RequireHeld(t, "k")
		require.NoError(t, lease.Release(t.Context()))
		redis.RequireFree(t, "k")
	})
}

func TestRedis_TimeCanBeSetForward(t *testing.T) {
	redis := locktest.New(t)
	locker := redis.Locker(t)
	lease := testbed.Take(t, locker, "k", core.FixedLease(time.Hour))
	fence := lease.Fence()
	require.NoError(t, lease.Extend(t.Context(), time.Hour)) // at first it lasts 10 s
	require.NoError(t, redis.Client().Set(t.Context(), "theirs", "x", time.Hour).Err())
	redis.FastForward(t, 59*time.Minute)
	redis.RequireHeld(t, "k")
	require.NoError(t, redis.Client().Get(t.Context(), "theirs").Err())
	redis.FastForward(t, 2*time.Minute)
	redis.RequireFree(t, "k")
	require.ErrorIs(t, redis.Client().Get(t.Context(), "theirs").Err(), goredis.Nil)
	next, err := redis.Locker(t).TryAcquire(t.Context(), "k")
	require.NoError(t, err)
	require.Greater(t, next.Fence()-fence, time.Hour.Microseconds(), "fences follow the server's clock")
	require.NoError(t, next.Release(t.Context()))
}

func TestDown_EndsAtUp(t *testing.T) {
	redis := locktest.New(t)
	locker := redis.Locker(t, core.WithTTL(time.Second))
	lease := testbed.Take(t, locker, "k")
	require.NoError(t, redis.Client().Set(t.Context(), "theirs", "x", 0).Err())
	up := redis.Down(t)
	_, err := redis.Locker(t).TryAcquire(t.Context(), "other")
	require.ErrorIs(t, err, core.ErrUnavailable)
	locktest.RequireLost(t, lease.Context())
	up()
	up()
	require.NoError(t, redis.Client().Get(t.Context(), "theirs").Err())
	redis.RequireFree(t, "k")
	lease = testbed.Take(t, locker, "k")
	require.NoError(t, lease.Release(t.Context()))
}

// A script must not be torn in two by an outage.
func TestDown_DoesNotTearAScript(t *testing.T) {
	redis := locktest.New(t)
	began := redis.Client().Subscribe(t.Context(), "began")
	t.Cleanup(func() { _ = began.Close() })
	_, err := began.Receive(t.Context())
	require.NoError(t, err)
	client := goredis.NewClient(&goredis.Options{Addr: redis.Addr(), MaxRetries: -1})
	t.Cleanup(func() { _ = client.Close() })
	script := goredis.NewScript(`
		redis.call('PUBLISH', 'began', '')
		for i = 1, 20000 do redis.call('INCR', KEYS[1]) end`)
	ended := make(chan error, 1)
	go func() { ended <- script.Run(context.Background(), client, []string{"n"}).Err() }()
	_, err = began.ReceiveMessage(t.Context())
	require.NoError(t, err)
	up := redis.Down(t)
	t.Log("the reply may be lost, as in any outage:", <-ended)
	up()
	require.Equal(t, "20000", redis.Client().Get(t.Context(), "n").Val())
}

func TestPolicy_DecidesAsGivenAndRecords(t *testing.T) {
	each(t, func(t *testing.T, redis *locktest.Redis) {
		release := redis.Hold(t, "k")
		policy := &locktest.Policy{Decisions: []core.Decision{core.RetryAfter(time.Millisecond), core.Deferred(core.Ticket{ID: "t1"})}}
		guard := redis.Locker(t).Guard(policy)
		call := core.Call{Key: "k", Name: "job"}
		ran := 0
		run := func() error {
			return guard.Do(t.Context(), call, func(context.Context) error { ran++; return nil })
		}
		require.Empty(t, policy.Conflicts())
		var deferred *core.DeferredError
		require.ErrorAs(t, run(), &deferred)
		require.Equal(t, "t1", deferred.Ticket.ID)
		require.ErrorIs(t, run(), core.ErrConflict, "when the decisions are used up the call is rejected")
		policy.RequireConflicts(t, 3)
		seen := policy.Conflicts()
		require.Len(t, seen, 3)
		require.Equal(t, "job", seen[0].Call.Name)
		require.Equal(t, []int{1, 2, 1}, []int{seen[0].Attempt, seen[1].Attempt, seen[2].Attempt})
		require.Zero(t, ran)
		release()
		redis.RequireFree(t, "k") // the call that waited and then left may have been served
		require.NoError(t, run())
		require.Equal(t, 1, ran)
		require.Len(t, policy.Conflicts(), 3)
	})
}

func TestPolicy_HandsOnToAnother(t *testing.T) {
	policy := &locktest.Policy{Then: retry.Policy{MaxWait: time.Minute}}
	decision, err := policy.OnConflict(t.Context(), core.Conflict{Attempt: 1})
	require.NoError(t, err)
	require.Equal(t, "retry", decision.String())
	require.Len(t, policy.Conflicts(), 1)
	require.NoError(t, policy.Validate())
	require.ErrorIs(t, (&locktest.Policy{Then: retry.Policy{MaxWait: -1}}).Validate(), core.ErrInvalidOption)
	require.NoError(t, (&locktest.Policy{Then: &locktest.Policy{}}).Validate())
	async := core.Preference{Async: true}
	require.Equal(t, async, (&locktest.Policy{Then: retry.Policy{Then: parking{}}}).Honors(async), "httplock knows that requests may be parked")
	require.Zero(t, (&locktest.Policy{}).Honors(async))
}

func TestRedis_APrefixIsOneOfItsOwn(t *testing.T) {
	env := redistest.Embedded(t)
	rdb := env.Client(t)
	shop, other := locktest.On(t, rdb, locktest.WithPrefix("shop")), locktest.On(t, rdb)
	locker := testbed.NewLocker(t, rdb, core.WithPrefix("shop"))
	lease := testbed.Take(t, locker, "k")
	shop.RequireHeld(t, "k")
	other.RequireFree(t, "k")
	shop.Expire(t, "k")
	shop.RequireFree(t, "k")
	_ = lease.Release(t.Context())
}

func TestAddr_IsForClientsOfTheService(t *testing.T) {
	redis := locktest.New(t)
	rdb := goredis.NewClient(&goredis.Options{Addr: redis.Addr()})
	t.Cleanup(func() { _ = rdb.Close() })
	redis.Hold(t, "k")
	locker := testbed.NewLocker(t, rdb)
	_, err := locker.TryAcquire(t.Context(), "k")
	require.ErrorIs(t, err, core.ErrConflict)
	require.Empty(t, locktest.On(t, rdb).Addr())
	require.Same(t, rdb, locktest.On(t, rdb).Client())
}

func TestRequire_FailsTheTestUnlessItHolds(t *testing.T) {
	redis := locktest.New(t)
	locktest.SetPatience(t, time.Second)
	redis.Hold(t, "held")
	redis.Hold(t, "busy")
	redis.Hold(t, "reserved")
	_, err := reservations.Reserve(t.Context(), redis.Locker(t), "reserved", time.Minute)
	require.NoError(t, err)
	ended, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("it was done"))
	notEmbedded := locktest.On(t, redis.Client())
	var tests sync.WaitGroup
	for want, test := range map[string]func(t locktest.TB){
		`require that "free" is held: 0 hold it; 0 wait`:   func(t locktest.TB) { redis.RequireHeld(t, "free") },
		`require that "held" is free: 1 hold it, `:         func(t locktest.TB) { redis.RequireFree(t, "held") },
		`"locktest Hold" since `:                           func(t locktest.TB) { redis.RequireFree(t, "held") },
		`it is reserved for 5`:                             func(t locktest.TB) { redis.RequireWaiting(t, "reserved") },
		`require that "held" is waited for: 1 hold it`:     func(t locktest.TB) { redis.RequireWaiting(t, "held") },
		`require that "" is held: core: invalid key`:       func(t locktest.TB) { redis.RequireHeld(t, "") },
		`hold: core: acquire "busy"`:                       func(t locktest.TB) { redis.Hold(t, "busy") },
		`steal "free": nobody holds it`:                    func(t locktest.TB) { redis.Steal(t, "free") },
		`expire "free": nobody holds it`:                   func(t locktest.TB) { redis.Expire(t, "free") },
		`the lease was not lost within 1s`:                 func(t locktest.TB) { locktest.RequireLost(t, context.Background()) },
		`not because its lease was lost: it was done`:      func(t locktest.TB) { locktest.RequireLost(t, ended) },
		`require 1 conflicts: there were 0`:                func(t locktest.TB) { (&locktest.Policy{}).RequireConflicts(t, 1) },
		`FastForward(-1s): time does not go back`:          func(t locktest.TB) { redis.FastForward(t, -time.Second) },
		`FastForward needs the embedded Redis that New st`: func(t locktest.TB) { notEmbedded.FastForward(t, 1) },
		`Down needs the embedded Redis that New starts`:    func(t locktest.TB) { notEmbedded.Down(t) },
		`core: invalid option`:                             func(t locktest.TB) { redis.Locker(t, core.WithTTL(-1)) },
		`an option is nil`:                                 func(t locktest.TB) { locktest.New(t, nil) },
		`the redis client is nil`:                          func(t locktest.TB) { locktest.On(t, nil) },
		`invalid option`:                                   func(t locktest.TB) { locktest.New(t, locktest.WithPrefix("{}")) },
	} {
		tests.Go(func() { assert.Contains(t, failure(test), want) })
	}
	tests.Wait()
	require.Empty(t, failure(func(t locktest.TB) { redis.RequireHeld(t, "held") }))
	redis.Down(t)
	require.Contains(t, failure(func(t locktest.TB) { redis.RequireFree(t, "free") }), `require that "free" is free: `)
}

// parking is a policy that may defer calls.
type parking struct{ core.ConflictPolicy }

func (parking) Honors(p core.Preference) core.Preference { return core.Preference{Async: p.Async} }
