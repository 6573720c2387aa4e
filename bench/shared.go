package main

import (
	"fmt"
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// shared is memory that all processes of a run share: they check one another without Redis.
type shared struct {
	inside   atomic.Int64 // who is in the section now
	overlaps atomic.Int64 // entries that met somebody inside
	_        [48]byte     // the rest is not in that cache line

	// Of hand-offs, which are counted from 1.
	held     atomic.Int64 // the giver holds the key of this one
	waiting  atomic.Int64 // the taker asks for it
	released atomic.Int64 // when the giver began to release, in ns of monotonic
	taken    atomic.Int64 // the taker had it, and released it
}

// sharedFD is the file in a worker process.
const sharedFD = 3

// mapShared maps a file. It stays mapped until the process ends.
func mapShared(f *os.File) (*shared, error) {
	size := int(unsafe.Sizeof(shared{}))
	if err := f.Truncate(int64(size)); err != nil {
		return nil, fmt.Errorf("share memory: %w", err)
	}
	mem, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("share memory: %w", err)
	}
	return (*shared)(unsafe.Pointer(&mem[0])), nil
}

func (s *shared) reset() {
	for _, word := range []*atomic.Int64{&s.inside, &s.overlaps, &s.held, &s.waiting, &s.released, &s.taken} {
		word.Store(0)
	}
}

func (s *shared) enter() {
	if s.inside.Add(1) != 1 {
		s.overlaps.Add(1)
	}
}

func (s *shared) leave() { s.inside.Add(-1) }
