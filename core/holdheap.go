package core

// holdHeap is a container/heap of holds, by when each is to be looked at.
type holdHeap []*hold

func (h holdHeap) Len() int           { return len(h) }
func (h holdHeap) Less(i, j int) bool { return h[i].due() < h[j].due() }
func (h holdHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = int32(i), int32(j)
}

func (h *holdHeap) Push(x any) {
	l := x.(*hold)
	l.index = int32(len(*h))
	*h = append(*h, l)
}

func (h *holdHeap) Pop() any {
	old := *h
	l := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	l.index = -1
	return l
}
