package delayqueue

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/trust"
)

// stepwise is two processes that call scripts one after the other, in an order that the test chooses.
type stepwise struct {
	rdbs  [2]*redis.Client
	wants [2]chan bool // true: it is about to call a script, false: it is through
	goes  [2]chan struct{}
	gated atomic.Bool
}

func newStepwise(t *testing.T, env *redistest.Env, hook redis.Hook) *stepwise {
	t.Helper()
	x := &stepwise{}
	for i := range x.rdbs {
		x.rdbs[i], x.wants[i], x.goes[i] = env.Client(t), make(chan bool), make(chan struct{})
		if hook != nil {
			x.rdbs[i].AddHook(hook)
		}
		x.rdbs[i].AddHook(redistest.BeforeEach(func(cmd redis.Cmder) {
			if x.gated.Load() && redistest.IsScript(cmd) && cmd.Args()[1] != manifestScript.Hash() {
				x.wants[i] <- true
				<-x.goes[i]
			}
		}))
	}
	return x
}

// play runs both processes. The order of their calls begins as given; then the first process goes on before the second one.
// It returns the beginning of the next order, so that one after the other all are played, and nil after the last.
func (x *stepwise) play(order []int, run [2]func()) (next []int) {
	x.gated.Store(true)
	defer x.gated.Store(false)
	var goesOn [2]bool
	for i, f := range run {
		go func() {
			f()
			x.wants[i] <- false
		}()
		goesOn[i] = <-x.wants[i]
	}
	var taken []int
	for step := 0; goesOn[0] || goesOn[1]; step++ {
		i := 0
		if !goesOn[0] || step < len(order) && order[step] == 1 && goesOn[1] {
			i = 1
		}
		if i == 0 && goesOn[1] {
			next = append(slices.Clone(taken), 1)
		}
		taken = append(taken, i)
		x.goes[i] <- struct{}{}
		goesOn[i] = <-x.wants[i]
	}
	return next
}

// stepper is a process of a history that is played: a worker that claims only what it is told to.
type stepper struct {
	*Worker
	t *testing.T
}

func (s *saves) stepper(rdb *redis.Client, locker *core.Locker) stepper {
	s.t.Helper()
	q, err := New(rdb, "q", WithPrefix(s.prefix))
	require.NoError(s.t, err)
	w, err := NewWorker(q, locker, s.handle, WithConflictBackoff(time.Millisecond, time.Millisecond), WithLogger(slog.New(slog.DiscardHandler)))
	require.NoError(s.t, err)
	w.Pause() // settlements claim nothing
	return stepper{w, s.t}
}

// claim claims what is due in the partition of a generation, and returns what processes it.
func (p stepper) claim(generation int) (run func()) {
	m, err := p.queue.stable(context.Background(), "test")
	if !assert.NoError(p.t, err) {
		return func() {}
	}
	from, sent, token := m.of("doc", "")[generation-1], time.Now(), newToken()
	b, err := from.claim(context.Background(), token, time.Minute, 10)
	assert.NoError(p.t, err)
	var claims []*claim
	for i, m := range b.messages {
		c := p.claims.add(p.ctx, from, m, token, trust.Until(sent, time.Minute))
		c.startBy = sent.Add(b.left[i])
		claims = append(claims, c)
	}
	return func() {
		for _, c := range claims {
			p.process(c)
		}
	}
}

// drain runs what is left.
func (p stepper) drain() {
	p.t.Helper()
	redistest.Eventually(p.t, func() bool {
		m, err := p.queue.stable(context.Background(), "test")
		require.NoError(p.t, err)
		for i := range m.generations {
			p.claim(i + 1)()
		}
		stats, err := p.queue.Stats(context.Background())
		return err == nil && stats.Queued+stats.Running == 0
	}, "messages are left")
}

const stepDelay = 2 * time.Millisecond

// due waits until what was enqueued with stepDelay is due.
func due() { time.Sleep(stepDelay + time.Millisecond) }

// histories are what two processes do at once with an older save, which was delayed until its partition was closed, and a newer one.
var histories = []struct {
	name string
	held bool // the key, until both are through
	make func(t *testing.T, s *saves, x, y stepper) [2]func()
}{
	{"both are carried over", true, func(t *testing.T, s *saves, x, y stepper) [2]func() {
		older := s.claimsOlder(x)
		require.True(t, s.save(y.queue, Job{Key: "doc", Delay: stepDelay}))
		require.NoError(t, y.queue.Repartition(t.Context(), 1))
		due()
		return [2]func(){older, y.claim(2)}
	}},
	{"the newer one is given back", true, func(t *testing.T, s *saves, x, y stepper) [2]func() {
		older := s.claimsOlder(x)
		require.True(t, s.save(y.queue, Job{Key: "doc"}))
		newer := y.claim(2)
		require.NoError(t, y.queue.Repartition(t.Context(), 1))
		return [2]func(){older, newer}
	}},
	{"the newer one is given back, and what replaced it was cancelled", true, func(t *testing.T, s *saves, x, y stepper) [2]func() {
		older := s.claimsOlder(x)
		require.True(t, s.save(y.queue, Job{Key: "doc"}))
		newer := y.claim(2)
		require.True(t, s.save(y.queue, Job{Key: "doc"}))
		require.NoError(t, y.queue.Cancel(t.Context(), "save2"))
		delete(s.all, "save2")
		require.NoError(t, y.queue.Repartition(t.Context(), 1))
		return [2]func(){older, newer}
	}},
	{"the newer one may run", false, func(t *testing.T, s *saves, x, y stepper) [2]func() {
		older := s.claimsOlder(x)
		require.True(t, s.save(y.queue, Job{Key: "doc"}))
		require.NoError(t, y.queue.Repartition(t.Context(), 1))
		return [2]func(){older, func() { y.claim(2)() }}
	}},
	{"a third one comes", true, func(t *testing.T, s *saves, x, y stepper) [2]func() {
		older := s.claimsOlder(x)
		require.True(t, s.save(y.queue, Job{Key: "doc", Delay: time.Minute}))
		require.NoError(t, y.queue.Repartition(t.Context(), 1))
		return [2]func(){older, func() { s.save(y.queue, Job{Key: "doc"}) }}
	}},
	{"the older one is given back and the newer one carried over", true, func(t *testing.T, s *saves, x, y stepper) [2]func() {
		require.True(t, s.save(x.queue, Job{Key: "doc"}))
		older := x.claim(1)
		require.NoError(t, x.queue.Repartition(t.Context(), 2))
		require.True(t, s.save(y.queue, Job{Key: "doc", Delay: stepDelay}))
		require.NoError(t, y.queue.Repartition(t.Context(), 1))
		due()
		return [2]func(){older, y.claim(2)}
	}},
	{"the newer one's caller is slow", false, func(t *testing.T, s *saves, x, y stepper) [2]func() {
		s.delaysOlder(x)
		due()
		return [2]func(){func() { s.save(x.queue, Job{Key: "doc"}) }, func() {
			y.claim(2)()
			y.claim(1)()
		}}
	}},
	{"the newer one's caller has died, and it is the second of a turn", false, func(t *testing.T, s *saves, x, y stepper) [2]func() {
		s.delaysOlder(x)
		require.True(t, s.save(y.queue, Job{Key: "doc", Principal: "u"}))
		dies := s.queue()
		m, err := dies.stable(t.Context(), "test")
		require.NoError(t, err)
		m.of("doc", "")[0].drained.Store(true) // so that it does nothing there
		require.True(t, s.save(dies, Job{Key: "doc"}))
		due()
		y.Resume()
		return [2]func(){func() { x.claim(1)() }, func() { y.claim(2)() }}
	}},
}

// delaysOlder saves, and closes the partition before that is due.
func (s *saves) delaysOlder(x stepper) {
	s.t.Helper()
	require.True(s.t, s.save(x.queue, Job{Key: "doc", Delay: stepDelay}))
	require.NoError(s.t, x.queue.Repartition(s.t.Context(), 2))
}

// claimsOlder does the same, claims it, and returns what processes it.
func (s *saves) claimsOlder(x stepper) func() {
	s.t.Helper()
	s.delaysOlder(x)
	due()
	return x.claim(1)
}

// playHistory plays a history with its processes' steps in an order. It returns the next order, and what did not hold.
func (x *stepwise) playHistory(t *testing.T, s *saves, n int, locking *redis.Client, order []int) (next []int, err error) {
	t.Helper()
	locker, err := core.New(locking, core.WithPrefix(s.prefix))
	require.NoError(t, err)
	defer func() { _ = locker.Close() }()
	one, other := s.stepper(x.rdbs[0], locker), s.stepper(x.rdbs[1], locker)
	run := histories[n].make(t, s, one, other)
	if histories[n].held {
		lease, err := locker.TryAcquire(t.Context(), "doc", core.LeaseTTL(time.Minute))
		require.NoError(t, err)
		next = x.play(order, run)
		n := s.parked(one.queue)["doc "]
		require.NoError(t, lease.Release(t.Context()))
		if n != 1 {
			return nil, fmt.Errorf("%w: %d are parked", errHistory, n)
		}
	} else {
		next = x.play(order, run)
	}
	one.drain()
	return next, s.newestRuns(one.queue)
}

// inEveryOrder plays a history in every order of its processes' steps, and returns what did not hold.
func inEveryOrder(t *testing.T, env *redistest.Env, n int, hook redis.Hook) error {
	t.Helper()
	steps, locking, played := newStepwise(t, env, hook), env.Client(t), 0
	for order := []int{}; order != nil; played++ {
		s := newSaves(t, env, fmt.Sprintf("%s-%d-%d", env.Prefix, n, played), nil)
		next, err := steps.playHistory(t, s, n, locking, order)
		if err != nil {
			return fmt.Errorf("order %v: %w", order, err)
		}
		order = next
	}
	t.Logf("%d orders", played)
	return nil
}

// Whatever the order of two processes' steps, the newest save is the last that runs, and none is replaced by an older one.
func TestRepartition_CallsCoalesceInEveryOrderOfSteps(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		for i, history := range histories {
			t.Run(history.name, func(t *testing.T) { require.NoError(t, inEveryOrder(t, env, i, nil)) })
		}
	})
}
