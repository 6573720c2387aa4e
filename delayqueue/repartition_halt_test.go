package delayqueue

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

// halts is a history of messages some of which die and halt their key, in a queue whose number of partitions changes.
type halts struct {
	mu       sync.Mutex
	halted   map[string]string // keys to ids
	first    map[string]string // keys to the letter that is to run before all others
	mended   map[string]bool
	done     map[string]int
	violated error
}

func (h *halts) handle(_ context.Context, m Message) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.halted[m.Key] != "":
		h.violated = fmt.Errorf("%w: %s ran, and its key %s is halted by %s", errHistory, m.ID, m.Key, h.halted[m.Key])
	case h.first[m.Key] != "" && h.first[m.Key] != m.ID:
		h.violated = fmt.Errorf("%w: %s ran before %s, which was redriven", errHistory, m.ID, h.first[m.Key])
	case m.Name == "bad" && !h.mended[m.ID]:
		h.halted[m.Key] = m.ID
		return SkipRetry(errors.New("no"))
	}
	delete(h.first, m.Key)
	h.done[m.ID]++
	return nil
}

// release redrives a dead letter that halts a key, or purges it. It reports false if there is none.
func (h *halts) release(ctx context.Context, q *Queue, redrive bool) (bool, error) {
	deadLetters, _, err := q.List(ctx, StateDead, "", 1000)
	if err != nil || len(deadLetters) == 0 {
		return false, err
	}
	d := deadLetters[rand.IntN(len(deadLetters))]
	h.mu.Lock()
	if redrive {
		h.mended[d.ID], h.first[d.Key] = true, d.ID
	} else {
		h.done[d.ID]++
	}
	delete(h.halted, d.Key)
	h.mu.Unlock()
	if redrive {
		return true, q.Redrive(ctx, d.ID, time.Minute)
	}
	return true, q.Purge(ctx, d.ID)
}

// play has six producers in three processes store messages of five keys while three workers run them and the number of partitions
// changes.
func (h *halts) play(t *testing.T, env *redistest.Env, seed uint64, timeout time.Duration, hook redis.Hook) error {
	t.Helper()
	random := rand.New(rand.NewPCG(seed, 1))
	h.halted, h.first, h.mended, h.done = map[string]string{}, map[string]string{}, map[string]bool{}, map[string]int{}
	queues, stop := h.start(t, env, fmt.Sprintf("%s-%d", env.Prefix, seed), hook)
	defer stop()
	enqueue := func(q *Queue, job Job) {
		job.MaxAge = time.Minute
		if _, err := q.Enqueue(context.Background(), job); err != nil {
			t.Errorf("enqueue: %v", err)
		}
	}
	if err := leaveOneDead(t, queues, enqueue, timeout); err != nil {
		return err
	}
	producers, messages := 6, 30
	if !env.Real { // it is slow
		messages = 10
	}
	var all sync.WaitGroup
	for i := range producers {
		random := rand.New(rand.NewPCG(random.Uint64(), 2))
		all.Go(func() {
			for n := range messages {
				job := Job{ID: fmt.Sprintf("%d-%d", i, n), Key: fmt.Sprint("k", random.IntN(5))}
				if random.IntN(8) == 0 {
					job.Name = "bad"
				}
				if random.IntN(8) == 0 {
					job.Delay = time.Duration(1+random.IntN(50)) * time.Millisecond
				}
				enqueue(queues[i%3], job)
				time.Sleep(time.Duration(random.Int64N(int64(6 * time.Millisecond))))
			}
		})
	}
	all.Go(func() {
		for _, n := range []int{3, 1, 4} {
			time.Sleep(time.Duration(10+random.IntN(50)) * time.Millisecond)
			if err := queues[random.IntN(3)].Repartition(context.Background(), n); err != nil {
				t.Errorf("repartition: %v", err)
			}
			_, _ = h.release(context.Background(), queues[0], n != 1)
		}
	})
	all.Wait()
	return h.drain(t, queues, deadAndBehind+producers*messages, timeout)
}

// start starts three processes, each with a worker.
func (h *halts) start(t *testing.T, env *redistest.Env, prefix string, hook redis.Hook) (queues []*Queue, stop func()) {
	t.Helper()
	var stops []func()
	for range 3 {
		rdb := env.Client(t)
		if hook != nil {
			rdb.AddHook(hook)
		}
		q, err := New(rdb, "q", WithPrefix(prefix), WithHaltOnDeath(HaltParked))
		require.NoError(t, err)
		locker, err := core.New(env.Client(t), core.WithPrefix(prefix))
		require.NoError(t, err)
		w, err := NewWorker(q, locker, h.handle, WithConflictBackoff(5*time.Millisecond, 20*time.Millisecond), WithLogger(slog.New(slog.DiscardHandler)))
		require.NoError(t, err)
		require.NoError(t, w.Start())
		stops = append(stops, func() {
			_ = w.Stop(context.Background())
			_ = locker.Close()
		})
		queues = append(queues, q)
	}
	return queues, func() {
		for _, stop := range stops {
			stop()
		}
	}
}

// deadAndBehind is how many messages leaveOneDead stores.
const deadAndBehind = 1 + 20 + 5

// leaveOneDead leaves a partition with nothing but a dead letter, which every worker has looked into, and messages of its key in the
// next one.
func leaveOneDead(t *testing.T, queues []*Queue, enqueue func(*Queue, Job), timeout time.Duration) error {
	t.Helper()
	reaches := func(ok func(Stats) bool) error {
		for end := time.Now().Add(timeout); ; time.Sleep(5 * time.Millisecond) {
			if s, err := queues[0].Stats(t.Context()); err != nil || time.Now().After(end) {
				return fmt.Errorf("%+v: %w", s, errors.Join(err, errHistory))
			} else if ok(s) {
				return nil
			}
		}
	}
	enqueue(queues[0], Job{Key: "alone", Name: "bad"})
	if err := reaches(func(s Stats) bool { return s.Dead == 1 }); err != nil {
		return err
	}
	if err := queues[0].Repartition(t.Context(), 2); err != nil {
		return fmt.Errorf("%w: %w", errHistory, err)
	}
	for i := range 20 {
		enqueue(queues[i%3], Job{Key: fmt.Sprint("other", i)})
	}
	if err := reaches(func(s Stats) bool { return s.Totals.Done == 20 }); err != nil {
		return err
	}
	for i := range 5 {
		enqueue(queues[i%3], Job{Key: "alone"})
	}
	return nil
}

// drain ends halts until all messages have been done, each once.
func (h *halts) drain(t *testing.T, queues []*Queue, want int, timeout time.Duration) error {
	t.Helper()
	for end := time.Now().Add(timeout); ; time.Sleep(20 * time.Millisecond) {
		if _, err := h.release(t.Context(), queues[1], rand.IntN(2) == 0); err != nil {
			return fmt.Errorf("%w: %w", errHistory, err)
		}
		h.mu.Lock()
		done, violated := len(h.done), h.violated
		h.mu.Unlock()
		if violated != nil {
			return violated
		}
		if done == want {
			break
		}
		if time.Now().After(end) {
			s, err := queues[0].Stats(t.Context())
			return fmt.Errorf("%d of %d are through: %+v: %w", done, want, s, errors.Join(err, errHistory))
		}
	}
	for id, n := range h.done {
		if n != 1 {
			return fmt.Errorf("%w: %s was done %d times", errHistory, id, n)
		}
	}
	return nil
}

func TestRepartition_WhatIsHaltedStaysHalted(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		defer redistest.Busy()()
		seed := rand.Uint64N(1e9)
		require.NoError(t, new(halts).play(t, env, seed, haltPause*2/3, nil), "seed %d", seed)
	})
}

var haltMutants = []mutant{
	{"a halt in an older partition is not seen", "close", "redis.call('HEXISTS', h, ARGV[i]) == 1 and 2 or ", ""},
	{"an older partition with a halt is not looked into", "close", " + redis.call('HLEN', h),", ","},
	{"the end of a halt is not announced", "", "      announce(key)\n", "      if why ~= 'resumed' then\n        announce(key)\n      end\n"},
}

func TestRepartition_MutantsOfHaltsAreCaught(t *testing.T) {
	t.Parallel()
	for _, m := range haltMutants {
		t.Run(m.name, func(t *testing.T) {
			env := redistest.Real(t)
			hook, used := redistest.BreakScript(t, sources(), m.script, m.old, m.new)
			for range 30 { // the one that is hardest to catch is caught by one play in three
				seed := rand.Uint64N(1e9)
				if err := new(halts).play(t, env, seed, 5*time.Second, hook); err != nil {
					require.ErrorIs(t, err, errHistory)
					t.Logf("%s: %v (seed %d)", m.name, err, seed)
					return
				}
			}
			require.Positive(t, used.Load(), "the mutant ran")
			t.Error("not caught")
		})
	}
}
