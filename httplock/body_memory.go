package httplock

import "sync/atomic"

// processBodies is what the bodies of this process take up whose requests have not got their key yet.
var processBodies atomic.Int64

// memoryShare is a request's part of processBodies. The zero memoryShare is of a replay's body, or of one
// that no guard has, and has no bound.
type memoryShare struct {
	used  int64
	bound int64 // of processBodies
}

// take makes the share size bytes, if it is less.
func (s *memoryShare) take(size int64) error {
	more := size - s.used
	if s.bound == 0 || more <= 0 {
		return nil
	}
	for {
		all := processBodies.Load()
		if all+more > s.bound {
			return errBodiesFull
		}
		if processBodies.CompareAndSwap(all, all+more) {
			s.used = size
			return nil
		}
	}
}

// free gives the share back: what the body takes up from now on is the handler's.
func (s *memoryShare) free() {
	if s.used > 0 {
		processBodies.Add(-s.used)
	}
	*s = memoryShare{}
}
