package delayqueue_test

import (
	"cmp"
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

// hookFunc is a hook around each command of a client: those that are sent together go one by one.
type hookFunc func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error

func (f hookFunc) DialHook(next redis.DialHook) redis.DialHook { return next }

func (f hookFunc) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error { return f(ctx, cmd, next) }
}

func (f hookFunc) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) (err error) {
		for _, cmd := range cmds {
			each := f(ctx, cmd, func(ctx context.Context, cmd redis.Cmder) error { return next(ctx, []redis.Cmder{cmd}) })
			err = cmp.Or(err, each)
		}
		return err
	}
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
	each(t, func(t *testing.T, b *bench) {
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
	each(t, func(t *testing.T, b *bench) {
		rdb := b.env.Client(t)
		require.NoError(t, b.queue.ClaimAndDie(time.Second)) // loads the script
		old := b.enqueue(delayqueue.Job{})
		age := func(record string) string { return record[:32] + "0000000000001" + record[45:] } // its not_after
		var lost atomic.Bool
		rdb.AddHook(hookFunc(func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
			if err := next(ctx, cmd); err != nil || !isScript(cmd, "claim", b.env.Prefix+":queue:{q}") || !bringsMessages(cmd) || lost.Swap(true) {
				return err
			}
			cmd.SetErr(errors.Join(errors.New("i/o timeout"), b.queue.EditRecord("m", old, age))) // it is too old before the worker knows
			return cmd.Err()
		}))
		var r ran
		b.startOn(b.newQueue(rdb), r.handle, delayqueue.WithClaimLease(20*time.Minute))
		redistest.Eventually(t, lost.Load, "no reply was lost")
		b.reaches(b.enqueue(delayqueue.Job{}), delayqueue.StateDone)
		require.Equal(t, delayqueue.StateRunning, b.status(old).State, "until its claim ends")
		require.Len(t, r.ids(), 1)
	})
}

// claimsOf is what happens to the claims of a partition: while it is down they fail unsent, and while it is
// lossy their replies are lost, if they bring messages.
type claimsOf struct {
	base         string
	down, lossy  atomic.Bool
	failed, lost atomic.Int64
}

func (p *claimsOf) hook(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
	if !isScript(cmd, "claim", p.base) {
		return next(ctx, cmd)
	}
	if p.down.Load() {
		p.failed.Add(1)
		cmd.SetErr(errors.New("connection refused"))
		return cmd.Err()
	}
	lossy := p.lossy.Load()
	if err := next(ctx, cmd); err != nil || !lossy || !bringsMessages(cmd) {
		return err
	}
	p.lost.Add(1)
	cmd.SetErr(errors.New("i/o timeout"))
	return cmd.Err()
}

// bringsMessages reports whether the reply to a claim has messages.
func bringsMessages(cmd redis.Cmder) bool {
	reply, err := cmd.(*redis.Cmd).Slice()
	return err == nil && len(reply) > delayqueue.ClaimWithoutMessages
}

// oversold is a worker that was given more messages than it has slots.
type oversold struct {
	late, others []string // the ids of those that it has no slots for, but for one, and of those that have them
	release      chan struct{}
	running      atomic.Int64
	tooMany      atomic.Bool // more ran than there are slots
}

// claimsTooMany has a worker get, when one slot is free, the late reply to a claim that it made for all of its slots. Messages of
// another partition have the other slots. Each handler first receives from release.
//
// A fetcher whose claim failed takes no slots. So each partition in turn has its messages claimed for all slots.
func (b *bench) claimsTooMany(slots int, h delayqueue.Handler, opts ...delayqueue.WorkerOption) *oversold {
	b.t.Helper()
	rdb, o := b.env.Client(b.t), &oversold{release: make(chan struct{})}
	sick, well := &claimsOf{base: b.env.Prefix + ":queue:{q/1.2}"}, &claimsOf{base: b.env.Prefix + ":queue:{q/2.2}"}
	for _, p := range []*claimsOf{sick, well} {
		p.down.Store(true)
		rdb.AddHook(hookFunc(p.hook))
	}
	b.startOn(b.newQueue(rdb, b.opts...), func(ctx context.Context, m delayqueue.Message) error {
		if o.running.Add(1) > int64(slots) {
			o.tooMany.Store(true)
		}
		defer o.running.Add(-1)
		select {
		case <-o.release:
			return h(ctx, m)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}, append(opts, delayqueue.WithConcurrency(slots))...)
	redistest.Eventually(b.t, func() bool { return sick.failed.Load() > 1 && well.failed.Load() > 1 }, "claims fail, the second without slots")

	fill := func(p *claimsOf, ids []string) []string {
		for _, id := range ids {
			b.enqueue(delayqueue.Job{ID: id})
		}
		p.down.Store(false)
		return ids
	}
	sick.lossy.Store(true)
	o.late = fill(sick, keylessIDs("sick", 0, slots))
	redistest.Eventually(b.t, func() bool { return sick.lost.Load() > 0 }, "a reply is lost")
	require.EqualValues(b.t, slots, b.inState()[1], "claimed, and nobody knows")
	o.others = fill(well, keylessIDs("well", 1, slots))
	redistest.Eventually(b.t, func() bool { return o.running.Load() == int64(slots) }, "they have the slots")
	sick.lossy.Store(false)
	o.release <- struct{}{}
	return o
}

// A claim that was sent again brings more than there are slots for. What waits for a
// slot must stay claimed: else it spends attempts, and dies, without ever having run.
func TestWorker_WhatWaitsForASlotStaysClaimed(t *testing.T) {
	t.Parallel()
	redistest.InVirtualTime(t, func(t *testing.T, env *redistest.Env) {
		const lease = 500 * time.Millisecond
		b := setup(t, env, delayqueue.WithPartitions(2), delayqueue.WithMaxAttempts(1))
		var r ran
		seen := newEvents()
		o := b.claimsTooMany(4, r.handle, delayqueue.WithClaimLease(lease), delayqueue.WithObserver(seen))
		// Another worker, with slots to spare, looks after what dead workers have left.
		b.startOn(b.newQueue(b.rdb, b.opts...), r.handle, delayqueue.WithClaimLease(lease))
		time.Sleep(3 * lease)
		close(o.release)
		for _, id := range o.late {
			redistest.Eventually(t, func() bool { return b.status(id).State.Ended() }, "it has not ended")
			s := b.status(id)
			require.Equal(t, delayqueue.StateDone, s.State, "%s; runs: %v", s.Cause, r.ids())
		}
		require.False(t, o.tooMany.Load())
		redistest.Eventually(t, func() bool { return next(t, seen.settled).Outcome == delayqueue.OutcomeReturned }, "there was a slot for each")
	})
}

// A message is started before its not_after or never, also when its key was long in coming.
func TestWorker_NoHandlerBeginsAfterItsMessageBecameTooOld(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		proxy := redistest.NewProxy(t, b.env.Addr)
		locker, err := core.New(redistest.Client(t, &redis.Options{Addr: proxy.Addr}), core.WithPrefix(b.env.Prefix))
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
	each(t, func(t *testing.T, b *bench) {
		rdb := b.env.Client(t)
		var hangs atomic.Bool
		var hung atomic.Int64
		rdb.AddHook(hookFunc(func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
			if hangs.Load() && isScript(cmd, "claim", b.env.Prefix+":queue:{q/1.2}") {
				hung.Add(1)
				<-ctx.Done()
				cmd.SetErr(ctx.Err())
				return ctx.Err()
			}
			return next(ctx, cmd)
		}))
		var r ran
		b.startOn(b.newQueue(rdb, delayqueue.WithPartitions(2)), r.handle, delayqueue.WithClaimLease(5*time.Minute))
		b.reaches(b.enqueue(delayqueue.Job{ID: keylessIDs("warm", 1, 1)[0]}), delayqueue.StateDone)
		hangs.Store(true)
		redistest.Eventually(t, func() bool { return hung.Load() > 0 }, "it is not asked")
		b.reaches(b.enqueue(delayqueue.Job{ID: keylessIDs("well", 1, 1)[0]}), delayqueue.StateDone)
	}, delayqueue.WithPartitions(2))
}

// One connection that has died costs no claim, as long as Redis is well.
func TestWorker_ADeadConnectionCostsNoClaim(t *testing.T) {
	virtually(t, func(t *testing.T, b *bench) {
		const lease = 2 * time.Second
		rdb := b.env.Client(t)
		var armed atomic.Bool
		rdb.AddHook(hookFunc(func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
			if armed.Load() && isScript(cmd, "extend", b.env.Prefix+":queue:{q}") && armed.CompareAndSwap(true, false) {
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
	each(t, func(t *testing.T, b *bench) {
		rdb := b.env.Client(t)
		lost := make(chan struct{}, 1)
		var first atomic.Bool
		rdb.AddHook(hookFunc(func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
			err := next(ctx, cmd)
			if err != nil || !isScript(cmd, "claim", b.env.Prefix+":queue:{q}") {
				return err
			}
			if bringsMessages(cmd) && first.CompareAndSwap(false, true) {
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

// A key that is released has its head run at once, also while thousands of others have just lost their last message.
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
	b.start((&ran{}).handle, delayqueue.WithConflictBackoff(5*time.Minute, 5*time.Minute), delayqueue.WithObserver(seen))
	lease := b.hold("k")
	id := b.enqueue(delayqueue.Job{Key: "k"})
	require.Equal(t, delayqueue.OutcomeConflict, next(t, seen.settled).Outcome)
	proxy.Delay(func() time.Duration { return 2 * time.Millisecond }) // a network
	_, err = b.queue.CancelAll(t.Context(), delayqueue.Filter{Name: "old"})
	require.NoError(t, err)
	require.NoError(t, lease.Release(t.Context()))
	b.reaches(id, delayqueue.StateDone)
}

// Stop whose ctx has ended waits for handlers, and for no Redis.
func TestStop_DoesNotWaitForReservationsOfALockRedisThatHangs(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		proxy := redistest.NewProxy(t, b.env.Addr)
		locker, err := core.New(redistest.Client(t, &redis.Options{Addr: proxy.Addr}), core.WithPrefix(b.env.Prefix))
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
