package lockotel_test

import (
	"context"
	"testing"
	"time"

	sdk "go.opentelemetry.io/otel/sdk/trace"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/lockotel"
)

// discard is an exporter that throws spans away.
type discard struct{}

func (discard) ExportSpans(context.Context, []sdk.ReadOnlySpan) error { return nil }
func (discard) Shutdown(context.Context) error                        { return nil }

// BenchmarkOutcome is what a call's end costs, by what the call's ctx has and whether it waited.
func BenchmarkOutcome(b *testing.B) {
	unsampled := sdk.NewTracerProvider(sdk.WithSampler(sdk.NeverSample()))
	sampled := sdk.NewTracerProvider(sdk.WithBatcher(discard{}))
	b.Cleanup(func() { _ = sampled.Shutdown(context.Background()) })
	for name, provider := range map[string]*sdk.TracerProvider{"unsampled": unsampled, "sampled": sampled} {
		o := lockotel.Locks(core.NopObserver{}, lockotel.WithTracerProvider(provider))
		ctx, span := provider.Tracer("bench").Start(context.Background(), "request")
		b.Cleanup(func() { span.End() })
		free := core.Outcome{Kind: core.OutcomeAcquired, Key: "k", Name: "bench", Mode: core.ModeExclusive, Leases: 1, Attempts: 1, Waited: 500 * time.Microsecond}
		waited := free
		waited.DidWait, waited.Waited = true, 2*time.Millisecond
		for _, c := range []struct {
			name string
			ctx  context.Context
			e    core.Outcome
		}{{"free/" + name, ctx, free}, {"waited/" + name, ctx, waited}, {"waited/none", context.Background(), waited}} {
			b.Run(c.name, func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					o.OnOutcome(c.ctx, c.e)
				}
			})
		}
	}
}
