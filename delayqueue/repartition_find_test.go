package delayqueue_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

// A process that neither enqueues nor works, and has read the manifest before, finds what is in the new partitions, whatever it asks first.
// It is long since most of it is a table.
func TestRepartition_EveryProcessFindsWhatIsNew(t *testing.T) {
	const callers = 10
	ctx := t.Context()
	for op, call := range map[string]func(q *delayqueue.Queue) error{
		"Status": func(q *delayqueue.Queue) error { _, err := q.Status(ctx, "queued"); return err },
		"Wait":   func(q *delayqueue.Queue) error { _, err := q.Wait(ctx, "done"); return err },
		"Wait on": func(q *delayqueue.Queue) error {
			ctx, cancel := context.WithTimeout(ctx, 30*time.Millisecond)
			defer cancel()
			if _, err := q.Wait(ctx, "queued"); !errors.Is(err, context.DeadlineExceeded) {
				return fmt.Errorf("not waited for: %w", err)
			}
			return nil
		},
		"Peek":    func(q *delayqueue.Queue) error { _, err := q.Peek(ctx, "queued"); return err },
		"Payload": func(q *delayqueue.Queue) error { _, err := q.Payload(ctx, "queued"); return err },
		"Result":  func(q *delayqueue.Queue) error { _, err := q.Result(ctx, "done"); return err },
		"Cancel":  func(q *delayqueue.Queue) error { return q.Cancel(ctx, "queued") },
		"List": func(q *delayqueue.Queue) error {
			entries, _, err := q.List(ctx, delayqueue.StateDead, "", 10)
			return wantOne(len(entries), err)
		},
		"Line": func(q *delayqueue.Queue) error {
			line, _, err := q.Line(ctx, "k", "", 10)
			return wantOne(len(line), err)
		},
		"Stats": func(q *delayqueue.Queue) error {
			s, err := q.Stats(ctx)
			return wantOne(int(s.Dead), err)
		},
		"Count": func(q *delayqueue.Queue) error {
			n, _, err := q.Count(ctx, delayqueue.StateQueued, delayqueue.Filter{})
			return wantOne(int(n), err)
		},
	} {
		t.Run(op, func(t *testing.T) {
			redistest.Each(t, func(t *testing.T, env *redistest.Env) {
				stale := staleQueue(t, env)
				errs := make(chan error, callers)
				for range callers {
					go func() { errs <- call(stale) }()
				}
				for range callers {
					require.NoError(t, <-errs)
				}
			})
		})
	}
	for op, call := range map[string]func(q *delayqueue.Queue) (int, error){ // once only
		"Purge":     func(q *delayqueue.Queue) (int, error) { return 1, q.Purge(ctx, "dead") },
		"Redrive":   func(q *delayqueue.Queue) (int, error) { return 1, q.Redrive(ctx, "dead", 0) },
		"CancelAll": func(q *delayqueue.Queue) (int, error) { return q.CancelAll(ctx, delayqueue.Filter{Key: "k"}) },
		"RedriveAll": func(q *delayqueue.Queue) (int, error) {
			return q.RedriveAll(ctx, delayqueue.Filter{}, delayqueue.RedriveOptions{})
		},
		"PurgeAll": func(q *delayqueue.Queue) (int, error) { return q.PurgeAll(ctx, delayqueue.Filter{}) },
	} {
		t.Run(op, func(t *testing.T) {
			redistest.Each(t, func(t *testing.T, env *redistest.Env) {
				require.NoError(t, wantOne(call(staleQueue(t, env))))
			})
		})
	}
}

func wantOne(n int, err error) error {
	if err == nil && n != 1 {
		err = fmt.Errorf("%d, not one", n)
	}
	return err
}

// staleQueue is a queue that has read the manifest before its partitions were changed: there is a message now that is done, one that is dead,
// and one that is queued.
func staleQueue(t *testing.T, env *redistest.Env) *delayqueue.Queue {
	t.Helper()
	b := setup(t, env)
	stale := b.newQueue(env.Client(t))
	_, err := stale.Stats(t.Context())
	require.NoError(t, err)
	b.repartition(2)
	w := b.start(func(ctx context.Context, m delayqueue.Message) error {
		if m.ID == "dead" {
			return delayqueue.SkipRetry(errors.New("no"))
		}
		return delayqueue.SetResult(ctx, []byte("result"))
	})
	b.reaches(b.enqueue(delayqueue.Job{ID: "done", Key: "k"}), delayqueue.StateDone)
	b.reaches(b.enqueue(delayqueue.Job{ID: "dead", Key: "l"}), delayqueue.StateDead)
	require.NoError(t, w.Stop(t.Context()))
	b.enqueue(delayqueue.Job{ID: "queued", Key: "k", Delay: time.Minute, Payload: make([]byte, 10_000)})
	return stale
}

// What nobody has stored costs a look: the manifest is read again for it once a second at most.
func TestStatus_OfUnknownIDsIsCheap(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		b := setup(t, env)
		b.repartition(2)
		rdb := env.Client(t)
		var scripts atomic.Int64
		rdb.AddHook(redistest.BeforeEach(func(cmd redis.Cmder) {
			if redistest.IsScript(cmd) {
				scripts.Add(1)
			}
		}))
		q, begun := b.newQueue(rdb), time.Now()
		for i := range 1000 {
			_, err := q.Status(t.Context(), fmt.Sprint("no", i))
			require.ErrorIs(t, err, delayqueue.ErrNotFound)
		}
		require.LessOrEqual(t, scripts.Load(), 3+int64(time.Since(begun)/time.Second), "at first, and then each second")
	})
}

// Many wait for messages that are carried over, in a process that has no worker, while the partitions change again and again.
func TestWait_SurvivesRepartitions(t *testing.T) {
	const messages, waiters = 100, 3
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		b := setup(t, env)
		b.start(func(context.Context, delayqueue.Message) error { return nil }, delayqueue.WithConcurrency(4))
		idle := b.newQueue(env.Client(t))
		var all sync.WaitGroup
		errs := make(chan error, messages*waiters)
		for i := range messages {
			id := b.enqueue(delayqueue.Job{Key: fmt.Sprint("k", i%20), Delay: time.Duration(1+i*20) * time.Millisecond})
			for range waiters {
				all.Go(func() {
					s, err := idle.Wait(t.Context(), id)
					if err == nil && s.State != delayqueue.StateDone {
						err = fmt.Errorf("%s is %s", id, s.State)
					}
					errs <- err
				})
			}
		}
		for _, n := range []int{2, 1, 3, 2} {
			time.Sleep(300 * time.Millisecond)
			b.repartition(n)
		}
		all.Wait()
		failed := 0
		for range messages * waiters {
			if err := <-errs; err != nil {
				failed++
				t.Log(err)
			}
		}
		require.Zero(t, failed)
	})
}
