package delayqueue_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

func TestOutage_AStoppedWorkerDoesNotWaitForRedis(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	b := setup(t, &redistest.Env{Addr: server.Addr, Real: true, Prefix: "p"})
	started := make(chan struct{})
	w := b.start(func(ctx context.Context, _ delayqueue.Message) error {
		close(started)
		<-ctx.Done()
		return ctx.Err()
	})
	b.enqueue(delayqueue.Job{})
	next(t, started)
	server.Kill()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	stopped := make(chan error)
	go func() { stopped <- w.Stop(ctx) }()
	require.ErrorIs(t, next(t, stopped), context.Canceled, "the claim lasts 30 s")
}

func TestOutage_NothingIsLostWhenRedisRestarts(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always")
	b := setup(t, &redistest.Env{Addr: server.Addr, Real: true, Prefix: "p"})
	const messages = 60
	ids := []string{}
	for i := range messages {
		ids = append(ids, b.enqueue(delayqueue.Job{Key: fmt.Sprint(i % 6)}))
	}
	var r ran
	half := make(chan struct{})
	var once sync.Once
	b.start(func(ctx context.Context, m delayqueue.Message) error {
		if _ = r.handle(ctx, m); len(r.all()) >= messages/2 {
			once.Do(func() { close(half) })
		}
		return nil
	}, delayqueue.WithClaimLease(time.Second), delayqueue.WithConcurrency(2))
	next(t, half)
	server.Kill()
	server.Restart(t)
	for _, id := range ids {
		b.reaches(id, delayqueue.StateDone)
		require.Contains(t, r.ids(), id)
	}
	require.Zero(t, b.inState())
}

// The reply of every third run of each script is lost, with go-redis's own retries and without. What is enqueued again
// under its id is stored once, what is claimed or ended again is what was claimed or ended before: every handler runs
// once, and the counters say so.
func TestOutage_LostRepliesChangeNothing(t *testing.T) {
	t.Parallel()
	for name, retries := range map[string]int{"go-redis retries": 3, "go-redis does not retry": -1} {
		t.Run(name, func(t *testing.T) {
			redistest.Each(t, func(t *testing.T, env *redistest.Env) {
				proxy := redistest.NewProxy(t, env.Addr)
				b := setup(t, env)
				broken := b.newQueue(redistest.Client(t, &redis.Options{Addr: proxy.Addr, MaxRetries: retries}))
				// Loaded before, so that the scripts are sent by their hashes.
				b.reaches(b.enqueue(delayqueue.Job{ID: "before"}), delayqueue.StateQueued)
				warm := b.start(func(_ context.Context, m delayqueue.Message) error {
					if m.Attempt == 1 {
						return errors.New("no")
					}
					return nil
				})
				b.reaches("before", delayqueue.StateDone)
				require.NoError(t, warm.Stop(t.Context()))

				lost, ids := loseEveryThird(proxy), []string{}
				for i := range 30 {
					job := delayqueue.Job{ID: fmt.Sprint(i), Key: fmt.Sprint("k", i%3)}
					redistest.Eventually(t, func() bool {
						_, err := broken.Enqueue(t.Context(), job)
						require.True(t, err == nil || errors.Is(err, core.ErrUnavailable), err)
						return err == nil
					}, "enqueue")
					ids = append(ids, job.ID)
				}
				var r ran
				b.startOn(broken, func(ctx context.Context, m delayqueue.Message) error {
					_ = r.handle(ctx, m)
					if m.Attempt == 1 && m.ID[len(m.ID)-1] == '0' {
						return errors.New("once more")
					}
					return nil
				})
				want := map[string]int{}
				for _, id := range ids {
					want[id] = 1
					if id[len(id)-1] == '0' {
						want[id] = 2
					}
					s := b.reaches(id, delayqueue.StateDone)
					require.Equal(t, []int{want[id], 0, 0}, []int{s.Attempts, s.Conflicts, s.Losses}, id)
				}
				got := map[string]int{}
				for _, id := range r.ids() {
					got[id]++
				}
				require.Equal(t, want, got)
				require.Zero(t, b.inState())
				for _, script := range []string{"enqueue", "claim", "settle"} {
					require.NotZero(t, lost(script), script)
				}
			})
		})
	}
}

// loseEveryThird loses the first reply of every three to each script. It returns how to ask for how many were lost.
func loseEveryThird(proxy *redistest.Proxy) (lost func(script string) int) {
	var mu sync.Mutex
	runs, losses := map[string]int{}, map[string]int{}
	proxy.LoseReply(func(request []byte) (lose bool) {
		mu.Lock()
		defer mu.Unlock()
		for script, hash := range delayqueue.ScriptHashes {
			if bytes.Contains(request, []byte(hash)) {
				runs[script]++
				if runs[script]%3 == 1 {
					losses[script]++
					lose = true
				}
			}
		}
		return lose
	})
	return func(script string) int {
		mu.Lock()
		defer mu.Unlock()
		return losses[script]
	}
}

// A Redis whose memory is full gets free by the work that is in its queue: that takes locks, though nobody else
// gets one.
func TestOutage_JobsWithKeysRunOnAFullRedis(t *testing.T) {
	t.Parallel()
	full := func(t *testing.T, b *bench, fill func(context.Context, func(context.Context, *redis.Client) error) error) {
		t.Helper()
		ids := make([]string, 200)
		for i := range ids {
			ids[i] = b.enqueue(delayqueue.Job{Key: fmt.Sprint("k", i%50), Payload: []byte("work")})
		}
		_, err := b.locker.TryAcquire(t.Context(), "other") // its script is known from now on
		require.NoError(t, err)
		require.NoError(t, fill(t.Context(), func(ctx context.Context, node *redis.Client) error {
			return node.ConfigSet(ctx, "maxmemory", "1mb").Err()
		}))
		for i := range 20 {
			_, err := b.locker.TryAcquire(t.Context(), fmt.Sprint("k", i))
			require.ErrorIs(t, err, core.ErrUnavailable)
			require.ErrorContains(t, err, "OOM")
		}
		var r ran
		b.start(r.handle)
		redistest.Eventually(t, func() bool { return len(r.ids()) == len(ids) }, "what is there is run")
		require.ElementsMatch(t, ids, r.ids())
	}
	t.Run("one server", func(t *testing.T) {
		t.Parallel()
		server := redistest.Start(t, "--maxmemory-policy", "noeviction")
		b := setup(t, &redistest.Env{Addr: server.Addr, Real: true, Prefix: "t"})
		full(t, b, func(ctx context.Context, do func(context.Context, *redis.Client) error) error {
			return do(ctx, redistest.Client(t, &redis.Options{Addr: server.Addr}))
		})
	})
	t.Run("cluster", func(t *testing.T) {
		t.Parallel()
		c := redistest.StartCluster(t, 3, 0)
		full(t, onCluster(t, c, "q"), c.Client(t).ForEachMaster)
	})
}
