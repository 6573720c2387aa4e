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
// that they wait for. Rounds without an observer, with spans that are not sampled, and with spans that are batched and
// thrown away take turns; "unsampled" and "sampled" are the medians of their throughput over that of the round without.
func BenchmarkLocks(b *testing.B) {
	for name, keys := range map[string]int{"free": 10_000, "waits": 16} {
		b.Run(name, func(b *testing.B) {
			env := redistest.Real(b)
			unsampled := sdk.NewTracerProvider(sdk.WithSampler(sdk.NeverSample()))
			sampled := sdk.NewTracerProvider(sdk.WithBatcher(discard{}))
			b.Cleanup(func() { _ = errors.Join(unsampled.Shutdown(context.Background()), sampled.Shutdown(context.Background())) })
			cases := []*benchmarked{
				{provider: sampled},
				{provider: unsampled, opts: []lockotel.Option{lockotel.WithTracerProvider(unsampled)}},
				{provider: sampled, opts: []lockotel.Option{lockotel.WithTracerProvider(sampled)}},
			}
			for _, c := range cases {
				next := []core.Option{core.WithPrefix(env.Prefix), core.WithObserver(core.NopObserver{})}
				if c.opts != nil {
					next[1] = core.WithObserver(lockotel.Locks(core.NopObserver{}, c.opts...))
				}
				c.guard = testbed.NewLocker(b, env.Client(b), next...).Guard(retry.Policy{MaxWait: time.Minute})
				c.round(b, keys, 2000) // connections, scripts
			}
			var ratios [2][]float64
			for b.Loop() {
				const calls = 5000
				without := cases[0].round(b, keys, calls)
				for i, c := range cases[1:] {
					ratios[i] = append(ratios[i], without.Seconds()/c.round(b, keys, calls).Seconds())
				}
			}
			for i, unit := range []string{"unsampled", "sampled"} {
				slices.Sort(ratios[i])
				b.ReportMetric(ratios[i][len(ratios[i])/2], unit)
			}
		})
	}
}

type benchmarked struct {
	provider *sdk.TracerProvider // of the callers' spans
	opts     []lockotel.Option   // nil: without an observer
	guard    *core.Guard
}

// round is how long so many calls take.
func (c *benchmarked) round(b *testing.B, keys, calls int) time.Duration {
	b.Helper()
	const callers = 64
	tracer := c.provider.Tracer("bench")
	errs := make([]error, callers)
	var wg sync.WaitGroup
	began := time.Now()
	for i := range callers {
		wg.Go(func() {
			for n := range calls / callers {
				ctx, span := tracer.Start(context.Background(), "request")
				err := c.guard.Do(ctx, core.Call{Key: fmt.Sprint("k", (i*calls+n*31)%keys), Name: "bench"}, nothing)
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
