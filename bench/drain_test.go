package main

import "testing"

func TestTheWatchSeesDisorder(t *testing.T) {
	for _, c := range []struct {
		name    string
		numbers []int
		broken  int64
	}{
		{"in order", []int{0, 1, lines, lines + 1}, 0},
		{"again", []int{0, 0, lines, lines}, 0},
		{"back", []int{0, lines, 0, lines}, 1},
		{"the second first", []int{lines, 0}, 1},
	} {
		w := newWatch(2 * lines)
		for _, n := range c.numbers {
			w.handle(n)
		}
		if got := w.broken.Load(); got != c.broken {
			t.Errorf("%s: %d broken, want %d", c.name, got, c.broken)
		}
	}
	w := newWatch(1)
	w.lines[0].inside.Store(1)
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
