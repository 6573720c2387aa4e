package delayqueue_test

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

var (
	keyring   = ringOf("1")
	accepting = delayqueue.Keyring{Current: keyring.Current, Keys: keyring.Keys, AcceptUnsealed: true}
)

// ringOf is a Keyring with one key.
func ringOf(id string) delayqueue.Keyring {
	return delayqueue.Keyring{Current: id, Keys: map[string][]byte{id: bytes.Repeat([]byte(id), 32)}}
}

// kinds of queues that operations must work on.
var kinds = map[string][]delayqueue.Option{
	"plain, with one attempt": {delayqueue.WithMaxAttempts(1)},
	"three sealed partitions": {delayqueue.WithPartitions(3), delayqueue.WithEncryption(keyring)},
}

// eachKind runs a test on each kind of queue, and one of them on the embedded Redis too, which is slow.
func eachKind(t *testing.T, test func(t *testing.T, b *bench)) {
	t.Helper()
	t.Parallel()
	for name, opts := range kinds {
		t.Run(name, func(t *testing.T) {
			if name == "three sealed partitions" {
				redistest.Each(t, func(t *testing.T, env *redistest.Env) { test(t, setup(t, env, opts...)) })
				return
			}
			t.Parallel()
			test(t, setup(t, redistest.Real(t), opts...))
		})
	}
}

// work runs a handler on the queue until the messages have reached a state.
func (b *bench) work(h delayqueue.Handler, state delayqueue.State, ids ...string) {
	b.t.Helper()
	w := b.start(h)
	for _, id := range ids {
		b.reaches(id, state)
	}
	require.NoError(b.t, w.Stop(b.t.Context()))
}

// bury makes dead letters, one after the other. Their cause names their name.
func (b *bench) bury(jobs ...delayqueue.Job) (ids []string) {
	b.t.Helper()
	w := b.start(func(_ context.Context, m delayqueue.Message) error {
		return delayqueue.SkipRetry(fmt.Errorf("no luck with %q", m.Name))
	})
	for _, job := range jobs {
		id := b.enqueue(job)
		b.reaches(id, delayqueue.StateDead)
		ids = append(ids, id)
		time.Sleep(2 * time.Millisecond) // each dies at a time of its own
	}
	require.NoError(b.t, w.Stop(b.t.Context()))
	return ids
}

func (b *bench) stats() delayqueue.Stats { return of(b.queue.Stats(b.t.Context()))(b.t) }

func ids(entries []delayqueue.Entry) []string {
	ids := []string{}
	for _, e := range entries {
		ids = append(ids, e.ID)
	}
	return ids
}

func jobs(n int, job func(i int) delayqueue.Job) (all []delayqueue.Job) {
	for i := range n {
		all = append(all, job(i))
	}
	return all
}

// The reply of every first run of each script is lost, and go-redis sends it again.
func TestOperations_ThatAreSentAgainAreDoneOnce(t *testing.T) {
	eachKind(t, func(t *testing.T, b *bench) {
		dead := b.bury(jobs(6, func(i int) delayqueue.Job { return delayqueue.Job{Key: fmt.Sprint("k", i%2)} })...)
		// Loaded before, so that the scripts are sent by their hashes.
		require.NoError(t, b.queue.Redrive(t.Context(), dead[0], 0))
		require.NoError(t, b.queue.Cancel(t.Context(), dead[0]))
		require.NoError(t, b.queue.Purge(t.Context(), dead[1]))

		proxy := redistest.NewProxy(t, b.env.Addr)
		rdb := redistest.Client(t, &redis.Options{Addr: proxy.Addr, MaxRetries: 3})
		whole := b.queue
		b.queue = b.newQueue(rdb, b.opts...)
		var mu sync.Mutex
		runs, lost := map[string]int{}, map[string]int{}
		proxy.LoseReply(func(request []byte) bool {
			mu.Lock()
			defer mu.Unlock()
			for _, script := range []string{"redrive", "purge", "cancel"} {
				if bytes.Contains(request, []byte(delayqueue.ScriptHashes[script])) {
					if runs[script]++; runs[script]%2 == 1 {
						lost[script]++
						return true
					}
				}
			}
			return false
		})
		require.NoError(t, b.queue.Redrive(t.Context(), dead[2], 0))
		require.NoError(t, b.queue.Purge(t.Context(), dead[3]))
		require.Equal(t, 1, b.redriveAll(delayqueue.Filter{}, delayqueue.RedriveOptions{Limit: 1}))
		require.Equal(t, 1, b.purgeAll(delayqueue.Filter{}))
		require.Equal(t, 2, b.cancelAll(delayqueue.Filter{}))
		mu.Lock()
		defer mu.Unlock()
		for _, script := range []string{"redrive", "purge", "cancel"} {
			require.NotZero(t, lost[script], script)
		}
		b.queue = whole
		require.Equal(t, delayqueue.Totals{Enqueued: 6, Died: 6, Redriven: 3, Purged: 3, Cancelled: 3}, b.stats().Totals)
	})
}

// What a damaged index holds stops no operation.
func TestOperations_OnJunk(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		ctx := t.Context()
		dead := b.bury(delayqueue.Job{ID: "dead", Key: "k"}, delayqueue.Job{ID: "torn", Key: "k"}, delayqueue.Job{ID: "bad", Key: "k"})
		queued := b.enqueue(delayqueue.Job{ID: "queued", Key: "k"})
		require.NoError(t, b.queue.EditRecord("m", "torn", func(s string) string { return s[:2] + "b" + s[3:] }))
		require.NoError(t, b.queue.EditRecord("y", "bad", func(s string) string { return strings.Replace(s, "1 0 0 ", "1 0 many ", 1) }))
		require.NoError(t, b.rdb.HSet(ctx, b.key("m"), "string", "junk").Err())
		require.NoError(t, b.rdb.HSet(ctx, b.key("c"), "done", "many", "redriven", "99999999999999999999").Err())
		infinity := math.Inf(1)
		for _, set := range []string{"f", "w", "x", "z"} {
			for member, score := range map[string]float64{
				"": -infinity, " ": infinity, "string": 1, "string k": 2, "\x00\xff\n": 1.5, "queued other": 3, "no record": -1e300,
			} {
				if set == "f" {
					score = 0
				}
				require.NoError(t, b.rdb.ZAdd(ctx, b.key(set), redisZ(score, member)).Err())
			}
		}
		for limit := 1; limit < 12; limit++ {
			require.Equal(t, []string{"bad", "torn", "dead"}, ids(b.pages(delayqueue.StateDead, limit)))
			require.Equal(t, []string{queued}, ids(b.pages(delayqueue.StateQueued, limit)))
			require.Empty(t, b.pages(delayqueue.StateRunning, limit))
		}
		require.Zero(t, b.stats().Totals.Done)
		require.ErrorIs(t, errOf(b.queue.Peek(ctx, "string")), delayqueue.ErrNotFound)
		for _, id := range []string{"torn", "bad"} {
			require.ErrorIs(t, b.queue.Redrive(ctx, id, 0), delayqueue.ErrDamaged, id)
			require.Equal(t, delayqueue.StateDead, b.status(id).State)
		}
		n, err := b.queue.RedriveAll(ctx, delayqueue.Filter{}, delayqueue.RedriveOptions{})
		require.ErrorIs(t, err, delayqueue.ErrDamaged)
		require.ErrorContains(t, err, "1 more")
		require.Equal(t, 1, n)
		require.Equal(t, 2, b.cancelAll(delayqueue.Filter{}), "dead and queued")
		require.Equal(t, delayqueue.StateCancelled, b.status(dead[0]).State)
		require.Zero(t, b.purgeAll(delayqueue.Filter{Cause: "no such"}))
		require.EqualValues(t, 2, b.rdb.ZCard(ctx, b.key("x")).Val(), "junk is tidied up")
		require.Equal(t, 2, b.purgeAll(delayqueue.Filter{}))
	})
}

func TestOperations_BadArgumentsAreRefusedBeforeRedis(t *testing.T) {
	nowhere := redistest.Client(t, &redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1})
	q := of(delayqueue.New(nowhere, "q"))(t)
	ctx := t.Context()
	list := func(state delayqueue.State, cursor string, limit int) error {
		_, _, err := q.List(ctx, state, cursor, limit)
		return err
	}
	redrive := func(o delayqueue.RedriveOptions) error {
		_, err := q.RedriveAll(ctx, delayqueue.Filter{}, o)
		return err
	}
	cancel := func(f delayqueue.Filter) error {
		_, err := q.CancelAll(ctx, f)
		return err
	}
	for name, err := range map[string]error{
		"a state without a list":   list(delayqueue.StateDone, "", 1),
		"no state":                 list("", "", 1),
		"no limit":                 list(delayqueue.StateDead, "", 0),
		"a large limit":            list(delayqueue.StateDead, "", 1001),
		"a cursor of nothing":      list(delayqueue.StateDead, "junk", 1),
		"a cursor that is none":    list(delayqueue.StateDead, "\x00", 1),
		"a cursor without a score": list(delayqueue.StateDead, "ZGVhZCB4IHg", 1),
		"a cursor of others":       list(delayqueue.StateQueued, "ZGVhZCA2IDEgeA", 1),
		"a negative age":           q.Redrive(ctx, "id", -1),
		"an endless age":           q.Redrive(ctx, "id", 1<<62),
		"a negative age of all":    redrive(delayqueue.RedriveOptions{MaxAge: -1}),
		"a negative limit":         redrive(delayqueue.RedriveOptions{Limit: -1}),
		"a negative rate":          redrive(delayqueue.RedriveOptions{PerSecond: -1}),
		"no rate":                  redrive(delayqueue.RedriveOptions{PerSecond: math.NaN()}),
		"an endless rate":          redrive(delayqueue.RedriveOptions{PerSecond: math.Inf(1)}),
		"queued, but died":         cancel(delayqueue.Filter{DiedBefore: time.Now()}),
		"a short pause":            q.Pause(ctx, 0),
		"a pause for years":        q.Pause(ctx, 1<<62),
	} {
		require.ErrorIs(t, err, delayqueue.ErrInvalidArgument, name)
	}
	for name, err := range map[string]error{
		"list": list(delayqueue.StateDead, "ZGVhZCA2IDEgeA", 1), "redrive": q.Redrive(ctx, "id", 0), "redrive all": redrive(delayqueue.RedriveOptions{}),
		"cancel": cancel(delayqueue.Filter{}), "purge": q.Purge(ctx, "id"), "pause": q.Pause(ctx, time.Second), "resume": q.Resume(ctx),
	} {
		require.ErrorIs(t, err, core.ErrUnavailable, name)
		require.NotErrorIs(t, err, delayqueue.ErrInvalidArgument, name)
	}
}
