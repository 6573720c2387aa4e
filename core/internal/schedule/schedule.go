// Package schedule decides when each of many grants is to be renewed, and which are over.
//
// It has no clock, no I/O and no mutex, and knows nothing of Redis; the package core has those.
package schedule

import (
	"container/heap"
	"iter"
	"slices"
	"sync/atomic"
	"time"
)

const (
	// Horizon is the time within which what is due is renewed in one go.
	Horizon = 10 * time.Millisecond
	// Tick is how often Next is called at least while there are items, so that it
	// notices a suspended machine.
	Tick = time.Second
)

// Times are those of an item, which embeds them.
type Times struct {
	index   int32   // in the heap, from 1; 0: not in it
	renewAt Instant // zero: never
	// The deadline on both clocks, for those who ask without the mutex. Set moves them one
	// after the other: what they say is over may be renewed just then.
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

// Expired reports whether the deadline has passed on either clock. Without the mutex of the schedule it
// may say so of an item that is renewed just then, and is never false for one that is over.
func (t *Times) Expired(now Moment) bool { return t.Deadline().Passed(now) }

// RenewAt is when the item is to be renewed; zero: never.
func (t *Times) RenewAt() Instant { return t.renewAt }

// due is when Next looks at the item, by both clocks as they were when its deadline was set: Next
// tells from the wall clock that the machine was suspended.
func (t *Times) due() Moment {
	at := t.Deadline()
	if t.renewAt != 0 && t.renewAt < at.Mono {
		return at.Add(time.Duration(t.renewAt - at.Mono))
	}
	return at
}

func (t *Times) times() *Times { return t }

// A Schedule is the items of a process, by when each is to be looked at. It is not safe for
// concurrent use.
type Schedule[T interface{ times() *Times }] struct {
	items  items[T]
	wakeAt Moment // when Next is to be called; zero: not before an item is added
	wake   func(at Instant)
}

// New makes an empty Schedule. It calls wake to say when Next is to be called, instead of
// when it said before.
func New[T interface{ times() *Times }](wake func(at Instant)) *Schedule[T] {
	return &Schedule[T]{wake: wake}
}

// Len is how many items there are.
func (s *Schedule[T]) Len() int { return len(s.items) }

// All are the items. Collect them to change the schedule meanwhile.
func (s *Schedule[T]) All() iter.Seq[T] {
	return func(yield func(T) bool) {
		for _, e := range s.items {
			if !yield(e.item) {
				return
			}
		}
	}
}

// Add takes an item whose times are set.
func (s *Schedule[T]) Add(item T, now Moment) {
	heap.Push(&s.items, item)
	if s.wakeAt == (Moment{}) {
		s.wakeFirst(now)
	} else {
		s.wakeBefore(item.times().due())
	}
}

// Set changes the times of an item. The deadline is never moved to an earlier time. The item
// need not be in the schedule.
func (s *Schedule[T]) Set(item T, deadline Moment, renewAt Instant) {
	t := item.times()
	if was := t.Deadline(); deadline.Mono < was.Mono {
		deadline = was
	}
	t.Start(deadline, renewAt)
	if t.index != 0 {
		s.items.fix(t)
		s.wakeBefore(t.due())
	}
}

// Remove takes an item out, if it is in. It does not wake: at the worst Next is called in vain
// once a Tick.
func (s *Schedule[T]) Remove(item T) {
	if i := item.times().index; i != 0 {
		heap.Remove(&s.items, int(i-1))
	}
}

// Next takes out the items that have expired, returns them and those that are to be renewed now,
// and says when to call it next. An item that is to be renewed is returned again after a third of
// what remains of it, unless it is Set before.
func (s *Schedule[T]) Next(now Moment) (expired, due []T) {
	expire := func(item T) {
		s.Remove(item)
		expired = append(expired, item)
	}
	if len(s.items) > 0 && now.Wall-s.wakeAt.Wall > int64(Tick) {
		// The machine was suspended. No order by the monotonic clock tells which items
		// have expired.
		for _, e := range slices.Clone(s.items) {
			if e.item.times().Expired(now) {
				expire(e.item)
			}
		}
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
			break // its deadline is near but not there: look again at the very moment
		}
		// Past the horizon, or this loop would not end.
		t.renewAt = now.Mono + max((t.Deadline().Mono-now.Mono)/3, Instant(2*Horizon))
		due = append(due, item)
		s.items.fix(t)
	}
	s.wakeAt = Moment{}
	if len(s.items) > 0 {
		s.wakeFirst(now)
	}
	return expired, due
}

// wakeFirst has Next called for the first item, and in a Tick at the latest.
func (s *Schedule[T]) wakeFirst(now Moment) {
	at := s.items[0].item.times().due()
	if tick := now.Add(Tick); tick.Mono < at.Mono {
		at = tick
	}
	s.wakeUp(at)
}

// wakeBefore has Next called at a time, if it would be called only later.
func (s *Schedule[T]) wakeBefore(at Moment) {
	if at.Mono < s.wakeAt.Mono {
		s.wakeUp(at)
	}
}

func (s *Schedule[T]) wakeUp(at Moment) {
	s.wakeAt = at
	s.wake(at.Mono)
}

// items is a container/heap. The time is kept beside the item, so that the order is found
// without reading the items: with many of them, reading is what a heap's time goes to.
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
	*h = append(*h, entry[T]{item.times().due().Mono, item})
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

// fix puts an item where it belongs now that its times have changed.
func (h *items[T]) fix(t *Times) {
	(*h)[t.index-1].at = t.due().Mono
	heap.Fix(h, int(t.index-1))
}
