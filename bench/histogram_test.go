package main

import (
	"math"
	"testing"
	"time"
)

func TestBucketsAreExactToAFewPercent(t *testing.T) {
	for d := time.Duration(1); d < math.MaxInt64/3; d += d/7 + 1 {
		got := middle(bucket(d))
		if off := math.Abs(float64(got-d)) / float64(d); off > 1.0/32 {
			t.Fatalf("%d is counted as %d", d, got)
		}
	}
}

func TestQuantilesOfAHistogram(t *testing.T) {
	var marks tallyMarks
	for i := range 100 {
		marks.add(time.Duration(i+1) * time.Millisecond)
	}
	h := histogram{}
	h.addMarks(&marks)
	for q, want := range map[float64]time.Duration{0.5: 51 * time.Millisecond, 0.99: 100 * time.Millisecond} {
		got := h.quantile(q)
		if (got - want).Abs() > want/32 {
			t.Errorf("quantile %v is %v, want about %v", q, got, want)
		}
	}
	if got := (histogram{}).quantile(0.5); got != 0 {
		t.Errorf("quantile of nothing is %v", got)
	}
}
