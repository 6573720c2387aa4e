package main

import (
	"math"
	"testing"
)

func TestFairness(t *testing.T) {
	for _, c := range []struct {
		name          string
		counts        []int
		jain, starved float64
	}{
		{"all the same", []int{5, 5, 5, 5}, 1, 0},
		{"one has all", []int{8, 0, 0, 0}, 0.25, 3},
		{"under a hundredth of a share", []int{1000, 1000, 4}, 2004 * 2004 / (2_000_016.0 * 3), 1},
	} {
		jain, starved := fairness(c.counts)
		if math.Abs(jain-c.jain) > 1e-9 || starved != c.starved {
			t.Errorf("%s: %v and %v, want %v and %v", c.name, jain, starved, c.jain, c.starved)
		}
	}
	if jain, starved := fairness([]int{0, 0}); !math.IsNaN(jain) || starved != 2 {
		t.Errorf("nobody has any: %v and %v", jain, starved)
	}
}
