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

// saves are the coalescing jobs of a history, in a queue whose number of partitions changes.
type saves struct {
	t      *testing.T
	env    *redistest.Env
	prefix string
	hook   redis.Hook

	mu   sync.Mutex
	all  map[string]*saved
	runs int
}

type saved struct {
	id, slot     string
	begun, acked time.Time // acked is zero if the caller died
	ran          int       // its place among all runs; 0: it did not run
}

func newSaves(t *testing.T, env *redistest.Env, prefix string, hook redis.Hook) *saves {
	t.Helper()
	return &saves{t: t, env: env, prefix: prefix, hook: hook, all: map[string]*saved{}}
}

// queue is the queue as a process of its own has it.
func (s *saves) queue(hooks ...redis.Hook) *Queue {
	s.t.Helper()
	rdb := s.env.Client(s.t)
	for _, h := range append(hooks, s.hook) {
		if h != nil {
			rdb.AddHook(h)
		}
	}
	q, err := New(rdb, "q", WithPrefix(s.prefix))
	require.NoError(s.t, err)
	return q
}

// worker starts a process that runs saves, until the test ends. Its locker has the hooks.
func (s *saves) worker(hooks ...redis.Hook) {
	s.t.Helper()
	rdb := s.env.Client(s.t)
	for _, h := range hooks {
		rdb.AddHook(h)
	}
	locker, err := core.New(rdb, core.WithPrefix(s.prefix))
	require.NoError(s.t, err)
	w, err := NewWorker(s.queue(), locker, s.handle, WithConflictBackoff(30*time.Second, 30*time.Second), WithLogger(slog.New(slog.DiscardHandler)))
	require.NoError(s.t, err)
	require.NoError(s.t, w.Start())
	s.t.Cleanup(func() {
		_ = w.Stop(context.Background())
		_ = locker.Close()
	})
}

func (s *saves) handle(_ context.Context, m Message) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.runs++
	s.all[m.ID].ran = s.runs
	return nil
}

// save enqueues a job, and reports whether that was acknowledged.
func (s *saves) save(q *Queue, job Job) bool {
	s.mu.Lock()
	job.ID = fmt.Sprint("save", len(s.all))
	x := &saved{id: job.ID, slot: job.Key + " " + job.Principal, begun: time.Now()}
	s.all[x.id] = x
	s.mu.Unlock()
	job.Coalesce = true
	_, err := q.Enqueue(context.Background(), job)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil {
		x.acked = time.Now()
	}
	return err == nil
}

// parked is how many messages are queued, or claimed, of each slot that has any.
func (s *saves) parked(q *Queue) map[string]int {
	s.t.Helper()
	slots, seen := map[string]int{}, map[string]bool{}
	for _, state := range []State{StateQueued, StateRunning, StateQueued} { // it may go from one to the other and back
		entries, _, err := q.List(s.t.Context(), state, "", 1000)
		require.NoError(s.t, err)
		for _, e := range entries {
			if !seen[e.ID] {
				slots[e.Key+" "+e.Principal]++
			}
			seen[e.ID] = true
		}
	}
	return slots
}

// onePerSlot checks that of no slot more than one is parked, soon.
func (s *saves) onePerSlot(q *Queue) error {
	s.t.Helper()
	many := ""
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) { // less than what is given back waits for
		many = ""
		for slot, n := range s.parked(q) {
			if n > 1 {
				many = fmt.Sprintf("%d are parked of %s", n, slot)
			}
		}
		if many == "" {
			return nil
		}
	}
	return fmt.Errorf("%w: %s", errHistory, many)
}

// newestRuns checks that each save that was acknowledged ran, or was replaced by one that is not older, and in the end by
// one that ran; and that those of a slot ran in order.
func (s *saves) newestRuns(q *Queue) error {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	older := func(x, y *saved) bool { return !x.acked.IsZero() && x.acked.Before(y.begun) }
	statuses := map[string]Status{}
	for _, x := range s.all {
		if x.acked.IsZero() {
			continue
		}
		for y, hops := x, 0; y.ran == 0; hops++ {
			status, known := statuses[y.id]
			var err error
			if !known {
				status, err = q.Status(s.t.Context(), y.id)
				statuses[y.id] = status
			}
			by := s.all[status.SupersededBy]
			if err != nil || status.State != StateSuperseded || by == nil || by.slot != y.slot || older(by, y) || hops > len(s.all) {
				return fmt.Errorf("%s of %s did not run: %+v: %w", y.id, y.slot, status, errors.Join(err, errHistory))
			}
			y = by
		}
		for _, y := range s.all {
			if x.slot == y.slot && x.ran > 0 && y.ran > 0 && older(x, y) && x.ran > y.ran {
				return fmt.Errorf("%w: %s ran after %s", errHistory, x.id, y.id)
			}
		}
	}
	return nil
}

// saveSome saves n documents. Now and then it dies between two steps.
func (s *saves) saveSome(to *Queue, random *rand.Rand, n int) {
	for range n {
		job := Job{Key: fmt.Sprint("doc", random.IntN(5)), Principal: fmt.Sprint("u", random.IntN(2))}
		q := to
		switch random.IntN(10) {
		case 0:
			job.Delay = time.Duration(random.IntN(100)) * time.Millisecond
		case 1:
			job.QuietPeriod, job.MaxDelay = 20*time.Millisecond, 100*time.Millisecond
		case 2:
			d := &dying{}
			d.left.Store(1 + random.Int64N(6))
			q = s.queue(d)
		}
		s.save(q, job)
		time.Sleep(time.Duration(random.Int64N(int64(4 * time.Millisecond))))
	}
}

// coalescings plays a history: 12 callers in four processes save five documents of two principals, which others hold, while the
// number of partitions changes and three workers try. Some callers die between two steps.
func coalescings(t *testing.T, env *redistest.Env, seed uint64, hook redis.Hook) error {
	t.Helper()
	random := rand.New(rand.NewPCG(seed, 1))
	s := newSaves(t, env, fmt.Sprintf("%s-%d", env.Prefix, seed), hook)
	first := s.queue()
	_, err := first.Stats(t.Context())
	require.NoError(t, err)
	other, err := core.New(env.Client(t), core.WithPrefix(s.prefix))
	require.NoError(t, err)
	defer func() { _ = other.Close() }()
	var held []*core.Lease
	for i := range 5 {
		lease, err := other.TryAcquire(t.Context(), fmt.Sprint("doc", i), core.LeaseTTL(time.Minute))
		require.NoError(t, err)
		held = append(held, lease)
	}
	for range 3 {
		s.worker()
	}
	queues := []*Queue{first, s.queue(), s.queue(), s.queue()}
	var callers sync.WaitGroup
	each := 20
	if !env.Real { // it is slow
		each = 5
	}
	for i := range 12 {
		random := rand.New(rand.NewPCG(random.Uint64(), 2))
		callers.Go(func() { s.saveSome(queues[i%4], random, each) })
	}
	for _, n := range []int{3, 1, 4} {
		time.Sleep(time.Duration(10+random.IntN(40)) * time.Millisecond)
		if err := queues[random.IntN(4)].Repartition(t.Context(), n); err != nil {
			return fmt.Errorf("%w: %w", errHistory, err)
		}
	}
	callers.Wait()
	for i := range 10 { // what a caller left that died, the next one ends
		require.True(t, s.save(queues[i%4], Job{Key: fmt.Sprint("doc", i/2), Principal: fmt.Sprint("u", i%2)}))
	}
	if err := s.onePerSlot(first); err != nil {
		return err
	}
	for _, lease := range held {
		require.NoError(t, lease.Release(t.Context()))
	}
	for end := time.Now().Add(20 * time.Second); len(s.parked(first)) > 0; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			return fmt.Errorf("%w: left: %v", errHistory, s.parked(first))
		}
	}
	return s.newestRuns(first)
}

func TestRepartition_CallsThatCoalesceStayOne(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		defer redistest.Busy()()
		seed := rand.Uint64N(1e9)
		require.NoError(t, coalescings(t, env, seed, nil), "seed %d", seed)
	})
}

// While nobody works: each call ends what it replaces before it returns.
func TestRepartition_ACallReplacesOneInOlderPartitions(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		s := newSaves(t, env, env.Prefix, nil)
		q := s.queue()
		for name, job := range map[string]Job{
			"in line": {}, "delayed": {Delay: time.Minute}, "quiet": {QuietPeriod: time.Minute, MaxDelay: 2 * time.Minute},
		} {
			job.Key = name
			require.True(t, s.save(q, job))
		}
		require.NoError(t, q.Repartition(t.Context(), 2))
		require.NoError(t, q.Repartition(t.Context(), 3))
		for _, key := range []string{"in line", "delayed", "quiet"} {
			require.True(t, s.save(q, Job{Key: key}))
		}
		require.Equal(t, map[string]int{"in line ": 1, "delayed ": 1, "quiet ": 1}, s.parked(q))
		stats, err := q.Stats(t.Context())
		require.NoError(t, err)
		require.EqualValues(t, 3, stats.Totals.Superseded)
		s.worker()
		redistest.Eventually(t, func() bool { return len(s.parked(q)) == 0 }, "all is through")
		require.NoError(t, s.newestRuns(q))
		require.Equal(t, 3, s.runs)
	})
}

// One that a worker had claimed when the newer one came, and gives back since its key is held.
func TestRepartition_WhatIsGivenBackIsReplaced(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		s := newSaves(t, env, env.Prefix, nil)
		q := s.queue()
		other, err := core.New(env.Client(t), core.WithPrefix(s.prefix))
		require.NoError(t, err)
		defer func() { _ = other.Close() }()
		lease, err := other.TryAcquire(t.Context(), "doc", core.LeaseTTL(time.Minute))
		require.NoError(t, err)
		require.True(t, s.save(q, Job{Key: "doc"}))
		goOn := make(chan struct{})
		s.worker(redistest.BeforeEach(func(cmd redis.Cmder) {
			if redistest.IsScript(cmd) {
				<-goOn
			}
		}))
		redistest.Eventually(t, func() bool {
			status, err := q.Status(t.Context(), "save0")
			return err == nil && status.State == StateRunning
		}, "it is claimed")
		require.NoError(t, q.Repartition(t.Context(), 2))
		require.True(t, s.save(q, Job{Key: "doc"}))
		require.Equal(t, 2, s.parked(q)["doc "], "what is claimed is not replaced")
		close(goOn)
		redistest.Eventually(t, func() bool { // not only while it is claimed once more
			status, err := q.Status(t.Context(), "save0")
			return err == nil && status.State == StateSuperseded
		}, "it is replaced")
		require.NoError(t, lease.Release(t.Context()))
		redistest.Eventually(t, func() bool { return len(s.parked(q)) == 0 }, "all is through")
		require.NoError(t, s.newestRuns(q))
		require.Equal(t, 1, s.runs)
	})
}

// The newer one was cancelled, or ended from another partition, before the one that ran meanwhile was given back: the
// next one replaces that.
func TestCoalesce_WhatIsGivenBackIsReplacedByTheNextOne(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		s := newSaves(t, env, env.Prefix, nil)
		q := s.queue()
		for i := range 20 {
			doc := Job{Key: fmt.Sprint("doc", i)}
			require.True(t, s.save(q, doc))
			claims := claimTest(t, q, fmt.Sprint("token", i), 1)
			require.Len(t, claims, 1)
			require.True(t, s.save(q, doc))
			require.NoError(t, q.Cancel(t.Context(), fmt.Sprint("save", 3*i+1)))
			require.True(t, settleTest(t, claims[0], outcome{kind: OutcomeConflict, delay: time.Hour}))
			require.True(t, s.save(q, doc))
			status, err := q.Status(t.Context(), fmt.Sprint("save", 3*i))
			require.NoError(t, err)
			require.Equal(t, fmt.Sprint("save", 3*i+2), status.SupersededBy)
			require.Equal(t, 1, s.parked(q)[doc.Key+" "])
			require.NoError(t, q.Cancel(t.Context(), fmt.Sprint("save", 3*i+2)))
		}
	})
}

// When a newer one comes than one that is carried over.
const (
	newerBefore  = iota // to the partition that it is carried to
	newerBetween        // to one before that
	newerAfterwards
	newerNever
)

// carriesOver has a message carried over, by a worker that dies and another one.
func carriesOver(t *testing.T, env *redistest.Env, newer int, hook redis.Hook) error {
	t.Helper()
	s := newSaves(t, env, fmt.Sprint(env.Prefix, newer), hook)
	q, ctx := s.queue(), t.Context()
	require.True(t, s.save(q, Job{Key: "doc", Delay: 20 * time.Millisecond}))
	require.NoError(t, q.Repartition(ctx, 2))
	time.Sleep(25 * time.Millisecond)
	from := q.partitions[0]
	b, err := from.claim(ctx, "token", time.Minute, 1)
	require.NoError(t, err)
	require.Len(t, b.messages, 1)
	c := &claim{message: b.messages[0], partition: from, token: "token", startBy: time.Now().Add(time.Minute)}
	require.True(t, from.joinedLate(c.message))
	if newer == newerBefore || newer == newerBetween {
		require.True(t, s.save(q, Job{Key: "doc"}))
	}
	if newer == newerBetween {
		require.NoError(t, q.Repartition(ctx, 3))
	}
	for range 2 {
		require.NoError(t, q.carryOver(ctx, c))
	}
	_, err = settleOnce(c, outcome{kind: OutcomeReturned, moved: true})
	require.NoError(t, err)
	if newer == newerAfterwards {
		require.True(t, s.save(q, Job{Key: "doc"}))
	}
	if n := s.parked(q)["doc "]; n != 1 {
		return fmt.Errorf("%w: %d are parked", errHistory, n)
	}
	s.worker()
	redistest.Eventually(t, func() bool { return len(s.parked(q)) == 0 }, "all is through")
	return s.newestRuns(q)
}

func TestRepartition_WhatIsCarriedOverIsReplaced(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		for newer := range newerNever + 1 {
			require.NoError(t, carriesOver(t, env, newer, nil), "newer: %d", newer)
		}
	})
}

var coalesceMutants = []mutant{
	{"what is older stays", "supersede_older", "  discard(old.id, key, old.rec, 's', by)\n", ""},
	{"what is older is cancelled", "supersede_older", "discard(old.id, key, old.rec, 's', by)", "discard(old.id, key, old.rec, 'c')"},
	{"what is carried over stays beside what is newer", "enqueue", "    if newer then\n", "    if false then\n"},
	{"what is carried over passes what is newer", "enqueue", "why = closed and not newer and 'closed'", "why = closed and 'closed'"},
	{"what runs is not newer", "enqueue", "redis.call('HGET', u, slot) or '', id_at(head, key)", "redis.call('HGET', u, slot) or ''"},
	{"what is carried over is not known", "enqueue", "    if how.slot and not newer then\n", "    if how.slot and not how.tries then\n"},
	{"what is carried over is not replaced", "enqueue", "header = '1' .. flag,", "header = '1' .. (tries and '-' or flag),"},
}

func TestRepartition_MutantsOfCoalescingAreCaught(t *testing.T) {
	t.Parallel()
	for _, m := range coalesceMutants {
		t.Run(m.name, func(t *testing.T) {
			env := redistest.Real(t)
			hook, used := redistest.BreakScript(t, sources(), m.script, m.old, m.new)
			for i := range newerNever + len(histories) + 5 {
				var err error
				switch n := i - newerNever - 1; {
				case n < 0:
					err = carriesOver(t, env, i, hook)
				case n < len(histories):
					err = inEveryOrder(t, env, n, hook)
				default:
					err = coalescings(t, env, rand.Uint64N(1e9), hook)
				}
				if err != nil {
					require.ErrorIs(t, err, errHistory)
					t.Logf("%s: %v (round %d)", m.name, err, i)
					return
				}
			}
			require.Positive(t, used.Load(), "the mutant ran")
			t.Error("not caught")
		})
	}
}

// A clock that steps back behind the last claim of a closed partition: what is carried over on its way through that is
// stored once.
func TestRepartition_AClockThatStepsBackStoresNothingTwice(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		s := newSaves(t, env, env.Prefix, nil)
		q, ctx := s.queue(), t.Context()
		require.True(t, s.save(q, Job{Key: "doc", Delay: time.Millisecond}))
		require.NoError(t, q.Repartition(ctx, 2))
		time.Sleep(5 * time.Millisecond)
		c := claimTest(t, q, "token.1", 1)[0]
		require.True(t, s.save(q, Job{Key: "doc"}))
		second := q.manifest.Load().of("doc", "")[1]
		require.NoError(t, q.Repartition(ctx, 3))
		require.NoError(t, q.rdb.HSet(ctx, second.keys[keyCounts], "claimed", time.Now().Add(10*time.Second).UnixMilli()).Err())
		require.NoError(t, q.carryOver(ctx, c))
		_, err := settleOnce(c, outcome{kind: OutcomeReturned, moved: true})
		require.NoError(t, err)
		require.Equal(t, map[string]int{"doc ": 1}, s.parked(q))
	})
}

// Nor does it need a reservation: what replaced the message behind one that runs is told of that one's end.
func TestRepartition_WhatReplacedTheNextOneIsWoken(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		q, err := New(env.Client(t), "q", WithPrefix(env.Prefix), WithReservationWindow(0))
		require.NoError(t, err)
		locker, err := core.New(env.Client(t), core.WithPrefix(env.Prefix))
		require.NoError(t, err)
		defer locker.Close()
		began, goOn := make(chan struct{}), make(chan struct{})
		w, err := NewWorker(q, locker, func(_ context.Context, m Message) error {
			if m.ID == "runs" {
				close(began)
				<-goOn
			}
			return nil
		}, WithConflictBackoff(time.Hour, time.Hour), WithLogger(slog.New(slog.DiscardHandler)))
		require.NoError(t, err)
		enqueue := func(id, principal string) {
			_, err := q.Enqueue(t.Context(), Job{ID: id, Key: "doc", Principal: principal, Coalesce: true})
			require.NoError(t, err)
		}
		enqueue("runs", "ada")
		enqueue("next", "bob")
		require.NoError(t, w.Start())
		defer func() { _ = w.Stop(t.Context()) }()
		<-began
		require.NoError(t, q.Repartition(t.Context(), 2))
		enqueue("newer", "bob")
		redistest.Eventually(t, func() bool {
			status, err := q.Status(t.Context(), "newer")
			return err == nil && status.Conflicts > 0 && status.State == StateQueued
		}, "it waits for the key")
		close(goOn)
		redistest.Eventually(t, func() bool {
			status, err := q.Status(t.Context(), "newer")
			return err == nil && status.State == StateDone
		}, "it runs")
	})
}
