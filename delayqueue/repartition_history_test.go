package delayqueue

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

// dying is a process that dies after so many scripts: a hook for its client.
type dying struct{ left atomic.Int64 }

var errDied = errors.New("the process has died")

func (d *dying) DialHook(next redis.DialHook) redis.DialHook { return next }

func (d *dying) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if d.left.Add(-1) < 0 {
			cmd.SetErr(errDied)
			return errDied
		}
		return next(ctx, cmd)
	}
}

// Of a pipeline, a part may have been sent.
func (d *dying) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		n := min(int64(len(cmds)), max(0, d.left.Load()))
		d.left.Add(-int64(len(cmds)))
		for _, cmd := range cmds[n:] {
			cmd.SetErr(errDied)
		}
		if n == 0 {
			return errDied
		}
		if err := next(ctx, cmds[:n]); err != nil || n == int64(len(cmds)) {
			return err
		}
		return errDied
	}
}

// movedMessage is a message in the history of a queue whose number of partitions changes.
type movedMessage struct {
	key, id      string
	begun, acked time.Time
	delay        time.Duration
	failures     int64 // that the handler returns first
	dies         bool  // and is redriven
	tried        int64
	runs         []int // its places among the runs of its key
}

// movedHistory is the history of a queue whose number of partitions changes.
type movedHistory struct {
	t      *testing.T
	env    *redistest.Env
	prefix string
	hook   redis.Hook // of each client, or nil

	mu   sync.Mutex
	all  map[string]*movedMessage // by name
	ran  map[string]int           // how many have run, by key
	left atomic.Int64             // have not run
}

// queue is another process's Queue. A split of 0 is what the manifest says.
func (h *movedHistory) queue(split int, hooks ...redis.Hook) *Queue {
	h.t.Helper()
	rdb := h.env.Client(h.t)
	for _, hook := range append(hooks, h.hook) {
		if hook != nil {
			rdb.AddHook(hook)
		}
	}
	opts := []Option{WithPrefix(h.prefix)}
	if split > 0 {
		opts = append(opts, WithPartitions(split))
	}
	q, err := New(rdb, "q", opts...)
	require.NoError(h.t, err)
	return q
}

// work starts a worker, and returns how to stop it.
func (h *movedHistory) work() (stop func()) {
	h.t.Helper()
	locker, err := core.New(h.env.Client(h.t), core.WithPrefix(h.prefix))
	require.NoError(h.t, err)
	w, err := NewWorker(h.queue(0), locker, h.handle, WithConcurrency(4), WithRetryBackoff(time.Millisecond, 5*time.Millisecond),
		WithConflictBackoff(5*time.Millisecond, 20*time.Millisecond), WithLogger(slog.New(slog.DiscardHandler)))
	require.NoError(h.t, err)
	require.NoError(h.t, w.Start())
	return func() {
		_ = w.Stop(context.Background())
		_ = locker.Close()
	}
}

func (h *movedHistory) handle(_ context.Context, m Message) error {
	time.Sleep(time.Duration(rand.Int64N(int64(2 * time.Millisecond))))
	h.mu.Lock()
	defer h.mu.Unlock()
	x := h.all[string(m.Payload)]
	if x.tried++; x.tried <= x.failures {
		if x.dies {
			return SkipRetry(errors.New("dies"))
		}
		return errors.New("fails")
	}
	x.runs = append(x.runs, h.ran[m.Key])
	h.ran[m.Key]++
	h.left.Add(-1)
	return nil
}

// produce stores messages of ten keys. An unnamed one gets its id from the queue, which looks into no older partition then.
func (h *movedHistory) produce(q *Queue, random *rand.Rand, producer, messages int, named bool) {
	for n := range messages {
		x := &movedMessage{key: fmt.Sprint("k", random.IntN(10))}
		name := fmt.Sprintf("%d-%d", producer, n)
		if named {
			x.id = name
		}
		switch random.IntN(12) {
		case 0:
			x.delay = time.Duration(20+random.IntN(200)) * time.Millisecond
		case 1:
			x.failures = 1
		case 2:
			x.failures, x.dies = 1, true
		}
		h.mu.Lock()
		h.all[name] = x
		x.begun = time.Now()
		h.mu.Unlock()
		job := Job{ID: x.id, Key: x.key, Delay: x.delay, Payload: []byte(name)}
		ticket, err := q.Enqueue(context.Background(), job)
		if err == nil && x.id != "" && random.IntN(10) == 0 { // as if the reply was lost
			_, err = h.queue(0).Enqueue(context.Background(), job)
		}
		h.mu.Lock()
		x.id = ticket.ID
		x.acked = time.Now()
		if err != nil {
			x.acked = time.Time{}
			h.t.Errorf("enqueue: %v", err)
		}
		h.mu.Unlock()
		time.Sleep(time.Duration(random.Int64N(int64(3 * time.Millisecond))))
	}
}

// change changes the number of partitions again and again, by processes that die between the steps, each a step later than the
// one before it.
func (h *movedHistory) change(fresh *Queue, random *rand.Rand, ended <-chan struct{}) {
	sizes := []int{4, 1, 3, 2, 6}
	for i, n := range sizes {
		for lives := range 12 {
			d := &dying{}
			d.left.Store(int64(1 + lives))
			if h.queue(0, d).Repartition(context.Background(), n) == nil {
				break
			}
			select { // the others may find it first
			case <-time.After(time.Duration(random.Int64N(int64(10 * time.Millisecond)))):
			case <-ended:
			}
		}
		if err := fresh.Repartition(context.Background(), n); err != nil {
			h.t.Errorf("repartition: %v", err)
		}
		if i < len(sizes)-1 {
			time.Sleep(time.Duration(20+random.IntN(100)) * time.Millisecond)
		}
	}
}

// repartitions plays a history: 8 producers, half of which have read the manifest long ago, and 3 workers of their
// own, while the number of partitions changes. It returns what did not hold.
func repartitions(t *testing.T, env *redistest.Env, seed uint64, messages int, timeout time.Duration, hook redis.Hook) error {
	t.Helper()
	const producers, workers = 8, 3
	random := rand.New(rand.NewPCG(seed, 1))
	h := &movedHistory{
		t: t, env: env, prefix: fmt.Sprintf("%s-%d", env.Prefix, seed), hook: hook, all: map[string]*movedMessage{}, ran: map[string]int{},
	}
	h.left.Store(producers * int64(messages))
	_, err := h.queue(1 + random.IntN(3)).Stats(t.Context())
	require.NoError(t, err)
	var working []func()
	for range workers {
		working = append(working, h.work())
	}
	defer func() {
		for _, stop := range working {
			stop()
		}
	}()

	var producing, changing sync.WaitGroup
	fresh := h.queue(0)
	for i := range producers {
		q, random := fresh, rand.New(rand.NewPCG(random.Uint64(), 2))
		if i%2 == 0 {
			q = h.queue(0)
		}
		producing.Go(func() { h.produce(q, random, i, messages, i%4 < 2) })
	}
	ended := make(chan struct{})
	changing.Go(func() { h.change(fresh, random, ended) })
	producing.Wait()
	close(ended)
	changing.Wait()

	deadline := time.Now().Add(timeout)
	for h.left.Load() > 0 && time.Now().Before(deadline) {
		if _, err := fresh.RedriveAll(context.Background(), Filter{}, RedriveOptions{}); err != nil {
			return fmt.Errorf("redrive: %w", err)
		}
		time.Sleep(50 * time.Millisecond)
	}
	time.Sleep(20 * time.Millisecond) // for what would run twice
	h.mu.Lock()
	defer h.mu.Unlock()
	return orderHolds(t, fresh, h.all)
}

// orderHolds checks that every message has run once, and those of a key in the order in which they joined its FIFO.
func orderHolds(t *testing.T, q *Queue, all map[string]*movedMessage) error {
	t.Helper()
	for _, x := range all {
		if len(x.runs) != 1 {
			s, err := q.Status(t.Context(), x.id)
			return fmt.Errorf("message %s of %s was done %d times: %+v, %w", x.id, x.key, len(x.runs), s, errors.Join(err, errHistory))
		}
		if s, err := q.Status(t.Context(), x.id); err != nil || s.State != StateDone && s.State != StateRunning {
			return fmt.Errorf("message %s of %s is %+v, %w", x.id, x.key, s, errors.Join(err, errHistory))
		}
	}
	for _, x := range all {
		for _, y := range all {
			if x.key != y.key || x.dies || y.dies { // what is redriven joins once more
				continue
			}
			// What was stored before the other one was asked for, or was due.
			if x.delay == 0 && x.acked.Before(y.begun.Add(y.delay)) && x.runs[0] > y.runs[0] {
				return fmt.Errorf("%w: %s (asked for at %s, stored at %s) ran after %s (%s, delay %s), of %s",
					errHistory, x.id, x.begun, x.acked, y.id, y.begun, y.delay, x.key)
			}
		}
	}
	return nil
}

var errHistory = errors.New("the history does not hold")

func TestRepartition_KeepsAKeysOrder(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		defer redistest.Busy()()
		seed, messages := rand.Uint64N(1e9), 10 // of each producer
		if env.Real {
			messages = 40
		}
		require.NoError(t, repartitions(t, env, seed, messages, 30*time.Second, nil), "seed %d", seed)
	})
}
