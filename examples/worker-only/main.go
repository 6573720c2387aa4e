// Command worker-only is a service without HTTP: two workers run jobs from a queue, one
// at a time per wallet and in their order, and a report runs once for all replicas.
//
//	go run ./examples/worker-only                                    a Redis inside it
//	go run ./examples/worker-only -redis redis://localhost:6379
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"sync/atomic"

	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/examples/internal/show"
)

func main() {
	redisURL := flag.String("redis", "", "URL of a Redis to use; empty: one inside this process")
	flag.Parse()
	if err := run(context.Background(), *redisURL, os.Stdout); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, redisURL string, out io.Writer) error {
	rdb, closeRedis, err := show.Connect(redisURL)
	if err != nil {
		return err
	}
	defer closeRedis()
	queue, err := delayqueue.New(rdb, "wallets", delayqueue.WithMaxAttempts(3))
	if err != nil {
		return err
	}
	if err := rdb.Del(ctx, balanceOf("wallet:alice"), balanceOf("wallet:bob")).Err(); err != nil {
		return err
	}
	a, err := startReplica(rdb, queue)
	if err != nil {
		return err
	}
	b, err := startReplica(rdb, queue)
	if err != nil {
		return errors.Join(err, a.stop(ctx))
	}
	err = errors.Join(showJobs(ctx, out, queue), showReport(ctx, out, a, b))
	return errors.Join(err, a.stop(ctx), b.stop(ctx))
}

// showJobs books what is due on two wallets.
func showJobs(ctx context.Context, out io.Writer, queue *delayqueue.Queue) error {
	var ids []string
	for _, job := range []string{"alice +10", "alice +20", "bob +5", "alice -25", "bob much", "bob +6"} {
		var wallet, amount string
		if _, err := fmt.Sscan(job, &wallet, &amount); err != nil {
			return err
		}
		receipt, err := queue.Enqueue(ctx, delayqueue.Job{Key: "wallet:" + wallet, Name: "book", Payload: []byte(amount)})
		if err != nil {
			return err
		}
		ids = append(ids, receipt.ID)
	}
	for _, id := range ids {
		status, err := queue.Wait(ctx, id)
		if err != nil {
			return err
		}
		result, err := queue.Result(ctx, id) // what the handler set
		if err != nil && !errors.Is(err, delayqueue.ErrNotFound) {
			return err
		}
		fmt.Fprintf(out, "%-12s %-4s %s%s\n", status.Key, status.State, result, status.Cause)
	}
	return nil
}

// showReport has both replicas come to their report at the same time.
func showReport(ctx context.Context, out io.Writer, a, b *replica) error {
	var ran atomic.Int32
	work := func() { ran.Add(1) }
	other := make(chan error)
	go func() { other <- b.report(ctx, work) }()
	err := errors.Join(a.report(ctx, work), <-other)
	fmt.Fprintf(out, "report: %d of 2 replicas ran it\n", ran.Load())
	return err
}
