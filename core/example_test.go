package core_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/redis/go-redis/v9"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/embedded"
)

// connect returns a client of an embedded Redis, which stands in for yours.
func connect() (rdb *redis.Client, closeAll func()) {
	server, err := embedded.Start()
	if err != nil {
		panic(err)
	}
	rdb = redis.NewClient(&redis.Options{Addr: server.Addr()})
	return rdb, func() {
		_ = rdb.Close()
		server.Close()
	}
}

func ExampleLocker_Do() {
	rdb, closeAll := connect()
	defer closeAll()
	locker, err := core.New(rdb)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = locker.Close() }()

	err = locker.Do(context.Background(), "report:daily", func(ctx context.Context) error {
		fmt.Println("nobody else runs this now")
		return nil
	})
	fmt.Println(err)
	// Output:
	// nobody else runs this now
	// <nil>
}

func ExampleLocker_TryAcquire() {
	rdb, closeAll := connect()
	defer closeAll()
	locker, err := core.New(rdb)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = locker.Close() }()

	ctx := context.Background()
	lease, err := locker.TryAcquire(ctx, "order:42")
	fmt.Println(err)
	_, err = locker.TryAcquire(ctx, "order:42")
	fmt.Println(errors.Is(err, core.ErrConflict))
	fmt.Println(lease.Release(ctx))
	// Output:
	// <nil>
	// true
	// <nil>
}

// A handler takes the key, and leaves the rest of the work, and the key, to a job in
// another process.
func ExampleLease_Detach() {
	rdb, closeAll := connect()
	defer closeAll()
	server, err := core.New(rdb)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = server.Close() }()
	worker, err := core.New(rdb)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = worker.Close() }()

	ctx := context.Background()
	jobs := make(chan string, 1)
	handle := func() error {
		lease, err := server.TryAcquire(ctx, "order:42")
		if err != nil {
			return err
		}
		defer func() { _ = lease.Release(ctx) }() // does nothing once the lease is detached
		token, err := lease.Detach(ctx)
		if err != nil {
			return err
		}
		jobs <- token
		return nil
	}
	work := func(token string) error {
		lease, err := worker.Resume(ctx, token)
		if err != nil {
			return err
		}
		fmt.Println("the job holds", lease.Key())
		return lease.Release(ctx)
	}
	fmt.Println(handle())
	_, err = server.TryAcquire(ctx, "order:42")
	fmt.Println(errors.Is(err, core.ErrConflict))
	fmt.Println(work(<-jobs))
	_, err = server.TryAcquire(ctx, "order:42")
	fmt.Println(err)
	// Output:
	// <nil>
	// true
	// the job holds order:42
	// <nil>
	// <nil>
}

// A store that keeps the greatest fence it has seen refuses a writer that lost
// its lease and does not know yet.
func ExampleLease_Fence() {
	rdb, closeAll := connect()
	defer closeAll()
	locker, err := core.New(rdb)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = locker.Close() }()

	var seen int64
	write := func(ctx context.Context) error {
		lease, _ := core.LeaseFrom(ctx)
		// UPDATE orders SET …, fence = $1 WHERE id = $2 AND fence <= $1
		if lease.Fence() < seen {
			return errors.New("stale writer")
		}
		seen = lease.Fence()
		return nil
	}
	for range 2 {
		fmt.Println(locker.Do(context.Background(), "order:42", write))
	}
	// Output:
	// <nil>
	// <nil>
}
