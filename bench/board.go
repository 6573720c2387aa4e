package main

import "sync/atomic"

// board is memory that all processes of a run share: they check one another
// without Redis.
type board struct {
	inside   atomic.Int64 // who is in the section now
	overlaps atomic.Int64 // entries that met somebody inside
	_        [48]byte     // the rest is not in that cache line

	// Of hand-offs, which are counted from 1.
	held     atomic.Int64 // the giver holds the key of this one
	waiting  atomic.Int64 // the taker asks for it
	released atomic.Int64 // when the giver began to release, in ns of monotonic
	taken    atomic.Int64 // the taker had it, and released it
}

func (b *board) reset() {
	for _, word := range []*atomic.Int64{&b.inside, &b.overlaps, &b.held, &b.waiting, &b.released, &b.taken} {
		word.Store(0)
	}
}

func (b *board) enter() {
	if b.inside.Add(1) != 1 {
		b.overlaps.Add(1)
	}
}

func (b *board) leave() { b.inside.Add(-1) }
