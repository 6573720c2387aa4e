package retry_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/test/embedded"
	"github.com/perkey-go/perkey/retry"
)

// A call waits for its key for up to two seconds. The release wakes it.
func ExamplePolicy() {
	rdb, closeRedis := embedded.Connect() // to a Redis inside this process
	defer closeRedis()
	locker, err := core.New(rdb)
	if err != nil {
		panic(err)
	}
	defer func() { _ = locker.Close() }()

	ctx := context.Background()
	call := core.Call{Key: "cart:7"}
	put := func(context.Context) error {
		fmt.Println("put")
		return nil
	}

	lease, err := locker.Acquire(ctx, "cart:7")
	if err != nil {
		panic(err)
	}
	// Nobody releases the key: the second attempt is the last one.
	impatient := locker.Guard(retry.Policy{Initial: time.Millisecond, MaxAttempts: 2})
	fmt.Println(errors.Is(impatient.Do(ctx, call, put), core.ErrConflict))

	patient := locker.Guard(retry.Policy{MaxWait: 2 * time.Second})
	time.AfterFunc(20*time.Millisecond, func() { _ = lease.Release(ctx) })
	fmt.Println(patient.Do(ctx, call, put))
	// Output:
	// true
	// put
	// <nil>
}
