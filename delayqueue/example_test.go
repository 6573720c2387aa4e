package delayqueue_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"sync/atomic"

	"github.com/redis/go-redis/v9"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/internal/test/embedded"
)

// Jobs of one order run one at a time, in the order in which they came.
func Example() {
	server, err := embedded.Start() // or a Redis of yours
	if err != nil {
		log.Fatal(err)
	}
	defer server.Close()
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer func() { _ = rdb.Close() }()
	locker, err := core.New(rdb)
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = locker.Close() }()

	queue, err := delayqueue.New(rdb, "orders")
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	for _, step := range []string{"pay", "pack", "ship"} {
		if _, err := queue.Enqueue(ctx, delayqueue.Job{Key: "order:7", Payload: []byte(step)}); err != nil {
			log.Fatal(err)
		}
	}

	done := make(chan struct{}, 3)
	worker, err := delayqueue.NewWorker(queue, locker, func(_ context.Context, m delayqueue.Message) error {
		fmt.Printf("%s: %s\n", m.Key, m.Payload)
		done <- struct{}{}
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
	if err := worker.Start(); err != nil {
		log.Fatal(err)
	}
	for range cap(done) {
		<-done
	}
	if err := worker.Stop(ctx); err != nil {
		log.Fatal(err)
	}
	// Output:
	// order:7: pay
	// order:7: pack
	// order:7: ship
}

// A call whose key is held is put in the queue, and runs when the key is free.
func ExamplePolicy() {
	server, err := embedded.Start()
	if err != nil {
		log.Fatal(err)
	}
	defer server.Close()
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer func() { _ = rdb.Close() }()
	locker, err := core.New(rdb)
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = locker.Close() }()
	queue, err := delayqueue.New(rdb, "ship")
	if err != nil {
		log.Fatal(err)
	}
	done := make(chan struct{})
	worker, err := delayqueue.NewWorker(queue, locker, func(_ context.Context, m delayqueue.Message) error {
		fmt.Printf("later: %s\n", m.Payload)
		close(done)
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
	if err := worker.Start(); err != nil {
		log.Fatal(err)
	}

	ctx := context.Background()
	guard := locker.Guard(delayqueue.Policy(queue))
	lease, err := locker.Acquire(ctx, "order:7")
	if err != nil {
		log.Fatal(err)
	}
	err = guard.Do(ctx, core.Call{
		Key:    "order:7",
		Encode: func() ([]byte, error) { return []byte("ship a parcel"), nil },
	}, func(context.Context) error {
		fmt.Println("now") // if the key were free
		return nil
	})
	fmt.Println("deferred:", errors.Is(err, core.ErrDeferred))
	if err := lease.Release(ctx); err != nil {
		log.Fatal(err)
	}
	<-done
	if err := worker.Stop(ctx); err != nil {
		log.Fatal(err)
	}
	// Output:
	// deferred: true
	// later: ship a parcel
}

// The next one is long since an example stands by itself.

// What failed for a reason that is mended is run again.
func ExampleQueue_RedriveAll() {
	server, err := embedded.Start()
	if err != nil {
		log.Fatal(err)
	}
	defer server.Close()
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer func() { _ = rdb.Close() }()
	locker, err := core.New(rdb)
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = locker.Close() }()
	queue, err := delayqueue.New(rdb, "mails")
	if err != nil {
		log.Fatal(err)
	}
	var mended atomic.Bool
	worker, err := delayqueue.NewWorker(queue, locker, func(context.Context, delayqueue.Message) error {
		if mended.Load() {
			return nil
		}
		return delayqueue.SkipRetry(errors.New("no route to mail.example.com"))
	}, delayqueue.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		log.Fatal(err)
	}
	if err := worker.Start(); err != nil {
		log.Fatal(err)
	}

	ctx := context.Background()
	for _, id := range []string{"mail-1", "mail-2"} {
		if _, err := queue.Enqueue(ctx, delayqueue.Job{ID: id, Name: "mail"}); err != nil {
			log.Fatal(err)
		}
		if _, err := queue.Wait(ctx, id); err != nil {
			log.Fatal(err)
		}
	}
	for cursor := ""; ; {
		deadLetters, next, err := queue.List(ctx, delayqueue.StateDead, cursor, 100)
		if err != nil {
			log.Fatal(err)
		}
		for _, deadLetter := range deadLetters {
			fmt.Printf("%s: %s\n", deadLetter.ID, deadLetter.Cause)
		}
		if cursor = next; next == "" {
			break
		}
	}

	mended.Store(true)
	n, err := queue.RedriveAll(ctx, delayqueue.Filter{Cause: "no route"}, delayqueue.RedriveOptions{PerSecond: 100})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("redriven:", n)
	status, err := queue.Wait(ctx, "mail-1")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("mail-1:", status.State)
	if err := worker.Stop(ctx); err != nil {
		log.Fatal(err)
	}
	// Output:
	// mail-2: no route to mail.example.com
	// mail-1: no route to mail.example.com
	// redriven: 2
	// mail-1: done
}
