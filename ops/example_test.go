package ops_test

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/test/embedded"
	"github.com/perkey-go/perkey/ops"
)

// A process tells of itself, and an operator's program shows which keys all processes hold.
func ExampleStartBeacon() {
	rdb, closeAll := connect() // a client of your Redis
	defer closeAll()

	recorder := ops.NewRecorder()
	locker, err := core.New(rdb, core.WithObserver(recorder.Locks(core.SlogObserver(nil))))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = locker.Close() }()
	lease, err := locker.TryAcquire(context.Background(), "order:42", core.Named("pay", ""))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = lease.Release(context.Background()) }()
	beacon, err := ops.StartBeacon(rdb, recorder, locker)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = beacon.Close() }()

	time.Sleep(200 * time.Millisecond) // elsewhere, and later
	fleet, err := ops.ReadFleet(context.Background(), rdb, "")
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, held := range fleet.OldestLeases(10) {
		fmt.Println(held.Process == locker.ID(), held.Key, held.Name)
	}
	// Output: true order:42 pay
}

// An operator sees what happens to a key, in whatever process.
func ExampleWatch() {
	rdb, closeAll := connect() // a client of your Redis
	defer closeAll()
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()

	watcher, err := ops.Watch(ctx, rdb, "", ops.Watched{Key: "order:42"})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer watcher.Close()
	for event := range watcher.Events() {
		fmt.Println(event.Process, event.Kind, event.Key, event.Name, event.Took)
	}
	fmt.Println(watcher.Dropped())
	// Output: 0
}

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
