package delayqueue

import (
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestWhatComesMeanwhileGoesTogether(t *testing.T) {
	var mu sync.Mutex
	var batches [][]int
	began, goOn := make(chan struct{}, 100), make(chan struct{})
	g := group[int]{size: func(n int) int { return n }, run: func(batch []int) {
		mu.Lock()
		batches = append(batches, slices.Clone(batch))
		mu.Unlock()
		began <- struct{}{}
		if batch[0] <= groupWidth {
			<-goOn
		}
	}}
	for i := range groupWidth {
		g.add(i + 1)
		<-began
	}
	for i := range 4 {
		g.add(groupBytes/4 + i) // three of them, and the fourth
	}
	// The first are stuck, and the others do not wait for them for long.
	<-began
	<-began
	close(goOn)
	require.Eventually(t, func() bool {
		g.mu.Lock()
		defer g.mu.Unlock()
		return g.out == 0 && len(g.queue) == 0
	}, 5*time.Second, time.Millisecond)
	require.Equal(t, [][]int{{1}, {2}, {groupBytes / 4, groupBytes/4 + 1, groupBytes/4 + 2}, {groupBytes/4 + 3}}, batches)
}

func TestStuckRunsAreBounded(t *testing.T) {
	goOn := make(chan struct{})
	var ran sync.WaitGroup
	g := group[int]{size: func(int) int { return 1 }, run: func(batch []int) {
		<-goOn
		ran.Add(-len(batch))
	}}
	for i := range 300 {
		ran.Add(1)
		g.add(i)
		if i%30 == 0 {
			time.Sleep(groupPatience)
		}
	}
	g.mu.Lock()
	require.LessOrEqual(t, g.out, groupRuns)
	require.Greater(t, g.out, 1)
	g.mu.Unlock()
	close(goOn)
	ran.Wait()
}
