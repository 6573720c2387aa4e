package main

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
)

// queue is a delay queue that is measured. It is safe for concurrent use.
type queue struct {
	enqueue func(ctx context.Context, m queued) error
	// work gives messages to handle, as many at once as there are queueWorkers, until the scenario ends.
	work func(b *bench, handle func(number int))

	perkey *delayqueue.Queue // of perkey alone, as the next
	locker *core.Locker
}

// queued is a message, which is small, and nothing but numbered.
type queued struct {
	number int
	key    string // its lock; of perkey alone
	delay  time.Duration
}

const (
	queueWorkers = 16 // producers, and handlers
	messageSize  = 64
	claimLease   = 30 * time.Second // asynq's, which cannot be set
)

func (m queued) payload() []byte {
	return binary.BigEndian.AppendUint64(make([]byte, 0, messageSize), uint64(m.number))[:messageSize]
}

func numberOf(payload []byte) int { return int(binary.BigEndian.Uint64(payload)) }

// queues by the names of their rows.
var queues = map[string]func(*bench, Target) queue{
	"raw":         newRawQueue,
	"asynq":       newAsynq(0),
	"asynq-100ms": newAsynq(100 * time.Millisecond),
	"perkey":      newPerkeyQueue,
}

const prefix = "bench-" // of queues' names

// openQueue opens an empty queue, of which nothing is left when the scenario ends.
func (b *bench) openQueue(implementation, name string, lease time.Duration) queue {
	clearIt := func() error { return b.server.clear("*{" + prefix + name + "}*") }
	b.cleanup(clearIt)
	check(clearIt())
	return queues[implementation](b, Target{Addr: b.server.addr, Lease: lease, Queue: prefix + name})
}

// rawQueue is the floor: what a team writes by hand that knows Redis. A sorted
// set of ids, a hash of payloads, and a script that claims a batch; the end of one
// batch and the claim of the next share a round trip. It polls. No retries, no
// order, no tokens: a late worker ends what another one has claimed since, and a
// message waits for the slowest of its batch.
type rawQueue struct {
	*redis.Client
	due, payloads string
	lease         time.Duration
}

func newRawQueue(b *bench, t Target) queue {
	prefix := "raw:{" + t.Queue + "}:"
	q := &rawQueue{b.client(t.Addr), prefix + "due", prefix + "payloads", t.Lease}
	check(claimScript.Load(b.ctx, q.Client).Err()) // a pipeline cannot try again
	work := func(b *bench, handle func(int)) {
		ended := make(chan error, 1)
		go func() { ended <- try(func() { q.work(b.ctx, handle) }) }()
		b.cleanup(func() error { return <-ended })
	}
	return queue{enqueue: q.enqueue, work: work}
}

func (q *rawQueue) enqueue(ctx context.Context, m queued) error {
	id := rand.Text()
	pipe := q.Pipeline()
	pipe.HSet(ctx, q.payloads, id, m.payload())
	pipe.ZAdd(ctx, q.due, redis.Z{Score: float64(time.Now().Add(m.delay).UnixMilli()), Member: id})
	_, err := pipe.Exec(ctx)
	return err
}

func (q *rawQueue) work(ctx context.Context, handle func(int)) {
	var ids, payloads []string
	for ctx.Err() == nil {
		ids, payloads = q.claim(ids, 256)
		if len(ids) == 0 {
			_ = pause(ctx, pollEvery)
		}
		_ = together(min(queueWorkers, len(payloads)), func(worker int) error {
			for i := worker; i < len(payloads); i += queueWorkers {
				handle(numberOf([]byte(payloads[i])))
			}
			return nil
		})
	}
	q.claim(ids, 0)
}

// claim ends what is done, and claims up to n more.
func (q *rawQueue) claim(done []string, n int) (ids, payloads []string) {
	ctx := context.Background()
	pipe := q.Pipeline()
	if len(done) > 0 {
		pipe.ZRem(ctx, q.due, done)
		pipe.HDel(ctx, q.payloads, done...)
	}
	claim := claimScript.EvalSha(ctx, pipe, []string{q.due, q.payloads}, n, q.lease.Milliseconds())
	must(pipe.Exec(ctx))
	var claimed [2][]string
	for i, part := range must(claim.Slice()) { // none, or two
		for _, v := range part.([]any) {
			claimed[i] = append(claimed[i], v.(string))
		}
	}
	return claimed[0], claimed[1]
}

// newPerkeyQueue keeps the queue's defaults, such as a record of what is done for
// an hour; but for its bounds, which must not end a run.
func newPerkeyQueue(b *bench, t Target) queue {
	rdb := b.client(t.Addr)
	q := must(delayqueue.New(rdb, t.Queue, delayqueue.WithMaxDepth(10_000_000), delayqueue.WithMaxBytes(16<<30)))
	locker := b.locker(rdb, leaseTime)
	enqueue := func(ctx context.Context, m queued) error {
		_, err := q.Enqueue(ctx, delayqueue.Job{Key: m.key, Name: "bench", Payload: m.payload(), Delay: m.delay})
		return err
	}
	work := func(b *bench, handle func(int)) {
		w := must(delayqueue.NewWorker(q, locker, func(_ context.Context, m delayqueue.Message) error {
			handle(numberOf(m.Payload))
			return nil
		}, delayqueue.WithConcurrency(queueWorkers), delayqueue.WithClaimLease(t.Lease)))
		check(w.Start())
		b.cleanup(func() error {
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			defer cancel()
			return w.Stop(ctx)
		})
	}
	return queue{enqueue, work, q, locker}
}

// newAsynq opens hibiken/asynq. Its tasks keep its defaults: 25 retries, a timeout of
// 30 minutes, and no retention, so that a task that is done is deleted. It looks every so often for delayed tasks, and for
// any when it has found none. Zero: its defaults of 5 s and 1 s.
func newAsynq(every time.Duration) func(*bench, Target) queue {
	return func(b *bench, t Target) queue {
		rdb := b.client(t.Addr)
		client := asynq.NewClientFromRedisClient(rdb)
		enqueue := func(ctx context.Context, m queued) error {
			_, err := client.EnqueueContext(ctx, asynq.NewTask("bench", m.payload()), asynq.Queue(t.Queue), asynq.ProcessIn(m.delay))
			return err
		}
		work := func(b *bench, handle func(int)) {
			srv := asynq.NewServerFromRedisClient(rdb, asynq.Config{
				Concurrency: queueWorkers, Queues: map[string]int{t.Queue: 1}, LogLevel: asynq.FatalLevel,
				DelayedTaskCheckInterval: every, TaskCheckInterval: every,
			})
			check(srv.Start(asynq.HandlerFunc(func(_ context.Context, t *asynq.Task) error {
				handle(numberOf(t.Payload()))
				return nil
			})))
			b.cleanup(func() error { srv.Shutdown(); return nil })
		}
		return queue{enqueue: enqueue, work: work}
	}
}
