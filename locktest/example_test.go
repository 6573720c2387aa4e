package locktest_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/locktest"
)

// In a test of yours t is the *testing.T. An Example has none: this one stands in for it.
type exampleT struct{ cleanups []func() }

func (t *exampleT) Helper()                        {}
func (t *exampleT) Cleanup(f func())               { t.cleanups = append([]func(){f}, t.cleanups...) }
func (t *exampleT) Fatalf(format string, a ...any) { panic(fmt.Sprintf(format, a...)) }

func (t *exampleT) end() {
	for _, f := range t.cleanups {
		f()
	}
}

// pay is the code under test: it charges an order, one call at a time.
func pay(ctx context.Context, locker *core.Locker, order string, charge func(context.Context) error) error {
	return locker.Guard(core.RejectConflicts).Do(ctx, core.Call{Key: "order:" + order}, charge)
}

// A service refuses an order that another replica works on.
func Example() {
	t := &exampleT{} // t *testing.T
	defer t.end()

	redis := locktest.New(t)
	locker := redis.Locker(t)
	charge := func(context.Context) error { fmt.Println("charged"); return nil }

	release := redis.Hold(t, "order:42")
	err := pay(context.Background(), locker, "42", charge)
	fmt.Println("busy:", errors.Is(err, core.ErrConflict))

	release()
	fmt.Println(pay(context.Background(), locker, "42", charge))
	redis.RequireFree(t, "order:42") // it gave the key back
	// Output:
	// busy: true
	// charged
	// <nil>
}

// A handler must stop when its key is taken from it.
func ExampleRedis_Steal() {
	t := &exampleT{} // t *testing.T
	defer t.end()

	redis := locktest.New(t)
	err := pay(context.Background(), redis.Locker(t), "42", func(ctx context.Context) error {
		redis.Steal(t, "order:42")
		select {
		case <-ctx.Done():
			fmt.Println("stopped in time")
			return ctx.Err()
		case <-time.After(10 * time.Second):
			fmt.Println("charged without the key")
			return nil
		}
	})
	fmt.Println(errors.Is(err, core.ErrLeaseLost))
	// Output:
	// stopped in time
	// true
}

// The key of a process that died is free when its lease has run out.
func ExampleRedis_Expire() {
	t := &exampleT{} // t *testing.T
	defer t.end()

	redis := locktest.New(t)
	redis.Hold(t, "order:42") // by a process that dies
	redis.Expire(t, "order:42")
	fmt.Println(pay(context.Background(), redis.Locker(t), "42", func(context.Context) error { return nil }))
	// Output: <nil>
}

// Without Redis nothing runs unlocked.
func ExampleRedis_Down() {
	t := &exampleT{} // t *testing.T
	defer t.end()

	redis := locktest.New(t)
	locker := redis.Locker(t)
	redis.Down(t)
	err := pay(context.Background(), locker, "42", func(context.Context) error {
		fmt.Println("charged without the key")
		return nil
	})
	fmt.Println(errors.Is(err, core.ErrUnavailable), errors.Is(err, core.ErrConflict))
	// Output: true false
}

// A policy that decides as the test says shows what a call is asked about.
func ExamplePolicy() {
	t := &exampleT{} // t *testing.T
	defer t.end()

	redis := locktest.New(t)
	release := redis.Hold(t, "order:42")
	policy := &locktest.Policy{Decisions: []core.Decision{core.RetryAfter(time.Minute)}}
	guard := redis.Locker(t).Guard(policy)
	paid := make(chan error, 1)
	go func() {
		paid <- guard.Do(context.Background(), core.Call{Key: "order:42", Name: "pay"}, func(context.Context) error { return nil })
	}()

	redis.RequireWaiting(t, "order:42") // no sleep: the call has come so far
	release()                           // which wakes it
	fmt.Println(<-paid)
	for _, c := range policy.Conflicts() {
		fmt.Println(c.Call.Name, "met a held key, attempt", c.Attempt)
	}
	// Output:
	// <nil>
	// pay met a held key, attempt 1
}
