package lockotel_test

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"

	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/internal/test/embedded"
	"github.com/perkey-go/perkey/lockotel"
	"github.com/perkey-go/perkey/ops"
)

// A request whose order is held is parked. The span of its run is linked to that of its request.
func Example() {
	rdb, closeAll := embedded.Connect() // a client of your Redis
	defer closeAll()
	ctx := context.Background()
	recorder := tracetest.NewSpanRecorder() // yours has an exporter
	provider := sdk.NewTracerProvider(sdk.WithSpanProcessor(recorder))
	ours := lockotel.WithTracerProvider(provider) // not needed after otel.SetTracerProvider(provider)

	locker, err := core.New(rdb, core.WithObserver(lockotel.Locks(nil, ours)))
	check(err)
	defer func() { _ = locker.Close() }()
	queue, err := delayqueue.New(rdb, "ship", delayqueue.WithQueueObserver(lockotel.Queues(nil, ours)))
	check(err)

	shipped := make(chan struct{})
	ship := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { close(shipped) })
	const route = "POST /orders/{id}/ship"
	mux, guard := http.NewServeMux(), locker.Guard(delayqueue.Policy(queue))
	mux.Handle(route, httplock.PerKey(guard, httplock.Param("order:", "id"), httplock.WithAnonymous())(ship))
	handler := otelhttp.NewHandler(mux, route, otelhttp.WithTracerProvider(provider))
	worker, err := delayqueue.NewWorker(queue, locker, httplock.Replay(handler),
		delayqueue.WithMiddleware(lockotel.Middleware("ship", ours)))
	check(err)

	lease, err := locker.TryAcquire(ctx, "order:42") // somebody works on it
	check(err)
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/orders/42/ship", nil))
	fmt.Println(w.Code)
	check(lease.Release(ctx))
	check(worker.Start())
	<-shipped
	check(worker.Stop(ctx))
	show(recorder.Ended())
	// Output:
	// 202
	// park ship, in POST /orders/{id}/ship
	// perkey.acquire, in POST /orders/{id}/ship
	// POST /orders/{id}/ship
	// POST /orders/{id}/ship, in run ship
	// run ship, linked to park ship
}

// The Recorder's metrics go where the reader's exporter sends them.
func ExampleNewProducer() {
	recorder := ops.NewRecorder()     // give its observers to Lockers, queues and routes
	reader := metric.NewManualReader( // yours is metric.NewPeriodicReader(exporter, …)
		metric.WithProducer(lockotel.NewProducer(recorder)))
	provider := metric.NewMeterProvider(metric.WithReader(reader))
	defer func() { _ = provider.Shutdown(context.Background()) }()

	recorder.CountTask("mail", "done")
	var collected metricdata.ResourceMetrics
	check(reader.Collect(context.Background(), &collected))
	for _, m := range collected.ScopeMetrics[0].Metrics {
		if sum, ok := m.Data.(metricdata.Sum[float64]); ok && m.Name == "perkey.tasks" {
			for _, point := range sum.DataPoints {
				if point.Value > 0 {
					fmt.Println(point.Attributes.Encoded(attribute.DefaultEncoder()), point.Value)
				}
			}
		}
	}
	// Output: outcome=done,type=mail 1
}

// show prints spans with their parents and links.
func show(spans []sdk.ReadOnlySpan) {
	names := map[trace.SpanID]string{}
	for _, span := range spans {
		names[span.SpanContext().SpanID()] = span.Name()
	}
	for _, span := range spans {
		text := span.Name()
		if parent := names[span.Parent().SpanID()]; parent != "" {
			text += ", in " + parent
		}
		for _, link := range span.Links() {
			text += ", linked to " + names[link.SpanContext.SpanID()]
		}
		fmt.Println(text)
	}
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
