package main

import (
	"math/bits"
	"time"
)

// histogram counts durations with an error of at most 1/64: 32 buckets to each
// power of two of nanoseconds.
type histogram map[int]int

// tallyMarks is a histogram that costs nothing to fill.
type tallyMarks [59 * 32]uint32

func (t *tallyMarks) add(d time.Duration) { t[bucket(d)]++ }

func bucket(d time.Duration) int {
	v := uint64(max(d, 0))
	if v < 32 {
		return int(v)
	}
	shift := bits.Len64(v) - 6
	return shift*32 + int(v>>shift)
}

// middle is the duration that a bucket stands for.
func middle(bucket int) time.Duration {
	if bucket < 64 {
		return time.Duration(bucket)
	}
	shift := bucket/32 - 1
	return time.Duration(bucket%32+32)<<shift + 1<<shift/2
}

func (h histogram) addMarks(t *tallyMarks) {
	for i, n := range t {
		if n > 0 {
			h[i] += int(n)
		}
	}
}

func (h histogram) add(other histogram) {
	for i, n := range other {
		h[i] += n
	}
}

// quantile is 0 of an empty histogram.
func (h histogram) quantile(q float64) time.Duration {
	total := 0
	for _, n := range h {
		total += n
	}
	rank := int(q * float64(total))
	for i := range len(tallyMarks{}) {
		if rank -= h[i]; rank < 0 {
			return middle(i)
		}
	}
	return 0
}
