package core_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/test/embedded"
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

// open returns a Locker, as ExampleLocker_Do makes one.
func open(rdb *redis.Client, opts ...core.Option) *core.Locker {
	locker, err := core.New(rdb, opts...)
	if err != nil {
		panic(err)
	}
	return locker
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

// A cron job is started in each of three replicas. One of them runs it; here the replicas are three Lockers.
func ExampleLocker_Once() {
	rdb, closeAll := connect()
	defer closeAll()
	tick := func(replica int) {
		locker := open(rdb)
		defer func() { _ = locker.Close() }()

		ran, err := locker.Once(context.Background(), "cron:report", time.Hour, func(context.Context) error {
			fmt.Println("the report is made")
			return nil
		})
		fmt.Println("replica", replica, ran, err)
	}
	for replica := range 3 {
		tick(replica)
	}
	// Output:
	// the report is made
	// replica 0 true <nil>
	// replica 1 false <nil>
	// replica 2 false <nil>
}

// Two replicas are candidates. When the first is shut down the second leads.
func ExampleLocker_Lead() {
	rdb, closeAll := connect()
	defer closeAll()
	ctx := context.Background()
	started := make(chan int)
	var replicas [2]*core.Locker
	var done sync.WaitGroup
	for i := range replicas {
		locker := open(rdb)
		replicas[i] = locker
		done.Go(func() {
			err := locker.Lead(ctx, "scheduler", func(ctx context.Context) error {
				started <- i
				<-ctx.Done() // schedules until then
				return context.Cause(ctx)
			})
			if !errors.Is(err, core.ErrClosed) {
				fmt.Println(err)
			}
		})
	}
	first := <-started
	fmt.Println("one of them leads")
	fmt.Println(replicas[first].Shutdown(ctx))
	second := <-started
	fmt.Println("the other one leads:", second == 1-first)
	fmt.Println(replicas[second].Shutdown(ctx))
	done.Wait()
	// Output:
	// one of them leads
	// <nil>
	// the other one leads: true
	// <nil>
}

func ExampleLocker_Guard() {
	rdb, closeAll := connect()
	defer closeAll()
	locker := open(rdb)
	defer func() { _ = locker.Close() }()

	guard := locker.Guard(core.RejectConflicts)
	ctx, call := context.Background(), core.Call{Key: "order:42"}
	err := guard.Do(ctx, call, func(context.Context) error {
		second := guard.Do(ctx, call, func(context.Context) error { return nil })
		fmt.Println(errors.Is(second, core.ErrConflict))
		return nil
	})
	fmt.Println(err)
	// Output:
	// true
	// <nil>
}

func ExampleLocker_TryAcquire() {
	rdb, closeAll := connect()
	defer closeAll()
	locker := open(rdb)
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
	server := open(rdb)
	defer func() { _ = server.Close() }()
	worker := open(rdb)
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
	_, err := server.TryAcquire(ctx, "order:42")
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

// ordersTable stands in for a table of a database: CREATE TABLE orders (id text PRIMARY KEY, status text
// NOT NULL, fence bigint NOT NULL DEFAULT 0). Each method is one statement.
type ordersTable map[string]*struct {
	status string
	fence  int64
}

// claim is UPDATE orders SET fence = $1 WHERE id = $2 AND fence <= $1.
func (t ordersTable) claim(fence int64, id string) (rows int) {
	if t[id].fence > fence {
		return 0
	}
	t[id].fence = fence
	return 1
}

// status is SELECT status FROM orders WHERE id = $1.
func (t ordersTable) status(id string) string { return t[id].status }

// setStatus is UPDATE orders SET status = $3 WHERE id = $2 AND fence = $1.
func (t ordersTable) setStatus(fence int64, id, status string) (rows int) {
	if t[id].fence != fence {
		return 0
	}
	t[id].status = status
	return 1
}

// The fence is claimed before anything is read. From then on the table takes no write of an earlier
// holder, also of one that has read before, lost its lease and does not know yet.
func ExampleLease_Fence() {
	rdb, closeAll := connect()
	defer closeAll()
	locker := open(rdb)
	defer func() { _ = locker.Close() }()
	orders := ordersTable{"42": {status: "open"}}

	errOvertaken := errors.New("a newer holder was here")
	pay := func(ctx context.Context, afterRead func()) error {
		lease, _ := core.LeaseFrom(ctx)
		if orders.claim(lease.Fence(), "42") == 0 {
			return errOvertaken
		}
		status := orders.status("42")
		afterRead()
		if status == "paid" {
			fmt.Println("already paid")
			return nil
		}
		if orders.setStatus(lease.Fence(), "42", "paid") == 0 {
			return errOvertaken
		}
		fmt.Println("paid")
		return nil
	}

	ctx, goOn := context.Background(), func() {}
	err := locker.Do(ctx, "order:42", func(stale context.Context) error {
		return pay(stale, func() {
			// The holder is stopped here, and its key goes to another one.
			lease, _ := core.LeaseFrom(stale)
			_, _ = locker.ForceRelease(ctx, "order:42", lease.Fence())
			_ = locker.Do(ctx, "order:42", func(ctx context.Context) error { return pay(ctx, goOn) })
		})
	})
	fmt.Println(errors.Is(err, errOvertaken))
	_ = locker.Do(ctx, "order:42", func(ctx context.Context) error { return pay(ctx, goOn) })
	// Output:
	// paid
	// true
	// already paid
}

// metrics is an observer that counts. A real one has counters of its metrics library.
type metrics struct {
	core.NopObserver
	mu    sync.Mutex
	calls map[core.OutcomeKind]int
	held  int
}

func (m *metrics) OnOutcome(_ context.Context, e core.Outcome) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.calls[e.Kind]++
	m.held += e.Leases
}

func (m *metrics) OnReleased(context.Context, core.Released) { m.gone() }
func (m *metrics) OnLost(context.Context, core.Lost)         { m.gone() }

func (m *metrics) gone() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.held--
}

func ExampleObserver() {
	rdb, closeAll := connect()
	defer closeAll()
	m := &metrics{calls: map[core.OutcomeKind]int{}}
	locker := open(rdb, core.WithObserver(m))
	defer func() { _ = locker.Close() }()

	ctx := context.Background()
	lease, err := locker.TryAcquire(ctx, "order:42")
	fmt.Println(err, m.calls, m.held)
	_, err = locker.TryAcquire(ctx, "order:42")
	fmt.Println(errors.Is(err, core.ErrConflict), m.calls, m.held)
	fmt.Println(lease.Release(ctx), m.calls, m.held)
	// Output:
	// <nil> map[acquired:1] 1
	// true map[acquired:1 conflict:1] 1
	// <nil> map[acquired:1 conflict:1] 0
}
