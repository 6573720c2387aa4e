// Command asynq runs asynq tasks one at a time per wallet, over two servers.
//
//	go run ./examples/asynq                                    a Redis inside it
//	go run ./examples/asynq -redis redis://localhost:6379
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/perkey-go/perkey/examples/internal/show"
)

func main() {
	redisURL := flag.String("redis", "", "URL of a Redis to use; empty: one inside this process")
	flag.Parse()
	if err := run(context.Background(), *redisURL, os.Stdout); err != nil {
		log.Fatal(err)
	}
}

// run enqueues three bookings for each of two wallets, and one for none, and has two servers
// work on all of them at the same time.
func run(ctx context.Context, redisURL string, out io.Writer) error {
	rdb, closeRedis, err := show.Connect(redisURL)
	if err != nil {
		return err
	}
	defer closeRedis()
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	tasks, err := enqueue(ctx, rdb)
	if err != nil {
		return err
	}
	a, err := startServer(rdb)
	if err != nil {
		return err
	}
	b, err := startServer(rdb)
	if err != nil {
		return errors.Join(err, a.stop())
	}
	err = errors.Join(demonstrate(ctx, rdb, tasks, out), a.stop(), b.stop())
	fmt.Fprintf(out, "one server ran %d bookings, the other %d; refused meanwhile: %d\n", a.ran.Load(), b.ran.Load(), a.deferred.Load()+b.deferred.Load())
	return err
}

func enqueue(ctx context.Context, rdb *redis.Client) (tasks []*asynq.TaskInfo, err error) {
	if err := rdb.Del(ctx, balanceOf("alice"), balanceOf("bob")).Err(); err != nil {
		return nil, err
	}
	client := asynq.NewClientFromRedisClient(rdb)
	for _, payload := range []string{
		`{"wallet": "alice", "amount": 10}`, `{"wallet": "alice", "amount": 20}`, `{"wallet": "alice", "amount": -5}`,
		`{"wallet": "bob", "amount": 1}`, `{"wallet": "bob", "amount": 2}`, `{"wallet": "bob", "amount": 3}`,
		`{"amount": 4}`,
	} {
		task, err := client.EnqueueContext(ctx, asynq.NewTask("book", []byte(payload)), asynq.Retention(time.Hour))
		if err != nil {
			return nil, err
		}
		tasks = append(tasks, task)
	}
	return tasks, nil
}

// demonstrate waits for the tasks, and says what became of them.
func demonstrate(ctx context.Context, rdb *redis.Client, tasks []*asynq.TaskInfo, out io.Writer) (err error) {
	inspector := asynq.NewInspectorFromRedisClient(rdb)
	for _, task := range tasks {
		for task.State != asynq.TaskStateCompleted && task.State != asynq.TaskStateArchived {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(50 * time.Millisecond):
			}
			if task, err = inspector.GetTaskInfo(task.Queue, task.ID); err != nil {
				return err
			}
		}
		fmt.Fprintf(out, "%-33s %s, retried %d\n", task.Payload, task.State, task.Retried)
		if task.State == asynq.TaskStateArchived {
			fmt.Fprintln(out, " ", task.LastErr)
		}
	}
	balances, err := rdb.MGet(ctx, balanceOf("alice"), balanceOf("bob")).Result()
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "alice has %v, bob %v\n", balances...)
	return nil
}
