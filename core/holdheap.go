package core

import "container/heap"

// holdHeap is a container/heap of holds, by when each is to be looked at. That time is
// kept beside the hold, so that the order is found without reading the holds: with many
// of them, reading is what a heap's time goes to.
type holdHeap []scheduled

type scheduled struct {
	at   instant
	hold *hold
}

func (h holdHeap) Len() int           { return len(h) }
func (h holdHeap) Less(i, j int) bool { return h[i].at < h[j].at }
func (h holdHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].hold.index, h[j].hold.index = int32(i), int32(j)
}

func (h *holdHeap) Push(x any) {
	l := x.(*hold)
	l.index = int32(len(*h))
	*h = append(*h, scheduled{l.due(), l})
}

func (h *holdHeap) Pop() any {
	old := *h
	l := old[len(old)-1].hold
	old[len(old)-1] = scheduled{}
	*h = old[:len(old)-1]
	l.index = -1
	return l
}

// fix puts a hold where it belongs now that its due time has changed.
func (h *holdHeap) fix(l *hold) {
	(*h)[l.index].at = l.due()
	heap.Fix(h, int(l.index))
}
