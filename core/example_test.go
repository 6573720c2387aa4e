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
