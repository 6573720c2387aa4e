package lockprom

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/ops"
)

// statsTimeout is how long a scrape waits for a queue's Redis.
const statsTimeout = time.Second

// Collector is a prometheus.Collector of the metrics of a Recorder, and of queues. It is safe for
// concurrent use.
type Collector struct {
	recorder *ops.Recorder
	queues   []*delayqueue.Queue
}

var _ prometheus.Collector = (*Collector)(nil)

// New returns a Collector of what recorder counts, and of what Redis says of queues, if
// any. Each scrape calls [delayqueue.Queue.Stats] of each of them once, and waits for a
// second at most. Of queues with the same name only the first is collected. A nil
// recorder has no figures.
func New(recorder *ops.Recorder, queues ...*delayqueue.Queue) *Collector {
	if recorder == nil {
		recorder = ops.NewRecorder()
	}
	c := &Collector{recorder: recorder}
	for _, q := range queues {
		if q != nil && !slices.ContainsFunc(c.queues, func(other *delayqueue.Queue) bool { return other.Name() == q.Name() }) {
			c.queues = append(c.queues, q)
		}
	}
	return c
}

// Describe implements [prometheus.Collector].
func (c *Collector) Describe(to chan<- *prometheus.Desc) {
	for _, m := range counted {
		to <- m.desc
	}
	for _, m := range queueTable {
		to <- m.desc
	}
}

// Collect implements [prometheus.Collector].
func (c *Collector) Collect(to chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), statsTimeout)
	defer cancel()
	var asking sync.WaitGroup
	defer asking.Wait()
	for _, q := range c.queues {
		asking.Go(func() { collectQueue(ctx, to, q) })
	}
	for _, s := range c.recorder.Snapshot().Samples() {
		if m := counted[s.Metric.Name]; s.Histogram != nil {
			to <- m.histogram(s.Histogram, s.Labels)
		} else {
			to <- m.of(s.Value, s.Labels...)
		}
	}
}

// answer is what ask returns, or ctx's error once that has ended: go-redis may ignore ctx, and ask's goroutine ends when that has given up.
func answer[T any](ctx context.Context, ask func() (T, error)) (T, error) {
	type reply struct {
		value T
		err   error
	}
	replies := make(chan reply, 1)
	go func() {
		value, err := ask()
		replies <- reply{value, err}
	}()
	select {
	case r := <-replies:
		return r.value, r.err
	case <-ctx.Done():
		var none T
		return none, ctx.Err()
	}
}

// collectQueue returns what Redis says of a queue, if it does.
func collectQueue(ctx context.Context, to chan<- prometheus.Metric, q *delayqueue.Queue) (s delayqueue.Stats, ok bool) {
	name := q.Name()
	s, err := answer(ctx, func() (delayqueue.Stats, error) { return q.Stats(ctx) })
	if err != nil {
		to <- queueUp.of(0, name)
		return s, false
	}
	to <- queueUp.of(1, name)
	for state, n := range map[string]int64{"queued": s.Queued, "running": s.Running, "dead": s.Dead} {
		to <- queueMessages.of(float64(n), name, state)
	}
	to <- queueDue.of(float64(s.Due), name)
	to <- queueLateness.of(s.Lateness.Seconds(), name)
	to <- queuePaused.of(oneIf(s.Paused), name)
	to <- queueHalted.of(float64(s.Halted), name)
	to <- queueBytes.of(float64(s.Bytes), name)
	for how, n := range map[string]int64{
		"done": s.Totals.Done, "expired": s.Totals.Expired, "cancelled": s.Totals.Cancelled, "died": s.Totals.Died, "superseded": s.Totals.Superseded,
	} {
		to <- queueEnded.of(float64(n), name, how)
	}
	return s, true
}

func oneIf(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

func (m *metric) of(value float64, labels ...string) prometheus.Metric {
	kind := prometheus.GaugeValue
	if m.Type == counter {
		kind = prometheus.CounterValue
	}
	return prometheus.MustNewConstMetric(m.desc, kind, value, labels...)
}

func (m *metric) histogram(h *ops.Histogram, labels []string) prometheus.Metric {
	buckets, below := make(map[float64]uint64, len(h.Buckets)), uint64(0)
	for _, b := range h.Buckets {
		below += uint64(b.Count)
		buckets[b.AtMost.Seconds()] = below
	}
	return prometheus.MustNewConstHistogram(m.desc, uint64(h.Count), h.Sum.Seconds(), buckets, labels...)
}
