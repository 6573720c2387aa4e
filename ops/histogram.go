package ops

import (
	"sync/atomic"
	"time"
)

// Bounds are the upper bounds of the buckets of each [Histogram].
var bounds = [...]time.Duration{
	time.Millisecond, 5 * time.Millisecond, 10 * time.Millisecond, 50 * time.Millisecond, 100 * time.Millisecond,
	500 * time.Millisecond, time.Second, 5 * time.Second, 10 * time.Second, 30 * time.Second, time.Minute, 5 * time.Minute,
}

// Histogram is a distribution of times.
type Histogram struct {
	// Buckets are in ascending order; each counts what is longer than the bound before it, and no longer than its own. Over
	// counts what is longer than the last.
	Buckets []Bucket
	Over    int64
	// Count is how many times were counted, and Sum is their sum.
	Count int64
	Sum   time.Duration
}

// Bucket is a bucket of a [Histogram]: Count values were AtMost so long, and longer than the bucket
// before.
type Bucket struct {
	AtMost time.Duration
	Count  int64
}

type histogram struct {
	counts [len(bounds) + 1]atomic.Int64
	sum    atomic.Int64
}

func (h *histogram) add(d time.Duration) {
	i := 0
	for i < len(bounds) && d > bounds[i] {
		i++
	}
	h.counts[i].Add(1)
	h.sum.Add(int64(d))
}

func (h *histogram) snapshot() Histogram {
	s := Histogram{Buckets: make([]Bucket, len(bounds)), Over: h.counts[len(bounds)].Load(), Sum: time.Duration(h.sum.Load())}
	s.Count = s.Over
	for i, bound := range bounds {
		s.Buckets[i] = Bucket{bound, h.counts[i].Load()}
		s.Count += s.Buckets[i].Count
	}
	return s
}
