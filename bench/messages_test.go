package main

import "testing"

func TestTracker_SeesDisorder(t *testing.T) {
	for _, c := range []struct {
		name    string
		numbers []int
		broken  int64
	}{
		{"in order", []int{0, 1, keyCount, keyCount + 1}, 0},
		{"again", []int{0, 0, keyCount, keyCount}, 0},
		{"back", []int{0, keyCount, 0, keyCount}, 1},
		{"the second first", []int{keyCount, 0}, 1},
	} {
		w := newTracker(2 * keyCount)
		for _, n := range c.numbers {
			w.handle(n)
		}
		if got := w.broken.Load(); got != c.broken {
			t.Errorf("%s: %d broken, want %d", c.name, got, c.broken)
		}
	}
	w := newTracker(1)
	w.keys[0].inside.Store(1)
	w.handle(0)
	if w.broken.Load() != 1 {
		t.Error("an overlap was not seen")
	}
	select {
	case <-w.done:
	default:
		t.Error("the last message was not seen")
	}
}
