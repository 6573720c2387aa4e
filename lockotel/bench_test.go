package lockotel_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	sdk "go.opentelemetry.io/otel/sdk/trace"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
	"github.com/perkey-go/perkey/lockotel"
	"github.com/perkey-go/perkey/retry"
)

// discard is an exporter that throws spans away.
type discard struct{}

func (discard) ExportSpans(context.Context, []sdk.ReadOnlySpan) error { return nil }
func (discard) Shutdown(context.Context) error                        { return nil }

// BenchmarkLocks has 64 goroutines take keys and release them, under a span each: of 10,000 keys, that are free, and of 16 keys,
// that they wait for. Rounds with and without the observer take turns, in spans that are not sampled, and in spans that are
// batched and thrown away; the metrics are the medians of the throughput with it over that without.
func BenchmarkLocks(b *testing.B) {
	for name, keys := range map[string]int{"free": 10_000, "waits": 16} {
		b.Run(name, func(b *testing.B) {
			env := redistest.Real(b)
			guard := func(observer core.Observer) *core.Guard {
				l := testbed.NewLocker(b, env.Client(b), core.WithPrefix(env.Prefix), core.WithObserver(observer))
				return l.Guard(retry.Policy{MaxWait: time.Minute})
			}
			without := guard(core.NopObserver{})
			rows := []*row{
				{unit: "unsampled", provider: sdk.NewTracerProvider(sdk.WithSampler(sdk.NeverSample()))},
				{unit: "sampled", provider: sdk.NewTracerProvider(sdk.WithBatcher(discard{}))},
			}
			for _, r := range rows {
				b.Cleanup(func() { _ = r.provider.Shutdown(context.Background()) })
				r.with = guard(lockotel.Locks(core.NopObserver{}, lockotel.WithTracerProvider(r.provider)))
				r.round(b, without, keys) // connections and scripts
				r.round(b, r.with, keys)
			}
			for b.Loop() {
				for _, r := range rows {
					r.ratios = append(r.ratios, r.round(b, without, keys).Seconds()/r.round(b, r.with, keys).Seconds())
				}
			}
			for _, r := range rows {
				slices.Sort(r.ratios)
				b.ReportMetric(r.ratios[len(r.ratios)/2], r.unit)
			}
		})
	}
}

// row is one kind of callers' spans.
type row struct {
	unit     string
	provider *sdk.TracerProvider
	with     *core.Guard
	ratios   []float64
}

// round is how long 5,000 calls of a guard take.
func (r *row) round(b *testing.B, guard *core.Guard, keys int) time.Duration {
	b.Helper()
	const callers, calls = 64, 5000
	tracer := r.provider.Tracer("bench")
	errs := make([]error, callers)
	var wg sync.WaitGroup
	began := time.Now()
	for i := range callers {
		wg.Go(func() {
			for n := range calls / callers {
				ctx, span := tracer.Start(context.Background(), "request")
				err := guard.Do(ctx, core.Call{Key: fmt.Sprint("k", (i*calls+n*31)%keys), Name: "bench"}, nothing)
				span.End()
				if err != nil {
					errs[i] = err
				}
			}
		})
	}
	wg.Wait()
	took := time.Since(began)
	require.NoError(b, errors.Join(errs...))
	return took
}

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
