package main

import (
	"context"
	"encoding/json"
	"errors"
	"sync/atomic"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/perkey-go/perkey/asynqlock"
	"github.com/perkey-go/perkey/core"
)

// server is what is a process in production: an asynq server, and the locker that its
// tasks work under.
type server struct {
	rdb           *redis.Client
	locker        *core.Locker
	asynq         *asynq.Server
	ran, deferred atomic.Int32
}

func startServer(rdb *redis.Client) (*server, error) {
	locker, err := core.New(rdb)
	if err != nil {
		return nil, err
	}
	s := &server{rdb: rdb, locker: locker}
	mux := asynq.NewServeMux()
	mux.Use(s.count)
	mux.Use(asynqlock.PerKey(locker.Guard(core.RejectConflicts), asynqlock.JSONField("wallet:", "wallet")))
	mux.HandleFunc("book", s.book)

	s.asynq, err = asynqlock.NewServer(rdb, asynq.Config{ // rdb: the Redis of the queues
		Concurrency: 10,
		LogLevel:    asynq.FatalLevel, // for the example's output alone
	})
	if err == nil {
		err = s.asynq.Start(mux)
	}
	if err != nil {
		return nil, errors.Join(err, locker.Close())
	}
	return s, nil
}

// stop stops the tasks first, then the locks that they work under.
func (s *server) stop() error {
	s.asynq.Shutdown()
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Second)
	defer cancel()
	return s.locker.Shutdown(ctx)
}

// book adds an amount to a wallet: it reads the balance, and some time later writes another one.
// Done by two at once, that would lose one of the amounts.
func (s *server) book(ctx context.Context, task *asynq.Task) error {
	var booking struct {
		Wallet string
		Amount int
	}
	if err := json.Unmarshal(task.Payload(), &booking); err != nil {
		return errors.Join(err, asynq.SkipRetry)
	}
	balance, err := s.rdb.Get(ctx, balanceOf(booking.Wallet)).Int()
	if err != nil && !errors.Is(err, redis.Nil) {
		return err
	}
	time.Sleep(100 * time.Millisecond)
	return s.rdb.Set(ctx, balanceOf(booking.Wallet), balance+booking.Amount, time.Hour).Err()
}

func balanceOf(wallet string) string { return "asynq-example:balance:" + wallet }

// count counts what PerKey, behind it, did with each task.
func (s *server) count(next asynq.Handler) asynq.Handler {
	return asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
		err := next.ProcessTask(ctx, task)
		switch {
		case err == nil:
			s.ran.Add(1)
		case errors.Is(err, asynqlock.ErrDeferred):
			s.deferred.Add(1)
		}
		return err
	})
}
