// Package schedule decides when each of many items, the grants of a process, is to be renewed, and
// which have expired: a heap by the time at which each is due.
//
// It has no clock, no I/O and no mutex, and does not know Redis; package core has those.
package schedule

import (
	"container/heap"
	"iter"
	"slices"
	"sync/atomic"
	"time"
)

const (
	// Horizon is how far ahead Next looks: items that are due within it are renewed together.
	Horizon = 10 * time.Millisecond
	// Tick is the longest time between two calls of Next while there are items, so that it finds a suspended machine out.
	Tick = time.Second
)

// Times are the deadline and the time of renewal of an item, which embeds them.
type Times struct {
	index   int32   // in the heap, from 1; 0: not in it
	renewAt Instant // zero: never
	// The deadline on both clocks, for readers without the mutex. Set changes them one
	// after the other, so an item that seems to have expired may be renewed just then.
	monotonic, wall atomic.Int64
}

// Start sets the times of an item that is in no schedule yet. A zero renewAt is never.
func (t *Times) Start(deadline Moment, renewAt Instant) {
	t.renewAt = renewAt
	t.monotonic.Store(int64(deadline.Mono))
	t.wall.Store(deadline.Wall)
}

// Deadline is until when the item can be relied on.
func (t *Times) Deadline() Moment { return Moment{Instant(t.monotonic.Load()), t.wall.Load()} }

// Expired reports whether the deadline has passed on either clock. Without the mutex of the
// schedule it can be true for an item that is renewed just then. It is never false for one that has
// expired.
func (t *Times) Expired(now Moment) bool { return t.Deadline().Passed(now) }

// RenewAt is when the item is to be renewed; zero: never.
func (t *Times) RenewAt() Instant { return t.renewAt }

// due is when Next has to look at the item.
func (t *Times) due() Instant {
	deadline := Instant(t.monotonic.Load())
	if t.renewAt != 0 {
		return min(t.renewAt, deadline)
	}
	return deadline
}

// catchUp corrects the times by how much the monotonic clock has missed since the deadline was set:
// then that is the same moment on both clocks again.
func (t *Times) catchUp(now Moment) {
	deadline := t.Deadline()
	missed := Instant(now.ahead() - deadline.ahead())
	if missed <= 0 { // the wall clock was set back
		return
	}
	deadline.Mono -= missed
	if t.renewAt != 0 {
		t.renewAt = max(t.renewAt-missed, 1)
	}
	t.Start(deadline, t.renewAt)
}

func (t *Times) times() *Times { return t }

// Schedule is the items of a process, ordered by when each is due. It is not safe for concurrent use.
type Schedule[T interface{ times() *Times }] struct {
	items  items[T]
	wakeAt Instant // when Next is to be called; zero: not before an item is added
	wake   func(at Instant)
	// By how much the wall clock was ahead of the monotonic one according to the items' deadlines, or less.
	// It gets further ahead while the machine is suspended.
	ahead time.Duration
}

// New makes an empty Schedule. It calls wake with the time at which Next is to be called; the latest call counts.
func New[T interface{ times() *Times }](wake func(at Instant)) *Schedule[T] {
	return &Schedule[T]{wake: wake}
}

// Len is how many items there are.
func (s *Schedule[T]) Len() int { return len(s.items) }

// All returns the items. Collect them to change the schedule meanwhile.
func (s *Schedule[T]) All() iter.Seq[T] {
	return func(yield func(T) bool) {
		for _, e := range s.items {
			if !yield(e.item) {
				return
			}
		}
	}
}

// Add adds an item whose times are set.
func (s *Schedule[T]) Add(item T, now Instant) {
	if ahead := item.times().Deadline().ahead(); len(s.items) == 0 || ahead < s.ahead {
		s.ahead = ahead
	}
	heap.Push(&s.items, item)
	if s.wakeAt == 0 {
		s.wakeFirst(now)
	} else {
		s.wakeBefore(item.times().due())
	}
}

// Set changes the times of an item. The deadline is never moved to an earlier time. The item need not be in the schedule.
func (s *Schedule[T]) Set(item T, deadline Moment, renewAt Instant) {
	t := item.times()
	if was := t.Deadline(); deadline.Mono < was.Mono {
		deadline = was
	}
	t.Start(deadline, renewAt)
	if t.index != 0 {
		s.ahead = min(s.ahead, deadline.ahead())
		s.items.fix(t)
		s.wakeBefore(t.due())
	}
}

// Remove removes an item, if it is in the schedule. It does not reset the timer: Next is called
// once for nothing, at most every Tick.
func (s *Schedule[T]) Remove(item T) {
	if i := item.times().index; i != 0 {
		heap.Remove(&s.items, int(i-1))
	}
}

// Next removes the items that have expired, returns them and those that are to be renewed now, and
// says when to call it next. An item that is to be renewed is returned again after a third of its
// remaining time, unless it is Set before.
func (s *Schedule[T]) Next(now Moment) (expired, due []T) {
	expire := func(item T) {
		s.Remove(item)
		expired = append(expired, item)
	}
	if now.ahead()-s.ahead > Tick { // the machine was suspended
		for _, e := range slices.Clone(s.items) {
			if t := e.item.times(); t.Expired(now) {
				expire(e.item)
			} else {
				t.catchUp(now)
				s.items.fix(t)
			}
		}
		s.ahead = now.ahead()
	}
	soon := now.Mono + Instant(Horizon)
	for len(s.items) > 0 && s.items[0].at <= soon {
		item := s.items[0].item
		t := item.times()
		if t.Expired(now) {
			expire(item)
			continue
		}
		if t.renewAt == 0 || t.renewAt > soon {
			break // its deadline is near, but not there yet: Next is called again at that moment
		}
		// Past the horizon, or this loop would not end.
		t.renewAt = now.Mono + max((t.Deadline().Mono-now.Mono)/3, Instant(2*Horizon))
		due = append(due, item)
		s.items.fix(t)
	}
	s.wakeAt = 0
	if len(s.items) > 0 {
		s.wakeFirst(now.Mono)
	}
	return expired, due
}

// wakeFirst has Next called for the first item, and within a Tick.
func (s *Schedule[T]) wakeFirst(now Instant) {
	s.wakeUp(min(s.items[0].at, now+Instant(Tick)))
}

// wakeBefore has Next called at a time, unless it will be called earlier.
func (s *Schedule[T]) wakeBefore(at Instant) {
	if at < s.wakeAt {
		s.wakeUp(at)
	}
}

func (s *Schedule[T]) wakeUp(at Instant) {
	s.wakeAt = at
	s.wake(at)
}

// items is a container/heap. The time is stored beside the item, so that the order is found without
// reading the items: with many of them, a heap's time is spent on reading.
type items[T interface{ times() *Times }] []entry[T]

type entry[T interface{ times() *Times }] struct {
	at   Instant
	item T
}

func (h items[T]) Len() int           { return len(h) }
func (h items[T]) Less(i, j int) bool { return h[i].at < h[j].at }
func (h items[T]) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].item.times().index, h[j].item.times().index = int32(i+1), int32(j+1)
}

func (h *items[T]) Push(x any) {
	item := x.(T)
	*h = append(*h, entry[T]{item.times().due(), item})
	item.times().index = int32(len(*h))
}

func (h *items[T]) Pop() any {
	old := *h
	e := old[len(old)-1]
	old[len(old)-1] = entry[T]{}
	*h = old[:len(old)-1]
	e.item.times().index = 0
	return nil
}

// fix moves an item to its place after its times have changed.
func (h *items[T]) fix(t *Times) {
	(*h)[t.index-1].at = t.due()
	heap.Fix(h, int(t.index-1))
}
