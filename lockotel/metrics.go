package lockotel

import (
	"context"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/instrumentation"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/perkey-go/perkey/ops"
)

// Producer is a metric.Producer of OpenTelemetry's SDK: it produces the metrics of a Recorder
// whenever a reader collects, and adds nothing to the cost of calls. It is safe for concurrent use.
type Producer struct{ recorder *ops.Recorder }

// NewProducer returns a Producer, for metric.WithProducer. A nil recorder has no figures.
func NewProducer(recorder *ops.Recorder) *Producer {
	if recorder == nil {
		recorder = ops.NewRecorder()
	}
	return &Producer{recorder}
}

// Produce returns all of [ops.Metrics] that have a value. Its error is always nil.
func (p *Producer) Produce(context.Context) ([]metricdata.ScopeMetrics, error) {
	s := p.recorder.Snapshot()
	byName := map[string][]ops.Sample{}
	for _, sample := range s.Samples() {
		byName[sample.Metric.Name] = append(byName[sample.Metric.Name], sample)
	}
	scope := metricdata.ScopeMetrics{Scope: instrumentation.Scope{Name: ScopeName}}
	for _, m := range ops.Metrics() {
		if samples := byName[m.Name]; samples != nil {
			name, unit := nameOf(m)
			scope.Metrics = append(scope.Metrics, metricdata.Metrics{Name: name, Description: m.Help, Unit: unit, Data: dataOf(m, samples, s)})
		}
	}
	return []metricdata.ScopeMetrics{scope}, nil
}

// nameOf is the name of a metric, with dots and without its unit and _total. Prometheus's exporters put those back.
func nameOf(m ops.Metric) (name, unit string) {
	name, timed := strings.CutSuffix(strings.TrimSuffix(m.Name, "_total"), "_seconds")
	if timed {
		unit = "s"
	}
	return strings.ReplaceAll(name, "_", "."), unit
}

func dataOf(m ops.Metric, samples []ops.Sample, s ops.Snapshot) metricdata.Aggregation {
	if m.Type == "histogram" {
		h := metricdata.Histogram[float64]{Temporality: metricdata.CumulativeTemporality}
		for _, sample := range samples {
			h.DataPoints = append(h.DataPoints, histogramPoint(sample, s))
		}
		return h
	}
	points := make([]metricdata.DataPoint[float64], len(samples))
	for i, sample := range samples {
		points[i] = metricdata.DataPoint[float64]{Attributes: attributesOf(sample), StartTime: s.Since, Time: s.At, Value: sample.Value}
	}
	if m.Type == "counter" {
		return metricdata.Sum[float64]{Temporality: metricdata.CumulativeTemporality, IsMonotonic: true, DataPoints: points}
	}
	return metricdata.Gauge[float64]{DataPoints: points}
}

func histogramPoint(sample ops.Sample, s ops.Snapshot) metricdata.HistogramDataPoint[float64] {
	h := sample.Histogram
	p := metricdata.HistogramDataPoint[float64]{
		Attributes: attributesOf(sample), StartTime: s.Since, Time: s.At, Count: uint64(h.Count), Sum: h.Sum.Seconds(),
	}
	for _, b := range h.Buckets {
		p.Bounds = append(p.Bounds, b.AtMost.Seconds())
		p.BucketCounts = append(p.BucketCounts, uint64(b.Count))
	}
	p.BucketCounts = append(p.BucketCounts, uint64(h.Over))
	return p
}

func attributesOf(sample ops.Sample) attribute.Set {
	all := make([]attribute.KeyValue, len(sample.Labels))
	for i, label := range sample.Metric.Labels {
		all[i] = attribute.String(label, sample.Labels[i])
	}
	return attribute.NewSet(all...)
}
