package delayqueue

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestFits_BoundsItemsAndBytes(t *testing.T) {
	of := fits(func(n int) int { return n })
	require.Equal(t, 1, of([]int{2 * batchBytes, 1}), "one at least")
	require.Equal(t, 2, of([]int{batchBytes / 2, batchBytes / 2, 1}))
	require.Equal(t, 3, of([]int{1, 2, 3}))
	require.Equal(t, batchItems, of(make([]int, batchItems+1)))
}

// A second batch goes beside the first one once half of so many wait for it.
func TestSettleMost_IsNoMoreThanACallTakes(t *testing.T) {
	p := &partition{}
	for concurrency, most := range map[int64]int{0: 8, 4: 8, 8: 16, 16: 32, 32: 64, 500: 64} {
		p.workers.Store(concurrency)
		require.Equal(t, most, p.settleMost(), concurrency)
	}
}
