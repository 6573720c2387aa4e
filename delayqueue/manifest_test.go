package delayqueue_test

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
)

func (b *bench) manifest() map[string]string {
	return of(b.rdb.HGetAll(b.t.Context(), b.key("manifest")).Result())(b.t)
}

// A queue keeps the number of partitions that it was made with, and its service's name. Who says none uses those.
func TestManifest_OfOthersIsRefused(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		other delayqueue.Option
		why   error
		says  []string
	}{
		"partitions": {delayqueue.WithPartitions(2), delayqueue.ErrOtherLayout, []string{"has 4 partitions", "was to use 2", "another name", "perkey queue"}},
		"service":    {delayqueue.WithService("billing"), delayqueue.ErrOtherService, []string{"another service"}},
	} {
		t.Run(name, func(t *testing.T) {
			each(t, func(t *testing.T, b *bench) {
				ids := []string{b.enqueue(delayqueue.Job{Key: "k"}), b.enqueue(delayqueue.Job{Key: "k"}), b.enqueue(delayqueue.Job{})}
				was := b.manifest()
				require.Equal(t, "4", was["partitions"])
				other := b.newQueue(b.rdb, c.other)
				requireRefused(t, other, c.why)
				_, err := other.Enqueue(t.Context(), delayqueue.Job{Key: "k"})
				for _, says := range c.says {
					require.ErrorContains(t, err, says)
				}
				var r ran
				log := &testbed.Log{}
				b.startOn(other, r.handle, delayqueue.WithLogger(log.Logger()))
				redistest.Eventually(t, func() bool { return strings.Contains(log.String(), c.says[0]) }, "the worker says why")
				require.Equal(t, [3]int64{3, 0, 0}, b.inState())
				require.Equal(t, was, b.manifest(), "untouched")

				b.queue = b.newQueue(b.rdb) // who claims nothing
				b.start(r.handle, delayqueue.WithConcurrency(1))
				for _, id := range append(ids, b.enqueue(delayqueue.Job{Key: "k"})) {
					b.reaches(id, delayqueue.StateDone)
				}
			}, delayqueue.WithPartitions(4), delayqueue.WithService("shop"))
		})
	}
}

// Of processes that want different numbers of partitions, or names of the service, the first has its own.
func TestManifest_IsThatOfTheFirst(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		wants func(i int) delayqueue.Option
		why   error
	}{
		"partitions": {func(i int) delayqueue.Option { return delayqueue.WithPartitions(i + 1) }, delayqueue.ErrOtherLayout},
		"service":    {func(i int) delayqueue.Option { return delayqueue.WithService(fmt.Sprint("service", i)) }, delayqueue.ErrOtherService},
	} {
		t.Run(name, func(t *testing.T) {
			each(t, func(t *testing.T, b *bench) {
				if name == "service" {
					b.enqueue(delayqueue.Job{Key: "k"}) // of one without a name
				}
				var all sync.WaitGroup
				stored := make(chan string, 10)
				for i := range 10 {
					q := b.newQueue(b.env.Client(t), c.wants(i))
					all.Go(func() {
						receipt, err := q.Enqueue(context.Background(), delayqueue.Job{Key: "k"})
						if err == nil {
							stored <- receipt.ID
						} else {
							assert.ErrorIs(t, err, c.why)
						}
					})
				}
				all.Wait()
				require.Len(t, stored, 1)
				b.start((&ran{}).handle)
				b.reaches(<-stored, delayqueue.StateDone)
			})
		})
	}
}

// requireRefused tries all that can be done with a queue.
func requireRefused(t *testing.T, q *delayqueue.Queue, why error) {
	t.Helper()
	ctx := t.Context()
	_, err := q.Enqueue(ctx, delayqueue.Job{Key: "k"})
	require.ErrorIs(t, err, why)
	require.ErrorContains(t, err, "manifest", "where")
	require.ErrorIs(t, errOf(q.Status(ctx, "id")), why)
	require.ErrorIs(t, errOf(q.Stats(ctx)), why)
	require.ErrorIs(t, errOf3(q.List(ctx, delayqueue.StateQueued, "", 10)), why)
	require.ErrorIs(t, q.Cancel(ctx, "id"), why)
	require.ErrorIs(t, q.Pause(ctx, time.Minute), why)
	require.ErrorIs(t, errOf(q.PurgeAll(ctx, delayqueue.Filter{})), why)
}

func TestManifest_OfAnotherLayoutIsRefused(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		require.NoError(t, b.rdb.HSet(t.Context(), b.key("manifest"), "layout", "5", "revision", "7", "shape", "round").Err())
		requireRefused(t, b.queue, delayqueue.ErrOtherLayout)
		require.Equal(t, map[string]string{"layout": "5", "revision": "7", "shape": "round"}, b.manifest(), "untouched")
		require.NoError(t, b.rdb.HSet(t.Context(), b.key("manifest"), "layout", "3", "generations", "1:1").Err())
		requireRefused(t, b.queue, delayqueue.ErrOtherLayout)
		for _, partitions := range []string{"", "many", "0", "-1", "1025", "1 2"} {
			require.NoError(t, b.rdb.HSet(t.Context(), b.key("manifest"), "layout", "4", "partitions", partitions).Err())
			requireRefused(t, b.queue, delayqueue.ErrOtherLayout)
		}
		require.NoError(t, b.rdb.Set(t.Context(), b.key("manifest"), "junk", 0).Err())
		requireRefused(t, b.queue, delayqueue.ErrOtherLayout)
		require.NoError(t, b.rdb.Del(t.Context(), b.key("manifest")).Err())
		b.enqueue(delayqueue.Job{Key: "k"})
	})
}

func TestManifest_EncryptedIsRefusedWithoutKeys(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		begun := b.unencrypted()
		b.queue = b.newQueue(b.rdb, delayqueue.WithEncryption(keyring))
		id := b.enqueue(delayqueue.Job{Key: "k", Payload: []byte("secret")})
		tool := b.newQueue(b.rdb)
		_, err := tool.Enqueue(t.Context(), delayqueue.Job{Key: "k"})
		require.ErrorIs(t, err, delayqueue.ErrOtherEncryption)
		require.ErrorContains(t, err, b.key("manifest"), "where")
		s, err := tool.Stats(t.Context())
		require.NoError(t, err, "who looks after it needs no keys")
		require.EqualValues(t, 1, s.Queued)
		require.ErrorIs(t, errOf(tool.Payload(t.Context(), id)), delayqueue.ErrSealed)

		var without, with ran
		w := b.startOn(begun, without.handle)
		redistest.Eventually(t, func() bool { return len(without.all()) > 0 || b.status(id).State == delayqueue.StateQueued }, "it is handed back")
		require.NoError(t, w.Stop(t.Context()))
		require.Empty(t, without.all(), "what is sealed never gets to a handler")
		b.start(with.handle)
		b.reaches(id, delayqueue.StateDone)
		require.Equal(t, "secret", string(with.all()[0].Payload))
	})
}

// What nobody opens becomes a dead letter, with its payload, before it is too old.
func TestManifest_EncryptionKeepsWhatNobodyOpens(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		id := b.enqueue(delayqueue.Job{Key: "k", Payload: []byte("clear"), MaxAge: 3 * time.Second})
		require.NoError(t, errOf(b.newQueue(b.rdb, delayqueue.WithEncryption(accepting)).Enqueue(t.Context(), delayqueue.Job{})))
		b.startOn(b.newQueue(b.rdb, delayqueue.WithEncryption(keyring)), (&ran{}).handle)
		redistest.Eventually(t, func() bool { return b.status(id).State.Ended() }, "it stays")
		require.Equal(t, delayqueue.StateDead, b.status(id).State)
		require.Equal(t, "clear", b.payload(id))
	})
}

// Replicas of each deployment store and run work beside those of the one before, and no call is refused.
func TestManifest_EncryptionIsSwitchedOnByDeployments(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		b.enqueue(delayqueue.Job{Key: "k", Payload: []byte("secret")})
		_, err := b.newQueue(b.rdb, delayqueue.WithEncryption(keyring)).Enqueue(t.Context(), delayqueue.Job{Key: "k"})
		require.ErrorIs(t, err, delayqueue.ErrOtherEncryption, "at once it is refused")
		require.ErrorContains(t, err, "AcceptUnsealed", "what to do")
		begun := keyring
		begun.Current, begun.AcceptUnsealed = "", true
		old, known := b.queue, b.newQueue(b.rdb, delayqueue.WithEncryption(begun))
		seals := b.newQueue(b.rdb, delayqueue.WithEncryption(accepting))
		for i, pair := range [][2]*delayqueue.Queue{{old, known}, {known, seals}, {seals, b.newQueue(b.rdb, delayqueue.WithEncryption(keyring))}} {
			for _, runner := range pair {
				var ids []string
				for range 2 {
					for _, q := range pair {
						receipt := enqueueOn(t, q, delayqueue.Job{Key: "k", Payload: []byte("secret")})
						ids = append(ids, receipt.ID)
					}
				}
				var r ran
				w := b.startOn(runner, r.handle)
				for _, id := range ids {
					redistest.Eventually(t, func() bool {
						s, err := runner.Status(t.Context(), id)
						return err == nil && s.State == delayqueue.StateDone
					}, "it runs")
				}
				require.NoError(t, w.Stop(t.Context()))
				for _, m := range r.all() {
					require.Equal(t, "secret", string(m.Payload))
				}
			}
			require.Equal(t, i > 0, b.manifest()["encrypted"] != "", "it is raised when something is sealed")
		}
	})
}

// Processes that use an encrypted queue for the first time at once are not taken for ones that come late: one that has read the
// manifest before another has written it finds the other's messages, and those are sealed.
func TestManifest_EncryptionBegunByManyAtOnce(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		b.unencrypted()
		rdb, once := b.env.Client(t), sync.Once{}
		rdb.AddHook(redistest.BeforeEach(func(cmd redis.Cmder) {
			if cmd.Name() == "hlen" { // it has read that nobody encrypts
				once.Do(func() { b.enqueue(delayqueue.Job{Key: "k"}) })
			}
		}))
		require.NoError(t, errOf(b.newQueue(rdb, delayqueue.WithEncryption(keyring)).Enqueue(t.Context(), delayqueue.Job{Key: "k"})))

		for i := range 3 {
			prefix := delayqueue.WithPrefix(fmt.Sprint(b.env.Prefix, i))
			require.NoError(t, errOf(b.newQueue(b.rdb, prefix).Stats(t.Context())))
			var all sync.WaitGroup
			for range 10 {
				q := b.newQueue(b.env.Client(t), delayqueue.WithEncryption(keyring), prefix)
				all.Go(func() {
					assert.NoError(t, errOf(q.Enqueue(t.Context(), delayqueue.Job{Key: "k"})))
				})
			}
			all.Wait()
		}
	}, delayqueue.WithEncryption(keyring))
}

// Redis has lost all, and another process has begun the queue anew. What a process stores then that still knows the lost manifest is run too,
// or refused, if the queue has another number of partitions now.
func TestManifest_ThatRedisHasLostIsNotReliedOn(t *testing.T) {
	for name, n := range map[string]int{"one partition": 1, "three": 3, "as many": 4} {
		t.Run(name, func(t *testing.T) {
			each(t, func(t *testing.T, b *bench) {
				b.enqueue(delayqueue.Job{Key: "k"})
				idle := b.newQueue(b.rdb)
				require.NoError(t, errOf(idle.Stats(t.Context())))
				keys := of(b.rdb.Keys(t.Context(), b.env.Prefix+":*").Result())(t)
				require.NoError(t, b.rdb.Del(t.Context(), keys...).Err())

				b.queue = b.newQueue(b.rdb, delayqueue.WithPartitions(n))
				var r ran
				b.start(r.handle)
				b.enqueue(delayqueue.Job{Key: "k"})
				for i := range 8 {
					job := delayqueue.Job{Key: fmt.Sprint("k", i), Coalesce: i%2 == 0, Payload: bytes.Repeat([]byte("x"), i*1000)}
					b.reaches(b.enqueue(job), delayqueue.StateDone)
					receipt, err := idle.Enqueue(t.Context(), job)
					if n != 4 {
						require.ErrorIs(t, err, delayqueue.ErrOtherLayout)
						continue
					}
					require.NoError(t, err)
					b.reaches(receipt.ID, delayqueue.StateDone)
				}
				if n == 4 {
					require.Len(t, r.ids(), 17, "once each")
				} else {
					require.Len(t, r.ids(), 9, "once each")
				}
			}, delayqueue.WithPartitions(4))
		})
	}
}

func TestManifest_RedisIsAwayAtFirst(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		proxy := redistest.NewProxy(t, env.Addr)
		proxy.Refuse(true)
		b := setup(t, env)
		far := *env
		far.Addr = proxy.Addr
		q := b.newQueue(far.Client(t))
		var r ran
		b.startOn(q, r.handle)
		require.ErrorIs(t, errOf(q.Enqueue(t.Context(), delayqueue.Job{Key: "k"})), core.ErrUnavailable)
		require.ErrorIs(t, errOf(q.Stats(t.Context())), core.ErrUnavailable)
		proxy.Refuse(false)
		id := b.enqueue(delayqueue.Job{Key: "k"})
		b.reaches(id, delayqueue.StateDone)
		enqueueOn(t, q, delayqueue.Job{Key: "k"})
	})
}

// What nobody has stored costs a look: the manifest is read again for it once a second at most.
func TestStatus_OfUnknownIDsIsCheap(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		b.enqueue(delayqueue.Job{})
		rdb := b.env.Client(t)
		var scripts atomic.Int64
		rdb.AddHook(redistest.BeforeEach(func(cmd redis.Cmder) {
			if redistest.IsScript(cmd) {
				scripts.Add(1)
			}
		}))
		q, begun := b.newQueue(rdb), time.Now()
		for i := range 1000 {
			require.ErrorIs(t, errOf(q.Status(t.Context(), fmt.Sprint("no", i))), delayqueue.ErrNotFound)
		}
		require.LessOrEqual(t, scripts.Load(), 3+int64(time.Since(begun)/time.Second), "at first, and then each second")
	}, delayqueue.WithPartitions(2))
}
