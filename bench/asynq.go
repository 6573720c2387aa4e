package main

import (
	"context"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
)

// asynqs is hibiken/asynq. Its tasks keep its defaults: 25 retries, a timeout of
// 30 minutes, and no retention, so that a task that is done is deleted.
type asynqs struct {
	rdb    *redis.Client
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
		return &asynqs{rdb, asynq.NewClientFromRedisClient(rdb), name, check}, nil
	}
}

func (a *asynqs) Close() error { return a.rdb.Close() }

func (a *asynqs) Keys() string { return "asynq:{" + a.name + "}:*" }

func (a *asynqs) Enqueue(ctx context.Context, m message) error {
	opts := []asynq.Option{asynq.Queue(a.name)}
	if m.delay > 0 {
		opts = append(opts, asynq.ProcessIn(m.delay))
	}
	_, err := a.client.EnqueueContext(ctx, asynq.NewTask(asynqTask, m.payload()), opts...)
	return err
}

func (a *asynqs) Work(handle func(int)) (func() error, error) {
	mux := asynq.NewServeMux()
	mux.HandleFunc(asynqTask, func(_ context.Context, t *asynq.Task) error {
		handle(numberOf(t.Payload()))
		return nil
	})
	srv := asynq.NewServerFromRedisClient(a.rdb, asynq.Config{
		Concurrency: queueHands, Queues: map[string]int{a.name: 1}, LogLevel: asynq.FatalLevel,
		DelayedTaskCheckInterval: a.check, TaskCheckInterval: a.check,
	})
	if err := srv.Start(mux); err != nil {
		return nil, err
	}
	return func() error {
		srv.Shutdown()
		return nil
	}, nil
}
