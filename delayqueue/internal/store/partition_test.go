package store

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestFits_BoundsItemsAndBytes(t *testing.T) {
	of := fits(func(n int) int { return n })
	require.Equal(t, 1, of([]int{2 * batchBytes, 1}), "one at least")
	require.Equal(t, 2, of([]int{batchBytes / 2, batchBytes / 2, 1}))
	require.Equal(t, 3, of([]int{1, 2, 3}))
	require.Equal(t, BatchItems, of(make([]int, BatchItems+1)))
}

// A second batch goes beside the first one once half of so many wait for it.
func TestSettleMost_IsNoMoreThanACallTakes(t *testing.T) {
	for claims, most := range map[int]int{0: 8, 16: 8, 32: 16, 64: 32, 128: 64, 2000: 64} {
		p := &Partition{}
		p.Expect(claims)
		require.Equal(t, most, p.settleMost(), claims)
	}
}

func TestInline_IsShorterInAFullPartition(t *testing.T) {
	p := &Partition{}
	p.bytes.Store(fullRecords)
	require.Equal(t, MaxInline, p.Inline())
	p.bytes.Store(fullRecords + 1)
	require.Equal(t, MaxInlineFull, p.Inline())
}

func TestNoteBack_TellsOfStepsOfASecond(t *testing.T) {
	var told []time.Duration
	p := &Partition{store: New(Settings{SetBack: func(ahead time.Duration) { told = append(told, ahead) }})}
	for _, ms := range []int64{999, 3_600_000, 3_600_000, 3_600_500, 7_200_000, 0, 5000} { // 0: Redis has lost it
		p.noteBack(ms)
	}
	require.Equal(t, []time.Duration{time.Hour, 2 * time.Hour, 5 * time.Second}, told)
}

// The script looks up all ids before it stores the first, so two of one id are stored by a call each.
func TestDistinct_OneIDOnceInACall(t *testing.T) {
	batch := func(ids string) (all []*enqueueing) {
		for id := range strings.SplitSeq(ids, "") {
			all = append(all, emptyEnqueueing().(*enqueueing).of(t.Context(), Job{ID: id}, MaxInline))
		}
		return all
	}
	require.Equal(t, 3, distinct(batch("abc")))
	require.Equal(t, 2, distinct(batch("abac")))
	require.Equal(t, 1, distinct(batch("aa")))
}
