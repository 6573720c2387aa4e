package main

import "math"

// fairness is Jain's index of counts, and how many are under a hundredth of
// their share.
func fairness(counts []int) (jain, starved float64) {
	var sum, squares float64
	for _, n := range counts {
		sum += float64(n)
		squares += float64(n) * float64(n)
	}
	if sum == 0 {
		return math.NaN(), float64(len(counts))
	}
	share := sum / float64(len(counts))
	for _, n := range counts {
		if float64(n) < share/100 {
			starved++
		}
	}
	return sum * sum / squares / float64(len(counts)), starved
}
