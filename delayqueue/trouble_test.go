package delayqueue_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"strings"
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

// inPartition is a name of a key, or of a message without one, that is in the i-th partition of two.
func inPartition(i uint32, name string) string {
	for n := 0; ; n++ {
		h := fnv.New32a()
		_, _ = fmt.Fprint(h, name, n)
		if h.Sum32()%2 == i-1 {
			return fmt.Sprint(name, n)
		}
	}
}

// losesClaim loses the first reply to a claim that brings messages, and tells when. Meanwhile it does something.
func (b *bench) losesClaim(meanwhile func() error) (q *delayqueue.Queue, lost chan struct{}) {
	b.t.Helper()
	rdb := b.env.Client(b.t)
	require.NoError(b.t, b.queue.ClaimAndDie(time.Second)) // loads the script
	lost = make(chan struct{}, 1)
	var first atomic.Bool
	rdb.AddHook(hookFunc(func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
		if err := next(ctx, cmd); err != nil || !isScript(cmd, "claim", b.env.Prefix+":queue:{q}") || !bringsMessages(cmd) || first.Swap(true) {
			return err
		}
		cmd.SetErr(errors.Join(errors.New("i/o timeout"), meanwhile()))
		lost <- struct{}{}
		return cmd.Err()
	}))
	return b.newQueue(rdb), lost
}

// What a claim took whose reply was lost has become too old when the claim is sent
// again: the worker must not go on asking for it until the claim's lease is over.
func TestWorker_AClaimSentAgainForWhatIsTooOldDoesNotBlockTheWorker(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		const old = "old"
		q, lost := b.losesClaim(func() error {
			return b.queue.EditRecord("m", old, func(record string) string { return record[:32] + "0000000000001" + record[45:] }) // its not_after
		})
		b.enqueue(delayqueue.Job{ID: old})
		var r ran
		b.startOn(q, r.handle, delayqueue.WithClaimLease(20*time.Minute))
		next(t, lost)
		b.reaches(b.enqueue(delayqueue.Job{}), delayqueue.StateDone)
		require.Equal(t, delayqueue.StateRunning, b.status(old).State, "until its claim ends")
		require.Len(t, r.ids(), 1)
	})
}

// bringsMessages reports whether the reply to a claim has messages.
func bringsMessages(cmd redis.Cmder) bool {
	reply, err := cmd.(*redis.Cmd).Slice()
	return err == nil && len(reply) > delayqueue.ClaimWithoutMessages
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
		}, delayqueue.WithClaimLease(lease), delayqueue.WithHeartbeatClient(rdb), delayqueue.WithObserver(seen))
		b.enqueue(delayqueue.Job{})
		s := next(t, seen.settled)
		require.Equal(t, delayqueue.OutcomeDone, s.Outcome, "%v", s.Err)
		require.False(t, armed.Load(), "nothing was extended")
	})
}

// What a claim took whose reply was lost goes back when the worker is stopped.
func TestStop_GivesBackWhatALostClaimTook(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		q, lost := b.losesClaim(func() error { return nil })
		id := b.enqueue(delayqueue.Job{})
		w := b.startOn(q, (&ran{}).handle)
		next(t, lost)
		require.NoError(t, w.Stop(t.Context()))
		require.Equal(t, delayqueue.StateQueued, b.status(id).State, "it waits for the end of a claim that nobody has")
	})
}

// A key that is released has its head run at once, also while hundreds of others have just lost their last message.
func TestWorker_WakeUpsDoNotWaitForKeysThatAreEmptied(t *testing.T) {
	t.Parallel()
	b := setup(t, redistest.Real(t))
	proxy := redistest.NewProxy(t, b.env.Addr)
	b.locker = b.lockerOn(redistest.Client(t, &redis.Options{Addr: proxy.Addr}))
	b.enqueueAll(300, func(i int) delayqueue.Job {
		return delayqueue.Job{Key: fmt.Sprint("old", i), Name: "old", Delay: time.Minute}
	})
	seen := newEvents()
	b.start((&ran{}).handle, delayqueue.WithConflictBackoff(5*time.Minute, 5*time.Minute), delayqueue.WithObserver(seen))
	lease := b.hold("k")
	id := b.enqueue(delayqueue.Job{Key: "k"})
	require.Equal(t, delayqueue.OutcomeConflict, next(t, seen.settled).Outcome)
	proxy.Delay(func() time.Duration { return 2 * time.Millisecond }) // a network
	b.cancelAll(delayqueue.Filter{Name: "old"})
	require.NoError(t, lease.Release(t.Context()))
	b.reaches(id, delayqueue.StateDone)
}

// Stop whose ctx has ended waits for handlers, and for no Redis.
func TestStop_DoesNotWaitForReservationsOfALockRedisThatHangs(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		proxy := redistest.NewProxy(t, b.env.Addr)
		b.locker = b.lockerOn(redistest.Client(t, &redis.Options{Addr: proxy.Addr}))
		w := b.start((&ran{}).handle)
		b.reaches(b.enqueue(delayqueue.Job{Key: "warm"}), delayqueue.StateDone)
		for i := range 20 {
			b.enqueue(delayqueue.Job{Key: fmt.Sprint("old", i), Delay: time.Minute})
		}
		proxy.Blackhole(redistest.Requests)
		defer func() { // nobody waits any more
			proxy.Blackhole(0)
			proxy.Refuse(true)
			proxy.Cut()
		}()
		b.cancelAll(delayqueue.Filter{})
		time.Sleep(200 * time.Millisecond) // they are announced
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		stopped := make(chan struct{})
		go func() {
			_ = w.Stop(ctx)
			close(stopped)
		}()
		<-stopped
	})
}

// mistaken is an observer that panics.
type mistaken struct{}

func (mistaken) OnEnqueuing(context.Context, delayqueue.Enqueuing) (context.Context, string) {
	panic("an observer's mistake")
}

func (mistaken) OnEnqueued(context.Context, delayqueue.Enqueued) { panic("an observer's mistake") }
func (mistaken) OnStarted(context.Context, delayqueue.Started)   { panic("an observer's mistake") }
func (mistaken) OnSettled(context.Context, delayqueue.Settled)   { panic("an observer's mistake") }
func (mistaken) OnReaped(context.Context, delayqueue.Reaped)     { panic("an observer's mistake") }
func (mistaken) OnWarning(context.Context, delayqueue.Warning)   { panic("an observer's mistake") }

// Neither an observer of the queue, nor of the worker.
func TestRegression_AnObserversPanicDoesNotTakeTheProcessDown(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		require.NoError(t, errOf(b.newQueue(b.rdb, delayqueue.WithQueueObserver(mistaken{})).Enqueue(t.Context(), delayqueue.Job{Delay: time.Minute})))
		old := b.enqueue(delayqueue.Job{Key: "old", MaxAge: 20 * time.Millisecond})
		time.Sleep(50 * time.Millisecond)
		var r ran
		log := &testbed.Log{}
		b.start(r.handle, delayqueue.WithObserver(mistaken{}), delayqueue.WithLogger(log.Logger()))
		for range 2 {
			require.Equal(t, 1, b.reaches(b.enqueue(delayqueue.Job{Key: "k"}), delayqueue.StateDone).Attempts)
		}
		b.reaches(old, delayqueue.StateExpired)
		require.Len(t, r.ids(), 2)
		require.Contains(t, log.String(), "delayqueue: the observer panicked")
	})
}

// A node that does not answer costs the other partitions nothing: not the claims that they have, not their wake-ups, which are claims, and not the worker's slots.
func TestPartition_ThatHangsCostsTheOthersNothing(t *testing.T) {
	virtually(t, func(t *testing.T, b *bench) {
		const lease = 2 * time.Second
		rdb := b.env.Client(t)
		var hangs atomic.Bool
		var hung [2]atomic.Int64
		rdb.AddHook(hookFunc(func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
			for i, script := range [...]string{"extend", "claim"} {
				if hangs.Load() && isScript(cmd, script, b.env.Prefix+":queue:{q/1.2}") {
					hung[i].Add(1)
					select {
					case <-ctx.Done():
					case <-time.After(2 * lease): // a heartbeat's has no end
					}
					cmd.SetErr(context.DeadlineExceeded)
					return context.DeadlineExceeded
				}
			}
			return next(ctx, cmd)
		}))
		started, seen := make(chan string, 100), newEvents()
		b.startOn(b.newQueue(rdb, delayqueue.WithPartitions(2)), func(ctx context.Context, m delayqueue.Message) error {
			if m.Name == "long" {
				started <- m.ID
				select {
				case <-ctx.Done():
				case <-time.After(4 * lease): // the promise is about time
				}
			}
			return context.Cause(ctx)
		}, delayqueue.WithClaimLease(lease), delayqueue.WithHeartbeatClient(rdb), delayqueue.WithObserver(seen), delayqueue.WithConflictBackoff(5*time.Minute, 5*time.Minute))
		var long, held []string
		var leases []*core.Lease
		for i := range uint32(2) {
			key := inPartition(i+1, "held")
			leases = append(leases, b.hold(key))
			held = append(held, b.enqueue(delayqueue.Job{Key: key}))
			require.Equal(t, delayqueue.OutcomeConflict, next(t, seen.settled).Outcome)
			long = append(long, b.enqueue(delayqueue.Job{Key: inPartition(i+1, "long"), Name: "long"}))
			next(t, started)
		}
		hangs.Store(true)
		require.NoError(t, leases[0].Release(t.Context()))
		redistest.Eventually(t, func() bool { return hung[0].Load() > 0 && hung[1].Load() > 0 }, "it is not asked")
		require.NoError(t, leases[1].Release(t.Context()))
		b.reaches(held[1], delayqueue.StateDone)
		b.reaches(b.enqueue(delayqueue.Job{ID: inPartition(2, "well")}), delayqueue.StateDone)
		s := b.reaches(long[1], delayqueue.StateDone)
		require.Equal(t, []int{1, 0}, []int{s.Attempts, s.Losses})
		hangs.Store(false)
	}, delayqueue.WithPartitions(2))
}

func TestPartition_ABusyPartitionDoesNotKeepTheOthersFromAWorker(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		busy, other := inPartition(1, "busy"), inPartition(2, "other")
		for range 3 {
			b.enqueue(delayqueue.Job{Key: busy})
		}
		var runs atomic.Int64
		w := b.start(func(ctx context.Context, m delayqueue.Message) error {
			if m.Key == busy {
				runs.Add(1)
				_, err := b.queue.Enqueue(ctx, delayqueue.Job{Key: busy}) // there is always more
				return err
			}
			return nil
		}, delayqueue.WithConcurrency(1))
		redistest.Eventually(t, func() bool { return runs.Load() > 10 }, "the busy one runs")
		b.reaches(b.enqueue(delayqueue.Job{Key: other}), delayqueue.StateDone)
		require.NoError(t, w.Stop(t.Context()))
	}, delayqueue.WithPartitions(2))
}

func TestRegression_AMessageIsFoundAlthoughAnotherPartitionIsDown(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		for down := uint32(1); down <= 2; down++ {
			id := b.enqueue(delayqueue.Job{Key: inPartition(3-down, "k")})
			rdb := b.env.Client(t)
			rdb.AddHook(hookFunc(func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
				if args := cmd.Args(); len(args) > 1 && strings.HasPrefix(fmt.Sprint(args[1]), fmt.Sprintf("%s:queue:{q/%d.2}", b.env.Prefix, down)) {
					cmd.SetErr(context.DeadlineExceeded)
					return context.DeadlineExceeded
				}
				return next(ctx, cmd)
			}))
			require.NoError(t, errOf(b.newQueue(rdb, delayqueue.WithPartitions(2)).Status(t.Context(), id)), "partition %d is down", down)
		}
	}, delayqueue.WithPartitions(2))
}
