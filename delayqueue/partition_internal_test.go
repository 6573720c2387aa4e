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
