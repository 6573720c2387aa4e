package asynqlock_test

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/hibiken/asynq"

	"github.com/perkey-go/perkey/asynqlock"
	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/test/embedded"
)

// One charge at a time per wallet. Tasks for other wallets are not held up, and
// waiting costs no retry: this task has none.
func ExamplePerKey() {
	rdb, closeRedis := embedded.Connect() // to a Redis inside this process
	defer closeRedis()
	locker, err := core.New(rdb)
	if err != nil {
		panic(err)
	}
	defer func() { _ = locker.Close() }()

	charged := make(chan string)
	mux := asynq.NewServeMux()
	mux.Use(asynqlock.PerKey(locker.Guard(core.RejectConflicts), asynqlock.JSONField("wallet:", "user_id"),
		asynqlock.WithDelay(10*time.Millisecond, 20*time.Millisecond))) // the defaults are longer
	mux.HandleFunc("wallet:charge", func(_ context.Context, task *asynq.Task) error {
		charged <- string(task.Payload())
		return nil
	})

	srv, err := asynqlock.NewServer(rdb, exampleConfig())
	if err != nil {
		panic(err)
	}
	if err := srv.Start(mux); err != nil {
		panic(err)
	}
	defer srv.Shutdown()

	client := asynq.NewClientFromRedisClient(rdb)
	charge := func(user int) {
		payload := fmt.Appendf(nil, `{"user_id":%d}`, user)
		if _, err := client.Enqueue(asynq.NewTask("wallet:charge", payload), asynq.MaxRetry(0)); err != nil {
			panic(err)
		}
	}
	// Somebody works on wallet 42: another task, or a request in another process.
	_ = locker.Do(context.Background(), "wallet:42", func(context.Context) error {
		charge(42)
		charge(43)
		fmt.Println(<-charged)
		return nil
	})
	fmt.Println(<-charged)
	// Output:
	// {"user_id":43}
	// {"user_id":42}
}

// At most three tasks of a type at a time, on all servers together, however many workers
// there are.
func ExampleType() {
	rdb, closeRedis := embedded.Connect() // to a Redis inside this process
	defer closeRedis()
	locker, err := core.New(rdb)
	if err != nil {
		panic(err)
	}
	defer func() { _ = locker.Close() }()

	three := locker.Guard(core.RejectConflicts, core.Counted(3))
	var mu sync.Mutex
	inside, most, done := 0, 0, make(chan struct{}, 12)
	count := func(n int) {
		mu.Lock()
		defer mu.Unlock()
		inside += n
		most = max(most, inside)
	}
	mux := asynq.NewServeMux()
	mux.Use(asynqlock.PerKey(three, asynqlock.Type("type:"), asynqlock.WithDelay(10*time.Millisecond, 20*time.Millisecond)))
	mux.HandleFunc("report", func(context.Context, *asynq.Task) error {
		count(1)
		time.Sleep(20 * time.Millisecond)
		count(-1)
		done <- struct{}{}
		return nil
	})

	srv, err := asynqlock.NewServer(rdb, exampleConfig())
	if err != nil {
		panic(err)
	}
	if err := srv.Start(mux); err != nil {
		panic(err)
	}
	defer srv.Shutdown()

	client := asynq.NewClientFromRedisClient(rdb)
	for range cap(done) {
		if _, err := client.Enqueue(asynq.NewTask("report", nil)); err != nil {
			panic(err)
		}
	}
	for range cap(done) {
		<-done
	}
	fmt.Println("more than three at once:", most > 3)
	// Output:
	// more than three at once: false
}

// A key of two parts: tenants do not hold up one another, and no choice of names makes
// two orders one.
func ExampleJoin() {
	key := asynqlock.Join(asynqlock.Header("tenant:", "tenant"), asynqlock.JSONField("order:", "order.id"))
	for _, tenant := range []string{"acme", "ac|me"} {
		task := asynq.NewTaskWithHeaders("ship", []byte(`{"order":{"id":7}}`), map[string]string{"tenant": tenant})
		k, err := key(context.Background(), task)
		fmt.Println(k, err)
	}
	// Output:
	// tenant:acme|order:7 <nil>
	// tenant:ac%7Cme|order:7 <nil>
}

// exampleConfig looks for tasks more often than asynq's default does.
func exampleConfig() asynq.Config {
	return asynq.Config{
		Concurrency: 10, LogLevel: asynq.FatalLevel,
		TaskCheckInterval: 10 * time.Millisecond, DelayedTaskCheckInterval: 10 * time.Millisecond,
	}
}
