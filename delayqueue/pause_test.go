package delayqueue_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

func TestPause_APausedQueueStartsNothing(t *testing.T) {
	eachKind(t, func(t *testing.T, b *bench) {
		ctx := t.Context()
		require.NoError(t, b.queue.Resume(ctx), "it is not paused")
		started, block := make(chan struct{}), make(chan struct{})
		var r ran
		b.start(func(ctx context.Context, m delayqueue.Message) error {
			if m.Name == "first" {
				close(started)
				<-block
			}
			return r.handle(ctx, m)
		})
		first := b.enqueue(delayqueue.Job{Key: "k", Name: "first"})
		next(t, started)
		require.NoError(t, b.queue.Pause(ctx, time.Minute))
		require.NoError(t, b.queue.Pause(ctx, time.Hour))
		waiting := []string{}
		for i := range 10 {
			waiting = append(waiting, b.enqueue(delayqueue.Job{Key: "k"}), b.enqueue(delayqueue.Job{Key: fmt.Sprint(i)}))
		}
		close(block)
		b.reaches(first, delayqueue.StateDone) // its end brings nothing after it
		require.Never(t, func() bool { return len(r.ids()) > 1 }, 100*time.Millisecond, 10*time.Millisecond)
		s := b.stats()
		require.True(t, s.Paused)
		require.WithinDuration(t, time.Now().Add(time.Hour), s.PausedUntil, time.Minute)
		require.EqualValues(t, 20, s.Queued)

		require.NoError(t, b.queue.Resume(ctx))
		for _, id := range waiting {
			b.reaches(id, delayqueue.StateDone)
		}
		s = b.stats()
		require.False(t, s.Paused)
		require.Zero(t, s.PausedUntil)
	})
}

// A shorter pause ends a longer one, and then itself.
func TestPause_APauseEndsByItself(t *testing.T) {
	virtually(t, func(t *testing.T, b *bench) {
		require.NoError(t, b.queue.Pause(t.Context(), time.Hour))
		id := b.enqueue(delayqueue.Job{})
		b.start((&ran{}).handle)
		time.Sleep(600 * time.Millisecond) // it sleeps, subscribed
		began := time.Now()
		require.NoError(t, b.queue.Pause(t.Context(), time.Second))
		b.reaches(id, delayqueue.StateDone)
		require.InDelta(t, time.Second, time.Since(began), float64(200*time.Millisecond))
	})
}

func TestResume_WakesTheWorkers(t *testing.T) {
	virtually(t, func(t *testing.T, b *bench) {
		var r ran
		b.start(r.handle)
		fastest := time.Hour
		for range 5 { // any of them may come by just then by itself, but not all
			require.NoError(t, b.queue.Pause(t.Context(), time.Hour))
			id := b.enqueue(delayqueue.Job{})
			time.Sleep(50 * time.Millisecond)
			require.Equal(t, delayqueue.StateQueued, b.status(id).State)
			began := time.Now()
			require.NoError(t, b.queue.Resume(t.Context()))
			b.reaches(id, delayqueue.StateDone)
			fastest = min(fastest, time.Since(began))
		}
		require.Less(t, fastest, 300*time.Millisecond)
	}, delayqueue.WithPartitions(3))
}

func TestWorker_APausedWorkerClaimsNothing(t *testing.T) {
	virtually(t, func(t *testing.T, b *bench) {
		r := &ran{}
		w := b.start(r.handle)
		first := b.enqueue(delayqueue.Job{})
		time.Sleep(time.Minute)
		require.Equal(t, delayqueue.StateDone, b.status(first).State)
		w.Pause()
		ids := []string{b.enqueue(delayqueue.Job{Key: "k"}), b.enqueue(delayqueue.Job{Key: "k"}), b.enqueue(delayqueue.Job{})}
		for range 60 {
			time.Sleep(time.Second)
			for _, id := range ids {
				require.Equal(t, delayqueue.StateQueued, b.status(id).State)
			}
		}
		w.Resume()
		time.Sleep(time.Minute)
		require.ElementsMatch(t, append(ids, first), r.ids())
		require.NoError(t, w.Stop(t.Context()))
	})
}

// Pause comes while a call is under way that claims: a claim, or a settlement.
func TestWorker_WhatIsClaimedWhilePauseIsCalledGoesBack(t *testing.T) {
	for name, c := range map[string]struct{ script, key string }{
		"claim": {"claim", ""}, "claim of a key": {"claim", "k"}, "settlement": {"settle", ""}, "settlement of a key": {"settle", "k"},
	} {
		t.Run(name, func(t *testing.T) {
			redistest.Each(t, func(t *testing.T, env *redistest.Env) {
				b, settles := setup(t, env), c.script == "settle"
				b.enqueue(delayqueue.Job{ID: "first", Key: c.key})
				var held atomic.Bool
				underWay, goOn := make(chan struct{}), make(chan struct{})
				rdb := env.Client(t)
				rdb.AddHook(redistest.BeforeEach(func(cmd redis.Cmder) {
					args := redistest.Args(cmd)
					if redistest.IsScript(cmd) && args[1] == delayqueue.ScriptHashes[c.script] && held.CompareAndSwap(true, false) {
						close(underWay)
						<-goOn
					}
				}))
				second := delayqueue.Job{ID: "second", Key: c.key}
				if settles { // it claims the second
					b.enqueue(second)
					held.Store(true)
				}
				ev, r := newEvents(), &ran{}
				w := b.startOn(b.newQueue(rdb), r.handle, delayqueue.WithObserver(ev), delayqueue.WithConcurrency(1))
				if !settles {
					require.Equal(t, "first", next(t, ev.settled).Message.ID)
					held.Store(true)
					w.Resume() // wakes it
				}
				next(t, underWay)
				w.Pause()
				if !settles {
					b.enqueue(second)
				}
				close(goOn)
				if settles {
					require.Equal(t, "first", next(t, ev.settled).Message.ID)
				}
				settled := next(t, ev.settled)
				require.Equal(t, "second", settled.Message.ID)
				require.Equal(t, delayqueue.OutcomeReturned, settled.Outcome)
				require.ErrorContains(t, settled.Err, "paused")
				require.Equal(t, []string{"first"}, r.ids())
				s := b.status("second")
				require.Equal(t, delayqueue.StateQueued, s.State)
				require.Zero(t, s.Attempts)

				w.Resume()
				require.Equal(t, 1, b.reaches("second", delayqueue.StateDone).Attempts)
			})
		})
	}
}

func TestRegression_APrefixWithASlashStillWakesWorkers(t *testing.T) {
	t.Parallel()
	redistest.InVirtualTime(t, func(t *testing.T, env *redistest.Env) {
		env.Prefix += "/team"
		b := setup(t, env)
		var r ran
		b.start(r.handle)
		time.Sleep(time.Second) // it sleeps, subscribed
		began := time.Now()
		b.reaches(b.enqueue(delayqueue.Job{}), delayqueue.StateDone)
		require.Less(t, time.Since(began), 2*time.Second, "nobody was woken")
	})
}

// haltBench is a queue whose messages named "bad" die until they are mended.
type haltBench struct {
	*bench
	ran
	mended atomic.Bool
}

func halting(t *testing.T, env *redistest.Env, h delayqueue.Halt, opts ...delayqueue.Option) *haltBench {
	t.Helper()
	return &haltBench{bench: setup(t, env, append(opts, delayqueue.WithHaltOnDeath(h), delayqueue.WithMaxAttempts(1))...)}
}

func (b *haltBench) work() *delayqueue.Worker {
	return b.start(func(ctx context.Context, m delayqueue.Message) error {
		_ = b.handle(ctx, m)
		if m.Name == "bad" && !b.mended.Load() {
			return errors.New("no")
		}
		return nil
	})
}

func (b *haltBench) requireFresh(key string, runs bool) {
	b.t.Helper()
	redistest.Eventually(b.t, func() bool {
		err := b.other.Guard(core.RejectConflicts).Do(b.t.Context(), core.Call{Key: key}, func(context.Context) error { return nil })
		return (err == nil) == runs && (runs || errors.Is(err, core.ErrConflict))
	}, fmt.Sprint("a fresh call runs: ", runs))
}

func TestHaltOnDeath_ADeadLetterHaltsItsKey(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		b := halting(t, env, delayqueue.HaltParked)
		for _, id := range []string{"bad", "0", "1"} {
			b.enqueue(delayqueue.Job{ID: id, Key: "k", Name: id})
		}
		b.work()
		b.reaches("bad", delayqueue.StateDead)
		b.enqueue(delayqueue.Job{ID: "2", Key: "k"}) // it comes later, and waits too
		b.reaches(b.enqueue(delayqueue.Job{ID: "free", Key: "l"}), delayqueue.StateDone)
		time.Sleep(100 * time.Millisecond)
		require.Equal(t, []string{"bad", "free"}, b.ids(), "others run")
		require.Equal(t, [2]int64{1, 3}, [2]int64{b.stats().Halted, b.stats().Queued})
		b.requireFresh("k", true)
		b.mended.Store(true)
		require.NoError(t, b.queue.Redrive(t.Context(), "bad", 0))
		b.reaches("2", delayqueue.StateDone)
		require.Equal(t, []string{"bad", "free", "bad", "0", "1", "2"}, b.ids(), "a letter that is redriven goes before those that it halted")
		require.Zero(t, b.stats().Halted)
	})
}

// HaltKey keeps fresh calls out until the letter goes; if no worker is connected then until one starts, and not for a day.
func TestHaltOnDeath_CanKeepFreshCallsOut(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		for name, end := range map[string]func(ctx context.Context, b *haltBench, bad string) error{
			"purged": func(ctx context.Context, b *haltBench, bad string) error { return b.queue.Purge(ctx, bad) },
			"all purged": func(ctx context.Context, b *haltBench, _ string) error {
				_, err := b.queue.PurgeAll(ctx, delayqueue.Filter{})
				return err
			},
			"redriven and cancelled": func(ctx context.Context, b *haltBench, bad string) error {
				return errors.Join(b.queue.Redrive(ctx, bad, 0), b.queue.Cancel(ctx, bad))
			},
			"redriven": func(ctx context.Context, b *haltBench, bad string) error {
				b.mended.Store(true)
				return b.queue.Redrive(ctx, bad, 0)
			},
			"purged before what is delayed": func(ctx context.Context, b *haltBench, bad string) error {
				b.enqueue(delayqueue.Job{Key: "k", Delay: time.Minute})
				return b.queue.Purge(ctx, bad)
			},
			"purged before others": func(ctx context.Context, b *haltBench, bad string) error {
				b.enqueue(delayqueue.Job{Key: "k"})
				return b.queue.Purge(ctx, bad)
			},
		} {
			for _, works := range []bool{false, true} {
				if works && name == "redriven and cancelled" {
					continue // it may have begun to run
				}
				own := *env
				own.Prefix += fmt.Sprint(strings.ReplaceAll(name, " ", "-"), works)
				b := halting(t, &own, delayqueue.HaltKey)
				w := b.work()
				bad := b.enqueue(delayqueue.Job{Key: "k", Name: "bad"})
				b.reaches(bad, delayqueue.StateDead)
				b.requireFresh("k", false)
				if !works {
					require.NoError(t, w.Stop(t.Context()))
				}
				require.NoError(t, end(t.Context(), b, bad), name)
				if !works {
					time.Sleep(50 * time.Millisecond)
					b.requireFresh("k", false)
					b.work()
				}
				b.requireFresh("k", true)
			}
		}
	})
}

// What is halted expires as ever, and is cancelled; and the halt ends with the letter's retention.
func TestHaltOnDeath_WhatIsHaltedEndsAsEver(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		b := halting(t, env, delayqueue.HaltParked, delayqueue.WithDeadRetention(3*time.Second))
		bad := b.enqueue(delayqueue.Job{Key: "k", Name: "bad"})
		old := b.enqueue(delayqueue.Job{Key: "k", MaxAge: 500 * time.Millisecond})
		cancelled := b.enqueue(delayqueue.Job{Key: "k"})
		last := b.enqueue(delayqueue.Job{Key: "k"})
		b.work()
		b.reaches(bad, delayqueue.StateDead)
		died := time.Now()
		require.NoError(t, b.queue.Cancel(t.Context(), cancelled))
		b.reaches(old, delayqueue.StateExpired)
		require.Equal(t, delayqueue.StateQueued, b.status(last).State)
		time.Sleep(time.Until(died.Add(3100 * time.Millisecond)))
		b.enqueue(delayqueue.Job{ID: "wakes-the-worker"})
		b.reaches(last, delayqueue.StateDone)
		require.Contains(t, b.ids(), last)
		require.Zero(t, b.stats().Halted)
	})
}
