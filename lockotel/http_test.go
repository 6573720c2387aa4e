package lockotel_test

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"github.com/gin-gonic/gin"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/contrib/instrumentation/github.com/gin-gonic/gin/otelgin"
	"go.opentelemetry.io/otel/propagation"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/ginlock"
	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
	"github.com/perkey-go/perkey/lockotel"
)

// ginService parks at /orders/:id, behind otelgin.
func ginService(tr tracing, guard *core.Guard) http.Handler {
	gin.SetMode(gin.ReleaseMode)
	r := gin.New()
	r.Use(otelgin.Middleware("shop", otelgin.WithTracerProvider(tr.TracerProvider), otelgin.WithPropagators(propagation.TraceContext{})))
	r.POST("/orders/:id", ginlock.PerKey(guard, ginlock.Param("order:", "id"), httplock.WithAnonymous()), func(c *gin.Context) {
		handled(c.Request.Context(), tr)
		c.String(http.StatusOK, "shipped")
	})
	return r
}

// handled makes the span of what a handler does.
func handled(ctx context.Context, tr tracing) {
	_, span := tr.Tracer("test").Start(ctx, "handled")
	span.End()
}

// servers are the spans of otelgin and otelhttp, as they ended.
func (tr tracing) servers() (spans []sdk.ReadOnlySpan) {
	for _, span := range tr.Ended() {
		if span.SpanKind() == trace.SpanKindServer {
			spans = append(spans, span)
		}
	}
	return spans
}

// The client's span is the parent of the server's, which is that of the call that was refused its key and of "park". The
// replay's is the child of "run", which is linked to "park". The same with otelhttp, and without a client's span: Example.
func TestHTTP_AReplayIsLinkedToTheRequestThatParkedIt(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		tr := newTracing()
		queue := newQueue(t, env, tr)
		l := testbed.NewLocker(t, env.Client(t), core.WithPrefix(env.Prefix), core.WithObserver(lockotel.Locks(core.NopObserver{}, tr.option())))
		handler := ginService(tr, l.Guard(delayqueue.Policy(queue)))
		lease, err := testbed.NewLocker(t, env.Client(t), core.WithPrefix(env.Prefix)).Acquire(t.Context(), "order:7")
		require.NoError(t, err)

		url, client := testbed.Serve(t, handler)
		r := testbed.ToServer(t.Context(), t, url+"/orders/7", "work")
		r.Header.Set("Traceparent", clients)
		answer, err := testbed.Send(client, r)
		require.NoError(t, err)
		require.Equal(t, http.StatusAccepted, answer.Status, answer.Body)
		require.NoError(t, lease.Release(t.Context()))
		work(t, tr, queue, l, httplock.Replay(handler))
		redistest.Eventually(t, func() bool { return len(tr.named("run ship")) == 1 && len(tr.servers()) == 2 }, "it ran")

		server, replayed := tr.servers()[0], tr.servers()[1]
		if replayed.StartTime().Before(server.StartTime()) {
			server, replayed = replayed, server
		}
		require.Equal(t, strings.Split(clients, "-")[2], server.Parent().SpanID().String())
		refused, park, run := tr.one(t, "perkey.acquire"), tr.one(t, "park ship"), tr.one(t, "run ship")
		require.Equal(t, "deferred", attributesOf(refused)["perkey.outcome"])
		for _, child := range []sdk.ReadOnlySpan{refused, park} {
			require.Equal(t, server.SpanContext().SpanID(), child.Parent().SpanID(), child.Name())
			require.Equal(t, server.SpanContext().TraceID(), child.SpanContext().TraceID(), child.Name())
			require.Equal(t, "POST /orders/:id", attributesOf(child)["perkey.name"])
		}
		require.False(t, run.Parent().IsValid())
		require.Len(t, run.Links(), 1)
		require.Equal(t, park.SpanContext().SpanID(), run.Links()[0].SpanContext.SpanID())
		require.Equal(t, park.SpanContext().TraceID(), run.Links()[0].SpanContext.TraceID())
		require.Equal(t, run.SpanContext().SpanID(), replayed.Parent().SpanID(), "the replay is a child of its run")
		require.Equal(t, run.SpanContext().TraceID(), replayed.SpanContext().TraceID())
		require.Equal(t, replayed.SpanContext().SpanID(), tr.one(t, "handled").Parent().SpanID())
	})
}
