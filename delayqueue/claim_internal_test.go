package delayqueue

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/delayqueue/internal/store"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

// A process that was frozen past the end of its claim goes on before its timers do.
func TestClaim_AClaimThatEndedDuringAFreezeStartsNoHandler(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		q := testQueue(t, env)
		var runs int
		var frozen *claim
		freeze := func() {
			frozen.expiry.Stop()
			frozen.deadline = time.Now().Add(-time.Millisecond)
		}
		w, _ := internalWorker(t, q, func(ctx context.Context, m Message) error {
			runs++
			if m.ID == "frozen inside" {
				freeze()
			}
			if ctx.Err() != nil {
				require.ErrorIs(t, context.Cause(ctx), ErrClaimLost)
			}
			return ctx.Err()
		})
		for _, key := range []string{"", "k"} {
			runs = 0
			for _, id := range []string{"frozen", "frozen inside", "well"} {
				m := &store.Message{ID: id, Key: key, Attempts: 1}
				c := w.claims.add(w.ctx, q, q.manifests.partitions[0], m, "token", time.Now().Add(time.Hour))
				frozen = c
				if id == "frozen" {
					freeze()
				}
				w.process(c)
			}
			require.Equal(t, 2, runs)
		}
	})
}

// replyError is what Redis replies with.
type replyError string

func (e replyError) Error() string { return string(e) }

func (replyError) RedisError() {}

// Redis answers while a slot moves, for seconds perhaps. What fails once at the end of that, such as a call that
// the slot outran, is no long outage.
func TestClaim_AClaimThatFailsAfterAMoveIsSoonSentAgain(t *testing.T) {
	for name, last := range map[string]error{
		"outrun": replyError("ASK 1 127.0.0.1:1"), "moved": replyError("MOVED 1 127.0.0.1:1"),
		"down": replyError("CLUSTERDOWN The cluster is down"), "lost": errors.New("connection reset"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			redistest.InVirtualTime(t, func(t *testing.T, env *redistest.Env) {
				q := testQueue(t, env)
				var n, over atomic.Int64
				q.rdb.(*redis.Client).AddHook(aroundScript{store.Scripts["claim"], func(next func() error) error {
					switch n := n.Add(1); {
					case n < 9:
						return replyError("TRYAGAIN Multiple keys request during rehashing of slot")
					case n == 9:
						over.Store(time.Now().UnixNano())
						return last
					}
					return next()
				}})
				ran := make(chan time.Time, 1)
				w, _ := internalWorker(t, q, func(context.Context, Message) error {
					ran <- time.Now()
					return nil
				})
				enqueueTest(t, q, "id", "k")
				require.NoError(t, w.Start())
				defer func() { _ = w.Stop(context.Background()) }()
				require.Less(t, (<-ran).Sub(time.Unix(0, over.Load())), 3*time.Second)
			})
		})
	}
}

// The slots of a claim whose reply took too long are others' meanwhile, who may keep them for as long as there is work.
func TestClaim_ThatWasSlowDoesNotWaitForASlot(t *testing.T) {
	for name, full := range map[string]bool{"there is one ahead": false, "there is none": true} {
		t.Run(name, func(t *testing.T) {
			q := testQueue(t, redistest.Embedded(t))
			w, _ := internalWorker(t, q, func(context.Context, Message) error { return nil }, WithConcurrency(1))
			enqueueTest(t, q, "id", "")
			b, err := q.manifests.partitions[0].Claim(t.Context(), "token", time.Minute, 1)
			require.NoError(t, err)
			w.slots.taken <- struct{}{}
			for range cap(w.slots.ahead) {
				if full {
					w.slots.ahead <- struct{}{}
				}
			}
			begun := make(chan struct{})
			go func() {
				defer close(begun)
				w.fetcherOf(q.manifests.partitions[0]).beginAll(b, "token", time.Now(), 0)
			}()
			select {
			case <-begun:
			case <-time.After(time.Minute):
				t.Fatal("it waits for a slot")
			}
			w.handlers.Wait()
			s, err := q.Status(t.Context(), "id")
			require.NoError(t, err)
			require.Equal(t, map[bool]State{false: StateDone, true: StateQueued}[full], s.State)
			require.Equal(t, map[bool]int{false: 1}[full], s.Attempts)
		})
	}
}

// marksAlone reports it if nobody learns that a message was run alone when its worker died.
func marksAlone(t *testing.T, env *redistest.Env, hooks ...redis.Hook) error {
	t.Helper()
	q := testQueue(t, env)
	for _, hook := range hooks {
		q.rdb.(*redis.Client).AddHook(hook)
	}
	p := q.manifests.partitions[0]
	enqueueTest(t, q, "id", "")
	for try := range 3 {
		c := claimTest(t, q, fmt.Sprint("try.", try+1), 1)[0]
		if was := c.stored.Alone; was != (try > 0) {
			return fmt.Errorf("try %d: it was run alone: %v", try, was)
		}
		for range 2 { // the second as after a lost reply
			if held, err := p.Extend(t.Context(), q.rdb, time.Minute, true, c.stored); err != nil || !held[0] {
				return fmt.Errorf("it is held: %v, %w", held, err)
			}
		}
		if try == 2 {
			if !settleTest(t, c, outcome{end: store.Failed, err: errTooOld}) {
				return errors.New("its claim cannot be settled")
			}
			break
		}
		require.NoError(t, q.rdb.ZAdd(t.Context(), p.Keys[store.KeyRunning], scored(1, store.MemberOf("id", ""))).Err()) // its worker dies
	}
	if claimTest(t, q, "last.1", 1)[0].stored.Alone {
		return errors.New("its attempt has ended, and it was run alone")
	}
	return nil
}

func TestLastAttempt_IsNotedInRedis(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) { require.NoError(t, marksAlone(t, env)) })
}

func TestClaim_MutantsOfTheLastAttemptAreCaught(t *testing.T) {
	t.Parallel()
	requireCaught(t, marksAlone, []mutant{
		{"what runs alone is not noted", "extend", "      add(ATTEMPTS, id, state:sub(1, 1) .. 'alone!' .. state:sub(8))\n", ""},
		{"a loss forgets it", "claim", "'-', mark and mark", "'-', mark and '------'"},
		{"a noted message is not held", "", "state:sub(8) == sent:sub(8)", "state:sub(2) == sent:sub(2)"},
	})
}
