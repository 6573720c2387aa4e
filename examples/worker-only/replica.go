package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
)

// replica is one process of the service: a worker, and the locker that it works under.
type replica struct {
	rdb    *redis.Client
	locker *core.Locker
	worker *delayqueue.Worker
}

func startReplica(rdb *redis.Client, queue *delayqueue.Queue) (*replica, error) {
	locker, err := core.New(rdb)
	if err != nil {
		return nil, err
	}
	r := &replica{rdb: rdb, locker: locker}
	if r.worker, err = delayqueue.NewWorker(queue, locker, r.book); err != nil {
		return nil, errors.Join(err, locker.Close())
	}
	return r, r.worker.Start()
}

// stop stops the worker first, then the locks that it works under.
func (r *replica) stop(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	return errors.Join(r.worker.Stop(ctx), r.locker.Shutdown(ctx))
}

// book adds an amount to a wallet: it reads the balance, and writes another one. Done by two
// at once, that would lose one of the amounts.
func (r *replica) book(ctx context.Context, m delayqueue.Message) error {
	amount, err := strconv.Atoi(string(m.Payload))
	if err != nil {
		return delayqueue.SkipRetry(fmt.Errorf("not an amount: %q", m.Payload)) // no other attempt mends that
	}
	balance, err := r.rdb.Get(ctx, balanceOf(m.Key)).Int()
	if err != nil && !errors.Is(err, redis.Nil) {
		return err
	}
	balance += amount
	if err := r.rdb.Set(ctx, balanceOf(m.Key), balance, time.Hour).Err(); err != nil {
		return err
	}
	return delayqueue.SetResult(ctx, fmt.Appendf(nil, "balance %d", balance))
}

func balanceOf(key string) string { return "worker-only:balance:" + key }

// report runs once in a minute, however many replicas come to it.
func (r *replica) report(ctx context.Context, work func()) error {
	lease, err := r.locker.TryAcquire(ctx, "report", core.MinHold(time.Minute))
	if errors.Is(err, core.ErrConflict) {
		return nil // another replica does it, or did it just now
	}
	if err != nil {
		return err
	}
	work()
	return lease.Release(ctx)
}
