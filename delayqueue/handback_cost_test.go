//go:build soak

package delayqueue_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
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
)

// startsCounted starts a worker whose commands, and those of its locker, are counted.
func (b *bench) startsCounted(h delayqueue.Handler, check delayqueue.WorkerOption, opts ...delayqueue.Option) *atomic.Int64 {
	b.t.Helper()
	count, rdb, locks := &atomic.Int64{}, b.env.Client(b.t), b.env.Client(b.t)
	hook := redistest.BeforeEach(func(redis.Cmder) { count.Add(1) })
	rdb.AddHook(hook)
	locks.AddHook(hook)
	locker, err := core.New(locks, core.WithPrefix(b.env.Prefix))
	require.NoError(b.t, err)
	b.t.Cleanup(func() { _ = locker.Close() })
	w, err := delayqueue.NewWorker(b.newQueue(rdb, opts...), locker, h, quick(check)...)
	require.NoError(b.t, err)
	require.NoError(b.t, w.Start())
	b.t.Cleanup(func() { assert.NoError(b.t, w.Stop(context.Background())) })
	return count
}

// fill enqueues the messages.
func (m idleMessages) fill(b *bench, q *delayqueue.Queue) {
	b.t.Helper()
	keys := cmp.Or(m.keys, m.n)
	var wg sync.WaitGroup
	for worker := range 50 {
		wg.Go(func() {
			for i := worker; i < m.n; i += 50 {
				_, err := q.Enqueue(b.t.Context(), delayqueue.Job{Key: fmt.Sprint("order:", i%keys), Name: "POST /orders/{id}", Payload: []byte("x")})
				assert.NoError(b.t, err)
			}
		})
	}
	wg.Wait()
}

// delayNoOthers returns what checks that the messages delay one of a hundred others by 10 ms at most, when they have been looked at for
// some time.
func (m idleMessages) delayNoOthers(after time.Duration, check delayqueue.WorkerOption) func(*testing.T, *redistest.Env) {
	return func(t *testing.T, env *redistest.Env) {
		t.Helper()
		b := setup(t, env, delayqueue.WithMaxDepth(1<<20))
		started, known := make(chan time.Time, 1), atomic.Int64{}
		b.start(func(ctx context.Context, msg delayqueue.Message) error {
			if msg.Name != "ours" {
				known.Add(1)
				return handsBack(ctx, msg)
			}
			started <- time.Now()
			return nil
		}, check)
		lateness := func(length time.Duration) (late []time.Duration) {
			for i, end := 0, time.Now().Add(length); time.Now().Before(end); i++ {
				b.enqueue(delayqueue.Job{Key: fmt.Sprint("ours:", i), Name: "ours"})
				stored := time.Now()
				late = append(late, next(t, started).Sub(stored))
				time.Sleep(time.Duration(1+i%40) * time.Millisecond) // at any moment between two looks
			}
			slices.Sort(late)
			return late
		}
		at := func(late []time.Duration) time.Duration { return late[int(float64(len(late)-1)*0.99)] }
		alone := lateness(m.length / 4)
		m.fill(b, b.queue)
		if after > 0 {
			require.Eventually(t, func() bool { return known.Load() >= int64(m.n) }, 5*time.Minute, 10*time.Millisecond)
			time.Sleep(after)
		}
		beside := lateness(m.length)
		t.Logf("start after enqueue, p99: %s alone, %s beside %d messages that nobody runs (%d and %d samples)", at(alone), at(beside), m.n, len(alone), len(beside))
		require.LessOrEqual(t, at(beside), at(alone)+10*time.Millisecond)
	}
}

// idleMessages are messages that a worker looks at again and again, for a time. Their
// delays are the shortest in it: each is looked at four times or more.
type idleMessages struct {
	n      int
	keys   int // 0: each message has a key of its own
	length time.Duration
}

// make soak-queue has more of them, for longer.
var fewIdle = idleMessages{n: 2000, length: 7 * time.Second}

// From the first look at them on, the worker takes no lock for messages that were sealed under a key that it does not have.
func TestHandBack_MessagesUnderAnUnknownKeyCostLittle(t *testing.T) {
	t.Parallel()
	redistest.InVirtualTime(t, fewIdle.underAnUnknownKey)
}

func (m idleMessages) underAnUnknownKey(t *testing.T, env *redistest.Env) {
	t.Helper()
	b := setup(t, env)
	ring := func(id string) delayqueue.Option {
		return delayqueue.WithEncryption(delayqueue.Keyring{Current: id, Keys: map[string][]byte{id: []byte(strings.Repeat(id, 32))}})
	}
	b.queue = b.newQueue(b.rdb, ring("a"), delayqueue.WithMaxDepth(1<<20))
	m.fill(b, b.queue)
	count := b.startsCounted(func(context.Context, delayqueue.Message) error { return errors.New("it ran") }, noCheck, ring("b"))
	time.Sleep(m.length)
	m.requireCheap(b, count.Load())
}

// What the handler hands back costs a lock once; then it costs as little.
func TestHandBack_MessagesThatAreKnownCostLittle(t *testing.T) {
	t.Parallel()
	redistest.InVirtualTime(t, fewIdle.known)
}

// Nor does it take one for those that have others behind them, which it does not look at.
func TestHandBack_MessagesWithOthersBehindThemCostLittle(t *testing.T) {
	t.Parallel()
	m := fewIdle
	m.keys = m.n / 6
	redistest.InVirtualTime(t, m.known)
}

func (m idleMessages) known(t *testing.T, env *redistest.Env) {
	t.Helper()
	b, calls, count := m.handedBack(t, env, noCheck)
	require.Eventually(t, func() bool { return calls.Load() >= int64(cmp.Or(m.keys, m.n)) }, 5*time.Minute, time.Millisecond)
	before := count.Load()
	time.Sleep(m.length)
	m.requireCheap(b, count.Load()-before)
}

// handedBack starts a worker whose handler hands them back, and counts its calls and the worker's commands.
func (m idleMessages) handedBack(t *testing.T, env *redistest.Env, check delayqueue.WorkerOption) (b *bench, calls, count *atomic.Int64) {
	t.Helper()
	b, calls = setup(t, env, delayqueue.WithMaxDepth(1<<20)), new(atomic.Int64)
	m.fill(b, b.queue)
	return b, calls, b.startsCounted(func(ctx context.Context, m delayqueue.Message) error {
		calls.Add(1)
		return handsBack(ctx, m)
	}, check)
}

// Of those that a check knows only the first few cost a lock.
func TestHandBack_MessagesThatACheckKnowsCostLittle(t *testing.T) {
	t.Parallel()
	redistest.InVirtualTime(t, fewIdle.checked)
}

func (m idleMessages) checked(t *testing.T, env *redistest.Env) {
	t.Helper()
	b, calls, count := m.handedBack(t, env, delayqueue.WithCheck(checkForeign))
	time.Sleep(m.length)
	require.LessOrEqual(t, calls.Load(), int64(10))
	m.requireCheap(b, count.Load())
}

// noCheck is a WorkerOption that changes nothing.
func noCheck(*delayqueue.Worker) error { return nil }

// requireCheap checks what the looks cost, and that all messages are still queued.
func (m idleMessages) requireCheap(b *bench, commands int64) {
	b.t.Helper()
	b.t.Logf("%d commands for %d messages in %s", commands, m.n, m.length)
	require.LessOrEqual(b.t, commands, int64(m.n/5))
	redistest.Eventually(b.t, func() bool { return b.inState() == [3]int64{int64(m.n), 0, 0} }, "all are queued, and no look is under way")
}
