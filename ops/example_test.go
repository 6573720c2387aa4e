package ops_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/hibiken/asynq"

	"github.com/perkey-go/perkey/asynqlock"
	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/idempotency"
	"github.com/perkey-go/perkey/internal/test/embedded"
	"github.com/perkey-go/perkey/ops"
)

func Example() {
	rdb, closeAll := embedded.Connect() // a client of your Redis
	defer closeAll()

	recorder := ops.NewRecorder()
	locker, err := core.New(rdb, core.WithObserver(recorder.Locks(core.SlogObserver(nil))))
	must(err)
	defer func() { _ = locker.Close() }()
	queue, err := delayqueue.New(rdb, "ship", delayqueue.WithQueueObserver(recorder.Queues(nil)))
	must(err)
	store, err := idempotency.New(rdb, idempotency.WithObserver(recorder.Idempotency(nil)))
	must(err)

	guard, key := locker.Guard(core.RejectConflicts), httplock.Param("order:", "id")
	guarded := httplock.PerKey(guard, key, httplock.WithIdempotency(store), httplock.WithAnonymous(), httplock.WithObserver(recorder.Requests(nil)))
	tasks := asynqlock.PerKey(guard, asynqlock.JSONField("wallet:", "user_id"), asynqlock.WithRecorder(recorder))

	mux := http.NewServeMux()
	mux.Handle("POST /orders/{id}/pay", guarded(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := queue.Enqueue(r.Context(), delayqueue.Job{Key: "order:" + r.PathValue("id")}); err != nil {
			http.Error(w, "try again", http.StatusServiceUnavailable)
		}
	})))
	for range 2 {
		r := httptest.NewRequest(http.MethodPost, "/orders/42/pay", nil)
		r.Header.Set("Idempotency-Key", "a")
		mux.ServeHTTP(httptest.NewRecorder(), r)
	}
	mail := tasks(asynq.HandlerFunc(func(context.Context, *asynq.Task) error { return nil }))
	must(mail.ProcessTask(context.Background(), asynq.NewTask("mail", []byte(`{"user_id": 7}`))))

	s := recorder.Snapshot()
	for _, route := range s.Requests {
		fmt.Println(route.Route, "ran:", route.Outcomes[httplock.OutcomeRan], "duplicate:", route.Outcomes[httplock.OutcomeDuplicate])
	}
	fmt.Println("responses replayed:", s.Idempotency[idempotency.EventReplayed])
	fmt.Println(s.Tasks[0].Type, "done:", s.Tasks[0].Outcomes["done"])
	fmt.Println(s.Queues[0].Queue, "stored:", s.Queues[0].Enqueued[delayqueue.EnqueueStored])
	for _, name := range s.Locks {
		fmt.Println(name.Name, "held now:", name.Held)
	}
	// Output:
	// POST /orders/{id}/pay ran: 1 duplicate: 1
	// responses replayed: 1
	// mail done: 1
	// ship stored: 1
	// POST /orders/{id}/pay held now: 0
	// mail held now: 0
}

// A process tells of itself, and an operator's program shows which keys all processes hold.
func ExampleStartBeacon() {
	rdb, closeAll := embedded.Connect() // a client of your Redis
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
	rdb, closeAll := embedded.Connect() // a client of your Redis
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

func must(err error) {
	if err != nil {
		panic(err)
	}
}

// A page that has read INFO anyway gives what it has: nothing is found of what it did not ask.
func ExampleFacts_Findings() {
	const info = "maxmemory_policy:allkeys-lru\r\nmaxmemory:0\r\nevicted_keys:0\r\n"
	facts := ops.Facts{Servers: ops.Reading[[]ops.Server]{At: time.Now(), Value: []ops.Server{{Addr: "redis:6379", Info: ops.ParseInfo(info)}}}}
	for _, f := range facts.Findings(time.Now()) {
		fmt.Println(f.Severity, f.Area, f.Text, f.Evidence[0])
	}
	// Output:
	// act redis redis:6379 may evict the records of held keys. maxmemory-policy: allkeys-lru (want noeviction)
}
