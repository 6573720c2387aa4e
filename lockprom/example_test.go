package lockprom_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/internal/test/embedded"
	"github.com/perkey-go/perkey/lockprom"
	"github.com/perkey-go/perkey/ops"
)

func Example() {
	rdb, closeAll := embedded.Connect() // a client of your Redis
	defer closeAll()
	ctx := context.Background()

	recorder := ops.NewRecorder()
	locker, err := core.New(rdb, core.WithObserver(recorder.Locks(core.SlogObserver(nil))))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = locker.Close() }()
	queue, err := delayqueue.New(rdb, "ship", delayqueue.WithQueueObserver(recorder.Queues(nil)))
	if err != nil {
		fmt.Println(err)
		return
	}
	prometheus.MustRegister(lockprom.New(recorder, queue))
	http.Handle("GET /metrics", promhttp.Handler())

	lease, err := locker.TryAcquire(ctx, "order:42", core.Named("pay", ""))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = lease.Release(ctx) }()
	_, err = queue.Enqueue(ctx, delayqueue.Job{Key: "order:42"})
	fmt.Println(err)

	w := httptest.NewRecorder()
	http.DefaultServeMux.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	for line := range strings.Lines(w.Body.String()) {
		if strings.HasPrefix(line, "perkey_lock_held{") || strings.HasPrefix(line, "perkey_queue_due{") {
			fmt.Print(line)
		}
	}
	// Output:
	// <nil>
	// perkey_lock_held{name="pay"} 1
	// perkey_queue_due{queue="ship"} 1
}
