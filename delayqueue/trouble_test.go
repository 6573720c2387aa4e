package delayqueue_test

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
)

// hookFunc is a hook around single commands of a client.
type hookFunc func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error

func (f hookFunc) DialHook(next redis.DialHook) redis.DialHook { return next }

func (f hookFunc) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error { return f(ctx, cmd, next) }
}

func (f hookFunc) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// isScript reports whether a command runs that script in the partition with this base.
func isScript(cmd redis.Cmder, script, base string) bool {
	args := cmd.Args()
	return len(args) > 3 && args[1] == delayqueue.ScriptHashes[script] && args[3] == base+":m"
}

// keylessIDs are n ids of a partition of two.
func keylessIDs(name string, partition uint32, n int) (ids []string) {
	for i := 0; len(ids) < n; i++ {
		id := fmt.Sprint(name, i)
		h := fnv.New32a()
		_, _ = h.Write([]byte(id))
		if h.Sum32()%2 == partition {
			ids = append(ids, id)
		}
	}
	return ids
}

// explosive is a Locker's observer that panics at the first outcome, and at each release.
type explosive struct {
	core.NopObserver
	outcomes atomic.Int64
}

func (o *explosive) OnOutcome(context.Context, core.Outcome) {
	if o.outcomes.Add(1) == 1 {
		panic("outcome")
	}
}

func (o *explosive) OnReleased(context.Context, core.Released) { panic("released") }

func TestWorker_GoesOnIfTheLockersObserverPanics(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		b := setup(t, env)
		b.locker = b.newLocker(core.WithObserver(&explosive{}))
		log := &testbed.Log{}
		b.start((&ran{}).handle, delayqueue.WithLogger(log.Logger()))
		require.Equal(t, 1, b.reaches(b.enqueue(delayqueue.Job{Key: "k"}), delayqueue.StateDone).Attempts)
		require.Contains(t, log.String(), "delayqueue: the observer panicked")
	})
}

// What a claim took whose reply was lost has become too old when the claim is sent
// again: the worker must not go on asking for it until the claim's lease is over.
func TestWorker_AClaimSentAgainForWhatIsTooOldDoesNotBlockTheWorker(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		b := setup(t, env)
		rdb := env.Client(t)
		var lost, claims atomic.Int64
		rdb.AddHook(hookFunc(func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
			err := next(ctx, cmd)
			if err != nil || !isScript(cmd, "claim", b.env.Prefix+":queue:{q}") {
				return err
			}
			claims.Add(1)
			if reply, _ := cmd.(*redis.Cmd).Slice(); len(reply) > 5 && lost.CompareAndSwap(0, 1) {
				time.Sleep(300 * time.Millisecond) // as long as it takes to find out
				cmd.SetErr(errors.New("i/o timeout"))
			}
			return cmd.Err()
		}))
		require.NoError(t, b.queue.ClaimAndDie(time.Second)) // loads the script
		old := b.enqueue(delayqueue.Job{MaxAge: 200 * time.Millisecond})
		var r ran
		b.startOn(b.newQueue(rdb), r.handle)
		redistest.Eventually(t, func() bool { return lost.Load() > 0 }, "no reply was lost")
		time.Sleep(500 * time.Millisecond)
		before := claims.Load()
		id := b.enqueue(delayqueue.Job{})
		time.Sleep(2 * time.Second)
		t.Log("claims in 2 s:", claims.Load()-before, "state of the old one:", b.status(old).State)
		require.Equal(t, delayqueue.StateDone, b.status(id).State, "the worker does nothing for 30 s")
	})
}

// A claim that was sent again brings more than there are slots for. What waits for a
// slot must stay claimed: else it spends attempts, and dies, without ever having run.
func TestWorker_WhatWaitsForASlotStaysClaimed(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		const slots, lease = 4, 500 * time.Millisecond
		b := setup(t, env, delayqueue.WithPartitions(2), delayqueue.WithMaxAttempts(1))
		rdb := env.Client(t)
		node := &lostClaims{base: env.Prefix + ":queue:{q/1.2}"}
		rdb.AddHook(node)
		node.sick.Store(true)
		require.NoError(t, b.queue.ClaimAndDie(time.Second)) // loads the script
		sick := keylessIDs("sick", 0, slots)
		for _, id := range sick {
			b.enqueue(delayqueue.Job{ID: id, Delay: 300 * time.Millisecond})
		}
		time.Sleep(350 * time.Millisecond) // all are due at once
		var running atomic.Int64
		release := make(chan struct{})
		var r ran
		b.startOn(b.newQueue(rdb, delayqueue.WithPartitions(2), delayqueue.WithMaxAttempts(1)), func(ctx context.Context, m delayqueue.Message) error {
			running.Add(1)
			defer running.Add(-1)
			<-release
			return r.handle(ctx, m)
		}, delayqueue.WithConcurrency(slots), delayqueue.WithClaimLease(lease))
		redistest.Eventually(t, func() bool { return node.lost.Load() > 0 }, "no reply was lost")
		for _, id := range keylessIDs("well", 1, slots) {
			b.enqueue(delayqueue.Job{ID: id})
		}
		redistest.Eventually(t, func() bool { return running.Load() == slots }, "they have the slots")
		node.sick.Store(false)
		release <- struct{}{} // a slot is free
		// Another worker, with slots to spare, looks after what dead workers have left.
		b.startOn(b.newQueue(b.rdb, delayqueue.WithPartitions(2), delayqueue.WithMaxAttempts(1)), r.handle, delayqueue.WithClaimLease(lease))
		time.Sleep(3 * lease)
		close(release)
		for _, id := range sick {
			redistest.Eventually(t, func() bool { return b.status(id).State.Ended() }, "it has not ended")
			s := b.status(id)
			require.Equal(t, delayqueue.StateDone, s.State, "%s; runs: %v", s.Cause, r.ids())
		}
	})
}

// A message is started before its not_after or never, also when its key was long in
// coming.
func TestWorker_NoHandlerBeginsAfterItsMessageBecameTooOld(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		b := setup(t, env)
		proxy := redistest.NewProxy(t, env.Addr)
		locker, err := core.New(redistest.Client(t, &redis.Options{Addr: proxy.Addr}), core.WithPrefix(env.Prefix))
		require.NoError(t, err)
		defer func() { _ = locker.Close() }()
		b.locker = locker
		late := make(chan time.Duration, 2)
		b.start(func(ctx context.Context, m delayqueue.Message) error {
			now, err := b.rdb.Time(ctx).Result()
			if err == nil && m.Name == "old" {
				late <- now.Sub(m.ExpiresAt)
			}
			return nil
		})
		b.reaches(b.enqueue(delayqueue.Job{Key: "warm"}), delayqueue.StateDone) // connected
		proxy.Delay(func() time.Duration { return 300 * time.Millisecond })
		id := b.enqueue(delayqueue.Job{Key: "k", Name: "old", MaxAge: 200 * time.Millisecond})
		redistest.Eventually(t, func() bool { return b.status(id).State.Ended() }, "it has not ended")
		proxy.Delay(nil)
		select {
		case d := <-late:
			require.Less(t, d, time.Duration(0), "it began after its not_after, by the clock of Redis")
		default:
		}
	})
}

// A node that does not answer costs the other partitions nothing: not their slots.
func TestWorker_APartitionThatHangsDoesNotTakeTheSlotsOfOthers(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		b := setup(t, env, delayqueue.WithPartitions(2))
		rdb := env.Client(t)
		var hangs atomic.Bool
		var hung atomic.Int64
		rdb.AddHook(hookFunc(func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
			if hangs.Load() && isScript(cmd, "claim", env.Prefix+":queue:{q/1.2}") {
				hung.Add(1)
				<-ctx.Done()
				cmd.SetErr(ctx.Err())
				return ctx.Err()
			}
			return next(ctx, cmd)
		}))
		var r ran
		b.startOn(b.newQueue(rdb, delayqueue.WithPartitions(2)), r.handle, delayqueue.WithClaimLease(3*time.Second))
		b.reaches(b.enqueue(delayqueue.Job{ID: keylessIDs("warm", 1, 1)[0]}), delayqueue.StateDone)
		hangs.Store(true)
		redistest.Eventually(t, func() bool { return hung.Load() > 0 }, "it is not asked")
		began := time.Now()
		b.reaches(b.enqueue(delayqueue.Job{ID: keylessIDs("well", 1, 1)[0]}), delayqueue.StateDone)
		require.Less(t, time.Since(began), 3*time.Second)
	})
}

// A node that does not answer costs the other partitions nothing: not their wake-ups.
func TestWorker_APartitionThatHangsDoesNotHoldUpWakeUpsOfOthers(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		b := setup(t, env, delayqueue.WithPartitions(2))
		keys := []string{inPartition(t, b, 1, 2), inPartition(t, b, 2, 2)}
		rdb := env.Client(t)
		var hung atomic.Int64
		rdb.AddHook(hookFunc(func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
			if isScript(cmd, "wake", env.Prefix+":queue:{q/1.2}") {
				hung.Add(1)
				<-ctx.Done()
				cmd.SetErr(ctx.Err())
				return ctx.Err()
			}
			return next(ctx, cmd)
		}))
		seen := newEvents()
		b.startOn(b.newQueue(rdb, delayqueue.WithPartitions(2)), (&ran{}).handle, delayqueue.WithObserver(seen),
			delayqueue.WithConflictBackoff(8*time.Second, 8*time.Second))
		var leases []*core.Lease
		var ids []string
		for _, key := range keys {
			leases = append(leases, b.hold(key))
			ids = append(ids, b.enqueue(delayqueue.Job{Key: key}))
		}
		for range keys {
			require.Equal(t, delayqueue.OutcomeConflict, next(t, seen.settled).Outcome)
		}
		// Loaded, so that the script is sent by its hash.
		require.NoError(t, leases[0].Release(t.Context()))
		redistest.Eventually(t, func() bool { return hung.Load() > 0 }, "it is not waked")
		began := time.Now()
		require.NoError(t, leases[1].Release(t.Context()))
		b.reaches(ids[1], delayqueue.StateDone)
		require.Less(t, time.Since(began), 3*time.Second, "it waited for its delay")
	})
}

// One connection that has died costs no claim, as long as Redis is well.
func TestWorker_ADeadConnectionCostsNoClaim(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		const lease = 2 * time.Second
		b := setup(t, env)
		rdb := env.Client(t)
		var armed atomic.Bool
		rdb.AddHook(hookFunc(func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
			if armed.Load() && isScript(cmd, "extend", env.Prefix+":queue:{q}") && armed.CompareAndSwap(true, false) {
				select { // as go-redis does by default: its read times out, and it sends the command again
				case <-time.After(3 * time.Second):
				case <-ctx.Done():
				}
			}
			return next(ctx, cmd)
		}))
		armed.Store(true)
		seen := newEvents()
		b.startOn(b.newQueue(rdb), func(ctx context.Context, _ delayqueue.Message) error {
			select {
			case <-time.After(2 * lease):
				return nil
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}, delayqueue.WithClaimLease(lease), delayqueue.WithObserver(seen))
		b.enqueue(delayqueue.Job{})
		s := next(t, seen.settled)
		require.Equal(t, delayqueue.OutcomeDone, s.Outcome, "%v", s.Err)
	})
}

// What a claim took whose reply was lost goes back when the worker is stopped.
func TestStop_GivesBackWhatALostClaimTook(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		b := setup(t, env)
		rdb := env.Client(t)
		lost := make(chan struct{}, 1)
		var first atomic.Bool
		rdb.AddHook(hookFunc(func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
			err := next(ctx, cmd)
			if err != nil || !isScript(cmd, "claim", env.Prefix+":queue:{q}") {
				return err
			}
			if reply, _ := cmd.(*redis.Cmd).Slice(); len(reply) > 5 && first.CompareAndSwap(false, true) {
				cmd.SetErr(errors.New("i/o timeout"))
				lost <- struct{}{}
			}
			return cmd.Err()
		}))
		require.NoError(t, b.queue.ClaimAndDie(time.Second)) // loads the script
		id := b.enqueue(delayqueue.Job{})
		w := b.startOn(b.newQueue(rdb), (&ran{}).handle)
		next(t, lost)
		require.NoError(t, w.Stop(t.Context()))
		require.Equal(t, delayqueue.StateQueued, b.status(id).State, "it waits for the end of a claim that nobody has")
	})
}

// A damaged due time delays its message, and no other.
func TestWorker_AMessageWhoseDueScoreIsDamagedHoldsUpNoOther(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		b := setup(t, env)
		late := []string{b.enqueue(delayqueue.Job{}), b.enqueue(delayqueue.Job{Key: "k"})}
		for i, key := range []string{"", "k"} {
			require.NoError(t, b.rdb.ZAdd(t.Context(), b.key("z"), redisZ(1e18, late[i]+" "+key)).Err())
		}
		ids := []string{b.enqueue(delayqueue.Job{}), b.enqueue(delayqueue.Job{Key: "other"})}
		b.start((&ran{}).handle)
		for _, id := range ids {
			b.reaches(id, delayqueue.StateDone)
		}
	})
}

// A delay that is shorter than the max age, as Enqueue asks for, lets the job run.
func TestWorker_AJobThatMayStartForAMillisecondIsNotRefusedItsStart(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		b := setup(t, env)
		_, err := b.queue.Enqueue(t.Context(), delayqueue.Job{Delay: 1200 * time.Microsecond, MaxAge: 1900 * time.Microsecond})
		require.ErrorIs(t, err, delayqueue.ErrInvalidJob, "it is due when it is too old: it can never run")
	})
}

// A key that is released has its head run at once, also while thousands of others have
// just lost their last message.
func TestWorker_WakeUpsDoNotWaitForKeysThatAreEmptied(t *testing.T) {
	t.Parallel()
	b := setup(t, redistest.Real(t))
	proxy := redistest.NewProxy(t, b.env.Addr)
	locker, err := core.New(redistest.Client(t, &redis.Options{Addr: proxy.Addr}), core.WithPrefix(b.env.Prefix))
	require.NoError(t, err)
	defer func() { _ = locker.Close() }()
	b.locker = locker
	for i := range 1000 {
		b.enqueue(delayqueue.Job{Key: fmt.Sprint("old", i), Name: "old", Delay: time.Minute})
	}
	seen := newEvents()
	b.start((&ran{}).handle, delayqueue.WithConflictBackoff(8*time.Second, 8*time.Second), delayqueue.WithObserver(seen))
	lease := b.hold("k")
	id := b.enqueue(delayqueue.Job{Key: "k"})
	require.Equal(t, delayqueue.OutcomeConflict, next(t, seen.settled).Outcome)
	proxy.Delay(func() time.Duration { return 2 * time.Millisecond }) // a network
	_, err = b.queue.CancelAll(t.Context(), delayqueue.Filter{Name: "old"})
	require.NoError(t, err)
	began := time.Now()
	require.NoError(t, lease.Release(t.Context()))
	b.reaches(id, delayqueue.StateDone)
	t.Log("took", time.Since(began))
	require.Less(t, time.Since(began), time.Second)
}

// Stop whose ctx has ended waits for handlers, and for no Redis.
func TestStop_DoesNotWaitForReservationsOfALockRedisThatHangs(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		b := setup(t, env)
		proxy := redistest.NewProxy(t, env.Addr)
		locker, err := core.New(redistest.Client(t, &redis.Options{Addr: proxy.Addr}), core.WithPrefix(env.Prefix))
		require.NoError(t, err)
		defer func() {
			proxy.Cut()
			_ = locker.Close()
		}()
		b.locker = locker
		w := b.start((&ran{}).handle)
		b.reaches(b.enqueue(delayqueue.Job{Key: "warm"}), delayqueue.StateDone)
		for i := range 20 {
			b.enqueue(delayqueue.Job{Key: fmt.Sprint("old", i), Delay: time.Minute})
		}
		proxy.Blackhole(redistest.Requests)
		defer proxy.Blackhole(0)
		_, err = b.queue.CancelAll(t.Context(), delayqueue.Filter{})
		require.NoError(t, err)
		time.Sleep(200 * time.Millisecond) // they are announced
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		began := time.Now()
		stopped := make(chan struct{})
		go func() {
			_ = w.Stop(ctx)
			close(stopped)
		}()
		select {
		case <-stopped:
		case <-time.After(20 * time.Second):
			t.Errorf("Stop waits, %s", time.Since(began))
			proxy.Blackhole(0)
			proxy.Refuse(true)
			<-stopped
		}
	})
}
