package main

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
)

// perkeyQueue keeps the queue's defaults, such as a record of what is done for
// an hour; but for its depth, which must not end a run.
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
	return &perkeyQueue{rdb, q, l, t.lease}, err
}

func (q *perkeyQueue) Close() error { return errors.Join(q.locker.Close(), q.rdb.Close()) }

func (q *perkeyQueue) Keys() string { return "perkey:queue:{" + q.queue.Name() + "}:*" }

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

func (a *asynqQueue) Keys() string { return "asynq:{" + a.name + "}:*" }

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
