package main

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"time"

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

func newPerkeyQueue(t target, name string) (queue, error) { return openPerkeyQueue(t, name) }

func openPerkeyQueue(t target, name string) (*perkeyQueue, error) {
	q := &perkeyQueue{rdb: t.client(), lease: t.lease}
	var errs [2]error
	q.queue, errs[0] = delayqueue.New(q.rdb, name, delayqueue.WithMaxDepth(10_000_000), delayqueue.WithMaxBytes(16<<30))
	q.locker, errs[1] = core.New(q.rdb, core.WithTTL(leaseTime))
	if err := errors.Join(errs[:]...); err != nil {
		return nil, errors.Join(err, q.rdb.Close())
	}
	return q, nil
}

func (q *perkeyQueue) Close() error { return errors.Join(q.locker.Close(), q.rdb.Close()) }

func (q *perkeyQueue) Keys() string { return "perkey:queue:{" + q.queue.Name() + "}:*" }

func (q *perkeyQueue) Enqueue(ctx context.Context, m message) error {
	_, err := q.queue.Enqueue(ctx, delayqueue.Job{Key: m.key, Name: "bench", Payload: m.payload(), Delay: m.delay})
	return err
}

func (q *perkeyQueue) Work(handle func(int)) (func() error, error) {
	w, err := delayqueue.NewWorker(q.queue, q.locker, func(_ context.Context, m delayqueue.Message) error {
		handle(numberOf(m.Payload))
		return nil
	}, delayqueue.WithConcurrency(queueHands), delayqueue.WithClaimLease(q.lease), delayqueue.WithLogger(quietLog))
	if err != nil {
		return nil, err
	}
	if err := w.Start(); err != nil {
		return nil, err
	}
	return func() error {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		return w.Stop(ctx)
	}, nil
}
