package ops

import (
	"cmp"
	"container/heap"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	sketchSize = 64
	halfLife   = time.Minute
	forgotten  = 0.01 // a weight that is less
)

// sketch finds the keys with the greatest weights among any number of them, in the memory of sketchSize:
// Space-Saving (Metwally, Agrawal & El Abbadi, Efficient Computation of Frequent and Top-k Elements in Data
// Streams, ICDT 2005), with weights that are halved each minute, so that it tells what is hot now.
//
// A key that has no counter takes over the least one, and counts on from its weight. So a weight is too great by
// the error at most, never too small, and a key with more than 1/sketchSize of the sum of all weights has a counter.
type sketch struct {
	mu     sync.Mutex
	byKey  map[string]*counter
	heap   counters
	halved time.Time // when the weights were halved last
}

type counter struct {
	key           string
	weight, error float64
	index         int
}

func (s *sketch) add(now time.Time, key string, weight float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.halve(now)
	if c := s.byKey[key]; c != nil {
		c.weight += weight
		heap.Fix(&s.heap, c.index)
		return
	}
	if s.byKey == nil {
		s.byKey = make(map[string]*counter, sketchSize)
	}
	if len(s.heap) < sketchSize {
		c := &counter{key: strings.Clone(key), weight: weight}
		s.byKey[c.key] = c
		heap.Push(&s.heap, c)
		return
	}
	c := s.heap[0]
	delete(s.byKey, c.key)
	c.key, c.error = strings.Clone(key), c.weight
	c.weight += weight
	s.byKey[c.key] = c
	heap.Fix(&s.heap, 0)
}

// halve is called with mu held.
func (s *sketch) halve(now time.Time) {
	if s.halved.IsZero() {
		s.halved = now
	}
	for ; now.Sub(s.halved) >= halfLife && len(s.heap) > 0; s.halved = s.halved.Add(halfLife) {
		for _, c := range slices.Clone(s.heap) {
			c.weight, c.error = c.weight/2, c.error/2
			if c.weight < forgotten {
				delete(s.byKey, c.key)
				heap.Remove(&s.heap, c.index)
			}
		}
		heap.Init(&s.heap)
	}
	if now.Sub(s.halved) >= halfLife {
		s.halved = now
	}
}

// top returns the keys, that with the greatest weight first.
func (s *sketch) top(now time.Time) []HotKey {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.halve(now)
	all := make([]HotKey, len(s.heap))
	for i, c := range s.heap {
		all[i] = HotKey{c.key, c.weight, c.error}
	}
	slices.SortFunc(all, compareHot)
	return all
}

func compareHot(a, b HotKey) int {
	return cmp.Or(cmp.Compare(b.Weight, a.Weight), cmp.Compare(a.Key, b.Key))
}

// counters is a container/heap: the least weight first.
type counters []*counter

func (h counters) Len() int           { return len(h) }
func (h counters) Less(i, j int) bool { return h[i].weight < h[j].weight }
func (h counters) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

func (h *counters) Push(x any) {
	c := x.(*counter)
	c.index = len(*h)
	*h = append(*h, c)
}

func (h *counters) Pop() any {
	old := *h
	c := old[len(old)-1]
	*h = old[:len(old)-1]
	return c
}
