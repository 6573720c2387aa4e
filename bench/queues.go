package main

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"log/slog"
	"os"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
)

// queue is a delay queue that is measured. It is safe for concurrent use.
type queue interface {
	Enqueue(ctx context.Context, m queued) error
	// Work gives messages to handle, as many at once as there are queueWorkers,
	// until stop, which waits for them.
	Work(handle func(number int)) (stop func() error, err error)
	Close() error
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

// queues by the names of their rows. A target's lease is a claim's.
var queues = map[string]func(t target, name string) (queue, error){
	"raw":         newRawQueue,
	"asynq":       newAsynq(0),
	"asynq-100ms": newAsynq(100 * time.Millisecond),
	"perkey":      newPerkeyQueue,
}

// openQueue opens an empty queue, of which nothing is left when the scenario ends.
func (b *bench) openQueue(implementation, name string, lease time.Duration) queue {
	q := must(queues[implementation](target{Addr: b.server.addr, Lease: lease}, prefix+name))
	b.cleanup(func() { _ = q.Close() })
	b.cleanup(func() { _ = b.server.clear(keysOf(name)) })
	check(b.server.clear(keysOf(name)))
	return q
}

const prefix = "bench-" // of queues' names

// keysOf is the pattern of all that a queue has in Redis.
func keysOf(name string) string { return "*{" + prefix + name + "}*" }

// openQueues opens one of each of some implementations, and names it after its row.
func (b *bench) openQueues(names ...string) table {
	all := newTable(names...)
	for _, r := range all {
		r.queue = b.openQueue(r.name, r.name, claimLease)
	}
	return all
}

// work has a queue worked on until the scenario ends.
func (b *bench) work(q queue, handle func(number int)) {
	stop := must(q.Work(handle))
	b.cleanup(func() { _ = stop() })
}

// rawClaims is how many messages the floor claims at once.
const rawClaims = 256

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

func newRawQueue(t target, name string) (queue, error) {
	prefix := "raw:{" + name + "}:"
	q := &rawQueue{t.client(), prefix + "due", prefix + "payloads", t.Lease}
	return q, claimScript.Load(context.Background(), q.Client).Err() // a pipeline cannot try again
}

func (q *rawQueue) Enqueue(ctx context.Context, m queued) error {
	id := rand.Text()
	pipe := q.Pipeline()
	pipe.HSet(ctx, q.payloads, id, m.payload())
	pipe.ZAdd(ctx, q.due, redis.Z{Score: float64(time.Now().Add(m.delay).UnixMilli()), Member: id})
	_, err := pipe.Exec(ctx)
	return err
}

func (q *rawQueue) Work(handle func(int)) (func() error, error) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- q.work(ctx, handle) }()
	return func() error {
		cancel()
		return <-ended
	}, nil
}

func (q *rawQueue) work(ctx context.Context, handle func(int)) error {
	var done []string
	for ctx.Err() == nil {
		ids, payloads, err := q.claim(done, rawClaims)
		if err != nil {
			return err
		}
		if done = ids; len(ids) == 0 {
			_ = pause(ctx, pollEvery)
		}
		_ = together(min(queueWorkers, len(payloads)), func(worker int) error {
			for i := worker; i < len(payloads); i += queueWorkers {
				handle(numberOf([]byte(payloads[i])))
			}
			return nil
		})
	}
	_, _, err := q.claim(done, 0)
	return err
}

// claim ends what is done, and claims up to n more.
func (q *rawQueue) claim(done []string, n int) (ids, payloads []string, err error) {
	ctx := context.Background()
	pipe := q.Pipeline()
	if len(done) > 0 {
		pipe.ZRem(ctx, q.due, done)
		pipe.HDel(ctx, q.payloads, done...)
	}
	claim := claimScript.EvalSha(ctx, pipe, []string{q.due, q.payloads}, n, q.lease.Milliseconds())
	if _, err := pipe.Exec(ctx); err != nil {
		return nil, nil, err
	}
	reply, err := claim.Slice()
	if err != nil || len(reply) == 0 {
		return nil, nil, err
	}
	for i, id := range reply[0].([]any) {
		ids, payloads = append(ids, id.(string)), append(payloads, reply[1].([]any)[i].(string))
	}
	return ids, payloads, nil
}

// perkeyQueue keeps the queue's defaults, such as a record of what is done for
// an hour; but for its bounds, which must not end a run.
type perkeyQueue struct {
	rdb    *redis.Client
	queue  *delayqueue.Queue
	locker *core.Locker
	lease  time.Duration
}

// quietLog leaves out that a killed worker's message runs again.
var quietLog = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))

func newPerkeyQueue(t target, name string) (queue, error) {
	rdb := t.client()
	q, err := delayqueue.New(rdb, name, delayqueue.WithMaxDepth(10_000_000), delayqueue.WithMaxBytes(16<<30))
	if err != nil {
		return nil, err
	}
	l, err := core.New(rdb, core.WithTTL(leaseTime))
	return &perkeyQueue{rdb, q, l, t.Lease}, err
}

func (q *perkeyQueue) Close() error { return errors.Join(q.locker.Close(), q.rdb.Close()) }

func (q *perkeyQueue) Enqueue(ctx context.Context, m queued) error {
	_, err := q.queue.Enqueue(ctx, delayqueue.Job{Key: m.key, Name: "bench", Payload: m.payload(), Delay: m.delay})
	return err
}

func (q *perkeyQueue) Work(handle func(int)) (func() error, error) {
	w, err := delayqueue.NewWorker(q.queue, q.locker, func(_ context.Context, m delayqueue.Message) error {
		handle(numberOf(m.Payload))
		return nil
	}, delayqueue.WithConcurrency(queueWorkers), delayqueue.WithClaimLease(q.lease), delayqueue.WithLogger(quietLog))
	if err != nil {
		return nil, err
	}
	return func() error {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		return w.Stop(ctx)
	}, w.Start()
}

// asynqQueue is hibiken/asynq. Its tasks keep its defaults: 25 retries, a timeout of
// 30 minutes, and no retention, so that a task that is done is deleted.
type asynqQueue struct {
	*redis.Client
	client *asynq.Client
	name   string
	check  time.Duration
}

const asynqTask = "bench"

// newAsynq opens an asynq that looks every so often for delayed tasks, and for
// any when it has found none. Zero: its defaults of 5 s and 1 s.
func newAsynq(check time.Duration) func(target, string) (queue, error) {
	return func(t target, name string) (queue, error) {
		rdb := t.client()
		return &asynqQueue{rdb, asynq.NewClientFromRedisClient(rdb), name, check}, nil
	}
}

func (a *asynqQueue) Enqueue(ctx context.Context, m queued) error {
	opts := []asynq.Option{asynq.Queue(a.name)}
	if m.delay > 0 {
		opts = append(opts, asynq.ProcessIn(m.delay))
	}
	_, err := a.client.EnqueueContext(ctx, asynq.NewTask(asynqTask, m.payload()), opts...)
	return err
}

func (a *asynqQueue) Work(handle func(int)) (func() error, error) {
	srv := asynq.NewServerFromRedisClient(a.Client, asynq.Config{
		Concurrency: queueWorkers, Queues: map[string]int{a.name: 1}, LogLevel: asynq.FatalLevel,
		DelayedTaskCheckInterval: a.check, TaskCheckInterval: a.check,
	})
	stop := func() error {
		srv.Shutdown()
		return nil
	}
	return stop, srv.Start(asynq.HandlerFunc(func(_ context.Context, t *asynq.Task) error {
		handle(numberOf(t.Payload()))
		return nil
	}))
}
