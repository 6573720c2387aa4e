package lockotel_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/idempotency"
	"github.com/perkey-go/perkey/lockotel"
	"github.com/perkey-go/perkey/ops"
)

// toldOfAll is a Recorder that each source has told of something, each kind as often as no other.
func toldOfAll(ctx context.Context) *ops.Recorder {
	r := ops.NewRecorder()
	n := 0
	tell := func(what func()) {
		n++
		for range n {
			what()
		}
	}
	locks, queues := r.Locks(core.NopObserver{}), r.Queues(delayqueue.NopObserver{})
	for _, kind := range []core.OutcomeKind{core.OutcomeAcquired, core.OutcomeConflict, core.OutcomeShed} {
		tell(func() { locks.OnWaiting(ctx, core.Waiting{Key: "secret", Name: "pay"}) })
		tell(func() {
			locks.OnOutcome(ctx, core.Outcome{Kind: kind, Name: "pay", Key: "secret", Leases: 1, DidWait: true, Waited: time.Duration(n) * time.Second})
		})
	}
	tell(func() {
		locks.OnReleased(ctx, core.Released{Key: "secret", Name: "pay", Held: time.Hour, Err: errors.New("secret")})
	})
	tell(func() {
		locks.OnLost(ctx, core.Lost{Key: "secret", Name: "pay", Kind: core.LossForced, Held: time.Millisecond})
	})
	tell(func() {
		locks.OnRenewed(ctx, core.Renewed{Leases: 3, Latency: time.Millisecond, Err: errors.New("secret")})
	})
	locks.OnWarning(ctx, core.Warning{Kind: core.WarnUnreachable, Node: "secret:6379"})
	tell(func() { queues.OnEnqueued(ctx, delayqueue.Enqueued{Queue: "ship", Kind: delayqueue.EnqueueStored}) })
	tell(func() { queues.OnSettled(ctx, delayqueue.Settled{Queue: "ship", Outcome: delayqueue.OutcomeDead}) })
	tell(func() { queues.OnReaped(ctx, delayqueue.Reaped{Queue: "ship", Redelivered: 2, Expired: 1}) })
	tell(func() { r.Requests(nil).OnOutcome(ctx, httplock.Outcome{Name: "POST /pay", Kind: httplock.OutcomeRan}) })
	tell(func() { r.Idempotency(nil).OnEvent(ctx, idempotency.Event{Kind: idempotency.EventBegun}) })
	tell(func() { r.CountTask("mail", "done") })
	tell(func() { r.CountReload("refused", 2, strings.Repeat("0123456789abcdef", 4)) })
	return r
}

// prometheusName is how exporters to Prometheus write a name.
func prometheusName(m metricdata.Metrics) string {
	name := strings.ReplaceAll(m.Name, ".", "_")
	if m.Unit == "s" {
		name += "_seconds"
	}
	if sum, ok := m.Data.(metricdata.Sum[float64]); ok && sum.IsMonotonic {
		name += "_total"
	}
	return name
}

// series is a sample as one line.
func series(t *testing.T, name string, labels map[string]string, value any) string {
	t.Helper()
	text, err := json.Marshal(labels)
	require.NoError(t, err)
	return fmt.Sprintf("%s%s %v", name, text, value)
}

func labelsOf(set attribute.Set) map[string]string {
	all := map[string]string{}
	for _, kv := range set.ToSlice() {
		all[string(kv.Key)] = kv.Value.AsString()
	}
	return all
}

// samplesOf are the series of a Recorder's Samples.
func samplesOf(t *testing.T, recorder *ops.Recorder) []string {
	t.Helper()
	all := []string{}
	for _, s := range recorder.Snapshot().Samples() {
		labels, value := map[string]string{}, any(s.Value)
		for i, label := range s.Metric.Labels {
			labels[label] = s.Labels[i]
		}
		if h := s.Histogram; h != nil {
			bounds, counts := []float64{}, []int64{}
			for _, b := range h.Buckets {
				bounds, counts = append(bounds, b.AtMost.Seconds()), append(counts, b.Count)
			}
			value = fmt.Sprint(bounds, append(counts, h.Over), h.Count, h.Sum.Seconds())
		}
		all = append(all, series(t, s.Metric.Name, labels, value))
	}
	slices.Sort(all)
	return all
}

// What a reader collects is what lockprom exports, of all sources: both have the Samples.
func TestProducer_ProducesEachSample(t *testing.T) {
	t.Parallel()
	recorder := toldOfAll(t.Context())
	reader := metric.NewManualReader(metric.WithProducer(lockotel.NewProducer(recorder)))
	t.Cleanup(func() { _ = reader.Shutdown(context.WithoutCancel(t.Context())) })
	_ = metric.NewMeterProvider(metric.WithReader(reader))
	var collected metricdata.ResourceMetrics
	require.NoError(t, reader.Collect(t.Context(), &collected))
	require.Len(t, collected.ScopeMetrics, 1)
	assert.Equal(t, lockotel.ScopeName, collected.ScopeMetrics[0].Scope.Name)

	kinds, got := map[string]string{}, []string{}
	for _, m := range collected.ScopeMetrics[0].Metrics {
		name := prometheusName(m)
		assert.NotRegexp(t, `_|seconds|total`, m.Name)
		point := func(p metricdata.DataPoint[float64]) {
			got = append(got, series(t, name, labelsOf(p.Attributes), p.Value))
			assert.WithinDuration(t, time.Now(), p.Time, time.Minute)
			assert.False(t, p.StartTime.IsZero() || p.StartTime.After(p.Time))
		}
		switch data := m.Data.(type) {
		case metricdata.Sum[float64]:
			kinds[name] = "counter"
			assert.Equal(t, metricdata.CumulativeTemporality, data.Temporality)
			assert.True(t, data.IsMonotonic)
			for _, p := range data.DataPoints {
				point(p)
			}
		case metricdata.Gauge[float64]:
			kinds[name] = "gauge"
			for _, p := range data.DataPoints {
				point(p)
			}
		case metricdata.Histogram[float64]:
			kinds[name] = "histogram"
			assert.Equal(t, metricdata.CumulativeTemporality, data.Temporality)
			for _, p := range data.DataPoints {
				got = append(got, series(t, name, labelsOf(p.Attributes), fmt.Sprint(p.Bounds, p.BucketCounts, p.Count, p.Sum)))
			}
		}
	}

	slices.Sort(got)
	assert.Equal(t, samplesOf(t, recorder), got)
	assert.NotContains(t, strings.Join(got, "\n"), "secret")
	for _, m := range ops.Metrics() {
		assert.Equal(t, m.Type, kinds[m.Name], "%s: its source has told", m.Name)
	}
}

func TestProducer_OfNothing(t *testing.T) {
	t.Parallel()
	all, err := lockotel.NewProducer(nil).Produce(t.Context())
	require.NoError(t, err)
	var names []string
	for _, m := range all[0].Metrics {
		names = append(names, m.Name)
	}
	assert.Contains(t, names, "perkey.build.info")
	assert.Contains(t, names, "perkey.renewals")
	assert.NotContains(t, names, "perkey.lock.calls")
}
